//! A barrier that spins briefly, then parks. It is all that the pool's workers ever wait at.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// How long to wait awake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Turns of the processor's pause instruction.
    pub(crate) spins: u32,
    /// Then turns given to other threads, before the thread parks.
    pub(crate) yields: u32,
}

#[derive(Debug)]
pub(crate) struct Barrier {
    members: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// Threads that are parked, or about to be.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    pub(crate) fn new(members: usize) -> Barrier {
        Barrier {
            members,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits for all members. The last to arrive runs `leader` before any goes on; everything that a member did
    /// before is visible to the leader, and everything that the leader did to all members after.
    pub(crate) fn wait(&self, patience: Patience, leader: impl FnOnce()) {
        let generation = self.generation.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 < self.members {
            return self.wait_past(generation, patience);
        }
        leader();
        self.arrived.store(0, Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        // A read-modify-write, as the sleepers' own is: whichever of the two comes second sees the first, so either
        // the sleeper sees the new generation, or it is seen here and woken.
        if self.sleepers.fetch_add(0, Ordering::AcqRel) > 0 {
            drop(self.locked());
            self.wake.notify_all();
        }
    }

    /// Counts members that will never come as arrived, once.
    #[cfg(not(loom))]
    pub(crate) fn count_absent(&self, absent: usize) {
        self.arrived.fetch_add(absent, Ordering::AcqRel);
    }

    fn passed(&self, generation: usize) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }

    fn wait_past(&self, generation: usize, patience: Patience) {
        for _ in 0..patience.spins {
            if self.passed(generation) {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..patience.yields {
            if self.passed(generation) {
                return;
            }
            #[cfg(not(loom))]
            std::thread::yield_now();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        let mut guard = self.locked();
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        while !self.passed(generation) {
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
    use loom::sync::Arc;

    /// Every member does its part before the leader looks, and sees what the leader did, over several rounds.
    fn model(members: usize, rounds: usize, patience: Patience) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let barrier = Arc::new(Barrier::new(members));
            let parts = Arc::new(AtomicUsize::new(0));
            let published = Arc::new(AtomicUsize::new(0));
            let walk = {
                let (barrier, parts, published) = (barrier.clone(), parts.clone(), published.clone());
                move || {
                    for round in 1..=rounds {
                        parts.fetch_add(1, Ordering::Relaxed);
                        barrier.wait(patience, || {
                            assert_eq!(parts.load(Ordering::Relaxed), members * round);
                            published.store(round, Ordering::Relaxed);
                        });
                        assert_eq!(published.load(Ordering::Relaxed), round);
                        // The next leader may publish only after all have looked.
                        barrier.wait(patience, || ());
                    }
                }
            };
            let threads: Vec<_> = (1..members).map(|_| loom::thread::spawn(walk.clone())).collect();
            walk();
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_two_members_that_park_at_once() {
        model(2, 2, Patience { spins: 0, yields: 0 });
    }

    #[test]
    fn loom_two_members_that_yield_first() {
        model(2, 1, Patience { spins: 0, yields: 1 });
    }

    #[test]
    fn loom_three_members() {
        model(3, 1, Patience { spins: 0, yields: 0 });
    }
}
