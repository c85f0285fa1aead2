//! One sequence's place in the KV cache, and what stands there.

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

    pub(crate) fn take(self: &Arc<SlotPool>, context: usize) -> Option<Session> {
        let slot = self.free().pop()?;
        Some(Session { slot, tokens: Vec::with_capacity(context), pool: self.clone() })
    }
}

/// One slot of an engine's KV cache. Dropped, it gives the slot back.
#[derive(Debug)]
pub struct Session {
    pub(crate) slot: u32,
    /// The ids whose keys and values stand in the cache, position by position. Capacity: the whole context.
    pub(crate) tokens: Vec<u32>,
    pub(crate) pool: Arc<SlotPool>,
}

impl Session {
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The ids whose keys and values stand in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Forgets all but the first `len` tokens. What stands behind them in the cache is never read again.
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
