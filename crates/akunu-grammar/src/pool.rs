//! A small pool of threads with a queue by rank.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// The library recurses over the rules of a grammar. Memory is taken only where the stack is used.
const STACK_BYTES: usize = 64 << 20;

/// Threads that run jobs: lower ranks first, then in order of arrival. The last idle thread takes only jobs of rank 0, so that others
/// cannot take all threads. Threads are started when they are first needed, and end when the pool is dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    name: &'static str,
    /// Whether its threads let others go first.
    gives_way: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// The number of jobs so far, for the thread that lingers.
    arrived: AtomicU64,
    lingers: AtomicBool,
}

struct State {
    waiting: BTreeMap<(u32, u64), Job>,
    arrivals: u64,
    threads: usize,
    idle: usize,
    /// Whether one of the others looks for a job instead of sleeping.
    is_lingering: bool,
    /// Maximum number of threads, without substitutes.
    most: usize,
    /// Substitutes for threads that run abandoned jobs.
    substitutes: usize,
    closed: bool,
}

/// Jobs that nobody waits for any more, and that cannot be stopped, get a substitute for their thread, up to this many.
const MAX_SUBSTITUTES: usize = 2;

/// Longer than most passes of a GPU for one row.
const LINGER: Duration = Duration::from_millis(1);

impl Pool {
    /// A pool of at most `most` threads.
    pub(crate) fn new(name: &'static str, most: usize) -> Pool {
        let waiting = BTreeMap::new();
        let state = State {
            waiting,
            arrivals: 0,
            threads: 0,
            idle: 0,
            is_lingering: false,
            most,
            substitutes: 0,
            closed: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            arrived: AtomicU64::new(0),
            lingers: AtomicBool::new(false),
        };
        Pool { shared: Arc::new(shared), name, gives_way: false }
    }

    /// Its threads let the others of the process go first.
    pub(crate) fn giving_way(mut self) -> Pool {
        self.gives_way = true;
        self
    }

    /// From now on, one thread looks for the next job for some time after its last one, since waking it takes as long as a mask.
    pub(crate) fn linger(&self) {
        self.shared.lingers.store(true, Ordering::Relaxed);
    }

    /// Queues a job; returns the key by which it can be withdrawn. An error: no thread can be started.
    pub(crate) fn submit(
        &self,
        rank: u32,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<(u32, u64), String> {
        let mut state = self.shared.lock();
        #[cfg(fuzzing)]
        if state.most == 0 {
            drop(state);
            job();
            return Ok((rank, 0));
        }
        let key = (rank, state.arrivals);
        state.arrivals += 1;
        self.shared.arrived.store(state.arrivals, Ordering::Relaxed);
        state.waiting.insert(key, Box::new(job));
        let awake = usize::from(state.is_lingering);
        if state.idle + awake < state.waiting.len() && state.threads < state.most + state.substitutes {
            match self.start_thread() {
                Ok(()) => state.threads += 1,
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    state.waiting.remove(&key);
                    return Err(error.to_string());
                }
            }
        }
        let is_taken = state.waiting.len() <= awake;
        drop(state);
        if !is_taken {
            self.shared.wake.notify_one();
        }
        Ok(key)
    }

    fn start_thread(&self) -> std::io::Result<()> {
        let (shared, gives_way) = (self.shared.clone(), self.gives_way);
        let builder = std::thread::Builder::new().name(self.name.into()).stack_size(STACK_BYTES);
        let run = move || {
            if gives_way {
                akunu_pool::give_way();
            }
            shared.run();
        };
        builder.spawn(run).map(|_| ())
    }

    /// Removes a job that has not started; false: it has.
    pub(crate) fn withdraw(&self, key: (u32, u64)) -> bool {
        self.shared.lock().waiting.remove(&key).is_some()
    }

    /// Gives a substitute to the thread of a running job that cannot be stopped, until the returned value is dropped.
    pub(crate) fn abandon(&self) -> Option<Substitute> {
        let mut state = self.shared.lock();
        if state.closed || state.substitutes >= MAX_SUBSTITUTES || self.start_thread().is_err() {
            return None;
        }
        (state.threads, state.substitutes) = (state.threads + 1, state.substitutes + 1);
        Some(Substitute(self.shared.clone()))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }
}

/// A thread in place of one that runs an abandoned job. One of the pool's threads ends when it is dropped.
pub(crate) struct Substitute(Arc<Shared>);

impl Drop for Substitute {
    fn drop(&mut self) {
        self.0.lock().substitutes -= 1;
        self.0.wake.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.waiting);
        drop(state);
        // Dropped without the lock.
        drop(jobs);
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        let mut may_linger = false;
        loop {
            if state.closed || state.threads > state.most + state.substitutes {
                state.threads -= 1;
                return;
            }
            // This thread is not among the idle ones while it looks for a job.
            let is_last = state.threads > 1 && state.idle == 0;
            let next = state.waiting.first_key_value().map(|(key, _)| *key);
            match next.filter(|(rank, _)| *rank == 0 || !is_last) {
                Some(key) => {
                    let job = state.waiting.remove(&key);
                    drop(state);
                    if let Some(job) = job {
                        // Jobs report their own panics; the thread must survive them.
                        let _ = catch_unwind(AssertUnwindSafe(job));
                    }
                    may_linger = self.lingers.load(Ordering::Relaxed);
                    state = self.lock();
                }
                None if may_linger && !state.is_lingering => {
                    state.is_lingering = true;
                    let arrivals = state.arrivals;
                    drop(state);
                    let start = Instant::now();
                    while self.arrived.load(Ordering::Relaxed) == arrivals && start.elapsed() < LINGER {
                        std::thread::yield_now();
                    }
                    state = self.lock();
                    (state.is_lingering, may_linger) = (false, false);
                }
                None => {
                    state.idle += 1;
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        }
    }
}
