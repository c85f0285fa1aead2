//! The blocks of one sequence, in order, and what happens to them when it grows, ends or shares its prefix.

use super::pool::{BlockId, BlockPool, Parent};
use super::windows::{LOST, WindowBlock};

/// Tokens for which copying a part of a block is worthwhile.
pub(crate) const MIN_COPY: usize = 16;

/// The first positions of a block that the device has to copy to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockCopy {
    pub(crate) from: BlockId,
    pub(crate) to: BlockId,
    pub(crate) len: usize,
    /// The same of sliding-window layers, if these have their own blocks: from and to.
    pub(crate) windows: Option<[BlockId; 2]>,
}

/// All blocks are in use, or promised to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolFull;

#[derive(Debug, Default)]
pub(crate) struct BlockList {
    ids: Vec<BlockId>,
    /// How many of the first have content that the pool knows.
    known: usize,
    /// How many blocks the pool has promised to this sequence that it has not taken yet.
    promised: usize,
    /// Whether it was promised blocks: it then keeps all that it has taken until it ends.
    keeps: bool,
    /// How many entries of the device's table are those of this list: the first ones.
    pub(crate) synced: usize,
    /// The blocks of sliding-window layers, if these have their own. The sequence uses those from `held` on; the others
    /// may be lost.
    windows: Vec<WindowBlock>,
    held: usize,
    /// The first position that these have, since a shift.
    windows_from: usize,
    /// The number of positions after which its state is, if that is known, and layers have one; else 0.
    state_at: usize,
    /// As `synced`, for `windows`.
    pub(crate) windows_synced: usize,
}

impl BlockList {
    /// An empty list with memory for `most` blocks.
    pub(crate) fn with_capacity(most: usize) -> BlockList {
        let (ids, windows) = (Vec::with_capacity(most), Vec::with_capacity(most));
        BlockList { ids, windows, ..BlockList::default() }
    }

    pub(crate) fn ids(&self) -> &[BlockId] {
        &self.ids
    }

    pub(crate) fn windows(&self) -> &[WindowBlock] {
        &self.windows
    }

    /// Those of `windows` that the sequence uses.
    pub(crate) fn held_windows(&self) -> &[WindowBlock] {
        &self.windows[self.held..]
    }

    /// Notes after how many positions the state is; 0 if that is not known.
    pub(crate) fn set_state(&mut self, at: usize) {
        self.state_at = at;
    }

    /// Whether a sequence of `len` tokens can go on: its state, if layers have one, is after these, or at the end of a block.
    pub(crate) fn goes_on(&self, pool: &BlockPool, len: usize) -> bool {
        !pool.has_states() || len.is_multiple_of(pool.positions()) || len == self.state_at
    }

    fn take(&mut self, pool: &mut BlockPool) -> Result<BlockId, PoolFull> {
        if self.promised == 0 {
            return pool.take().ok_or(PoolFull);
        }
        let block = pool.take_promised().ok_or(PoolFull)?;
        self.promised -= 1;
        Ok(block)
    }

    /// Makes all blocks of the first `most` available that the sequence does not have. What it was promised before is
    /// included, and is all that it has promised after an error.
    pub(crate) fn promise(&mut self, pool: &mut BlockPool, most: usize) -> Result<(), PoolFull> {
        let missing = most.saturating_sub(self.ids.len());
        pool.unpromise(self.promised);
        if !pool.promise(missing) {
            pool.promise(self.promised);
            return Err(PoolFull);
        }
        (self.promised, self.keeps) = (missing, true);
        Ok(())
    }

    /// Prepares `more` positions after the first `len` to be written. A block that others have as well is replaced by a
    /// copy.
    pub(crate) fn reserve(
        &mut self,
        pool: &mut BlockPool,
        len: usize,
        more: usize,
    ) -> Result<Option<BlockCopy>, PoolFull> {
        let size = pool.positions();
        // Until the rows are known to have been processed, the state may be anywhere among them.
        self.state_at = 0;
        self.grow(pool, len + more)?;
        if let Some(windows) = &mut pool.windows {
            while self.windows.len() * size < len + more {
                self.windows.push(windows.take().ok_or(PoolFull)?);
            }
        }
        // Last, because a block that was replaced has to be copied.
        if len.is_multiple_of(size) { Ok(None) } else { self.own(pool, len / size, len % size) }
    }

    /// Takes blocks for the first `len` positions, but none of sliding-window layers.
    pub(crate) fn grow(&mut self, pool: &mut BlockPool, len: usize) -> Result<(), PoolFull> {
        while self.ids.len() * pool.positions() < len {
            let block = self.take(pool)?;
            self.ids.push(block);
        }
        Ok(())
    }

