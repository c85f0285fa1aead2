//! Blocks in the host's memory, those that were used least recently first to go.

use std::collections::{BTreeMap, HashMap};

use crate::blocks::{Name, Named};

#[derive(Debug)]
struct Entry {
    block: Named,
    /// When it was put here.
    time: u64,
    data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct HostTier {
    /// The most blocks.
    most: usize,
    entries: HashMap<Name, Entry>,
    by_time: BTreeMap<u64, Name>,
    /// Memory of blocks that are on the device again.
    free: Vec<Vec<u8>>,
    now: u64,
}

impl HostTier {
    pub(super) fn new(most: usize) -> HostTier {
        let (entries, by_time) = (HashMap::new(), BTreeMap::new());
        HostTier { most, entries, by_time, free: Vec::new(), now: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory that were allocated so far.
    pub(super) fn allocated(&self) -> usize {
        let entries = self.entries.values().map(|entry| entry.data.capacity());
        entries.chain(self.free.iter().map(Vec::capacity)).sum()
    }

    /// Whether it has a block, which then counts as just used.
    pub(super) fn touch(&mut self, name: Name) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else { return false };
        self.now += 1;
        self.by_time.remove(&entry.time);
        entry.time = self.now;
        self.by_time.insert(self.now, name);
        true
    }

    pub(super) fn has(&self, name: Name) -> bool {
        self.entries.contains_key(&name)
    }

    /// Takes a block with its content. If it has no memory for it, it returns the block that goes instead, whose content
    /// is in `data` then; else `data` is memory of the same size.
    pub(super) fn put(&mut self, block: Named, data: &mut Vec<u8>) -> Option<Named> {
        if self.touch(block.name) {
            return None;
        }
        let more = if self.entries.len() < self.most { self.memory(data.len()) } else { None };
        let (gone, memory) = match more {
            Some(memory) => (None, memory),
            None => {
                let Some((_, oldest)) = self.by_time.pop_first() else { return Some(block) };
                let Some(entry) = self.entries.remove(&oldest) else { return Some(block) };
                (Some(entry.block), entry.data)
            }
        };
        self.now += 1;
        self.by_time.insert(self.now, block.name);
        let data = std::mem::replace(data, memory);
        self.entries.insert(block.name, Entry { block, time: self.now, data });
        gone
    }

    /// Forgets all blocks, and returns their number. Their memory is used again.
    pub(super) fn clear(&mut self) -> usize {
        let count = self.entries.len();
        self.free.extend(self.entries.drain().map(|(_, entry)| entry.data));
        self.by_time.clear();
        count
    }

    /// Memory for one more block; `None` if the host has none.
    fn memory(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if let Some(memory) = self.free.pop() {
            return Some(memory);
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        memory.resize(bytes, 0);
        Some(memory)
    }

    /// Gives a block away: its content is in `data` then.
    pub(super) fn take(&mut self, block: &Named, data: &mut Vec<u8>) -> bool {
        if self.entries.get(&block.name).is_none_or(|entry| entry.block != *block) {
            return false;
        }
        let Some(entry) = self.entries.remove(&block.name) else { return false };
        self.by_time.remove(&entry.time);
        self.free.push(std::mem::replace(data, entry.data));
        true
    }

    /// All blocks, those that were used last first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (&Named, &[u8])> {
        let names = self.by_time.values().rev();
        names.filter_map(|name| self.entries.get(name)).map(|entry| (&entry.block, &entry.data[..]))
    }
}
