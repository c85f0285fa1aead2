//! The pool: threads are started once, join each submission once, and go through its stages together.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stages::{SpinPolicy, Stage, Stages};

/// Work that a pool's workers do together: stages, one after the other, each with as many parts as there are workers.
pub trait Work: Sync {
    /// Runs one part of the current stage on some worker. If it panics, the submission ends with this stage.
    fn run(&self, worker: usize, part: usize);

    /// Is called once all parts of the stage are done. It moves on to the next stage, or returns false if there is
    /// none. If it panics, there is none.
    fn next(&self) -> bool;
}

/// A part of the work panicked, and the stages after it were not run. The pool can be used as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

struct Shared {
    stages: Stages,
    /// The work of the current submission. The caller writes it between submissions, when no part can be taken.
    work: UnsafeCell<Option<*const dyn Work>>,
    quit: AtomicBool,
    /// A part of the current submission panicked.
    panicked: AtomicBool,
    /// The number of threads that have started.
    started: AtomicUsize,
}

// SAFETY: only the pool's owner writes `work`, while no stage is running, and only a worker that holds a part reads
// it. A stage does not end before its parts are done, and its start and end order these accesses.
unsafe impl Send for Shared {}
// SAFETY: the accesses to `work` through shared references are ordered as said above; all other fields are `Sync`.
unsafe impl Sync for Shared {}

/// A pool of workers: the thread that calls [`Pool::run`], and threads that the pool has started.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    busy: SpinPolicy,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} workers)", self.workers())
    }
}

/// The policy between submissions. It is brief, so that the threads of an idle pool park soon.
const IDLE: SpinPolicy = SpinPolicy { spins: 2000, yields: 10 };

/// The policy inside a submission. Where there are more threads than cores, a worker that yields hands its core to
/// another one at once, at a fraction of the cost of parking and waking, while spinning only wastes the core's time.
/// So threads yield before they park, and spin little on oversubscribed cores.
fn busy(workers: usize) -> SpinPolicy {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    SpinPolicy { spins: if workers > cores { 20 } else { 2000 }, yields: 50 }
}

/// How long a worker keeps its core before it yields. This is less than the system's own time slice. A worker that
/// shares its core is therefore preempted between two parts, when no other worker waits for it, and not in the middle
/// of a part.
const TIME_SLICE: Duration = Duration::from_millis(1);
/// The clock is read once in so many stages, because reading it costs half as much as moving on to the next stage.
const STAGES_PER_CLOCK_READ: u32 = 8;

struct TimeSlice {
    began: Instant,
    stages: u32,
}

impl TimeSlice {
    fn new() -> TimeSlice {
        TimeSlice { began: Instant::now(), stages: 0 }
    }

    /// Is called before a part. Yields the core if the time slice is used up.
    fn check(&mut self) {
        self.stages += 1;
        if self.stages < STAGES_PER_CLOCK_READ {
            return;
        }
        self.stages = 0;
        if self.began.elapsed() >= TIME_SLICE {
            std::thread::yield_now();
            self.began = Instant::now();
        }
    }
}