    /// Makes a block, of which `len` positions are used, one that only this sequence has, and its last known one.
    fn own(&mut self, pool: &mut BlockPool, index: usize, len: usize) -> Result<Option<BlockCopy>, PoolFull> {
        let from = self.ids[index];
        if pool.is_shared(from) {
            self.known = self.known.min(index);
        }
        if !pool.is_shared(from) || pool.take_over(from) {
            return Ok(None);
        }
        let to = self.take(pool)?;
        let windows = self.own_window(pool, index).inspect_err(|_| pool.release(to))?;
        self.ids[index] = to;
        self.synced = self.synced.min(index);
        pool.release(from);
        Ok(Some(BlockCopy { from, to, len, windows }))
    }

    /// Replaces a block of sliding-window layers that others have as well.
    fn own_window(&mut self, pool: &mut BlockPool, index: usize) -> Result<Option<[BlockId; 2]>, PoolFull> {
        let (Some(windows), Some(own)) = (&mut pool.windows, self.windows.get_mut(index)) else {
            return Ok(None);
        };
        if index < self.held {
            *own = LOST;
            return Ok(None);
        }
        let from = std::mem::replace(own, windows.take().ok_or(PoolFull)?);
        windows.release(from, true);
        self.windows_synced = self.windows_synced.min(index);
        Ok(Some([from.id, own.id]))
    }

    /// Makes all blocks from the one of position `first` on, of a sequence of `len` tokens, ones that only it has. Adds
    /// what is to be copied to `copies`, and that must be copied after an error as well.
    pub(crate) fn own_from(
        &mut self,
        pool: &mut BlockPool,
        first: usize,
        len: usize,
        copies: &mut Vec<BlockCopy>,
    ) -> Result<(), PoolFull> {
        let size = pool.positions();
        // From the last on: a block that another follows in the tree cannot be taken out of it.
        for index in (first / size..len.div_ceil(size)).rev() {
            copies.extend(self.own(pool, index, size.min(len - index * size))?);
        }
        Ok(())
    }

    /// Removes the blocks after the first `len` positions, or fewer if it could not go on after these, and returns their
    /// number. A sequence to which blocks are promised keeps its own.
    pub(crate) fn truncate(&mut self, pool: &mut BlockPool, len: usize) -> usize {
        let size = pool.positions();
        let len = self.reach(pool, len);
        self.release_windows(pool, len.div_ceil(size));
        self.hold_windows(pool, len);
        self.known = self.known.min(len / size);
        let keeps = |id: &BlockId| self.keeps && !pool.is_shared(*id);
        let count = len.div_ceil(size);
        let kept = count + self.ids.iter().skip(count).take_while(|id| keeps(id)).count();
        self.release_from(pool, kept);
        len
    }

    /// The longest part of the first `len` positions after which it can go on: at most `len` if sliding-window layers have
    /// their own blocks, and the window before is lost.
    pub(crate) fn reach(&self, pool: &BlockPool, len: usize) -> usize {
        let Some(windows) = &pool.windows else { return len };
        let reach =
            windows.reach(pool.positions(), [len, self.state_at], |index| self.windows.get(index).copied());
        if windows.first_seen(reach) < self.windows_from { 0 } else { reach }
    }

    /// Uses the blocks of sliding-window layers that the row after `len` positions sees. They are not lost.
    fn hold_windows(&mut self, pool: &mut BlockPool, len: usize) {
        let (size, Some(windows)) = (pool.positions(), &mut pool.windows) else { return };
        let first = windows.first_seen(len) / size;
        while self.held > first && windows.share(self.windows[self.held - 1]) {
            self.held -= 1;
        }
    }

    /// Releases the blocks of sliding-window layers from number `first` on.
    fn release_windows(&mut self, pool: &mut BlockPool, first: usize) {
        while self.windows.len() > first {
            let (index, Some(block)) = (self.windows.len() - 1, self.windows.pop()) else { return };
            let useful = self.ids.get(index).is_some_and(|id| pool.is_shared(*id));
            if let Some(windows) = pool.windows.as_mut().filter(|_| index >= self.held) {
                windows.release(block, useful);
            }
        }
        self.held = self.held.min(first);
        self.windows_synced = self.windows_synced.min(first);
        self.windows_from = if first == 0 { 0 } else { self.windows_from };
    }

    /// Whether [`BlockList::slide`] would release anything.
    pub(crate) fn may_slide(&self, first_seen: usize, size: usize, len: usize) -> bool {
        first_seen / size > self.held || self.windows.len() > (len + 1).div_ceil(size)
    }

