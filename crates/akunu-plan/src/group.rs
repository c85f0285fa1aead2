//! Ranks: devices that run the same tables at the same time, each on its share of the weights, and combine what they
//! have computed in the commands that ask for it.
//!
//! This is how ranks in the memory of one process meet: the reference device's and the CPU's. GPUs meet in kernels.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The ranks of one model.
#[derive(Debug)]
pub struct Group {
    /// How many threads meet: all workers of all ranks.
    threads: usize,
    meeting: Mutex<Meeting>,
    over: Condvar,
    broken: AtomicBool,
    /// What each rank contributes to the command that is running.
    parts: Vec<AtomicPtr<u8>>,
    /// The same, of ranks that exchange copies.
    copies: Mutex<Vec<Vec<f32>>>,
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
        let group = Arc::new(Group {
            threads: ranks * threads,
            meeting: Mutex::default(),
            over: Condvar::new(),
            broken: AtomicBool::new(false),
            parts: (0..ranks).map(|_| AtomicPtr::default()).collect(),
            copies: Mutex::new(vec![Vec::new(); ranks]),
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

    /// Waits until all threads of all ranks have called this. What they wrote before is then visible to all of them.
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
        let _meeting = self.group.meeting();
        self.group.broken.store(true, Ordering::Relaxed);
        self.group.over.notify_all();
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

    /// What every rank passes to this call, in the order of ranks. One thread of each rank calls it.
    pub(crate) fn exchange(&self, own: &[f32]) -> Result<Vec<Vec<f32>>, Broken> {
        let copies = || self.group.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies()[self.rank] = own.to_vec();
        self.meet()?;
        let all = copies().clone();
        self.meet()?;
        Ok(all)
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
    fn nobody_waits_for_a_rank_that_has_failed() {
        let members = Group::members(2, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| members[0].meet());
            members[1].break_up();
            assert_eq!(waiting.join().unwrap(), Err(Broken));
        });
        assert_eq!(members[1].exchange(&[1.0]), Err(Broken));
    }
}
