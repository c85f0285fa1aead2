//! The blocks of sliding-window layers.
//!
//! A block of the other layers has one of these beside it as long as rows may see its positions. Then it is released,
//! and keeps its content until another sequence takes it: those that were released first are taken first. So whoever
//! remembers a block may ask whether its content is still there, and have it again.
//!
//! Layers with a state have slots in the place of these blocks ([`akunu_plan::state`]): a row needs that of the position
//! before it, which has the state after the last position of its block that was processed. So a sequence can go on at the
//! end of a block, or at its own end.

use super::pool::{BlockId, BlockPool, Found, NONE};

/// A block, and how often it had been taken: if it was taken since, its content is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBlock {
    pub(crate) id: BlockId,
    taken: u64,
}

/// A block whose content is lost.
pub(crate) const LOST: WindowBlock = WindowBlock { id: 0, taken: 0 };

#[derive(Clone, Copy, Debug)]
struct State {
    users: u32,
    taken: u64,
    /// The neighbours among the blocks without users.
    before: BlockId,
    after: BlockId,
}

#[derive(Debug)]
pub(crate) struct Windows {
    /// The most positions that a row sees, its own included.
    positions: usize,
    /// Whether the blocks hold states.
    pub(super) are_states: bool,
    blocks: Vec<State>,
    /// The ends of the list of blocks without users: the next one to take, and the last one.
    next: BlockId,
    last: BlockId,
}

impl Windows {
    pub(crate) fn new(count: usize, positions: usize, are_states: bool) -> Windows {
        let free = State { users: 1, taken: 0, before: NONE, after: NONE };
        let mut windows =
            Windows { positions, are_states, blocks: vec![free; count], next: NONE, last: NONE };
        (0..count as BlockId).for_each(|id| windows.release(WindowBlock { id, taken: 0 }, true));
        windows
    }

    /// The first position that the row after `len` positions sees.
    pub(crate) fn first_seen(&self, len: usize) -> usize {
        (len + 1).saturating_sub(self.positions)
    }

    fn at(&mut self, id: BlockId) -> &mut State {
        &mut self.blocks[id as usize]
    }

    /// A block for one user, unless all are in use.
    pub(crate) fn take(&mut self) -> Option<WindowBlock> {
        let id = Some(self.next).filter(|id| *id != NONE)?;
        self.unlink(id);
        let block = self.at(id);
        block.users = 1;
        block.taken += 1;
        Some(WindowBlock { id, taken: block.taken })
    }

    /// Whether the content of a block is still there.
    pub(crate) fn has(&self, block: WindowBlock) -> bool {
        block != LOST && self.blocks[block.id as usize].taken == block.taken
    }

    /// Adds a user to a block, if its content is still there.
    pub(crate) fn share(&mut self, block: WindowBlock) -> bool {
        if !self.has(block) {
            return false;
        }
        if self.at(block.id).users == 0 {
            self.unlink(block.id);
        }
        self.at(block.id).users += 1;
        true
    }

    /// Removes a user from a block. Without users it is the last one to be taken if it is `useful`, and else the next one.
    pub(crate) fn release(&mut self, block: WindowBlock, useful: bool) {
        let id = block.id;
        self.at(id).users -= 1;
        if self.at(id).users > 0 {
            return;
        }
        let (before, after) = if useful { (self.last, NONE) } else { (NONE, self.next) };
        (self.at(id).before, self.at(id).after) = (before, after);
        match before {
            NONE => self.next = id,
            before => self.at(before).after = id,
        }
        match after {
            NONE => self.last = id,
            after => self.at(after).before = id,
        }
    }

    fn unlink(&mut self, id: BlockId) {
        let State { before, after, .. } = *self.at(id);
        match before {
            NONE => self.next = after,
            before => self.at(before).after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.at(after).before = before,
        }
    }

    /// The longest beginning of a text of `len` positions, cut at its end or after a block of `size` positions, that can go
    /// on: what the next row sees is still in the blocks of the text. A state that is not at the end of a block is there only
    /// after the first `state_at` positions.
    pub(crate) fn reach(
        &self,
        size: usize,
        [len, state_at]: [usize; 2],
        block: impl Fn(usize) -> Option<WindowBlock>,
    ) -> usize {
        let (mut first, mut longest) = (0, 0);
        for index in 0..len.div_ceil(size) {
            if !block(index).is_some_and(|block| self.has(block)) {
                first = index + 1;
            }
            let end = len.min((index + 1) * size);
            let is_there = !self.are_states || end.is_multiple_of(size) || end == state_at;
            if is_there && self.first_seen(end) / size >= first {
                longest = end;
            }
        }
        longest
    }
}

impl BlockPool {
    /// With `count` blocks for layers of which a row sees at most `positions`, its own included, or for states.
    pub(crate) fn with_windows(mut self, count: usize, positions: usize, are_states: bool) -> BlockPool {
        self.windows = Some(Windows::new(count, positions, are_states));
        self
    }

    /// Whether layers have states, which are there only at the end of blocks and of sequences.
    pub(crate) fn has_states(&self) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.are_states)
    }

    /// The part of a known prefix that can go on.
    pub(super) fn within_windows(&self, mut found: Found) -> Found {
        let Some(windows) = &self.windows else { return found };
        let size = self.positions();
        let (blocks, whole) = (&found.blocks, found.blocks.len() * size);
        let reach = windows.reach(size, [whole, 0], |index| blocks.get(index).map(|id| self.window_of(*id)));
        let is_there = |(id, len): &(BlockId, usize)| {
            let is_whole = !windows.are_states || *len == self.content(*id).len();
            reach == whole && is_whole && windows.has(self.window_of(*id))
        };
        found.part = found.part.filter(is_there);
        found.blocks.truncate(reach / size);
        found
    }
}

#[cfg(test)]
impl Windows {
    /// Each block has as many users as `used` names it, and is in use or in the list of those without users.
    pub(crate) fn check(&self, used: impl Iterator<Item = WindowBlock>) {
        let mut users = vec![0; self.blocks.len()];
        used.for_each(|block| {
            assert!(self.has(block), "{block:?} is in use");
            users[block.id as usize] += 1;
        });
        let after = |id: &BlockId| Some(self.blocks[*id as usize].after).filter(|id| *id != NONE);
        let unused: Vec<BlockId> =
            std::iter::successors(Some(self.next).filter(|id| *id != NONE), after).collect();
        assert_eq!(unused.last().copied().unwrap_or(NONE), self.last);
        for (id, state) in self.blocks.iter().enumerate() {
            assert_eq!(state.users, users[id], "block {id}");
            let times = unused.iter().filter(|other| **other == id as BlockId).count();
            assert_eq!(times, usize::from(state.users == 0), "block {id}");
        }
    }
}
