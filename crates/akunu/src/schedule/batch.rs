//! The requests in slots, and the steps that process them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Stats;
use super::active::Active;
use super::commands::LastText;
use super::pace::Pace;
use super::prefixes::{Prefixes, awaited};
use super::slots::{Slot, prepare_slot};
use crate::blocks::MIN_COPY;
use crate::{Engine, Error, FinishReason, Session};

/// How long a pass is delayed by masks of grammars. A request whose mask takes longer skips the next passes.
const MASK_GRACE: Duration = Duration::from_micros(500);
/// A device gets the masks that are known after this time, or when the pass is expected to end.
const MASK_TIME: Duration = Duration::from_millis(5);
/// How long the engine waits for masks if it has nothing else to do, before it looks for new requests.
const MASK_WAIT: Duration = Duration::from_millis(2);

/// A prompt that is not completely in its slot yet.
#[derive(Clone, Copy, Debug)]
struct PendingPrefill {
    /// The request's number in the order of admission.
    number: u64,
    /// Tokens that are not in its slot.
    left: usize,
    index: usize,
}

/// The slots of an engine with their requests.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) slots: Vec<Slot<'a>>,
    pace: Pace,
    /// That of passes with logits for each row.
    pub(super) score_pace: Pace,
    pub(super) stats: Stats,
    /// Tokens of requests that have ended.
    generated: u64,
    /// Whether the slots are the scheduler's. When a request ends, others may then use its blocks, but not those of tokens that
    /// were shifted, because their keys and values differ from those of a prefill.
    owns_slots: bool,
    /// Of requests that have ended and still run for the queue: priority, owner, and the tokens that do not count yet.
    pub(super) owed: Vec<(i32, u64, usize)>,
    prefixes: Prefixes,
    /// The slot of the growing text that has a promise of a whole context.
    pub(super) sure: Option<usize>,
    /// By slot, if they are remembered.
    pub(super) texts: Vec<LastText>,
    /// Reused between steps to avoid allocations.
    pending: Vec<PendingPrefill>,
    /// Slots that have begun to process prompts whose tokens others may share.
    reading: Vec<usize>,
    /// Growing texts, by the order of admission, and their slots.
    growing: Vec<(u64, usize)>,
}

