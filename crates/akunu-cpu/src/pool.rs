//! A persistent pool: threads that are started once, enter once per submission, and walk it together.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::barrier::{Barrier, Patience};

/// What all workers do together; called once on each with its number. Must not unwind.
type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    barrier: Barrier,
    /// Written by the caller between submissions, when every worker waits at the barrier.
    job: UnsafeCell<Option<Job>>,
    quit: AtomicBool,
}

// SAFETY: `job` is written only by the pool's owner while all workers wait at the start barrier, and read by them
// only between that barrier and the end barrier; the barriers order the accesses.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    busy: Patience,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} workers)", self.workers())
    }
}

/// Between submissions: brief, so that an idle pool soon sleeps.
const IDLE: Patience = Patience { spins: 2000, yields: 10 };

/// Inside one. Yielding comes before parking because a worker that shares its core with another (more threads than
/// cores) hands it over at once that way, at a fraction of what sleeping and waking cost; and then spinning is waste.
fn busy(workers: usize) -> Patience {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Patience { spins: if workers > cores { 20 } else { 2000 }, yields: 50 }
}

impl Pool {
    /// The caller is worker 0; the others are threads.
    pub(crate) fn new(workers: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            barrier: Barrier::new(workers),
            job: UnsafeCell::new(None),
            quit: AtomicBool::new(false),
        });
        let mut threads = Vec::with_capacity(workers - 1);
        for worker in 1..workers {
            let theirs = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("akunu-{worker}"));
            match thread.spawn(move || serve(&theirs, worker)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that started wait for all: the missing ones are counted as there, and they all quit.
                    shared.barrier.count_absent(workers - worker);
                    drop(Pool { shared, threads, busy: busy(workers) });
                    return Err(error);
                }
            }
        }
        Ok(Pool { shared, threads, busy: busy(workers) })
    }

    pub(crate) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Where the job's workers meet, and how long they wait awake.
    pub(crate) fn barrier(&self) -> (&Barrier, Patience) {
        (&self.shared.barrier, self.busy)
    }

    /// Runs `job` on all workers and returns when all are done with it.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is forgotten; the end barrier below outlasts every use.
        let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: all workers wait at the start barrier.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.barrier.wait(IDLE, || ());
        work(&self.shared, 0);
        self.shared.barrier.wait(self.busy, || ());
    }
}

fn serve(shared: &Shared, worker: usize) {
    loop {
        shared.barrier.wait(IDLE, || ());
        if shared.quit.load(Ordering::Relaxed) {
            return;
        }
        work(shared, worker);
        shared.barrier.wait(IDLE, || ());
    }
}

fn work(shared: &Shared, worker: usize) {
    // SAFETY: between the start and end barriers the job is there and nobody writes it.
    let job = unsafe { *shared.job.get() };
    if let Some(job) = job {
        // SAFETY: the caller of `run` keeps the job alive until the end barrier.
        let job = unsafe { &*job };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(worker))).is_err() {
            // Others wait for this worker at some barrier inside the job: there is no way on.
            std::process::abort();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Relaxed);
        self.shared.barrier.wait(IDLE, || ());
        for thread in self.threads.drain(..) {
            // A worker cannot have panicked: that aborts.
            let _ = thread.join();
        }
    }
}