    /// Releases the blocks of sliding-window layers that no row after the first `len` positions sees, and those after the
    /// next row's.
    pub(crate) fn slide(&mut self, pool: &mut BlockPool, len: usize) {
        let size = pool.positions();
        self.release_windows(pool, (len + 1).div_ceil(size));
        let Some(windows) = &mut pool.windows else { return };
        let first = (windows.first_seen(len) / size).min(self.windows.len());
        self.windows[self.held.min(first)..first].iter().for_each(|block| windows.release(*block, true));
        self.held = self.held.max(first);
    }

    /// Moves blocks of sliding-window layers to the places that they have without `discard` positions, of which `len`
    /// remain. Returns the numbers of those whose positions are then to be moved, by the rest of `discard` and one block
    /// after the other.
    pub(crate) fn shift_windows(
        &mut self,
        pool: &mut BlockPool,
        discard: usize,
        len: usize,
    ) -> Result<std::ops::Range<usize>, PoolFull> {
        let (size, Some(windows)) = (pool.positions(), &mut pool.windows) else { return Ok(0..0) };
        let first_seen = windows.first_seen(len);
        let (first, source) = (first_seen / size, first_seen / size + discard / size);
        if source < self.held {
            // The first position moves to a block before those in use.
            self.windows[source] = windows.take().ok_or(PoolFull)?;
            self.held = source;
        }
        self.windows[self.held..source].iter().for_each(|block| windows.release(*block, false));
        self.windows.drain(first..source);
        (self.held, self.windows_from) = (first, first_seen);
        self.windows_synced = self.windows_synced.min(first);
        Ok(first..len.div_ceil(size))
    }

    fn release_from(&mut self, pool: &mut BlockPool, first: usize) {
        self.state_at = if first == 0 { 0 } else { self.state_at };
        self.release_windows(pool, first);
        // The last ones first, so that the tree's leaves are the oldest.
        self.ids.drain(first.min(self.ids.len())..).rev().for_each(|id| pool.release(id));
        self.synced = self.synced.min(first);
        self.known = self.known.min(first);
    }

    /// Whether a sequence of `len` tokens has full blocks of `size` positions that the pool does not know.
    pub(crate) fn has_news(&self, size: usize, len: usize) -> bool {
        (self.known + 1) * size <= len
    }

    /// Lets others find the full blocks of a sequence with these tokens.
    pub(crate) fn publish(&mut self, pool: &mut BlockPool, salt: u64, tokens: &[u32]) {
        let size = pool.positions();
        let Some(rest) = tokens.get(self.known * size..) else { return };
        for tokens in rest.chunks_exact(size) {
            let (index, parent) = (self.known, self.parent(self.known, salt));
            let own = self.ids[index];
            if !pool.is_known(own)
                && let Some(same) = pool.add(own, parent, tokens)
            {
                pool.share(same);
                pool.release(own);
                self.ids[index] = same;
                self.synced = self.synced.min(index);
            }
            self.publish_window(pool, index);
            self.known += 1;
        }
    }

    /// Of sliding-window layers, uses the block beside a known one, or is the first to have one there.
    fn publish_window(&mut self, pool: &mut BlockPool, index: usize) {
        let known = pool.window_of(self.ids[index]);
        let (Some(windows), Some(own)) = (&mut pool.windows, self.windows.get_mut(index)) else { return };
        if known == *own {
            return;
        }
        if !windows.has(known) {
            let own = if windows.has(*own) { *own } else { LOST };
            pool.set_window(self.ids[index], own);
        } else if index < self.held || windows.share(known) {
            let before = std::mem::replace(own, known);
            self.windows_synced = self.windows_synced.min(index);
            if index >= self.held {
                windows.release(before, false);
            }
        }
    }

    fn parent(&self, index: usize, salt: u64) -> Parent {
        if index == 0 { Parent::Root(salt) } else { Parent::Block(self.ids[index - 1]) }
    }

    /// Releases all blocks, and lets others find those of the first `tokens`.
    pub(crate) fn end(&mut self, pool: &mut BlockPool, salt: u64, tokens: &[u32]) {
        self.publish(pool, salt, tokens);
        let rest = &tokens[tokens.len() / pool.positions() * pool.positions()..];
        let is_useful = !rest.is_empty() && self.goes_on(pool, tokens.len());
        if let Some(&last) = self.ids.get(self.known).filter(|id| is_useful && !pool.is_shared(**id)) {
            pool.add_last(last, self.parent(self.known, salt), rest);
            if let Some(window) = self.windows.get(self.known).filter(|_| pool.is_known(last)) {
                pool.set_window(last, *window);
            }
        }
        self.clear(pool);
    }

