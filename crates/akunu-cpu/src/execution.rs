//! The execution of one submission: the prepared commands, step by step, each as a stage that all workers share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use akunu_plan::{ExpertSet, Kernel, Member, ops};
use akunu_pool::{Work, WorkQueue};

use crate::command::{Command, Context, Experts};
use crate::kernels;
use crate::memory::Owned;
use crate::paging::{Pager, Places};
use crate::panel::{Scratch, Shared};
use crate::read_pattern::ReadPattern;

pub(crate) struct Execution<'a> {
    /// At least one.
    pub(crate) commands: &'a [Command],
    /// One per worker.
    pub(crate) scratch: &'a [Owned],
    /// Shared by all workers.
    pub(crate) packed: *mut u8,
    pub(crate) shared: *mut Shared,
    /// Its ranges are empty between stages.
    pub(crate) queue: &'a WorkQueue,
    pub(crate) read_pattern: ReadPattern,
    pub(crate) member: Option<&'a Member>,
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    pub(crate) steps: usize,
    pub(crate) stop: &'a [u32],
    pub(crate) cancel: Option<&'a AtomicBool>,
    pub(crate) tokens: *const u32,
    pub(crate) logit_capacity: usize,
    /// Of experts that are paged.
    pub(crate) paging: Option<(&'a Mutex<Pager>, &'a Places)>,
    pub(crate) state: State,
}

/// Written between stages, read during stages.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The index of the current command; after a panic, of the command that panicked.
    pub(crate) index: AtomicUsize,
    /// The rows of the current command are packed.
    is_packed: AtomicBool,
    /// Completed steps.
    pub(crate) steps: AtomicUsize,
    /// Bytes of the experts that rows were routed to.
    pub(crate) expert_bytes: AtomicU64,
    /// Why experts could not be read.
    pub(crate) error: Mutex<Option<String>>,
}

// SAFETY: the raw pointers are what keeps it from being `Sync`. `tokens` is read only between stages, when no kernel
// writes it; of `packed` and `shared`, concurrent parts write disjoint parts.
unsafe impl Sync for Execution<'_> {}

impl Work for Execution<'_> {
    fn run(&self, worker: usize, part: usize) {
        let index = self.state.index.load(Ordering::Relaxed);
        let command = &self.commands[index];
        let context = Context {
            part,
            parts: self.scratch.len(),
            rows: self.rows,
            logit_rows: self.logit_rows,
            step: self.state.steps.load(Ordering::Relaxed),
            scratch: self.scratch[worker].start().cast::<Scratch>(),
            packed: self.packed,
            shared: self.shared,
            queue: self.queue,
            read_pattern: self.read_pattern,
            member: self.member,
            places: match command.experts {
                Experts::Read { .. } => self.paging.map(|(_, places)| places),
                _ => None,
            },
        };
        let is_packing = command.packed.is_some() && !self.state.is_packed.load(Ordering::Relaxed);
        let run = if is_packing { kernels::matrix::pack } else { command.run };
        // SAFETY: the contract of `Run`: the command was checked when its table was prepared and the rows when they were
        // submitted; the pool separates stages by barriers, gives each part to one worker, and a worker (so also its
        // scratch) runs one part at a time.
        unsafe { run(command, &context) };
    }

    fn next(&self) -> bool {
        let index = self.state.index.load(Ordering::Relaxed);
        let command = &self.commands[index];
        if command.packed.is_some() && !self.state.is_packed.load(Ordering::Relaxed) {
            self.state.is_packed.store(true, Ordering::Relaxed);
            return true;
        }
        match self.has_stages_left(command) {
            Some(false) => {}
            left => return left.is_some(),
        }
        self.state.is_packed.store(false, Ordering::Relaxed);
        let index = index + 1;
        if index < self.commands.len() {
            self.state.index.store(index, Ordering::Relaxed);
            return self.enter(index);
        }
        let step = self.state.steps.fetch_add(1, Ordering::Relaxed);
        self.state.index.store(0, Ordering::Relaxed);
        let cancelled = self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        !(step + 1 == self.steps || cancelled || self.stopped(step)) && self.enter(0)
    }
}

