//! What becomes known and unknown in the cache, for programs that send a request to the server that has its prefix.

use sha2::{Digest, Sha256};

use super::pool::{BlockId, BlockPool, Parent};

/// A change of the full blocks that prompts may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A block with these tokens is there, after the block `parent`, or first in a text. Its hash is that of its parent and
    /// of its tokens, and, where it has no parent, of the salt.
    Stored { hash: u64, parent: Option<u64>, tokens: Vec<u32>, salted: bool },
    /// A block is not there any more.
    Removed { hash: u64, salted: bool },
}

/// What a block is called in events, and whether its text has a salt, so that other texts do not share it.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    hash: u64,
    salted: bool,
}

#[derive(Debug)]
pub(super) struct EventLog {
    /// By block; of full ones whose content is known.
    blocks: Vec<Known>,
    events: Vec<CacheEvent>,
}

impl BlockPool {
    /// Notes events from now on. Blocks that are known already have none.
    pub(crate) fn log_events(&mut self) {
        self.events = Some(EventLog { blocks: vec![Known::default(); self.count()], events: Vec::new() });
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(|log| std::mem::take(&mut log.events)).unwrap_or_default()
    }

    /// Notes that a full block has become known.
    pub(super) fn note_stored(&mut self, id: BlockId, parent: Parent, tokens: &[u32]) {
        let Some(log) = &mut self.events else { return };
        let (before, salted, parent) = match parent {
            Parent::Root(salt) => (salt, salt != 0, None),
            Parent::Block(id) => {
                let Known { hash, salted } = log.blocks[id as usize];
                (hash, salted, Some(hash))
            }
        };
        let hash = hash(before, parent.is_none(), tokens);
        log.blocks[id as usize] = Known { hash, salted };
        log.events.push(CacheEvent::Stored { hash, parent, tokens: tokens.to_vec(), salted });
    }

    /// Notes that a full block is about to become unknown.
    pub(super) fn note_removed(&mut self, id: BlockId) {
        if let Some(log) = &mut self.events {
            let Known { hash, salted } = log.blocks[id as usize];
            log.events.push(CacheEvent::Removed { hash, salted });
        }
    }
}

fn hash(before: u64, is_first: bool, tokens: &[u32]) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update([u8::from(is_first)]);
    hasher.update(before.to_le_bytes());
    tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
    hasher.finalize().iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

#[cfg(test)]
impl BlockPool {
    /// The full blocks whose content is known: hashes, those of their parents, and tokens.
    pub(super) fn full_blocks(&self) -> impl Iterator<Item = (u64, (Option<u64>, Vec<u32>))> {
        let hash = |id: BlockId| self.events.as_ref().map_or(0, |log| log.blocks[id as usize].hash);
        let ids = (0..self.count() as BlockId).filter(|id| self.content(*id).len() == self.positions());
        ids.map(move |id| {
            let parent = match self.parent(id) {
                Parent::Root(_) => None,
                Parent::Block(id) => Some(hash(id)),
            };
            (hash(id), (parent, self.content(id).to_vec()))
        })
    }
}
