//! Communication between the threads that submit requests and the engine's thread.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::commands::{Command, OnFlush, OnSlot, SlotAction, SlotCommand};
use super::forecast::Forecast;
use super::request::{Job, Refused};
use super::{OnEvent, Request, SchedulerOptions, Stats};

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
        self.submit_all(vec![(request, on_event)])
    }

    /// Submits requests of one owner and priority: all of them, or none if one would be refused. So nothing is done, and
    /// counted for the owner, that the caller does not get.
    pub fn submit_all(&self, requests: Vec<(Request, OnEvent)>) -> Result<(), Refused> {
        let submitted = Instant::now();
        let jobs: Vec<Job> =
            requests.into_iter().map(|(request, on_event)| Job { request, on_event, submitted }).collect();
        let mut state = self.0.0.lock();
        if state.closing != Closing::Never {
            return Err(Refused::Closed);
        }
        if jobs.len() > state.capacity {
            return Err(Refused::TooMany { requests: jobs.len(), limit: state.capacity });
        }
        if state.waiting + state.active + jobs.len() > state.capacity {
            return Err(Refused::QueueFull { waiting: state.waiting });
        }
        if let Some((deadline, last)) = state.deadline.zip(jobs.last()) {
            let Request { priority, owner, .. } = last.request;
            let expected = state.expected_wait(priority, owner, jobs.len());
            if expected > deadline {
                return Err(Refused::TooLate { expected, deadline });
            }
            *state.owners.entry((priority, owner)).or_default() += jobs.len();
        }
        state.waiting += jobs.len();
        state.arrived.extend(jobs);
        drop(state);
        self.0.0.wake.notify_one();
        Ok(())
    }

    /// Saves, restores or forgets the text of a slot, as soon as it has no request. Needs [`SchedulerOptions::keep_texts`].
    /// `salt` is that of the requests whose text it is. If the scheduler ends before, `on_done` is dropped.
    pub fn change_slot(
        &self,
        slot: usize,
        salt: u64,
        action: SlotAction,
        on_done: OnSlot,
    ) -> Result<(), Refused> {
        self.command(Command::Slot(SlotCommand { slot, salt, action, on_done }))
    }

    /// Forgets what is kept of requests that have ended: their blocks on the device and in the host's memory. Files on
    /// disk, and blocks of requests that run, stay. If the scheduler ends before, `on_done` is dropped.
    pub fn flush_cache(&self, on_done: OnFlush) -> Result<(), Refused> {
        self.command(Command::Flush(on_done))
    }

    fn command(&self, command: Command) -> Result<(), Refused> {
        let mut state = self.0.0.lock();
        if state.closing != Closing::Never {
            return Err(Refused::Closed);
        }
        state.commands.push(command);
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
    commands: Vec<Command>,
    /// Requests without a slot, received or not.
    waiting: usize,
    /// Requests in slots.
    active: usize,
    /// Maximum number of requests, waiting or in slots.
    capacity: usize,
    closing: Closing,
    stats: Stats,
    /// See [`SchedulerOptions::deadline`].
    deadline: Option<Duration>,
    forecast: Forecast,
    /// How many requests of each priority and owner wait, with a deadline.
    owners: HashMap<(i32, u64), usize>,
}

impl State {
    /// How long the last of `more` new requests would wait for a slot. Before it are those of lower priority values, those that
    /// its owner has already, and as many of each other owner as it will have then, because owners take turns.
    fn expected_wait(&self, priority: i32, owner: u64, more: usize) -> Duration {
        let waits_for_memory = self.waiting > 0 && self.forecast.is_full();
        if self.active + self.waiting + more <= self.stats.slots && !waits_for_memory {
            return Duration::ZERO;
        }
        let own = self.owners.get(&(priority, owner)).copied().unwrap_or(0) + more;
        let before = |((level, other), count): (&(i32, u64), &usize)| match level.cmp(&priority) {
            Ordering::Less => *count,
            Ordering::Equal if *other != owner => own.min(*count),
            _ => 0,
        };
        let before: usize = self.owners.iter().map(before).sum();
        self.forecast.until_ended(own + before).unwrap_or_default()
    }
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
    pub(super) fn new(slots: usize, options: &SchedulerOptions, stats: Stats) -> (Worker, Handle) {
        let state = State {
            arrived: Vec::new(),
            commands: Vec::new(),
            waiting: 0,
            active: 0,
            capacity: slots.saturating_add(options.queue),
            closing: Closing::Never,
            stats,
            deadline: options.deadline,
            forecast: Forecast::default(),
            owners: HashMap::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        (Worker(shared.clone()), Handle(Arc::new(SharedHandle(shared))))
    }

    pub(super) fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(self.0.clone())
    }

