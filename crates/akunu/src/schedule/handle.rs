//! Communication between the threads that submit requests and the engine's thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::request::{Job, Refused};
use super::{OnEvent, Request, Stats};

/// A handle for submitting requests to a scheduler, which runs until all clones are dropped.
#[derive(Clone, Debug)]
pub struct Handle(Arc<SharedHandle>);

/// Shared by all clones of a handle. Dropping the last one closes the scheduler.
#[derive(Debug)]
struct SharedHandle(Arc<Shared>);

impl Drop for SharedHandle {
    fn drop(&mut self) {
        self.0.change(|state| state.closing = state.closing.max(Closing::WhenDone));
    }
}

impl Handle {
    pub fn submit(&self, request: Request, on_event: OnEvent) -> Result<(), Refused> {
        let job = Job { request, on_event, submitted: Instant::now() };
        let mut state = self.0.0.lock();
        if state.closing != Closing::Never {
            return Err(Refused::Closed);
        }
        if state.waiting + state.active >= state.capacity {
            return Err(Refused::QueueFull { waiting: state.waiting });
        }
        state.waiting += 1;
        state.arrived.push(job);
        drop(state);
        self.0.0.wake.notify_one();
        Ok(())
    }

    /// Statistics as of the last step.
    pub fn stats(&self) -> Stats {
        let state = self.0.0.lock();
        Stats { waiting: state.waiting, ..state.stats }
    }

    /// Refuses further requests. The scheduler finishes those that it has.
    pub fn close(&self) {
        self.0.0.change(|state| state.closing = state.closing.max(Closing::WhenDone));
    }

    /// Refuses further requests, and cancels all others within one step.
    pub fn stop(&self) {
        self.0.0.change(|state| state.closing = Closing::Now);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    Never,
    WhenDone,
    Now,
}

/// The state shared by handles and the engine's thread.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    /// Submitted and not received by the engine's thread yet.
    arrived: Vec<Job>,
    /// Requests without a slot, received or not.
    waiting: usize,
    /// Requests in slots.
    active: usize,
    /// Maximum number of requests, waiting or in slots.
    capacity: usize,
    closing: Closing,
    stats: Stats,
}

/// The next task of the engine's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Step,
    CancelAll,
    /// There are no requests, and the scheduler is closed.
    None,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.wake.notify_one();
    }
}

/// The engine's side of the shared state.
#[derive(Debug)]
pub(super) struct Worker(Arc<Shared>);

impl Worker {
    /// For `slots` requests in slots and `queue` waiting ones.
    pub(super) fn new(slots: usize, queue: usize, stats: Stats) -> (Worker, Handle) {
        let state = State {
            arrived: Vec::new(),
            waiting: 0,
            active: 0,
            capacity: slots.saturating_add(queue),
            closing: Closing::Never,
            stats,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        (Worker(shared.clone()), Handle(Arc::new(SharedHandle(shared))))
    }

    pub(super) fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(self.0.clone())
    }

    /// Receives new requests into `arrived`. Sleeps until there are any if `idle`, that is, if the scheduler has none.
    pub(super) fn next(&self, idle: bool, arrived: &mut Vec<Job>) -> Work {
        let mut state = self.0.lock();
        while idle && state.arrived.is_empty() && state.closing == Closing::Never {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        arrived.append(&mut state.arrived);
        match state.closing {
            _ if idle && arrived.is_empty() => Work::None,
            Closing::Now => Work::CancelAll,
            _ => Work::Step,
        }
    }

    /// Receives new requests without waiting.
    pub(super) fn take_arrived(&self, arrived: &mut Vec<Job>) {
        arrived.append(&mut self.0.lock().arrived);
    }

    /// Publishes statistics and the number of queued requests, which limits further submissions.
    pub(super) fn publish(&self, queue: usize, stats: Stats) {
        let mut state = self.0.lock();
        state.waiting = queue + state.arrived.len();
        state.active = stats.reading + stats.running;
        state.stats = stats;
    }
}

/// Closes the scheduler when dropped.
#[derive(Debug)]
pub(super) struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.lock().closing = Closing::Now;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Dropped without the lock, because a listener's destructor may use a handle.
        let jobs = std::mem::take(&mut self.0.lock().arrived);
        drop(jobs);
    }
}
