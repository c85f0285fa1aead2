//! How workers go through a list of commands together: stage by stage, each stage in as many parts as there are
//! workers, and every part taken exactly once, by its own worker if that one comes in time and by any other if not.
//!
//! A stage is over when its parts are done, not when all workers have been there: a worker that the system has set aside
//! holds nobody up unless it holds a part.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// How long to wait awake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Turns of the processor's pause instruction.
    pub(crate) spins: u32,
    /// Then turns given to other threads, before the thread parks.
    pub(crate) yields: u32,
}

/// A stage, as somebody saw it: `number · 2 + running`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage(u64);

impl Stage {
    fn running(number: u64) -> Stage {
        Stage(number << 1 | 1)
    }

    fn over(number: u64) -> Stage {
        Stage(number << 1)
    }

    fn number(self) -> u64 {
        self.0 >> 1
    }

    /// False between submissions.
    pub(crate) fn is_running(self) -> bool {
        self.0 & 1 == 1
    }
}

/// On cache lines of its own (two, since processors fetch them in pairs): who waits for one number is not to be in the
/// way of who writes another.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Alone<T>(pub(crate) T);

#[derive(Debug)]
pub(crate) struct Stages {
    now: Alone<AtomicU64>,
    /// By part: the number of the stage in which it was taken last.
    taken: Box<[Alone<AtomicU64>]>,
    /// Parts of this stage that are done.
    done: Alone<AtomicUsize>,
    /// Threads that are parked, or about to be.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Stages {
    pub(crate) fn new(parts: usize) -> Stages {
        Stages {
            now: Alone(AtomicU64::new(0)),
            taken: (0..parts).map(|_| Alone(AtomicU64::new(0))).collect(),
            done: Alone(AtomicUsize::new(0)),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn now(&self) -> Stage {
        Stage(self.now.0.load(Ordering::Acquire))
    }

    /// Starts the first stage of a submission. Only when none is running; what was written before is visible to
    /// whoever takes a part.
    pub(crate) fn begin(&self) {
        self.publish(Stage::running(self.now().number() + 1));
    }

    /// A part of this stage that nobody has taken: the worker's own, else the next one. While a part is taken and not
    /// done its stage goes on, so a stage that is long over gives none, and what it worked on may be gone.
    pub(crate) fn take(&self, stage: Stage, worker: usize) -> Option<usize> {
        let (before, number) = (stage.number() - 1, stage.number());
        let parts = self.taken.len();
        (worker..worker + parts).map(|part| part % parts).find(|&part| {
            let taken = &self.taken[part].0;
            taken.load(Ordering::Relaxed) == before
                && taken.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// A part that was taken is done. Whoever finishes the last one runs `next`, which says whether there is another
    /// stage: everything done in the parts is visible to it, and what it does to those who take the next ones.
    pub(crate) fn finish(&self, stage: Stage, next: impl FnOnce() -> bool) {
        if self.done.0.fetch_add(1, Ordering::AcqRel) + 1 < self.taken.len() {
            return;
        }
        self.done.0.store(0, Ordering::Relaxed);
        let number = stage.number();
        self.publish(if next() { Stage::running(number + 1) } else { Stage::over(number) });
    }

    fn publish(&self, stage: Stage) {
        self.now.0.store(stage.0, Ordering::Release);
        // A read-modify-write, as the sleepers' own is: whichever of the two comes second sees the first, so either
        // the sleeper sees the new stage, or it is seen here and woken.
        if self.sleepers.fetch_add(0, Ordering::AcqRel) > 0 {
            drop(self.locked());
            self.wake.notify_all();
        }
    }

    /// Waits until it is no longer `stage`.
    pub(crate) fn wait_past(&self, stage: Stage, patience: Patience) {
        for _ in 0..patience.spins {
            if self.now() != stage {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..patience.yields {
            if self.now() != stage {
                return;
            }
            #[cfg(not(loom))]
            std::thread::yield_now();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        let mut guard = self.locked();
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        while self.now() == stage {
            guard = self.parked(guard);
        }
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    #[cfg(not(loom))]
    fn locked(&self) -> std::sync::MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    fn parked<'a>(&self, guard: std::sync::MutexGuard<'a, ()>) -> std::sync::MutexGuard<'a, ()> {
        self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(loom)]
    fn locked(&self) -> loom::sync::MutexGuard<'_, ()> {
        self.lock.lock().unwrap()
    }

    #[cfg(loom)]
    fn parked<'a>(&self, guard: loom::sync::MutexGuard<'a, ()>) -> loom::sync::MutexGuard<'a, ()> {
        self.wake.wait(guard).unwrap()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    /// What a submission works on: one cell a part, written without any synchronisation of its own.
    struct Model {
        stages: Stages,
        cells: Vec<UnsafeCell<usize>>,
        /// Stages that are done.
        finished: AtomicUsize,
        /// Stages that all submissions so far come to.
        wanted: AtomicUsize,
        quit: AtomicBool,
    }

    impl Model {
        /// Takes and finishes a part if there is one. Each part adds one to its cell; after stage n all cells are n.
        fn help(&self, stage: Stage, worker: usize) -> bool {
            let Some(part) = self.stages.take(stage, worker) else { return false };
            self.cells[part].with_mut(|cell| {
                // SAFETY: a part is taken once in each stage.
                unsafe { *cell += 1 }
            });
            self.stages.finish(stage, || {
                let finished = self.finished.fetch_add(1, Ordering::Relaxed) + 1;
                for cell in &self.cells {
                    // SAFETY: every part is done, and none can be taken.
                    cell.with(|cell| assert_eq!(unsafe { *cell }, finished));
                }
                finished < self.wanted.load(Ordering::Relaxed)
            });
            true
        }

        fn serve(&self, worker: usize, patience: Patience) {
            loop {
                let stage = self.stages.now();
                if self.quit.load(Ordering::Relaxed) {
                    return;
                }
                if !(stage.is_running() && self.help(stage, worker)) {
                    self.stages.wait_past(stage, patience);
                }
            }
        }
    }

    fn model(workers: usize, submissions: usize, stages: usize, patience: Patience) {
        let mut builder = loom::model::Builder::new();
        // Three workers under three preemptions take minutes.
        builder.preemption_bound = Some(if workers > 2 { 1 } else { 3 });
        builder.check(move || {
            let model = Arc::new(Model {
                stages: Stages::new(workers),
                cells: (0..workers).map(|_| UnsafeCell::new(0)).collect(),
                finished: AtomicUsize::new(0),
                wanted: AtomicUsize::new(0),
                quit: AtomicBool::new(false),
            });
            let threads: Vec<_> = (1..workers)
                .map(|worker| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.serve(worker, patience))
                })
                .collect();
            for submission in 1..=submissions {
                model.wanted.store(submission * stages, Ordering::Relaxed);
                model.stages.begin();
                loop {
                    let stage = model.stages.now();
                    if !stage.is_running() {
                        break;
                    }
                    if !model.help(stage, 0) {
                        model.stages.wait_past(stage, patience);
                    }
                }
                // The caller owns everything again.
                for cell in &model.cells {
                    // SAFETY: the submission is over.
                    cell.with_mut(|cell| assert_eq!(unsafe { *cell }, submission * stages));
                }
            }
            model.quit.store(true, Ordering::Relaxed);
            model.stages.begin();
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    const PARK: Patience = Patience { spins: 0, yields: 0 };

    #[test]
    fn loom_two_workers_through_two_stages() {
        model(2, 1, 2, PARK);
    }

    #[test]
    fn loom_two_workers_through_two_submissions() {
        model(2, 2, 1, PARK);
    }

    #[test]
    fn loom_two_workers_that_yield_first() {
        model(2, 1, 1, Patience { spins: 0, yields: 1 });
    }

    #[test]
    fn loom_three_workers() {
        model(3, 1, 1, PARK);
    }
}
