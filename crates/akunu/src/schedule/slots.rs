//! Slots of the KV cache, and reuse of their prefixes.

use std::ops::{Deref, DerefMut};

use super::active::Active;
use crate::{Engine, Error, Session};

/// Minimum number of tokens for which copying a prefix is worthwhile.
pub(super) const MIN_COPY: usize = 16;

/// The session of a slot: owned by the scheduler, or borrowed for a single request.
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
    /// The number of the last request in this slot; 0: none yet.
    pub(super) last: u64,
    /// [`Request::salt`](super::Request::salt) of the session's tokens.
    salt: u64,
}

impl<'a> Slot<'a> {
    pub(super) fn new(session: Session) -> Slot<'a> {
        Slot { session: SlotSession::Own(session), active: None, last: 0, salt: 0 }
    }

    /// A slot in a borrowed session, with its only request.
    pub(super) fn borrowed(session: &'a mut Session, active: Active<'a>) -> Slot<'a> {
        Slot { session: SlotSession::Borrowed(session), active: Some(active), last: 1, salt: 0 }
    }

    /// The length of the common prefix of a prompt and this slot; 0 if their salts differ. At least one token of the prompt
    /// must be processed.
    pub(super) fn shared(&self, prompt: &[u32], salt: u64) -> usize {
        if salt != self.salt {
            return 0;
        }
        let exact = self.active.as_ref().map_or(self.session.len(), |a| a.generation.exact(&self.session));
        shared(&self.session.tokens()[..exact], prompt)
    }
}

fn shared(tokens: &[u32], prompt: &[u32]) -> usize {
    let common = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1))
}

/// Chooses a free slot for a prompt: the one with the longest common prefix, unless that would discard more than it saves; then the
/// least recently used one, because a prefix can be copied from another slot.
pub(super) fn choose(slots: &[Slot<'_>], prompt: &[u32], salt: u64) -> Option<usize> {
    let free = || slots.iter().enumerate().filter(|(_, slot)| slot.active.is_none());
    let (best, slot) = free().rev().max_by_key(|(_, slot)| slot.shared(prompt, salt))?;
    if 2 * slot.shared(prompt, salt) >= slot.session.len() {
        return Some(best);
    }
    free().min_by_key(|(_, slot)| slot.last).map(|(index, _)| index)
}

/// Whether a prompt should wait for an older one that is being processed, because it can then copy a substantially longer prefix.
pub(super) fn awaits_copy(slots: &[Slot<'_>], index: usize) -> bool {
    let Some(active) = slots[index].active.as_ref().filter(|active| !active.is_prepared) else {
        return false;
    };
    let (prompt, salt) = (active.prompt(), active.salt);
    let own = slots[index].shared(prompt, salt);
    let there = slots.iter().map(|slot| slot.shared(prompt, salt)).max().unwrap_or(own);
    let min_shared = (own + MIN_COPY).max(there + 1);
    let others = slots.iter().filter_map(|slot| slot.active.as_ref());
    let reading = others.filter(|other| other.is_prepared && !other.is_running());
    let mut older = reading.filter(|other| other.number < active.number && other.salt == salt);
    older.any(|other| shared(other.prompt(), prompt) >= min_shared)
}

/// Prepares a slot with the longest cached prefix of a prompt, its own or a copy from another slot. Returns its length.
pub(super) fn prepare_slot(
    engine: &mut Engine,
    slots: &mut [Slot<'_>],
    index: usize,
    active: &Active<'_>,
) -> Result<usize, Error> {
    let (prompt, salt) = (active.prompt(), active.salt);
    let own = slots[index].shared(prompt, salt);
    let others = slots.iter().enumerate().map(|(i, slot)| (slot.shared(prompt, salt), i));
    let (most, from) = others.max_by_key(|(shared, _)| *shared).unwrap_or((own, index));
    slots[index].session.truncate(own);
    slots[index].salt = salt;
    if most < own + MIN_COPY {
        return Ok(own);
    }
    if let Ok([from, to]) = slots.get_disjoint_mut([from, index]) {
        engine.copy_prefix(&from.session, &mut to.session, most)?;
    }
    Ok(most)
}
