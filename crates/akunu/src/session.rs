//! Sessions: sequences in slots, with blocks of the KV cache.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use akunu_plan::{CachePlan, WindowPlan};

use crate::blocks::{BlockList, BlockPool, Name, PoolFull};
use crate::engine::ALONE;

/// What the sessions of an engine share.
#[derive(Debug)]
pub(crate) struct SlotPool {
    free: Mutex<Free>,
    /// Positions of a block, and the most blocks of a session.
    block: usize,
    slot_blocks: usize,
    /// The most positions that a row of a sliding-window layer sees, if these have their own blocks.
    window: Option<usize>,
}

/// The free slots, and the blocks.
#[derive(Debug)]
pub(crate) struct Free {
    slots: Vec<u32>,
    pub(crate) blocks: BlockPool,
}

impl SlotPool {
    /// `names`: that of the model and its cache, if blocks that the pool drops are kept elsewhere.
    pub(crate) fn new(slots: usize, cache: &CachePlan, names: Option<Name>) -> SlotPool {
        let blocks = BlockPool::new(cache.count as usize, cache.block as usize);
        let blocks = match cache.windows {
            Some(WindowPlan { count, positions, are_states, .. }) => {
                blocks.with_windows(count as usize, positions as usize, are_states)
            }
            None => blocks,
        };
        let blocks = match names {
            Some(model) => blocks.with_names(model),
            None => blocks,
        };
        let free = Free { slots: (0..slots as u32).rev().collect(), blocks };
        SlotPool {
            free: Mutex::new(free),
            block: cache.block as usize,
            slot_blocks: cache.slot_blocks as usize,
            window: cache.windows.map(|windows| windows.positions as usize),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Positions of a block.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// A session with a free slot. `tokens` is empty, and has room for the whole context.
    pub(crate) fn take(self: &Arc<SlotPool>, tokens: Vec<u32>) -> Option<Session> {
        let slot = self.lock().slots.pop()?;
        let list = BlockList::with_capacity(self.slot_blocks);
        let (salt, exact, is_kept, pool) = (None, usize::MAX, false, self.clone());
        Some(Session { slot, tokens, list, salt, exact, is_kept, pool })
    }
}

/// A sequence in a slot of an engine. Dropping it frees the slot and its part of the KV cache.
#[derive(Debug)]
pub struct Session {
    pub(crate) slot: u32,
    /// The ids whose keys and values are in the cache, by position. Allocated for the whole context.
    pub(crate) tokens: Vec<u32>,
    pub(crate) list: BlockList,
    /// If others with this salt may use its full blocks while it grows.
    pub(crate) salt: Option<u64>,
    /// How many of the first tokens have the keys and values of a prefill: all, or those before the ones that were shifted.
    pub(crate) exact: usize,
    /// Whether its blocks are kept when it ends, because it is used without a scheduler.
    pub(crate) is_kept: bool,
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

    /// Removes all but the first `len` tokens. With sliding-window layers, the window before the next token is needed to go on:
    /// if it is no longer in the cache, more tokens are removed. Layers with a state go on at the end of a block only.
    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() || !self.goes_on() {
            let len = len.min(self.tokens.len());
            let len = self.list.truncate(&mut self.pool.lock().blocks, len);
            self.tokens.truncate(len);
            self.exact = if len <= self.exact { usize::MAX } else { self.exact };
        }
    }

    /// The first tokens, as far as their keys and values are those of a prefill.
    pub(crate) fn exact_tokens(&self) -> &[u32] {
        &self.tokens[..self.exact.min(self.tokens.len())]
    }

    /// The longest part of the first `len` tokens to which it can be truncated.
    pub fn reach(&self, len: usize) -> usize {
        if len == 0 || self.pool.window.is_none() {
            return len;
        }
        self.list.reach(&self.pool.lock().blocks, len)
    }

    /// The same, for another sequence that is to have them.
    pub(crate) fn reach_to_share(&self, len: usize) -> usize {
        let states = self.pool.window.is_some() && self.pool.lock().blocks.has_states();
        self.reach(if states { len - len % self.pool.block } else { len })
    }

    /// Whether further tokens can be processed after these; otherwise it has to be truncated first.
    pub(crate) fn goes_on(&self) -> bool {
        self.pool.window.is_none() || self.list.goes_on(&self.pool.lock().blocks, self.tokens.len())
    }

    /// Gives back blocks of sliding-window layers that were reserved for rows that did not run.
    pub(crate) fn unreserve(&mut self) {
        self.extend(&[]);
    }

    /// Adds tokens whose keys and values are in the cache now.
    pub(crate) fn extend(&mut self, ids: &[u32]) {
        self.tokens.extend_from_slice(ids);
        if !ids.is_empty() {
            self.list.set_state(self.tokens.len());
        }
        let (len, block) = (self.tokens.len(), self.pool.block);
        let slides = |window: usize| self.list.may_slide((len + 1).saturating_sub(window), block, len);
        if self.pool.window.is_some_and(slides) {
            self.list.slide(&mut self.pool.lock().blocks, len);
        }
    }

    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Lets others find its full blocks, if it has a salt.
    pub(crate) fn publish(&mut self) {
        let Some(salt) = self.salt.filter(|_| self.list.has_news(self.pool.block, self.tokens.len())) else {
            return;
        };
        self.list.publish(&mut self.pool.lock().blocks, salt, &self.tokens);
    }

    /// Makes its tokens those of the whole blocks of the longest known prefix.
    pub(crate) fn adopt_whole(&mut self, salt: u64, tokens: &[u32]) {
        let (len, _) = self.list.adopt_whole(&mut self.pool.lock().blocks, salt, tokens);
        self.tokens.clear();
        self.tokens.extend_from_slice(&tokens[..len]);
        self.exact = usize::MAX;
    }

    /// Keeps blocks available for the first `positions` positions, `beside` blocks more than it has of them.
    pub(crate) fn promise(&mut self, positions: usize, beside: usize) -> Result<(), PoolFull> {
        let most = positions.div_ceil(self.pool.block) + beside;
        self.list.promise(&mut self.pool.lock().blocks, most)
    }

    /// Removes all tokens. Others with this salt may find their blocks.
    pub(crate) fn retire(&mut self, salt: u64) {
        let exact = &self.tokens[..self.exact.min(self.tokens.len())];
        self.list.end(&mut self.pool.lock().blocks, salt, exact);
        self.forget();
    }

    /// Removes all tokens, and forgets its blocks as far as no other text begins with them.
    pub(crate) fn erase(&mut self) {
        self.list.erase(&mut self.pool.lock().blocks);
        self.forget();
    }

    /// Removes all tokens, and what was promised.
    pub(crate) fn abandon(&mut self) {
        self.list.clear(&mut self.pool.lock().blocks);
        self.forget();
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.salt = None;
        self.exact = usize::MAX;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut free = self.pool.lock();
        if self.is_kept && free.blocks.has_names() {
            let exact = self.exact.min(self.tokens.len());
            self.list.end(&mut free.blocks, ALONE, &self.tokens[..exact]);
        }
        self.list.clear(&mut free.blocks);
        free.slots.push(self.slot);
    }
}