    /// Releases all blocks, and makes those unknown that no other sequence begins with, without moving them elsewhere.
    pub(crate) fn erase(&mut self, pool: &mut BlockPool) {
        for id in self.ids.iter().rev() {
            if !pool.make_own(*id) {
                break;
            }
        }
        pool.drop_leaving(&self.ids);
        self.clear(pool);
    }

    /// Releases all blocks, and what was promised.
    pub(crate) fn clear(&mut self, pool: &mut BlockPool) {
        self.release_from(pool, 0);
        pool.unpromise(std::mem::take(&mut self.promised));
        self.keeps = false;
    }

    /// Has the whole blocks of the longest known prefix of `tokens` instead of its own. Returns the length of that prefix, and
    /// a block that begins as the text goes on, with the number of tokens.
    pub(crate) fn adopt_whole(
        &mut self,
        pool: &mut BlockPool,
        salt: u64,
        tokens: &[u32],
    ) -> (usize, Option<(BlockId, usize)>) {
        let found = pool.find(salt, tokens);
        // Before its own are released, which may be the same.
        found.blocks.iter().for_each(|&id| pool.share(id));
        self.release_from(pool, 0);
        self.ids.extend(&found.blocks);
        self.known = found.blocks.len();
        let len = self.known * pool.positions();
        self.remember_windows(pool, self.known);
        self.hold_windows(pool, len);
        (len, found.part)
    }

    /// Has the longest known prefix of `tokens` instead of its own blocks. Returns its length, and what is to be copied.
    pub(crate) fn adopt(
        &mut self,
        pool: &mut BlockPool,
        salt: u64,
        tokens: &[u32],
    ) -> (usize, Option<BlockCopy>) {
        let (whole, part) = self.adopt_whole(pool, salt, tokens);
        let Some((from, len)) = part else { return (whole, None) };
        let window = pool.window_of(from);
        pool.share(from);
        if 2 * len >= pool.content(from).len() && pool.make_own(from) {
            self.ids.push(from);
            if let Some(windows) = &mut pool.windows
                && windows.share(window)
            {
                self.windows.push(window);
            }
            self.state_at = whole + len;
            return (whole + len, None);
        }
        // Without a free block, the part is computed again. States are not copied.
        let to = if len < MIN_COPY || pool.has_states() { None } else { self.take(pool).ok() };
        let copied = to.and_then(|to| self.copy_window(pool, window).map_err(|_| pool.release(to)).ok());
        pool.release(from);
        let (Some(to), Some(windows)) = (to, copied) else { return (whole, None) };
        self.ids.push(to);
        (whole + len, Some(BlockCopy { from, to, len, windows }))
    }

    /// Appends a block of sliding-window layers, to which the content of another is to be copied.
    fn copy_window(
        &mut self,
        pool: &mut BlockPool,
        from: WindowBlock,
    ) -> Result<Option<[BlockId; 2]>, PoolFull> {
        let Some(windows) = &mut pool.windows else { return Ok(None) };
        if !windows.share(from) {
            return Err(PoolFull);
        }
        let to = windows.take();
        windows.release(from, true);
        let to = to.ok_or(PoolFull)?;
        self.windows.push(to);
        Ok(Some([from.id, to.id]))
    }

    /// Has the blocks of sliding-window layers beside its first `count` blocks, as far as their content is not lost,
    /// without using them.
    fn remember_windows(&mut self, pool: &BlockPool, count: usize) {
        if pool.windows.is_some() {
            self.windows.extend(self.ids[..count].iter().map(|id| pool.window_of(*id)));
            self.held = count;
        }
    }

    /// Has the blocks of the first `len` positions of another sequence, which reach so far, instead of its own. Returns what
    /// is to be copied.
    pub(crate) fn share(
        &mut self,
        pool: &mut BlockPool,
        other: &BlockList,
        len: usize,
    ) -> Result<Option<BlockCopy>, PoolFull> {
        let size = pool.positions();
        self.release_from(pool, 0);
        let whole = len / size;
        let to = if len.is_multiple_of(size) { None } else { Some(self.take(pool)?) };
        for &id in &other.ids[..whole] {
            pool.share(id);
            self.ids.push(id);
        }
        self.known = other.known.min(self.ids.len());
        if pool.windows.is_some() {
            self.windows.extend_from_slice(&other.windows[..whole]);
            (self.held, self.windows_from) = (whole, other.windows_from);
            self.hold_windows(pool, len);
        }
        let Some(to) = to else { return Ok(None) };
        self.ids.push(to);
        let windows = match other.windows.get(whole) {
            Some(from) => self.copy_window(pool, *from).inspect_err(|_| self.release_from(pool, 0))?,
            None => None,
        };
        Ok(Some(BlockCopy { from: other.ids[whole], to, len: len - whole * size, windows }))
    }
}
