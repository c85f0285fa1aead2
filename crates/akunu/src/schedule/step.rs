//! One step: who has ended leaves, who waits joins, and all go on by one submission.

use std::sync::Arc;
use std::time::Instant;

use super::active::Active;
use super::request::{Job, last_event};
use super::slots::{Slot, WORTH, awaits_copy, choose, place};
use super::{Scheduler, Stats};
use crate::generation::Generation;
use crate::{Error, FinishReason};

/// A prompt that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// In the order in which requests got slots.
    number: u64,
    /// Tokens that are not in its slot.
    left: usize,
    index: usize,
}

impl Scheduler {
    pub(super) fn step(&mut self) {
        self.receive();
        self.make_ready();
        self.admit();
        let active = self.slots.iter().filter_map(|slot| slot.active.as_ref());
        let (mut reading, mut running) = (0, 0);
        active.for_each(|active| if active.is_running() { running += 1 } else { reading += 1 });
        match (reading, running) {
            (0, 0) => {}
            (0, 1) if self.lone().is_some_and(|(_, active)| active.chains()) => self.chain(),
            _ => self.pass(running),
        }
        self.publish();
    }

    /// Newcomers: what can never run fails at once, the rest wait in the queue. Who is cancelled leaves it.
    fn receive(&mut self) {
        for job in self.arrived.drain(..) {
            let Job { request, .. } = &job;
            let checked = self.engine.check_prompt(&request.prompt);
            match checked.and_then(|()| self.engine.check_options(&request.options)) {
                Ok(()) => self.queue.push(request.priority, request.owner, job),
                Err(error) => {
                    self.stats.failed += 1;
                    job.end(Err(error));
                }
            }
        }
        for job in self.queue.extract(Job::is_cancelled) {
            self.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
    }

    /// Cancels everything.
    pub(super) fn cancel_all(&mut self) {
        self.receive();
        for job in self.queue.extract(|_| true) {
            self.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
        for index in 0..self.slots.len() {
            self.end(index, Ok(FinishReason::Cancelled));
        }
        self.publish();
    }

    /// Ends those that are cancelled or have no room, and makes room where that was asked for.
    fn make_ready(&mut self) {
        for index in 0..self.slots.len() {
            let Slot { session, active, .. } = &mut self.slots[index];
            let Some(active) = active else { continue };
            let ready = match active.is_running() {
                true => active.generation.make_ready(&mut self.engine, session),
                false => Ok(active.generation.is_cancelled().then_some(FinishReason::Cancelled)),
            };
            self.settle(index, ready);
        }
    }

    /// Gives free slots to those that wait.
    fn admit(&mut self) {
        while self.slots.iter().any(|slot| slot.active.is_none())
            && let Some(job) = self.queue.pop()
        {
            let Some(index) = choose(&self.slots, &job.request.prompt) else { return };
            let number = self.stats.started + 1;
            match Active::new(&self.engine, job, number) {
                Ok(active) => {
                    self.stats.started = number;
                    let slot = &mut self.slots[index];
                    slot.last = number;
                    let started = slot.active.insert(active).start();
                    self.settle(index, started);
                }
                Err((on_event, error)) => {
                    self.stats.failed += 1;
                    last_event(on_event, Err(error));
                }
            }
        }
    }

    /// The first request that has a slot.
    fn lone(&mut self) -> Option<(usize, &mut Active)> {
        self.slots.iter_mut().enumerate().find_map(|(index, slot)| Some((index, slot.active.as_mut()?)))
    }

    /// A chain of the only request there is.
    fn chain(&mut self) {
        let Some((index, _)) = self.lone() else { return };
        let Slot { session, active: Some(active), .. } = &mut self.slots[index] else { return };
        let start = Instant::now();
        let found = active.generation.chain(&mut self.engine, session);
        let now = Instant::now();
        if let Ok(steps @ 1..) = found {
            self.pace.note(1, (now - start) / steps as u32);
        }
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, 1);
        self.stats.longest_stall = self.stats.longest_stall.max(active.stall(now));
        let taken = match found {
            Ok(0) => Ok(Some(FinishReason::Cancelled)),
            Ok(found) => active.take_all(&self.engine.found[..found]),
            Err(error) => Err(error),
        };
        self.settle(index, taken);
    }

    /// A row of each running request and a chunk of the prompts, in one pass.
    fn pass(&mut self, running: usize) {
        let most = self.engine.plan().tables.prefill.rows - running;
        let fed = self.share(most.min(self.pace.chunk(running)));
        self.gather();
        let rows = self.engine.rows.len();
        if rows == 0 {
            // Those whose turn it was have failed.
            return;
        }
        (self.stats.steps, self.stats.rows) = (self.stats.steps + 1, rows);
        let start = Instant::now();
        if let Err(error) = self.engine.run_pass() {
            return self.fail_all(error);
        }
        let now = Instant::now();
        self.stats.prompt_tokens += fed as u64;
        self.pace.note(rows, now - start);
        self.follow(now);
        match self.find() {
            Ok(picked) => self.take(picked),
            Err(error) => self.fail_all(error),
        }
    }

    /// Deals the room for prompts out, and gives how much of it they take.
    ///
    /// The oldest comes first, so that everybody's time comes, but half of the room is for one that is read much sooner.
    fn share(&mut self, room: usize) -> usize {
        self.reading.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let held = slot.active.as_ref().map_or(0, |active| slot.shared(active.prompt()));
            if let Some(active) = slot.active.as_mut().filter(|active| !active.is_running()) {
                active.share = 0;
                self.reading.push(Reading {
                    number: active.number,
                    left: active.prompt().len() - held,
                    index,
                });
            }
        }
        self.reading.sort_unstable_by_key(|reading| reading.number);
        let Some(&oldest) = self.reading.first() else { return 0 };
        let sooner = self.reading.iter().filter(|reading| 2 * reading.left <= oldest.left);
        let sooner = sooner.filter(|reading| !awaits_copy(&self.slots, reading.index));
        let mut given = 0;
        if let Some(&Reading { index, .. }) = sooner.min_by_key(|reading| reading.left) {
            given += self.give(oldest.index, room / 2);
            given += self.give(index, room - given);
        }
        for at in 0..self.reading.len() {
            given += self.give(self.reading[at].index, room - given);
        }
        given
    }

