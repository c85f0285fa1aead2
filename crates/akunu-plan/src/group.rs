//! Ranks: devices that run the same tables at the same time, each on its share of the weights, and combine what they
//! have computed in the commands that ask for it.
//!
//! This is how ranks of the reference device and of the CPU meet: in the memory of one process, or through a function
//! that passes numbers between processes. GPUs meet in kernels.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How ranks in several processes exchange numbers. It is called with those of this rank, and sets those of all others.
/// An error says which rank failed and why.
pub type ExchangeParts = dyn FnMut(&[f32], &mut [Vec<f32>]) -> Result<(), String> + Send;

/// Why a device can no longer be used. Copies are about the same device, and are read without it.
#[derive(Clone, Default)]
pub struct Health(Arc<Condition>);

#[derive(Default)]
struct Condition {
    reason: OnceLock<String>,
    on_fail: Mutex<Vec<Box<OnFail>>>,
}

type OnFail = dyn FnOnce(&str) + Send;

impl Health {
    /// The first reason stays.
    pub fn fail(&self, reason: String) {
        let _ = self.0.reason.set(reason);
        self.tell();
    }

    /// `None`: the device is usable.
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.get().map(String::as_str)
    }

    /// Calls `call` with the reason when the device fails, or now if it has.
    pub fn on_fail(&self, call: Box<OnFail>) {
        self.calls().push(call);
        self.tell();
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Box<OnFail>>> {
        self.0.on_fail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        if let Some(reason) = self.reason() {
            let calls = std::mem::take(&mut *self.calls());
            calls.into_iter().for_each(|call| call(reason));
        }
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Health").field(&self.reason()).finish()
    }
}

/// The ranks of one model.
pub struct Group {
    /// How many threads meet: all workers of all ranks in this process.
    threads: usize,
    meeting: Mutex<Meeting>,
    over: Condvar,
    broken: AtomicBool,
    health: Health,
    /// What each rank contributes to the command that is running.
    parts: Vec<AtomicPtr<u8>>,
    /// The same, of ranks that exchange copies.
    copies: Mutex<Vec<Vec<f32>>>,
    /// If each rank has a process of its own.
    remote: Option<Mutex<Remote>>,
    /// Called when the group is broken.
    on_break: Mutex<Vec<Box<OnBreak>>>,
}

type OnBreak = dyn FnOnce() + Send;

struct Remote {
    exchange: Box<ExchangeParts>,
    /// What the other ranks have sent last.
    received: Vec<Vec<f32>>,
}

#[derive(Debug, Default)]
struct Meeting {
    arrived: usize,
    number: u64,
}

/// The place of a device in a group.
#[derive(Clone, Debug)]
pub struct Member {
    rank: usize,
    group: Arc<Group>,
}

