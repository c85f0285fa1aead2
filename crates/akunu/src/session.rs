//! Sessions: sequences in slots of the KV cache.

use std::sync::{Arc, Mutex, PoisonError};

/// The free slots of an engine.
#[derive(Debug)]
pub(crate) struct SlotPool(Mutex<Vec<u32>>);

impl SlotPool {
    pub(crate) fn new(slots: usize) -> SlotPool {
        SlotPool(Mutex::new((0..slots as u32).rev().collect()))
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session with a free slot. `tokens` is empty, and has room for the whole context.
    pub(crate) fn take(self: &Arc<SlotPool>, tokens: Vec<u32>) -> Option<Session> {
        let slot = self.free().pop()?;
        Some(Session { slot, tokens, pool: self.clone() })
    }
}

/// A sequence in a slot of an engine's KV cache. Dropping it frees the slot.
#[derive(Debug)]
pub struct Session {
    pub(crate) slot: u32,
    /// The ids whose keys and values are in the cache, by position. Allocated for the whole context.
    pub(crate) tokens: Vec<u32>,
    pub(crate) pool: Arc<SlotPool>,
}

impl Session {
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The ids whose keys and values are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Removes all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pool.free().push(self.slot);
    }
}
