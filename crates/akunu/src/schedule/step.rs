//! A step of the scheduler: ends requests, admits waiting ones to slots, and runs one submission.

use super::active::{Active, COUNTED};
use super::batch::Batch;
use super::request::{Job, Request, catch_panic, send_last_event};
use super::slots::{Need, make_room};
use super::{OnCache, Scheduler};
use crate::FinishReason;

impl Scheduler {
    pub(super) fn step(&mut self) {
        self.receive();
        self.batch.make_ready(&mut self.engine);
        self.batch.grow(self.engine.context());
        self.charge();
        self.run_commands();
        self.admit();
        self.batch.step(&mut self.engine);
        self.publish();
    }

    /// Queues new requests, fails those that can never run, and removes cancelled ones.
    fn receive(&mut self) {
        for job in self.arrived.drain(..) {
            let Job { request, .. } = &job;
            let checked = self.engine.check_prompt(&request.prompt);
            match checked.and_then(|()| self.engine.check_options(&request.options)) {
                Ok(()) => {
                    let tokens = request.prompt.len() + COUNTED;
                    self.queue.push(request.priority, request.owner, tokens, job);
                }
                Err(error) => {
                    self.worker.left(request);
                    self.batch.stats.failed += 1;
                    job.end(Err(error));
                }
            }
        }
        for job in self.queue.extract(Job::is_cancelled) {
            self.worker.left(&job.request);
            self.batch.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
    }

    /// Cancels all requests, waiting or in slots.
    pub(super) fn cancel_all(&mut self) {
        self.receive();
        for job in self.queue.extract(|_| true) {
            self.worker.left(&job.request);
            self.batch.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
        for index in 0..self.batch.slots.len() {
            self.batch.end(index, Ok(FinishReason::Cancelled));
        }
        self.commands.clear();
        self.publish();
    }

    /// Admits waiting requests to free slots, in order, as long as the KV cache has the blocks that they may need, and none
    /// that runs needs them.
    fn admit(&mut self) {
        if self.batch.is_short() {
            return;
        }
        let mut first = 0;
        while let Some(Job { request, .. }) = self.queue.first()
            && let Some(free) = self.batch.slots[first..].iter().position(|slot| slot.active.is_none())
        {
            // Those before it stay taken while requests are admitted, or are free again in the next step.
            let index = first + free;
            first = index;
            let need = Need::of(&self.engine, request);
            let is_sure = need.grows() && self.batch.sure.is_none();
            let promised = if is_sure { self.engine.context() } else { need.promised(request.prompt.len()) };
            if !make_room(&mut self.batch.slots[index].session, request, need, promised) {
                return;
            }
            let Some(job) = self.queue.pop() else { return };
            self.worker.left(&job.request);
            let Request { priority, owner, .. } = job.request;
            let number = self.batch.stats.started + 1;
            match Active::new(&self.engine, job, number) {
                Ok(mut active) => {
                    self.batch.stats.started = number;
                    self.batch.sure = if is_sure { Some(index) } else { self.batch.sure };
                    active.promised = promised;
                    let slot = &mut self.batch.slots[index];
                    let started = slot.active.insert(active).start();
                    self.batch.settle(index, started);
                }
                Err((on_event, error)) => {
                    self.queue.end(priority, owner);
                    self.batch.slots[index].session.abandon();
                    self.batch.stats.failed += 1;
                    send_last_event(on_event, Err(error));
                }
            }
        }
    }

    /// Counts the tokens of answers for their owners, and what answers waited in the last step.
    pub(super) fn charge(&mut self) {
        let Batch { slots, owed, .. } = &mut self.batch;
        for active in slots.iter_mut().filter_map(|slot| slot.active.as_mut()) {
            active.waited += usize::from(active.is_waiting);
            let tokens = active.uncounted();
            if tokens > 0 {
                self.queue.charge(active.priority, active.owner, tokens);
            }
        }
        for (priority, owner, tokens) in owed.drain(..) {
            self.queue.charge(priority, owner, tokens);
            self.queue.end(priority, owner);
        }
    }

    /// Passes on what became known and unknown in the cache.
    fn report_events(&mut self) {
        let (Some(OnCache(on_events)), Some(slot)) = (&mut self.on_cache, self.batch.slots.first()) else {
            return;
        };
        let events = slot.session.pool.lock().blocks.take_events();
        if !events.is_empty() {
            // A panic of the caller's function is not one of the engine.
            let _ = catch_panic(|| {
                on_events(events);
                Ok(())
            });
        }
    }

    fn publish(&mut self) {
        self.batch.count();
        self.report_events();
        self.batch.stats.tiers = self.engine.tier_stats();
        self.batch.stats.experts = self.engine.device().expert_reads().unwrap_or_default();
        self.worker.publish(self.queue.len(), self.batch.stats);
    }
}