/// A rank of the group has failed, so nobody waits for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Group {
    /// The members of a group of `ranks`, each of which meets the others with so many threads.
    pub fn members(ranks: usize, threads: usize) -> Vec<Member> {
        Group::of(ranks, ranks * threads, None)
    }

    /// The members of a group of `ranks` in as many processes. A process has the device of one of them, which exchanges
    /// numbers with the others by `exchange`, and works on a command with so many threads.
    pub fn remote(ranks: usize, threads: usize, exchange: Box<ExchangeParts>) -> Vec<Member> {
        Group::of(ranks, threads, Some(Mutex::new(Remote { exchange, received: vec![Vec::new(); ranks] })))
    }

    fn of(ranks: usize, threads: usize, remote: Option<Mutex<Remote>>) -> Vec<Member> {
        let group = Arc::new(Group {
            threads,
            meeting: Mutex::default(),
            over: Condvar::new(),
            broken: AtomicBool::new(false),
            health: Health::default(),
            parts: (0..ranks).map(|_| AtomicPtr::default()).collect(),
            copies: Mutex::new(vec![Vec::new(); ranks]),
            remote,
            on_break: Mutex::default(),
        });
        (0..ranks).map(|rank| Member { rank, group: Arc::clone(&group) }).collect()
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.group.parts.len()
    }

    /// Whether the other ranks are in other processes.
    pub fn is_remote(&self) -> bool {
        self.group.remote.is_some()
    }

    /// Waits until all threads of all ranks in this process have called this. What they wrote before is then visible to
    /// all of them.
    pub fn meet(&self) -> Result<(), Broken> {
        let group = &*self.group;
        let mut meeting = group.meeting();
        if self.is_broken() {
            return Err(Broken);
        }
        meeting.arrived += 1;
        if meeting.arrived == group.threads {
            *meeting = Meeting { arrived: 0, number: meeting.number + 1 };
            group.over.notify_all();
            return Ok(());
        }
        let number = meeting.number;
        while meeting.number == number {
            if self.is_broken() {
                return Err(Broken);
            }
            meeting = group.over.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Ends all meetings, now and later: a rank has failed.
    pub fn break_up(&self) {
        {
            let _meeting = self.group.meeting();
            self.group.broken.store(true, Ordering::Relaxed);
            self.group.over.notify_all();
        }
        let calls = std::mem::take(&mut *self.on_break_calls());
        calls.into_iter().for_each(|call| call());
    }

    /// The same, if it is known why.
    pub fn fail(&self, reason: String) {
        self.group.health.fail(reason);
        self.break_up();
    }

    /// Calls `call` when the group is broken, or now if it is.
    pub fn on_break(&self, call: Box<dyn FnOnce() + Send>) {
        self.on_break_calls().push(call);
        if self.is_broken() {
            self.break_up();
        }
    }

    fn on_break_calls(&self) -> MutexGuard<'_, Vec<Box<OnBreak>>> {
        self.group.on_break.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the group is broken, as far as it is known.
    pub fn health(&self) -> &Health {
        &self.group.health
    }

    pub fn is_broken(&self) -> bool {
        self.group.broken.load(Ordering::Relaxed)
    }

    /// Says where this rank's part is. The others find it after the next meeting.
    pub fn publish(&self, part: *mut u8) {
        self.group.parts[self.rank].store(part, Ordering::Relaxed);
    }

    /// The parts of all ranks, in their order, as published before the last meeting.
    pub fn parts(&self) -> impl Iterator<Item = *mut u8> {
        self.group.parts.iter().map(|part| part.load(Ordering::Relaxed))
    }

    /// Sends this rank's part to the other processes, and publishes what they have sent. One thread calls it, while no
    /// other reads parts. `false`: the ranks share the memory of this process, so that nothing has to be sent.
    pub fn send_part(&self, own: &mut [f32]) -> Result<bool, Broken> {
        let Some(remote) = &self.group.remote else { return Ok(false) };
        if self.is_broken() {
            return Err(Broken);
        }
        let mut remote = remote.lock().unwrap_or_else(PoisonError::into_inner);
        let Remote { exchange, received } = &mut *remote;
        if let Err(reason) = exchange(own, received) {
            self.fail(reason);
            return Err(Broken);
        }
        for (rank, (place, part)) in self.group.parts.iter().zip(received).enumerate() {
            let part = if rank == self.rank { own.as_mut_ptr() } else { part.as_mut_ptr() };
            place.store(part.cast(), Ordering::Relaxed);
        }
        Ok(true)
    }

    /// What every rank passes to this call, in the order of ranks. One thread of each rank calls it.
    pub fn exchange(&self, own: &[f32]) -> Result<Vec<Vec<f32>>, Broken> {
        let mut own_part = own.to_vec();
        if self.send_part(&mut own_part)? {
            let remote = self.group.remote.as_ref().ok_or(Broken)?;
            let mut parts = remote.lock().unwrap_or_else(PoisonError::into_inner).received.clone();
            parts[self.rank] = own_part;
            return Ok(parts);
        }
        let copies = || self.group.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies()[self.rank] = own_part;
        self.meet()?;
        let all = copies().clone();
        self.meet()?;
        Ok(all)
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("ranks", &self.parts.len())
            .field("threads", &self.threads)
            .field("is_remote", &self.remote.is_some())
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_exchange_what_they_have_in_the_order_of_ranks() {
        let members = Group::members(3, 1);
        let all = std::thread::scope(|scope| {
            let started = members.iter().map(|member| {
                scope.spawn(move || {
                    (0..50)
                        .map(|round| {
                            member.exchange(&[(member.rank() * 100 + round) as f32]).unwrap().concat()
                        })
                        .collect::<Vec<_>>()
                })
            });
            let started: Vec<_> = started.collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for found in all {
            for (round, found) in found.into_iter().enumerate() {
                assert_eq!(found, [0, 100, 200].map(|first| (first + round) as f32));
            }
        }
    }

    #[test]
    fn who_asks_is_told_once_why_a_device_has_failed_before_and_after() {
        let (health, told) = (Health::default(), Arc::new(Mutex::new(Vec::new())));
        let tell = || {
            let told = Arc::clone(&told);
            let tell = move |reason: &str| told.lock().unwrap().push(reason.to_string());
            Box::new(tell) as Box<OnFail>
        };
        health.on_fail(tell());
        assert!(told.lock().unwrap().is_empty());
        health.fail("first".into());
        health.clone().fail("second".into());
        assert_eq!(*told.lock().unwrap(), ["first"]);
        health.on_fail(tell());
        assert_eq!(*told.lock().unwrap(), ["first", "first"]);
    }

    #[test]
    fn nobody_waits_for_a_rank_that_has_failed() {
        let members = Group::members(2, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| members[0].meet());
            members[1].break_up();
            assert_eq!(waiting.join().unwrap(), Err(Broken));
        });
        assert_eq!(members[1].exchange(&[1.0]), Err(Broken));
    }

    #[test]
    fn what_is_sent_by_other_processes_is_published_until_one_fails() {
        let mut calls = 0;
        let exchange = move |own: &[f32], parts: &mut [Vec<f32>]| {
            calls += 1;
            parts[0] = own.iter().map(|x| x + 1.0).collect();
            if calls < 3 { Ok(()) } else { Err("rank 0 is late".to_string()) }
        };
        let members = Group::remote(2, 1, Box::new(exchange));
        let member = &members[1];
        let broken = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&broken);
        member.on_break(Box::new(move || set.store(true, Ordering::Relaxed)));
        assert_eq!(member.exchange(&[1.0, 2.0]).unwrap(), [[2.0, 3.0], [1.0, 2.0]]);
        assert_eq!(member.send_part(&mut [5.0]), Ok(true));
        assert_eq!(member.meet(), Ok(()));
        assert!(!broken.load(Ordering::Relaxed) && member.health().reason().is_none());
        assert_eq!(member.send_part(&mut [5.0]), Err(Broken));
        assert!(broken.load(Ordering::Relaxed) && members[0].is_broken());
        assert_eq!(members[0].health().reason(), Some("rank 0 is late"));
    }
}
