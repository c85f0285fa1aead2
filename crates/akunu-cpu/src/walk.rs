//! One submission: all workers walk the prepared commands together, a barrier after each, step by step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use akunu_plan::Kernel;

use crate::barrier::Barrier;
use crate::command::{Command, Context};
use crate::memory::Owned;
use crate::panel::Scratch;

pub(crate) struct Walk<'a> {
    pub(crate) commands: &'a [Command],
    pub(crate) barrier: &'a Barrier,
    /// One of each worker's own.
    pub(crate) scratch: &'a [Owned],
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    pub(crate) steps: usize,
    pub(crate) stop: &'a [u32],
    pub(crate) cancel: Option<&'a AtomicBool>,
    pub(crate) tokens: *const u32,
    pub(crate) logit_capacity: usize,
    pub(crate) state: State,
}

/// Written by a barrier's leader alone (except `panicked`), read by all after it.
#[derive(Debug, Default)]
pub(crate) struct State {
    done: AtomicBool,
    pub(crate) steps: AtomicUsize,
    /// One more than the index of a command that panicked; 0 while none has.
    pub(crate) panicked: AtomicUsize,
}

// SAFETY: `tokens` is read by a barrier's leader, when nobody writes it.
unsafe impl Sync for Walk<'_> {}

impl Walk<'_> {
    /// What worker `worker` does.
    pub(crate) fn run(&self, worker: usize) {
        let workers = self.scratch.len();
        let scratch = self.scratch[worker].start().cast::<Scratch>();
        let (rows, logit_rows) = (self.rows, self.logit_rows);
        for step in 0..self.steps {
            let context = Context { worker, workers, rows, logit_rows, step, scratch };
            for (index, command) in self.commands.iter().enumerate() {
                let run = || {
                    // SAFETY: the command was checked when its table was prepared, the rows when they were
                    // submitted; the barrier keeps commands apart.
                    unsafe { (command.run)(command, &context) };
                };
                if catch_unwind(AssertUnwindSafe(run)).is_err() {
                    self.state.panicked.store(index + 1, Ordering::Relaxed);
                }
                self.barrier.wait(|| self.lead(step, index));
                if self.state.done.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }

    /// After command `index` of `step`, before anyone goes on.
    fn lead(&self, step: usize, index: usize) {
        if self.state.panicked.load(Ordering::Relaxed) != 0 {
            self.state.done.store(true, Ordering::Relaxed);
            return;
        }
        if index + 1 < self.commands.len() {
            return;
        }
        self.state.steps.store(step + 1, Ordering::Relaxed);
        let cancelled = self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        if step + 1 == self.steps || cancelled || self.stopped(step) {
            self.state.done.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a row found a stop id, or a NaN.
    fn stopped(&self, step: usize) -> bool {
        if self.commands.last().is_none_or(|last| last.kernel != Kernel::Argmax) {
            return false;
        }
        (0..self.logit_rows).any(|j| {
            // SAFETY: the tokens buffer has a place for every step and asking row.
            let token = unsafe { *self.tokens.add((step + 1) * self.logit_capacity + j) };
            token == u32::MAX || self.stop.contains(&token)
        })
    }
}