impl Execution<'_> {
    fn pager(&self) -> Option<MutexGuard<'_, Pager>> {
        self.paging.map(|(pager, _)| pager.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The experts of a command that this pass needs.
    fn needed(&self, command: &Command) -> ExpertSet {
        // SAFETY: as for `Run`; this is between stages, when no kernel writes what it reads.
        unsafe { kernels::experts::needed(command, self.rows) }
    }

    /// Before the first stage of a command: waits for experts that it reads. False: they cannot be read.
    pub(crate) fn enter(&self, index: usize) -> bool {
        let command = &self.commands[index];
        let (Experts::Read { layer, part }, Some(mut pager)) = (command.experts, self.pager()) else {
            return true;
        };
        self.noted(pager.enter(layer, part, self.needed(command))).is_some()
    }

    /// After a stage of a command: whether it has more of them, for other experts; `None`: these cannot be read.
    fn has_stages_left(&self, command: &Command) -> Option<bool> {
        match command.experts {
            Experts::Nothing => Some(false),
            Experts::Chosen { bytes, layer } => {
                let needed = self.needed(command);
                self.state.expert_bytes.fetch_add(bytes * needed.len() as u64, Ordering::Relaxed);
                if let (Some(layer), Some(mut pager)) = (layer, self.pager()) {
                    pager.begin(layer, needed);
                }
                Some(false)
            }
            Experts::Read { .. } => self.pager().map_or(Some(false), |mut pager| self.noted(pager.next())),
        }
    }

    fn noted<T>(&self, result: Result<T, String>) -> Option<T> {
        result
            .inspect_err(|error| {
                let mut noted = self.state.error.lock().unwrap_or_else(PoisonError::into_inner);
                *noted = Some(error.clone());
            })
            .ok()
    }

    /// Whether a row produced a stop token, or NaN logits.
    fn stopped(&self, step: usize) -> bool {
        if self.commands.last().is_none_or(|last| last.kernel != Kernel::Argmax(ops::Argmax)) {
            return false;
        }
        (0..self.logit_rows).any(|j| {
            // SAFETY: the tokens buffer has `logit_capacity` entries for the entries before the first step and for
            // each step, and `j < logit_rows <= logit_capacity`.
            let token = unsafe { *self.tokens.add((step + 1) * self.logit_capacity + j) };
            token == u32::MAX || self.stop.contains(&token)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use akunu_plan::table::{MAX_BINDINGS, PARAM_BYTES};

    use super::*;
    use crate::command::Run;
    use crate::tile::TileKernel;
    use akunu_pool::Pool;

    fn command(run: Run, counter: &AtomicU32) -> Command {
        let mut bindings = [std::ptr::null_mut(); MAX_BINDINGS];
        bindings[0] = counter.as_ptr().cast();
        Command {
            run,
            kernel: Kernel::RopeAngles(ops::RopeAngles),
            tile: TileKernel { rows: |_| (), streams: |_| () },
            packed: None,
            bindings,
            params: [0; PARAM_BYTES],
            logit_capacity: 1,
            experts: Experts::Nothing,
        }
    }

    unsafe fn count(command: &Command, _: &Context) {
        // SAFETY: binding 0 points to the test's `AtomicU32`, which outlives the execution.
        unsafe { AtomicU32::from_ptr(command.bindings[0].cast()) }.fetch_add(1, Ordering::Relaxed);
    }

    unsafe fn panic_on_last(_: &Command, context: &Context) {
        if context.part + 1 == context.parts {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    /// (index of a command that panicked, runs of the counting command) over a few steps.
    fn execute(pool: &mut Pool, runs: &[Run]) -> (Option<usize>, u32) {
        let counter = AtomicU32::new(0);
        let commands: Vec<_> = runs.iter().map(|run| command(*run, &counter)).collect();
        let queue = WorkQueue::new(pool.workers());
        let scratch: Vec<_> = (0..pool.workers()).filter_map(|_| Owned::zeroed(64)).collect();
        let execution = Execution {
            commands: &commands,
            scratch: &scratch,
            packed: std::ptr::null_mut(),
            shared: std::ptr::null_mut(),
            queue: &queue,
            read_pattern: ReadPattern::STRIPS,
            member: None,
            rows: 1,
            logit_rows: 0,
            steps: 3,
            stop: &[],
            cancel: None,
            tokens: std::ptr::null(),
            logit_capacity: 1,
            paging: None,
            state: State::default(),
        };
        let panicked = pool.run(&execution).is_err();
        (panicked.then(|| execution.state.index.load(Ordering::Relaxed)), counter.load(Ordering::Relaxed))
    }

    #[test]
    fn a_panic_on_any_worker_ends_the_execution_and_leaves_the_pool_whole() {
        for workers in [1, 2, 4, 9] {
            let mut pool = Pool::new(workers).unwrap();
            for _ in 0..20 {
                assert_eq!(execute(&mut pool, &[count, panic_on_last, count]), (Some(1), workers as u32));
                assert_eq!(execute(&mut pool, &[count, count]), (None, 6 * workers as u32));
            }
        }
    }
}