    /// Receives new requests and commands. Sleeps until there are any if `idle`, that is, if the scheduler has no requests.
    pub(super) fn next(&self, idle: bool, (arrived, commands): (&mut Vec<Job>, &mut Vec<Command>)) -> Work {
        let mut state = self.0.lock();
        while idle && state.arrived.is_empty() && state.commands.is_empty() && state.closing == Closing::Never
        {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        arrived.append(&mut state.arrived);
        commands.append(&mut state.commands);
        match state.closing {
            _ if idle && arrived.is_empty() && commands.is_empty() => Work::None,
            Closing::Now => Work::CancelAll,
            _ => Work::Step,
        }
    }

    /// Receives new requests and commands without waiting.
    pub(super) fn take_arrived(&self, (arrived, commands): (&mut Vec<Job>, &mut Vec<Command>)) {
        let mut state = self.0.lock();
        arrived.append(&mut state.arrived);
        commands.append(&mut state.commands);
    }

    /// Publishes statistics and the number of queued requests, which limits further submissions.
    pub(super) fn publish(&self, queue: usize, stats: Stats) {
        let mut state = self.0.lock();
        state.waiting = queue + state.arrived.len();
        state.active = stats.reading + stats.running;
        state.stats = stats;
        if state.deadline.is_some() {
            state.forecast.observe(&stats, queue > 0, Instant::now());
        }
    }

    /// A request waits no longer.
    pub(super) fn left(&self, request: &Request) {
        let key = (request.priority, request.owner);
        let mut state = self.0.lock();
        if let Some(count) = state.owners.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.owners.remove(&key);
            }
        }
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
        let mut state = self.0.lock();
        let left = (std::mem::take(&mut state.arrived), std::mem::take(&mut state.commands));
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_wait_for_as_many_requests_of_others_as_they_have_themselves() {
        let options = SchedulerOptions { deadline: Some(Duration::ZERO), ..SchedulerOptions::default() };
        let (worker, _handle) = Worker::new(1, &options, Stats::default());
        let mut state = worker.0.lock();
        state.owners = HashMap::from([((0, 1), 10), ((0, 2), 1), ((5, 4), 100)]);
        (state.active, state.waiting) = (1, 111);
        // One request ended in one second, with the only slot taken.
        let full = |ended: u64| Stats { slots: 1, running: 1, started: ended + 1, ..Stats::default() };
        let start = Instant::now();
        state.forecast.observe(&full(0), false, start);
        state.forecast.observe(&full(1), false, start + Duration::from_secs(1));
        state.stats = full(1);
        assert_eq!([1, 2, 3].map(|owner| state.expected_wait(0, owner, 1).as_secs()), [12, 4, 3]);
        // The last of three waits for the others, and owner 1 has as many before it.
        assert_eq!([2, 3].map(|owner| state.expected_wait(0, owner, 3).as_secs()), [8, 7]);
        // Requests of other priorities are all before it, or all after it.
        assert_eq!([-1, 1, 5].map(|priority| state.expected_wait(priority, 4, 1).as_secs()), [1, 12, 112]);
        // As many as there are slots do not wait.
        (state.active, state.waiting) = (0, 0);
        assert_eq!(state.expected_wait(0, 1, 1), Duration::ZERO);
        assert!(state.expected_wait(0, 1, 2) > Duration::ZERO);
    }
}