impl Pool {
    /// A pool of `workers`, at least one. The caller of [`Pool::run`] is worker 0, and the others are threads that
    /// start now.
    pub fn new(workers: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            stages: Stages::new(workers),
            work: UnsafeCell::new(None),
            quit: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            started: AtomicUsize::new(0),
        });
        // If a thread cannot be started, dropping the pool makes those that have started quit.
        let mut pool = Pool { shared, threads: Vec::with_capacity(workers - 1), busy: busy(workers) };
        for worker in 1..workers {
            let (shared, busy) = (Arc::clone(&pool.shared), pool.busy);
            let thread = std::thread::Builder::new().name(format!("akunu-{worker}"));
            pool.threads.push(thread.spawn(move || serve(&shared, worker, busy))?);
        }
        // A thread allocates and maps memory when it starts. That should happen now and not during a submission.
        while pool.shared.started.load(Ordering::Relaxed) < pool.threads.len() {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs all stages of `work` and returns when the last one has ended.
    pub fn run(&mut self, work: &dyn Work) -> Result<(), Panicked> {
        self.shared.panicked.store(false, Ordering::Relaxed);
        // SAFETY: the transmute only erases the lifetime. No worker reads the work when no stage is running, and this
        // method returns only then.
        let work = unsafe { std::mem::transmute::<*const (dyn Work + '_), *const dyn Work>(work) };
        // SAFETY: no stage is running, so no worker reads this cell.
        unsafe { *self.shared.work.get() = Some(work) };
        self.shared.stages.begin();
        let mut slice = TimeSlice::new();
        loop {
            slice.check();
            let stage = self.shared.stages.now();
            if !stage.is_running() {
                // The end of the stage has made visible what its parts have written.
                return if self.shared.panicked.load(Ordering::Relaxed) { Err(Panicked) } else { Ok(()) };
            }
            if !help(&self.shared, stage, 0) {
                self.shared.stages.wait_past(stage, self.busy);
            }
        }
    }
}

fn serve(shared: &Shared, worker: usize, busy: SpinPolicy) {
    shared.started.fetch_add(1, Ordering::Relaxed);
    let mut slice = TimeSlice::new();
    loop {
        slice.check();
        let stage = shared.stages.now();
        if shared.quit.load(Ordering::Relaxed) {
            return;
        }
        if stage.is_running() {
            if !help(shared, stage, worker) {
                shared.stages.wait_past(stage, busy);
            }
        } else {
            shared.stages.wait_past(stage, IDLE);
        }
    }
}

/// Runs a part of the stage, if one is free. Returns whether it did.
fn help(shared: &Shared, stage: Stage, worker: usize) -> bool {
    let Some(part) = shared.stages.take(stage, worker) else { return false };
    // SAFETY: this worker holds a part, so the submission cannot end and the owner cannot write this cell.
    if let Some(work) = unsafe { *shared.work.get() } {
        // SAFETY: the caller of `run` keeps the work alive until no stage is running, and this worker's part keeps
        // the stage running.
        let run = || unsafe { &*work }.run(worker, part);
        // A part that panicked counts as done, so that the stage ends; nothing relies on its results, since there is no
        // further stage.
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        // `finish` gets a pointer and no reference: an argument that is a reference has to be valid until the call
        // returns, and the work may be gone once the last stage has ended.
        shared.stages.finish(stage, || {
            // SAFETY: as above; the stage ends after this call.
            let next = || !shared.panicked.load(Ordering::Relaxed) && unsafe { &*work }.next();
            catch_unwind(AssertUnwindSafe(next)).unwrap_or_else(|_| {
                shared.panicked.store(true, Ordering::Relaxed);
                false
            })
        });
    }
    true
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Relaxed);
        self.shared.stages.begin();
        for thread in self.threads.drain(..) {
            // No worker can have panicked, since panics of the work are caught.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often each part ran. A stage begins only when all parts of the stage before are done.
    struct Counter {
        runs: Vec<AtomicUsize>,
        stage: AtomicUsize,
        stages: usize,
    }

    impl Work for Counter {
        fn run(&self, _worker: usize, part: usize) {
            let before = self.runs[part].fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, self.stage.load(Ordering::Relaxed));
        }

        fn next(&self) -> bool {
            self.stage.fetch_add(1, Ordering::Relaxed) + 1 < self.stages
        }
    }

    #[test]
    fn every_part_of_every_stage_runs_once() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::new(workers).unwrap();
            assert_eq!(pool.workers(), workers);
            // Miri takes about a thousand times as long.
            for stages in [1, 2, if cfg!(miri) { 10 } else { 100 }] {
                let runs = (0..workers).map(|_| AtomicUsize::new(0)).collect();
                let work = Counter { runs, stage: AtomicUsize::new(0), stages };
                assert_eq!(pool.run(&work), Ok(()));
                assert!(work.runs.iter().all(|runs| runs.load(Ordering::Relaxed) == stages));
            }
        }
    }

    /// In Miri a reference that a worker still has in a call would be an error.
    #[test]
    fn work_may_be_dropped_when_it_is_done() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..200 {
            let runs = (0..2).map(|_| AtomicUsize::new(0)).collect();
            let work = Box::new(Counter { runs, stage: AtomicUsize::new(0), stages: 1 });
            assert_eq!(pool.run(&*work), Ok(()));
        }
    }

    /// Panics in one part, or when it moves on to the next stage.
    struct Panics {
        /// The part, or none.
        part: Option<usize>,
        stage: AtomicUsize,
    }

    impl Work for Panics {
        fn run(&self, _worker: usize, part: usize) {
            if self.stage.load(Ordering::Relaxed) == 1 && self.part == Some(part) {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }

        fn next(&self) -> bool {
            match self.stage.fetch_add(1, Ordering::Relaxed) {
                1 if self.part.is_none() => std::panic::resume_unwind(Box::new("on purpose")),
                stage => stage < 3,
            }
        }
    }

    #[test]
    fn a_panic_ends_the_submission_and_leaves_the_pool_whole() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::new(workers).unwrap();
            for part in (0..workers).map(Some).chain([None]).cycle().take(if cfg!(miri) { 3 } else { 50 }) {
                let work = Panics { part, stage: AtomicUsize::new(0) };
                assert_eq!(pool.run(&work), Err(Panicked));
                // The stage of the panic was the last one.
                assert_eq!(work.stage.load(Ordering::Relaxed), if part.is_some() { 1 } else { 2 });
                let runs = (0..workers).map(|_| AtomicUsize::new(0)).collect();
                let work = Counter { runs, stage: AtomicUsize::new(0), stages: 3 };
                assert_eq!(pool.run(&work), Ok(()));
                assert!(work.runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 3));
            }
        }
    }
}
