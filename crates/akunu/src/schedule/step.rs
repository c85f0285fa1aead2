//! A step of the scheduler: ends requests, admits waiting ones to slots, and runs one submission.

use super::Scheduler;
use super::active::Active;
use super::request::{Job, send_last_event};
use super::slots::choose;
use crate::FinishReason;

impl Scheduler {
    pub(super) fn step(&mut self) {
        self.receive();
        self.batch.make_ready(&mut self.engine);
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
                Ok(()) => self.queue.push(request.priority, request.owner, job),
                Err(error) => {
                    self.batch.stats.failed += 1;
                    job.end(Err(error));
                }
            }
        }
        for job in self.queue.extract(Job::is_cancelled) {
            self.batch.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
    }

    /// Cancels all requests, waiting or in slots.
    pub(super) fn cancel_all(&mut self) {
        self.receive();
        for job in self.queue.extract(|_| true) {
            self.batch.stats.finished += 1;
            job.end(Ok(FinishReason::Cancelled));
        }
        for index in 0..self.batch.slots.len() {
            self.batch.end(index, Ok(FinishReason::Cancelled));
        }
        self.publish();
    }

    /// Admits waiting requests to free slots.
    fn admit(&mut self) {
        while self.batch.slots.iter().any(|slot| slot.active.is_none())
            && let Some(job) = self.queue.pop()
        {
            let Some(index) = choose(&self.batch.slots, &job.request.prompt, job.request.salt) else {
                return;
            };
            let number = self.batch.stats.started + 1;
            match Active::new(&self.engine, job, number) {
                Ok(active) => {
                    self.batch.stats.started = number;
                    let slot = &mut self.batch.slots[index];
                    slot.last = number;
                    let started = slot.active.insert(active).start();
                    self.batch.settle(index, started);
                }
                Err((on_event, error)) => {
                    self.batch.stats.failed += 1;
                    send_last_event(on_event, Err(error));
                }
            }
        }
    }

    fn publish(&mut self) {
        self.batch.count();
        self.worker.publish(self.queue.len(), self.batch.stats);
    }
}
