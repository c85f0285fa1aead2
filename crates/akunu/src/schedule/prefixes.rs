//! Prompts that begin alike: whose tokens a request may share, and which prompt it should wait for.

use super::active::Active;
use super::slots::Slot;
use crate::blocks::{MIN_COPY, common};

/// Slots whose tokens others may share, in the order of their salts and prompts. So those that share most with a prompt
/// are beside its place.
#[derive(Debug)]
pub(super) struct Prefixes {
    slots: Vec<usize>,
}

impl Prefixes {
    pub(super) fn with_capacity(slots: usize) -> Prefixes {
        Prefixes { slots: Vec::with_capacity(slots) }
    }

    fn place(&self, slots: &[Slot<'_>], index: usize) -> usize {
        self.slots.partition_point(|&other| (key(slots, other), other) < (key(slots, index), index))
    }

    pub(super) fn add(&mut self, slots: &[Slot<'_>], index: usize) {
        self.slots.insert(self.place(slots, index), index);
    }

    pub(super) fn remove(&mut self, slots: &[Slot<'_>], index: usize) {
        let place = self.place(slots, index);
        if self.slots.get(place) == Some(&index) {
            self.slots.remove(place);
        }
    }

    /// The longest prefix of a prompt that a slot has processed and that can go on, and the slot.
    pub(super) fn longest(&self, slots: &[Slot<'_>], active: &Active<'_>) -> Option<(usize, usize)> {
        let wanted = (active.salt, active.prompt());
        let reusable = active.need.reusable(active.prompt());
        let place = self.slots.partition_point(|&other| key(slots, other) < Some(wanted));
        let (before, after) = self.slots.split_at(place);
        let mut best = None;
        let mut look = |index: usize| {
            let Some(other) = slots[index].active.as_ref().filter(|other| other.salt == active.salt) else {
                return false;
            };
            let session = &slots[index].session;
            let shared = common(session.tokens(), reusable);
            let reach = session.reach_to_share(shared);
            best = best.max(Some((reach, index)));
            // Those beyond share no more, but this one may not have processed all of it yet, or its window may be lost.
            !other.is_running() || reach < shared
        };
        let _ = before.iter().rev().all(|&index| look(index));
        let _ = after.iter().all(|&index| look(index));
        best
    }
}

fn key<'b>(slots: &'b [Slot<'_>], index: usize) -> Option<(u64, &'b [u32])> {
    slots[index].active.as_ref().map(|active| (active.salt, active.prompt()))
}

/// A request whose prompt is being processed, and of which another one waits to share a prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    slot: usize,
    number: u64,
    /// The length of the prefix.
    len: usize,
}

impl Awaited {
    fn is_coming(self, slots: &[Slot<'_>]) -> bool {
        let Slot { session, active } = &slots[self.slot];
        let is_same = |active: &Active<'_>| active.number == self.number && !active.is_running();
        session.len() < self.len && active.as_ref().is_some_and(is_same)
    }
}

/// The older request that a prompt should wait for, because it can then share a substantially longer prefix than now.
/// `reading`: slots that have begun to process prompts whose tokens others may share.
pub(super) fn awaited(
    slots: &[Slot<'_>],
    prefixes: &Prefixes,
    reading: &[usize],
    index: usize,
) -> Option<Awaited> {
    let waits = |active: &&Active<'_>| !active.is_prepared && !active.need.is_settled();
    let active = slots[index].active.as_ref().filter(waits)?;
    // Found before: there may be thousands of prompts that wait for the same one.
    if let Some(awaited) = active.awaited.filter(|awaited| awaited.is_coming(slots)) {
        return Some(awaited);
    }
    let prompt = active.need.reusable(active.prompt());
    let older = reading.iter().filter_map(|&slot| {
        let other = slots[slot].active.as_ref()?;
        let is_older = other.number < active.number && other.salt == active.salt && !other.is_running();
        is_older.then(|| (common(other.prompt(), prompt), slot, other.number))
    });
    let (len, slot, number) = older.max()?;
    let is_longer = len >= slots[index].session.len() + MIN_COPY
        && prefixes.longest(slots, active).is_none_or(|(there, _)| len > there);
    Some(Awaited { slot, number, len }).filter(|awaited| is_longer && awaited.is_coming(slots))
}