impl<'a> Batch<'a> {
    /// A batch of all slots of an engine.
    pub(super) fn new(sessions: Vec<Session>, kv_capacity: usize, pace: Pace) -> Batch<'a> {
        let slots: Vec<Slot<'a>> = sessions.into_iter().map(Slot::new).collect();
        Batch {
            stats: Stats { slots: slots.len(), kv_capacity, ..Stats::default() },
            score_pace: pace.clone(),
            pace,
            generated: 0,
            owns_slots: true,
            owed: Vec::with_capacity(slots.len()),
            prefixes: Prefixes::with_capacity(slots.len()),
            sure: None,
            texts: Vec::new(),
            pending: Vec::with_capacity(slots.len()),
            reading: Vec::with_capacity(slots.len()),
            growing: Vec::with_capacity(slots.len()),
            slots,
        }
    }

    /// A batch of a single request in a session of the caller, with passes of maximum size.
    pub(super) fn of_one(session: &'a mut Session, active: Active<'a>) -> Batch<'a> {
        Batch {
            slots: vec![Slot::borrowed(session, active)],
            pace: Pace::unlimited(),
            score_pace: Pace::unlimited(),
            stats: Stats::default(),
            generated: 0,
            owns_slots: false,
            owed: Vec::new(),
            prefixes: Prefixes::with_capacity(0),
            sure: None,
            texts: Vec::new(),
            pending: Vec::with_capacity(1),
            reading: Vec::with_capacity(1),
            growing: Vec::new(),
        }
    }

    /// Whether no request has a slot.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.active.is_none())
    }

    /// Runs one submission: a chain if there is a single request, else a pass over all that do not sit it out.
    pub(super) fn step(&mut self, engine: &mut Engine) {
        let active = self.slots.iter().filter_map(|slot| slot.active.as_ref());
        let (mut reading, mut running, mut waiting) = (0, 0, 0);
        active.for_each(|active| match (active.is_running(), active.sits_out()) {
            (false, _) => reading += 1,
            (true, false) => running += 1,
            (true, true) => waiting += 1,
        });
        if let Some(index) = self.to_score() {
            self.score(engine, index, running);
        }
        let lone = self.lone().map(|(_, active)| (active.can_chain(engine), active.generation.is_held()));
        let (can_chain, is_held) = lone.unwrap_or((false, false));
        match (reading, running, waiting) {
            (0, 0, 0) => {}
            (0, 0, _) => self.take_kept(Instant::now() + MASK_WAIT),
            (0, 1, 0) if can_chain && is_held => self.step_held(engine),
            (0, 1, 0) if can_chain => self.chain(engine),
            (0, 1, 0) if is_held => self.decode(engine),
            _ => self.pass(engine, running),
        }
    }

    /// Samples for the requests that waited for masks that are known now, or by `deadline`.
    fn take_kept(&mut self, deadline: Instant) {
        for index in 0..self.slots.len() {
            if let Some(active) = self.slots[index].active.as_mut().filter(|active| active.is_waiting) {
                let taken = active.take_kept(deadline);
                self.settle(index, taken);
            }
        }
    }

    /// Counts tokens and requests for `stats`.
    pub(super) fn count(&mut self) {
        let Stats { reading, running, paused, kv_tokens, kv_kept, kv_block, kv_known_blocks, .. } =
            &mut self.stats;
        (*reading, *running, *paused) = (0, 0, 0);
        let mut generated = self.generated;
        for active in self.slots.iter().filter_map(|slot| slot.active.as_ref()) {
            *(if active.is_running() { &mut *running } else { &mut *reading }) += 1;
            *paused += usize::from(active.is_paused);
            generated += active.generation.output.ids().len() as u64;
        }
        if let Some(slot) = self.slots.first() {
            let blocks = &slot.session.pool.lock().blocks;
            *kv_tokens = (blocks.count() - blocks.available()) * blocks.positions();
            *kv_kept = blocks.kept_tokens();
            (*kv_block, *kv_known_blocks) = (blocks.positions(), blocks.full_known());
        }
        self.stats.generated_tokens = generated;
    }

    /// Samples for requests that waited for masks that are known now. Then ends requests that are cancelled or whose context is
    /// full, or shifts their context if the options say so.
    pub(super) fn make_ready(&mut self, engine: &mut Engine) {
        self.take_kept(Instant::now());
        for index in 0..self.slots.len() {
            let Slot { session, active, .. } = &mut self.slots[index];
            let Some(active) = active else { continue };
            let ready = match active.is_running() && !active.is_waiting {
                true => active.generation.make_ready(engine, session),
                false => Ok(active.generation.is_cancelled().then_some(FinishReason::Cancelled)),
            };
            self.settle(index, ready);
        }
    }

    /// Promises blocks to texts that grow, those that were admitted first before others. One of them has a promise of a whole
    /// context, so it reaches its end. Its blocks are then enough for one more: either for any, or for one that shares some of
    /// them. The others share what remains, and pause when there is nothing.
    pub(super) fn grow(&mut self, context: usize) {
        self.growing.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            let growing = slot.active.as_ref().filter(|active| active.need.grows());
            self.growing.extend(growing.map(|active| (active.number, index)));
        }
        self.growing.sort_unstable();
        if self.sure.is_none() {
            self.sure = self.growing.iter().map(|&(_, index)| index).find(|&index| {
                let Slot { session, active: Some(active) } = &mut self.slots[index] else { return false };
                let is_sure = active.need.promise(session, context).is_ok();
                active.promised = if is_sure { context } else { active.promised };
                is_sure
            });
        }
        for &(_, index) in &self.growing {
            let Slot { session, active: Some(active) } = &mut self.slots[index] else { continue };
            if active.is_running() && session.len() >= active.promised {
                let more = active.need.promised(session.len());
                active.is_paused = self.sure.is_none() || active.need.promise(session, more).is_err();
                active.promised = if active.is_paused { active.promised } else { more };
            } else {
                active.is_paused = false;
            }
        }
    }

    /// Whether texts that grow need all blocks that there are.
    pub(super) fn is_short(&self) -> bool {
        let active = || self.slots.iter().filter_map(|slot| slot.active.as_ref());
        active().any(|active| active.is_paused || (self.sure.is_none() && active.need.grows()))
    }

    /// The first request in a slot.
    fn lone(&mut self) -> Option<(usize, &mut Active<'a>)> {
        self.slots.iter_mut().enumerate().find_map(|(index, slot)| Some((index, slot.active.as_mut()?)))
    }

    /// Submits a chain for the only request.
    fn chain(&mut self, engine: &mut Engine) {
        let Some((index, _)) = self.lone() else { return };
        let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { return };
        session.publish();
        let start = Instant::now();
        let found = active.generation.chain(engine, session);
        let now = Instant::now();
        if let Ok(steps @ 1..) = found {
            self.pace.record(1, (now - start) / steps as u32);
        }
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, 1);
        self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
        let taken = match found {
            Ok(0) => Ok(Some(FinishReason::Cancelled)),
            Ok(found) => active.take_all(&engine.found[..found]),
            Err(error) => Err(error),
        };
        self.settle(index, taken);
    }

    /// Decodes one token of the only request, in a grammar, and lets the device choose the next when its mask is known.
    fn step_held(&mut self, engine: &mut Engine) {
        let Some((index, _)) = self.lone() else { return };
        let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { return };
        let start = Instant::now();
        let taken = active.take_held(engine, session, start + MASK_WAIT);
        if !matches!(taken, Ok((false, _))) {
            let now = Instant::now();
            self.pace.record(1, now - start);
            (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, 1);
            self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
        }
        self.settle(index, taken.map(|(_, finish)| finish));
    }

    /// Decodes one token of the only request.
    fn decode(&mut self, engine: &mut Engine) {
        let Some((index, _)) = self.lone() else { return };
        let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { return };
        session.publish();
        let start = Instant::now();
        let decoded = active.generation.decode(engine, session);
        let now = Instant::now();
        self.pace.record(1, now - start);
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, 1);
        self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
        let taken = match decoded {
            Ok(true) => active.take_next(engine, 0, false, now + MASK_WAIT),
            Ok(false) => Ok(Some(FinishReason::Cancelled)),
            Err(error) => Err(error),
        };
        self.settle(index, taken);
    }

    /// Runs a pass over a row of each running request and chunks of prompts.
    fn pass(&mut self, engine: &mut Engine, running: usize) {
        let most = engine.plan().tables.prefill().rows - running;
        let fed = self.assign_rows(engine, most.min(self.pace.chunk(running)));
        self.add_rows(engine);
        let rows = engine.rows.len();
        if rows == 0 {
            // The requests have failed before the pass.
            return;
        }
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, rows);
        let start = Instant::now();
        let deadline = start + self.pace.expected(rows).min(MASK_TIME) + MASK_GRACE;
        let samples = asking(&mut self.slots).all(|active| active.generation.sampler.is_some());
        let ran = engine.start_pass(samples).and_then(|()| {
            let prepared = self.prepare_picks(engine, deadline);
            engine.finish_pass()?;
            prepared
        });
        let prepared = match ran {
            Ok(prepared) => prepared,
            Err(error) => return self.fail_all(error),
        };
        let now = Instant::now();
        self.stats.prompt_tokens += fed as u64;
        self.pace.record(rows, now - start);
        self.commit_rows(now);
        if engine.asking.is_empty() {
            return;
        }
        // Decoding a row again takes less time for a device that samples than sampling by the host.
        let deadline = if prepared { now } else { now + MASK_GRACE };
        let found = engine.find_prepared(prepared).and_then(|()| match prepared {
            true => Ok(true),
            false => {
                engine.pick_on_threads(asking(&mut self.slots).map(|active| active.generation.picking(now)))
            }
        });
        match found {
            Ok(picked) => self.take(engine, picked, deadline),
            Err(error) => self.fail_all(error),
        }
    }

    /// Divides the remaining rows among prompts, and returns the number of rows used.
    ///
    /// The oldest prompt comes first, to prevent starvation. Half of the rows are for a much shorter prompt, if there is one.
    fn assign_rows(&mut self, engine: &mut Engine, room: usize) -> usize {
        self.pending.clear();
        self.reading.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let is_read =
                |active: &Active<'_>| !active.is_running() && !active.is_scoring(slot.session.len());
            let Some(active) = slot.active.as_mut().filter(|active| is_read(active)) else { continue };
            let left = active.prompt().len() - slot.session.len();
            self.pending.push(PendingPrefill { number: active.number, left, index });
            active.share = 0;
            if active.is_prepared && active.shares() {
                self.reading.push(index);
            }
        }
        self.pending.sort_unstable_by_key(|reading| reading.number);
        let Some(&oldest) = self.pending.first() else { return 0 };
        let mut given = 0;
        if let Some(index) = self.shortest(oldest.left / 2) {
            given += self.assign_to(engine, oldest.index, room / 2);
            given += self.assign_to(engine, index, room - given);
        }
        for at in 0..self.pending.len() {
            given += self.assign_to(engine, self.pending[at].index, room - given);
        }
        given
    }

    /// The prompt with the fewest tokens left, at most `left`, of those that wait for no other one.
    fn shortest(&mut self, left: usize) -> Option<usize> {
        loop {
            let is_awaited = |index: usize| awaited(&self.slots, &self.prefixes, &[], index).is_some();
            let short = self.pending.iter().filter(|pending| pending.left <= left);
            let index = short.filter(|short| !is_awaited(short.index)).min_by_key(|short| short.left)?.index;
            if !self.awaits_prefix(index) {
                return Some(index);
            }
        }
    }

    /// Whether a prompt waits for another one, to share its prefix.
    fn awaits_prefix(&mut self, index: usize) -> bool {
        let awaited = awaited(&self.slots, &self.prefixes, &self.reading, index);
        if let Some(active) = &mut self.slots[index].active {
            active.awaited = awaited;
        }
        awaited.is_some()
    }

    /// Assigns up to `room` rows of this pass to a prompt, and returns the number used. Before its first rows, a prompt reuses the longest
    /// prefix in the cache. It waits while another prompt with a longer common prefix is being processed.
    fn assign_to(&mut self, engine: &mut Engine, index: usize, room: usize) -> usize {
        if room == 0 || self.awaits_prefix(index) {
            return 0;
        }
        let Some(mut active) = self.slots[index].active.take() else { return 0 };
        let (was_prepared, mut prepared) = (active.is_prepared, Ok(()));
        if !was_prepared {
            prepared = prepare_slot(engine, &mut self.slots, &self.prefixes, index, &active).map(|reused| {
                (active.is_prepared, active.generation.reused) = (true, reused);
                self.stats.reused_tokens += reused as u64;
                self.stats.prefix_hits += u64::from(reused >= MIN_COPY);
            });
        }
        let left = active.prompt().len().saturating_sub(self.slots[index].session.len() + active.share);
        let more = if prepared.is_ok() { left.min(room) } else { 0 };
        active.share += more;
        let is_sharing = !was_prepared && prepared.is_ok() && active.shares();
        self.slots[index].active = Some(active);
        if is_sharing {
            self.prefixes.add(&self.slots, index);
            self.reading.push(index);
        }
        self.settle(index, prepared.map(|()| None));
        more
    }

    /// Adds the rows of all slots to the pass.
    fn add_rows(&mut self, engine: &mut Engine) {
        engine.begin_pass();
        for index in 0..self.slots.len() {
            let Slot { session, active: Some(active) } = &mut self.slots[index] else { continue };
            active.logits_index = None;
            let more = if active.is_running() { 1 } else { active.share };
            if active.sits_out() || more == 0 {
                continue;
            }
            session.publish();
            if let Err(error) = engine.reserve(session, more) {
                self.end(index, Err(error));
                continue;
            }
            if active.is_running() {
                active.logits_index = Some(engine.asking.len());
                engine.add_rows(session, active.generation.next().as_slice(), 0);
            } else {
                let end = session.len() + more;
                let is_last = end == active.prompt().len();
                active.logits_index = is_last.then_some(engine.asking.len());
                let part = &active.generation.output.prompt()[session.len()..end];
                engine.add_rows(session, part, part.len() - usize::from(is_last));
            }
        }
    }

    /// Adds the processed tokens to the sessions.
    fn commit_rows(&mut self, now: Instant) {
        for Slot { session, active, .. } in &mut self.slots {
            let Some(active) = active.as_mut().filter(|active| !active.sits_out()) else { continue };
            if active.is_running() {
                session.extend(active.generation.next().as_slice());
            } else {
                let start = session.len();
                if active.share > 0 {
                    session.extend(&active.prompt()[start..start + active.share]);
                }
            }
            if active.logits_index.is_some() && !active.is_late {
                self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
            }
        }
    }

    /// Lets the device sample after the pass that it runs, with the masks that are known at `deadline`. Whether it does.
    fn prepare_picks(&mut self, engine: &mut Engine, deadline: Instant) -> Result<bool, Error> {
        let mut samples = false;
        for active in asking(&mut self.slots) {
            samples |= active.generation.sampler.is_some();
            active.generation.request_mask();
        }
        let picking = asking(&mut self.slots).map(|active| {
            active.is_late = !active.generation.can_pick(deadline);
            if active.is_late { None } else { active.generation.picking(deadline) }
        });
        if !samples || !engine.prepare_picks(picking)? {
            return Ok(false);
        }
        engine.start_picks()?;
        Ok(true)
    }

    /// Adds the sampled token to each request with logits; `picked`: the device has sampled.
    fn take(&mut self, engine: &mut Engine, picked: bool, deadline: Instant) {
        for index in 0..self.slots.len() {
            let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { continue };
            let Some(row) = active.logits_index.take() else { continue };
            let ended = if active.is_running() { None } else { active.generation.prompt_is_read() };
            let taken = match ended {
                Some(finish) => Ok(Some(finish)),
                // Its row is decoded again in the next pass, which takes less time than sampling by the host.
                None if engine.samples()
                    && engine.rewinds()
                    && (picked && active.is_late || !active.generation.can_pick(deadline)) =>
                {
                    active.waited += 1;
                    let before = session.len() - 1;
                    session.truncate(before);
                    // What that row sees was there in this pass.
                    debug_assert_eq!(session.len(), before);
                    Ok(None)
                }
                None => active.take_next(engine, row, picked && !active.is_late, deadline),
            };
            self.settle(index, taken);
        }
    }

    /// Ends a request if its step returned a reason or an error.
    pub(super) fn settle(&mut self, index: usize, result: Result<Option<FinishReason>, Error>) {
        match result {
            Ok(None) => {}
            Ok(Some(finish)) => self.end(index, Ok(finish)),
            Err(error) => self.end(index, Err(error)),
        }
    }

    pub(super) fn end(&mut self, index: usize, result: Result<FinishReason, Error>) {
        self.prefixes.remove(&self.slots, index);
        self.sure = self.sure.filter(|sure| *sure != index);
        let Slot { session, active, .. } = &mut self.slots[index];
        let Some(mut active) = active.take() else { return };
        if self.owns_slots {
            self.owed.push((active.priority, active.owner, active.uncounted()));
        }
        self.generated += active.generation.output.ids().len() as u64;
        let salt = active.salt;
        let count = match active.end(session, result, self.owns_slots) {
            true => &mut self.stats.finished,
            false => &mut self.stats.failed,
        };
        *count += 1;
        if self.owns_slots {
            if let Some(text) = self.texts.get_mut(index) {
                text.salt = salt;
                text.tokens.clear();
                text.tokens.extend_from_slice(session.exact_tokens());
            }
            session.retire(salt);
        }
    }

    /// Fails all requests of a failed pass. The content of their slots is unknown, so it is cleared.
    fn fail_all(&mut self, error: Error) {
        let error = Arc::new(error);
        for index in 0..self.slots.len() {
            let was_in = |active: &Active| active.is_running() || active.share > 0;
            if self.slots[index].active.as_ref().is_some_and(was_in) {
                self.slots[index].session.clear();
                self.end(index, Err(Error::Shared(error.clone())));
            }
        }
    }
}

/// The requests whose row of this pass has logits.
fn asking<'b, 'a>(slots: &'b mut [Slot<'a>]) -> impl Iterator<Item = &'b mut Active<'a>> {
    slots.iter_mut().filter_map(|slot| slot.active.as_mut().filter(|active| active.logits_index.is_some()))
}
