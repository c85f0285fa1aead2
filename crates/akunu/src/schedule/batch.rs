//! The requests that have a slot, and one step of them: all go on by one submission.

use std::sync::Arc;
use std::time::Instant;

use super::Stats;
use super::active::Active;
use super::pace::Pace;
use super::slots::{Slot, WORTH, awaits_copy, place};
use crate::generation::Generation;
use crate::{Engine, Error, FinishReason, Session};

/// A prompt of which some tokens are not in its slot yet.
#[derive(Clone, Copy, Debug)]
struct PendingPrefill {
    /// In the order in which requests got slots.
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
    pub(super) stats: Stats,
    /// Tokens of requests that have ended.
    generated: u64,
    /// When a request ends, its slot forgets the tokens that have seen what was shifted out. Another request that shared them
    /// would not get what it gets alone.
    forgets_shifted: bool,
    /// Kept from step to step, so that a step allocates nothing.
    pending: Vec<PendingPrefill>,
}

impl<'a> Batch<'a> {
    /// All slots of an engine, for requests that come and go.
    pub(super) fn new(sessions: Vec<Session>, context: usize, pace: Pace) -> Batch<'a> {
        let slots: Vec<Slot<'a>> = sessions.into_iter().map(Slot::new).collect();
        let kv_capacity = slots.len() * context;
        Batch {
            stats: Stats { slots: slots.len(), kv_capacity, ..Stats::default() },
            pace,
            generated: 0,
            forgets_shifted: true,
            pending: Vec::with_capacity(slots.len()),
            slots,
        }
    }

    /// A single request in a session of its caller, whose prompt is read in passes as large as they can be.
    pub(super) fn of_one(session: &'a mut Session, active: Active<'a>) -> Batch<'a> {
        Batch {
            slots: vec![Slot::borrowed(session, active)],
            pace: Pace::unlimited(),
            stats: Stats::default(),
            generated: 0,
            forgets_shifted: false,
            pending: Vec::with_capacity(1),
        }
    }

    /// Whether no request has a slot.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.active.is_none())
    }

    /// One submission: a chain of a request that is alone, or else a pass of all.
    pub(super) fn step(&mut self, engine: &mut Engine) {
        let active = self.slots.iter().filter_map(|slot| slot.active.as_ref());
        let (mut reading, mut running) = (0, 0);
        active.for_each(|active| if active.is_running() { running += 1 } else { reading += 1 });
        match (reading, running) {
            (0, 0) => {}
            (0, 1) if self.lone().is_some_and(|(_, active)| active.chains()) => self.chain(engine),
            _ => self.pass(engine, running),
        }
    }

    /// Counts tokens and requests for `stats`.
    pub(super) fn count(&mut self) {
        let Stats { reading, running, kv_tokens, kv_kept, .. } = &mut self.stats;
        (*reading, *running, *kv_tokens, *kv_kept) = (0, 0, 0, 0);
        let mut generated = self.generated;
        for Slot { session, active, .. } in &self.slots {
            match active {
                None => *kv_kept += session.len(),
                Some(active) => {
                    *kv_tokens += session.len();
                    *(if active.is_running() { &mut *running } else { &mut *reading }) += 1;
                    generated += active.generation.output.ids().len() as u64;
                }
            }
        }
        self.stats.generated_tokens = generated;
    }

    /// Ends requests that are cancelled or whose context is full, and shifts the context where that was asked for.
    pub(super) fn make_ready(&mut self, engine: &mut Engine) {
        for index in 0..self.slots.len() {
            let Slot { session, active, .. } = &mut self.slots[index];
            let Some(active) = active else { continue };
            let ready = match active.is_running() {
                true => active.generation.make_ready(engine, session),
                false => Ok(active.generation.is_cancelled().then_some(FinishReason::Cancelled)),
            };
            self.settle(index, ready);
        }
    }

    /// The first request that has a slot.
    fn lone(&mut self) -> Option<(usize, &mut Active<'a>)> {
        self.slots.iter_mut().enumerate().find_map(|(index, slot)| Some((index, slot.active.as_mut()?)))
    }

    /// Submits a chain of the only request that has a slot.
    fn chain(&mut self, engine: &mut Engine) {
        let Some((index, _)) = self.lone() else { return };
        let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { return };
        let start = Instant::now();
        let found = active.generation.chain(engine, session);
        let now = Instant::now();
        if let Ok(steps @ 1..) = found {
            self.pace.note(1, (now - start) / steps as u32);
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

    /// Runs one pass over a row of each running request and a chunk of the prompts that are being read.
    fn pass(&mut self, engine: &mut Engine, running: usize) {
        let most = engine.plan().tables.prefill().rows - running;
        let fed = self.share(engine, most.min(self.pace.chunk(running)));
        self.gather(engine);
        let rows = engine.rows.len();
        if rows == 0 {
            // The requests whose rows these would have been have failed.
            return;
        }
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, rows);
        let start = Instant::now();
        if let Err(error) = engine.run_pass() {
            return self.fail_all(error);
        }
        let now = Instant::now();
        self.stats.prompt_tokens += fed as u64;
        self.pace.note(rows, now - start);
        self.follow(now);
        match self.find(engine) {
            Ok(picked) => self.take(engine, picked),
            Err(error) => self.fail_all(error),
        }
    }

    /// Divides the rows that are left for prompts among them, and gives how many of them are used.
    ///
    /// The oldest prompt comes first, so that none waits for ever. Half of the rows are for a prompt that is much shorter, if there
    /// is one.
    fn share(&mut self, engine: &mut Engine, room: usize) -> usize {
        self.pending.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let held = slot.active.as_ref().map_or(0, |active| slot.shared(active.prompt()));
            if let Some(active) = slot.active.as_mut().filter(|active| !active.is_running()) {
                active.share = 0;
                self.pending.push(PendingPrefill {
                    number: active.number,
                    left: active.prompt().len() - held,
                    index,
                });
            }
        }
        self.pending.sort_unstable_by_key(|reading| reading.number);
        let Some(&oldest) = self.pending.first() else { return 0 };
        let sooner = self.pending.iter().filter(|reading| 2 * reading.left <= oldest.left);
        let sooner = sooner.filter(|reading| !awaits_copy(&self.slots, reading.index));
        let mut given = 0;
        if let Some(&PendingPrefill { index, .. }) = sooner.min_by_key(|reading| reading.left) {
            given += self.give(engine, oldest.index, room / 2);
            given += self.give(engine, index, room - given);
        }
        for at in 0..self.pending.len() {
            given += self.give(engine, self.pending[at].index, room - given);
        }
        given
    }

    /// Gives a prompt up to `room` rows of this pass, and says how many it uses. A prompt that begins takes over what the cache has of
    /// it by now, including what others have read since it got its slot. It waits while another prompt is about to read more of it.
    fn give(&mut self, engine: &mut Engine, index: usize, room: usize) -> usize {
        if room == 0 || awaits_copy(&self.slots, index) {
            return 0;
        }
        let Some(mut active) = self.slots[index].active.take() else { return 0 };
        let mut placed = Ok(());
        if !active.placed {
            placed = place(engine, &mut self.slots, index, active.prompt()).map(|reused| {
                (active.placed, active.generation.reused) = (true, reused);
                self.stats.reused_tokens += reused as u64;
                self.stats.prefix_hits += u64::from(reused >= WORTH);
            });
        }
        let left = active.prompt().len().saturating_sub(self.slots[index].session.len() + active.share);
        let more = if placed.is_ok() { left.min(room) } else { 0 };
        active.share += more;
        self.slots[index].active = Some(active);
        self.settle(index, placed.map(|()| None));
        more
    }

    /// Adds the rows of the pass, in the order of the slots.
    fn gather(&mut self, engine: &mut Engine) {
        engine.begin_pass();
        for Slot { session, active, .. } in &mut self.slots {
            let Some(active) = active else { continue };
            active.asked = None;
            if active.is_running() {
                active.asked = Some(engine.asking.len());
                engine.add_rows(session, active.generation.next().as_slice(), 0);
            } else if active.share > 0 {
                let end = session.len() + active.share;
                let is_last = end == active.prompt().len();
                active.asked = is_last.then_some(engine.asking.len());
                let part = &active.generation.output.prompt()[session.len()..end];
                engine.add_rows(session, part, part.len() - usize::from(is_last));
            }
        }
    }

    /// Records in the sessions what the pass has fed.
    fn follow(&mut self, now: Instant) {
        for Slot { session, active, .. } in &mut self.slots {
            let Some(active) = active else { continue };
            if active.is_running() {
                session.tokens.extend(active.generation.next());
            } else {
                let start = session.len();
                if active.share > 0 {
                    session.tokens.extend_from_slice(&active.prompt()[start..start + active.share]);
                }
            }
            if active.asked.is_some() {
                self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
            }
        }
    }

    /// Has the device find the tokens that follow, as [`Engine::find`] does.
    fn find(&mut self, engine: &mut Engine) -> Result<bool, Error> {
        if engine.asking.is_empty() {
            return Ok(false);
        }
        let asking = |active: &&mut Active<'_>| active.asked.is_some();
        let active = self.slots.iter_mut().filter_map(|slot| slot.active.as_mut());
        let samples = active.filter(asking).any(|active| active.generation.device_may_pick());
        let active = self.slots.iter_mut().filter_map(|slot| slot.active.as_mut());
        let picking = active.filter(asking).map(|active| {
            let Generation { sampler, output, .. } = &mut active.generation;
            sampler.as_mut().map(|sampler| (sampler, output.history()))
        });
        engine.find(samples, picking)
    }

    /// Gives each request that asked for logits its token; `picked` is what [`Batch::find`] gave.
    fn take(&mut self, engine: &mut Engine, picked: bool) {
        for index in 0..self.slots.len() {
            let Some(active) = &mut self.slots[index].active else { continue };
            let Some(row) = active.asked.take() else { continue };
            let ended = if active.is_running() { None } else { active.generation.prompt_is_read() };
            let taken = match ended {
                Some(finish) => Ok(Some(finish)),
                None => active.take_next(engine, row, picked),
            };
            self.settle(index, taken);
        }
    }

    /// Ends a request if that is what its step has come to.
    pub(super) fn settle(&mut self, index: usize, result: Result<Option<FinishReason>, Error>) {
        match result {
            Ok(None) => {}
            Ok(Some(finish)) => self.end(index, Ok(finish)),
            Err(error) => self.end(index, Err(error)),
        }
    }

    pub(super) fn end(&mut self, index: usize, result: Result<FinishReason, Error>) {
        let Slot { session, active, .. } = &mut self.slots[index];
        let Some(active) = active.take() else { return };
        self.generated += active.generation.output.ids().len() as u64;
        let count = match active.end(session, result, self.forgets_shifted) {
            true => &mut self.stats.finished,
            false => &mut self.stats.failed,
        };
        *count += 1;
    }

    /// Fails all requests that were in a pass that failed. What their slots hold is not certain, so it is forgotten.
    fn fail_all(&mut self, error: Error) {
        let error = Arc::new(error);
        for index in 0..self.slots.len() {
            let was_in = |active: &Active| active.is_running() || active.share > 0;
            if self.slots[index].active.as_ref().is_some_and(was_in) {
                self.end(index, Err(Error::Shared(error.clone())));
                self.slots[index].session.clear();
            }
        }
    }
}
