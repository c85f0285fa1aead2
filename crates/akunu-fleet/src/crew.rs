//! Threads that hold a device each and do the same at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use akunu_plan::{Device, DeviceError};

/// What all ranks do: called on each one's thread, with its rank and its device.
type Work = dyn Fn(usize, &mut dyn Device) + Sync;

/// Opens the device of a rank, on the thread that will use it.
pub(crate) type Open = dyn Fn(usize) -> Result<Box<dyn Device>, DeviceError> + Send + Sync;

#[derive(Default)]
struct Round {
    number: u64,
    /// Of the round that is running.
    work: Option<*const Work>,
    /// The rank whose thread does it; `None`: all.
    only: Option<usize>,
    /// Threads that have not done it yet.
    left: usize,
    quit: bool,
}

// SAFETY: the pointer is followed only by threads that have not done the round's work yet, and [`Crew::run`], which
// borrows what it points to, waits for all of them. What it points to is `Sync`.
unsafe impl Send for Round {}

struct Shared {
    round: Mutex<Round>,
    begun: Condvar,
    done: Condvar,
}

impl Shared {
    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads of all ranks but the first, whose device the caller has.
///
/// Only one round runs at a time: whoever begins one waits for its end.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts a thread for each rank from 1 on, which opens its device, and opens that of the first rank here. The first
    /// error ends all of them.
    pub(crate) fn start(ranks: usize, open: &Arc<Open>) -> Result<(Crew, Box<dyn Device>), DeviceError> {
        let mut crew = Crew::none();
        let (opened, results) = std::sync::mpsc::channel();
        for rank in 1..ranks {
            let (shared, open, opened) = (Arc::clone(&crew.shared), Arc::clone(open), opened.clone());
            let thread = std::thread::Builder::new().name(format!("akunu-rank-{rank}"));
            let serve = move || match open(rank) {
                Ok(mut device) => {
                    // Nobody waits for it once another rank has failed.
                    let _ = opened.send(Ok(()));
                    drop(opened);
                    serve(&shared, rank, &mut *device);
                }
                Err(error) => drop(opened.send(Err(error))),
            };
            let started = thread.spawn(serve).map_err(|error| DeviceError::Failed {
                device: "ranks",
                message: format!("cannot start the thread of rank {rank}: {error}"),
            })?;
            crew.threads.push(started);
        }
        drop(opened);
        let first = open(0)?;
        for _ in 1..ranks {
            results.recv().unwrap_or_else(|_| {
                let message = "the thread of a rank ended while it opened its device".into();
                Err(DeviceError::Failed { device: "ranks", message })
            })?;
        }
        Ok((crew, first))
    }

    /// Calls `work` for every rank at the same time: for the first one here, with the device that is passed. Returns when all
    /// calls have; a panic in one of them continues here.
    pub(crate) fn run(&mut self, first: &mut dyn Device, work: &(dyn Fn(usize, &mut dyn Device) + Sync)) {
        let own = self.round(work, None, || catch_unwind(AssertUnwindSafe(|| work(0, first))));
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
    }

    /// Calls `work` with the device of a rank from 1 on. `None`: it panicked, or there is no such rank.
    pub(crate) fn run_on<T: Send>(
        &mut self,
        rank: usize,
        work: impl FnOnce(&mut dyn Device) -> T + Send,
    ) -> Option<T> {
        if rank == 0 || rank > self.threads.len() {
            return None;
        }
        let (work, done) = (Mutex::new(Some(work)), Mutex::new(None));
        let once = |_: usize, device: &mut dyn Device| {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            let value = work.map(|work| work(device));
            *done.lock().unwrap_or_else(PoisonError::into_inner) = value;
        };
        self.round(&once, Some(rank), || ());
        done.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without any thread.
    pub(crate) fn none() -> Crew {
        let shared = Shared { round: Mutex::default(), begun: Condvar::new(), done: Condvar::new() };
        Crew { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Has one thread or all of them do some work, while this one does something else that does not panic.
    fn round<T>(
        &mut self,
        work: &(dyn Fn(usize, &mut dyn Device) + Sync),
        only: Option<usize>,
        beside: impl FnOnce() -> T,
    ) -> T {
        // SAFETY: this only erases the lifetime. Threads follow the pointer until they have done the work, and this method
        // does not return before that.
        let erased = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, &mut dyn Device) + Sync + '_), *const Work>(work)
        };
        {
            let mut round = self.shared.round();
            round.number += 1;
            (round.work, round.only) = (Some(erased), only);
            round.left = if only.is_some() { 1 } else { self.threads.len() };
            self.shared.begun.notify_all();
        }
        let value = beside();
        let mut round = self.shared.round();
        while round.left > 0 {
            round = self.shared.done.wait(round).unwrap_or_else(PoisonError::into_inner);
        }
        round.work = None;
        value
    }
}

fn serve(shared: &Shared, rank: usize, device: &mut dyn Device) {
    let mut seen = 0;
    loop {
        let mut round = shared.round();
        while (round.number == seen || round.only.is_some_and(|only| only != rank)) && !round.quit {
            round = shared.begun.wait(round).unwrap_or_else(PoisonError::into_inner);
        }
        if round.quit {
            return;
        }
        seen = round.number;
        let work = round.work;
        drop(round);
        if let Some(work) = work {
            // SAFETY: this thread has not done the round's work yet, so [`Crew::run`] still borrows it.
            let work = unsafe { &*work };
            // The work itself catches panics, and says which rank had one.
            let _ = catch_unwind(AssertUnwindSafe(|| work(rank, device)));
        }
        let mut round = shared.round();
        round.left -= 1;
        if round.left == 0 {
            shared.done.notify_one();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.round().quit = true;
        self.shared.begun.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of the work are caught.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crew({} threads)", self.threads.len())
    }
}
