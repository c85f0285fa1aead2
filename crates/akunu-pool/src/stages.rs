//! The barrier between stages. Workers go through a submission stage by stage. Each stage has as many parts as there
//! are workers, and every part is taken exactly once: by its own worker if that worker arrives in time, otherwise by
//! any other.
//!
//! A stage ends when all of its parts are done, not when all workers have arrived. A worker that the system has
//! preempted therefore delays the others only while it holds a part.

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

use crate::cache_padded::CachePadded;

/// How long a thread waits actively before it parks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// How often the thread polls with the processor's pause instruction in between.
    pub(crate) spins: u32,
    /// How often it then polls and yields its core to other threads, before it parks.
    pub(crate) yields: u32,
}

/// A snapshot of the current stage: `number · 2 + running`.
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

#[derive(Debug)]
pub(crate) struct Stages {
    now: CachePadded<AtomicU64>,
    /// For each part, the number of the stage in which it was last taken.
    taken: Box<[CachePadded<AtomicU64>]>,
    /// The number of parts of the current stage that are done.
    done: CachePadded<AtomicUsize>,
    /// The number of threads that are parked or about to park.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Stages {
    pub(crate) fn new(parts: usize) -> Stages {
        Stages {
            now: CachePadded(AtomicU64::new(0)),
            taken: (0..parts).map(|_| CachePadded(AtomicU64::new(0))).collect(),
            done: CachePadded(AtomicUsize::new(0)),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn now(&self) -> Stage {
        Stage(self.now.0.load(Ordering::Acquire))
    }

    /// Starts the first stage of a submission. It may only be called while no stage is running. Everything that was
    /// written before the call is visible to every worker that takes a part.
    pub(crate) fn begin(&self) {
        self.publish(Stage::running(self.now().number() + 1));
    }

    /// Takes a part of this stage that is still free: the worker's own part if possible, else the next free one. A
    /// stage cannot end while one of its parts is taken and not done. A stage that has ended has no free parts, so
    /// `take` returns `None` for it; the data that it worked on may no longer exist.
    pub(crate) fn take(&self, stage: Stage, worker: usize) -> Option<usize> {
        let (before, number) = (stage.number() - 1, stage.number());
        let parts = self.taken.len();
        (worker..worker + parts).map(|part| part % parts).find(|&part| {
            let taken = &self.taken[part].0;
            taken.load(Ordering::Relaxed) == before
                && taken.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Marks a part that was taken as done. The worker that finishes the last part runs `next`, which returns whether
    /// there is another stage. `next` sees everything that was written in the parts, and whoever takes a part of the
    /// next stage sees what `next` wrote.
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
        // This is a read-modify-write operation, as is the increment of a thread that is about to park. The later one
        // of the two sees the earlier one. So either that thread sees the new stage, or it is seen here and is woken.
        if self.sleepers.fetch_add(0, Ordering::AcqRel) > 0 {
            drop(self.locked());
            self.wake.notify_all();
        }
    }

    /// Waits until the current stage is no longer `stage`.
    pub(crate) fn wait_past(&self, stage: Stage, policy: SpinPolicy) {
        for _ in 0..policy.spins {
            if self.now() != stage {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..policy.yields {
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

    /// The data of a submission: one cell for each part, which is written without any other synchronisation.
    struct Model {
        stages: Stages,
        cells: Vec<UnsafeCell<usize>>,
        /// The number of stages that are done.
        finished: AtomicUsize,
        /// The number of stages of all submissions so far.
        wanted: AtomicUsize,
        quit: AtomicBool,
    }

    impl Model {
        /// Takes and finishes a part if one is free. Each part adds one to its cell, so after stage n every cell is
        /// n.
        fn help(&self, stage: Stage, worker: usize) -> bool {
            let Some(part) = self.stages.take(stage, worker) else { return false };
            self.cells[part].with_mut(|cell| {
                // SAFETY: each part is taken once in each stage, so no other thread accesses this cell.
                unsafe { *cell += 1 }
            });
            self.stages.finish(stage, || {
                let finished = self.finished.fetch_add(1, Ordering::Relaxed) + 1;
                for cell in &self.cells {
                    // SAFETY: every part is done and none can be taken before `next` returns, so no thread writes.
                    cell.with(|cell| assert_eq!(unsafe { *cell }, finished));
                }
                finished < self.wanted.load(Ordering::Relaxed)
            });
            true
        }

        fn serve(&self, worker: usize, policy: SpinPolicy) {
            loop {
                let stage = self.stages.now();
                if self.quit.load(Ordering::Relaxed) {
                    return;
                }
                if !(stage.is_running() && self.help(stage, worker)) {
                    self.stages.wait_past(stage, policy);
                }
            }
        }
    }

    fn model(workers: usize, submissions: usize, stages: usize, policy: SpinPolicy) {
        let mut builder = loom::model::Builder::new();
        // Checking three workers with up to three preemptions would take minutes.
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
                    loom::thread::spawn(move || model.serve(worker, policy))
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
                        model.stages.wait_past(stage, policy);
                    }
                }
                // The submission is over, so the caller owns all data again.
                for cell in &model.cells {
                    // SAFETY: the submission is over, so no worker accesses a cell.
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

    const PARK: SpinPolicy = SpinPolicy { spins: 0, yields: 0 };

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
        model(2, 1, 1, SpinPolicy { spins: 0, yields: 1 });
    }

    #[test]
    fn loom_three_workers() {
        model(3, 1, 1, PARK);
    }
}