    /// Gives a prompt so much more of the room, or as much as it needs. One that begins takes what is in the cache now, also what
    /// others have read since it got its slot; if there will be more of that, it waits.
    fn give(&mut self, index: usize, room: usize) -> usize {
        if room == 0 || awaits_copy(&self.slots, index) {
            return 0;
        }
        let Some(mut active) = self.slots[index].active.take() else { return 0 };
        let mut placed = Ok(());
        if !active.placed {
            placed = place(&mut self.engine, &mut self.slots, index, active.prompt()).map(|reused| {
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

    /// The pass's rows, in the order of the slots.
    fn gather(&mut self) {
        self.engine.begin_pass();
        for Slot { session, active, .. } in &mut self.slots {
            let Some(active) = active else { continue };
            active.asked = None;
            if active.is_running() {
                active.asked = Some(self.engine.asking.len());
                self.engine.add_rows(session, active.generation.next().as_slice(), 0);
            } else if active.share > 0 {
                let end = session.len() + active.share;
                let is_last = end == active.prompt().len();
                active.asked = is_last.then_some(self.engine.asking.len());
                let part = &active.generation.output.prompt()[session.len()..end];
                self.engine.add_rows(session, part, part.len() - usize::from(is_last));
            }
        }
    }

    /// The sessions hold what the pass has fed.
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

    /// The tokens that follow, as far as the device finds them: the best ones, or all picks (then it says true).
    fn find(&mut self) -> Result<bool, Error> {
        if self.engine.asking.is_empty() {
            return Ok(false);
        }
        let active = || self.slots.iter().filter_map(|slot| slot.active.as_ref());
        if active().any(|active| active.asked.is_some() && active.generation.device_may_pick()) {
            let active = self.slots.iter_mut().filter_map(|slot| slot.active.as_mut());
            let asking = active.filter(|active| active.asked.is_some());
            let picking = asking.map(|Active { generation: Generation { sampler, output, .. }, .. }| {
                // Of a text that is held to a form the host picks, whatever the device finds.
                let sampler = sampler.as_mut().filter(|sampler| !sampler.is_held());
                sampler.map(|sampler| (sampler, output.history()))
            });
            if self.engine.find_picks(picking)? {
                return Ok(true);
            }
        }
        self.engine.find_best()?;
        Ok(false)
    }

    /// Everybody takes its token; `picked` says that they all are there.
    fn take(&mut self, picked: bool) {
        for index in 0..self.slots.len() {
            let Some(active) = &mut self.slots[index].active else { continue };
            let Some(row) = active.asked.take() else { continue };
            let ended = if active.is_running() { None } else { active.generation.prompt_is_read() };
            let taken = match ended {
                Some(finish) => Ok(Some(finish)),
                None => active.take_next(&mut self.engine, row, picked),
            };
            self.settle(index, taken);
        }
    }

    /// What a request has come to, perhaps its end.
    fn settle(&mut self, index: usize, result: Result<Option<FinishReason>, Error>) {
        match result {
            Ok(None) => {}
            Ok(Some(finish)) => self.end(index, Ok(finish)),
            Err(error) => self.end(index, Err(error)),
        }
    }

    fn end(&mut self, index: usize, result: Result<FinishReason, Error>) {
        let Slot { session, active, .. } = &mut self.slots[index];
        let Some(active) = active.take() else { return };
        self.generated += active.generation.output.ids().len() as u64;
        let count = match active.end(session, result) {
            true => &mut self.stats.finished,
            false => &mut self.stats.failed,
        };
        *count += 1;
    }

    /// The engine has failed in a pass: so have all that were in it. What their slots hold is not to be trusted.
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

    fn publish(&mut self) {
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
        self.station.publish(self.queue.len(), self.stats);
    }
}
