//! A persistent pool: threads that are started once, enter once per submission, and walk it together.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stages::{Patience, Stage, Stages};

/// What workers do together: stages, one after the other, each in as many parts as there are workers.
pub(crate) trait Work: Sync {
    /// One part of the stage at hand, by some worker. Must not unwind.
    fn run(&self, worker: usize, part: usize);

    /// All parts of the stage are done: goes to the next one, or says that there is none.
    fn next(&self) -> bool;
}

struct Shared {
    stages: Stages,
    /// Written by the caller between submissions, when no part can be taken.
    work: UnsafeCell<Option<*const dyn Work>>,
    quit: AtomicBool,
    /// Threads that are up.
    started: AtomicUsize,
}

// SAFETY: `work` is written only by the pool's owner while no stage is running, and read only by whoever has taken a
// part; a stage does not end before its parts are done, and its beginning and end order the accesses.
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

/// How long a worker keeps its core before it offers it to others: less than the system would leave it, so that a worker which
/// shares its core is set aside between two parts, when nobody waits for it, and not in the middle of one.
const TURN: Duration = Duration::from_millis(1);
/// Looking at the clock costs half as much as handing a stage over.
const STAGES_A_LOOK: u32 = 8;

struct Turn {
    began: Instant,
    stages: u32,
}

impl Turn {
    fn new() -> Turn {
        Turn { began: Instant::now(), stages: 0 }
    }

    /// Before a part: offers the core if it was kept for long.
    fn pass(&mut self) {
        self.stages += 1;
        if self.stages < STAGES_A_LOOK {
            return;
        }
        self.stages = 0;
        if self.began.elapsed() >= TURN {
            std::thread::yield_now();
            self.began = Instant::now();
        }
    }
}

impl Pool {
    /// The caller is worker 0; the others are threads.
    pub(crate) fn new(workers: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            stages: Stages::new(workers),
            work: UnsafeCell::new(None),
            quit: AtomicBool::new(false),
            started: AtomicUsize::new(0),
        });
        // Dropped on an error, it tells those that started to quit.
        let mut pool = Pool { shared, threads: Vec::with_capacity(workers - 1), busy: busy(workers) };
        for worker in 1..workers {
            let (shared, busy) = (Arc::clone(&pool.shared), pool.busy);
            let thread = std::thread::Builder::new().name(format!("akunu-{worker}"));
            pool.threads.push(thread.spawn(move || serve(&shared, worker, busy))?);
        }
        // What a thread allocates and maps when it starts is not to fall between a stream's tokens.
        while pool.shared.started.load(Ordering::Relaxed) < pool.threads.len() {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    pub(crate) fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Takes `work`'s stages to their end.
    pub(crate) fn run(&mut self, work: &dyn Work) {
        // SAFETY: only the lifetime is forgotten; nobody looks at the work once no stage is running.
        let work = unsafe { std::mem::transmute::<*const (dyn Work + '_), *const dyn Work>(work) };
        // SAFETY: no stage is running.
        unsafe { *self.shared.work.get() = Some(work) };
        self.shared.stages.begin();
        let mut turn = Turn::new();
        loop {
            turn.pass();
            let stage = self.shared.stages.now();
            if !stage.is_running() {
                return;
            }
            if !help(&self.shared, stage, 0) {
                self.shared.stages.wait_past(stage, self.busy);
            }
        }
    }
}

fn serve(shared: &Shared, worker: usize, busy: Patience) {
    shared.started.fetch_add(1, Ordering::Relaxed);
    let mut turn = Turn::new();
    loop {
        turn.pass();
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

/// Does a part of the stage, if one is left.
fn help(shared: &Shared, stage: Stage, worker: usize) -> bool {
    let Some(part) = shared.stages.take(stage, worker) else { return false };
    // SAFETY: a part is taken, so the submission goes on and nobody writes this.
    if let Some(work) = unsafe { *shared.work.get() } {
        // SAFETY: the caller of `run` keeps the work until no stage is running.
        let work = unsafe { &*work };
        let run = || work.run(worker, part);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            // The part is lost, and with it the end of the stage: there is no way on.
            std::process::abort();
        }
        shared.stages.finish(stage, || work.next());
    }
    true
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Relaxed);
        self.shared.stages.begin();
        for thread in self.threads.drain(..) {
            // A worker cannot have panicked: that aborts.
            let _ = thread.join();
        }
    }
}
