//! Slots of the KV cache, and what stands in them.

use std::ops::{Deref, DerefMut};

use super::active::Active;
use crate::{Engine, Error, Session};

/// Tokens that have to be saved for a copy to be worth it.
pub(super) const WORTH: usize = 16;

/// The session of a slot: the scheduler's own, or one that is lent for a single request.
#[derive(Debug)]
pub(super) enum SlotSession<'a> {
    Own(Session),
    Borrowed(&'a mut Session),
}

impl Deref for SlotSession<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            SlotSession::Own(session) => session,
            SlotSession::Borrowed(session) => session,
        }
    }
}

impl DerefMut for SlotSession<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        match self {
            SlotSession::Own(session) => session,
            SlotSession::Borrowed(session) => session,
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot<'a> {
    pub(super) session: SlotSession<'a>,
    pub(super) active: Option<Active<'a>>,
    /// The number of the last request that had it; 0: none yet.
    pub(super) last: u64,
}

impl<'a> Slot<'a> {
    pub(super) fn new(session: Session) -> Slot<'a> {
        Slot { session: SlotSession::Own(session), active: None, last: 0 }
    }

    /// A slot in a session of somebody else's, with its only request.
    pub(super) fn borrowed(session: &'a mut Session, active: Active<'a>) -> Slot<'a> {
        Slot { session: SlotSession::Borrowed(session), active: Some(active), last: 1 }
    }

    /// How many tokens of a prompt need not be fed, if it begins with what stands here. At least one always has to be.
    pub(super) fn shared(&self, prompt: &[u32]) -> usize {
        let exact = self.active.as_ref().map_or(self.session.len(), |a| a.generation.exact(&self.session));
        shared(&self.session.tokens()[..exact], prompt)
    }
}

fn shared(tokens: &[u32], prompt: &[u32]) -> usize {
    let common = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1))
}

/// The free slot for a prompt: the one that shares most with it, unless that would forget more than it saves; then the one that was
/// used least recently, as what it shares with others can be copied.
pub(super) fn choose(slots: &[Slot<'_>], prompt: &[u32]) -> Option<usize> {
    let free = || slots.iter().enumerate().filter(|(_, slot)| slot.active.is_none());
    let (best, slot) = free().rev().max_by_key(|(_, slot)| slot.shared(prompt))?;
    if 2 * slot.shared(prompt) >= slot.session.len() {
        return Some(best);
    }
    free().min_by_key(|(_, slot)| slot.last).map(|(index, _)| index)
}

/// Whether a prompt that has not begun can copy more from an older one that is being read, when more of that is read: enough to be
/// worth it.
pub(super) fn awaits_copy(slots: &[Slot<'_>], index: usize) -> bool {
    let Some(active) = slots[index].active.as_ref().filter(|active| !active.placed) else { return false };
    let prompt = active.prompt();
    let own = slots[index].shared(prompt);
    let there = slots.iter().map(|slot| slot.shared(prompt)).max().unwrap_or(own);
    let worth = (own + WORTH).max(there + 1);
    let others = slots.iter().filter_map(|slot| slot.active.as_ref());
    let reading = others.filter(|other| other.placed && !other.is_running());
    let mut older = reading.filter(|other| other.number < active.number);
    older.any(|other| shared(other.prompt(), prompt) >= worth)
}

/// Brings a slot to hold what can be had of a prompt's beginning: its own, or a copy of another's. Gives how much that is.
pub(super) fn place(
    engine: &mut Engine,
    slots: &mut [Slot<'_>],
    index: usize,
    prompt: &[u32],
) -> Result<usize, Error> {
    let own = slots[index].shared(prompt);
    let others = slots.iter().enumerate().map(|(i, slot)| (slot.shared(prompt), i));
    let (most, from) = others.max_by_key(|(shared, _)| *shared).unwrap_or((own, index));
    if most < own + WORTH {
        slots[index].session.truncate(own);
        return Ok(own);
    }
    if let Ok([from, to]) = slots.get_disjoint_mut([from, index]) {
        engine.copy_prefix(&from.session, &mut to.session, most)?;
    }
    Ok(most)
}
