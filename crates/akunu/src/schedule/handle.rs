//! Between the threads that submit requests and the engine's.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::request::{Job, Refused};
use super::{OnEvent, Request, Stats};

/// Submits requests to a scheduler. Clones submit to the same one, which runs until all of them are dropped.
#[derive(Clone, Debug)]
pub struct Handle(Arc<SharedHandle>);

/// What all clones of a handle share. Dropped with the last of them, it lets the scheduler end.
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
        if state.waiting + state.active >= state.room {
            return Err(Refused::QueueFull { waiting: state.waiting });
        }
        state.waiting += 1;
        state.arrived.push(job);
        drop(state);
        self.0.0.wake.notify_one();
        Ok(())
    }

    /// As of the last step.
    pub fn stats(&self) -> Stats {
        let state = self.0.0.lock();
        Stats { waiting: state.waiting, ..state.stats }
    }

    /// Takes no more requests. The scheduler finishes those that it has.
    pub fn close(&self) {
        self.0.0.change(|state| state.closing = state.closing.max(Closing::WhenDone));
    }

    /// Takes no more requests, and cancels those that are there, within one step.
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

/// What handles and the engine's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    /// Submitted since the engine's thread looked last.
    arrived: Vec<Job>,
    /// Requests without a slot: those that have arrived and those in the queue.
    waiting: usize,
    /// Requests that have a slot.
    active: usize,
    /// Requests that may wait or have a slot.
    room: usize,
    closing: Closing,
    stats: Stats,
}

/// What the engine's thread has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Step,
    CancelAll,
    /// Nothing is left, and nothing will come.
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

/// The engine's thread's side.
#[derive(Debug)]
pub(super) struct Worker(Arc<Shared>);

impl Worker {
    /// For `slots` requests, and so many more that wait.
    pub(super) fn new(slots: usize, queue: usize, stats: Stats) -> (Worker, Handle) {
        let state = State {
            arrived: Vec::new(),
            waiting: 0,
            active: 0,
            room: slots.saturating_add(queue),
            closing: Closing::Never,
            stats,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        (Worker(shared.clone()), Handle(Arc::new(SharedHandle(shared))))
    }

    pub(super) fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(self.0.clone())
    }

    /// Sleeps while there is nothing to do: `idle` says that nothing is here, and what has arrived comes to `arrived`.
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

    /// Takes what has arrived, without waiting.
    pub(super) fn take_arrived(&self, arrived: &mut Vec<Job>) {
        arrived.append(&mut self.0.lock().arrived);
    }

    /// Tells how it stands, with `queue` waiting on this side: room for newcomers follows from it.
    pub(super) fn publish(&self, queue: usize, stats: Stats) {
        let mut state = self.0.lock();
        state.waiting = queue + state.arrived.len();
        state.active = stats.reading + stats.running;
        state.stats = stats;
    }
}

/// When it is dropped, no more requests are taken.
#[derive(Debug)]
pub(super) struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.lock().closing = Closing::Now;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Dropped unlocked: a listener may do as it likes when it is dropped.
        let unheard = std::mem::take(&mut self.0.lock().arrived);
        drop(unheard);
    }
}
