//! Names of full blocks that are the same in every process, and the blocks that are about to lose their content.
//!
//! A block's name is the SHA-256 of the name of what precedes it and of its tokens. The first name of a sequence is that
//! of the model and its cache, with the salt. So equal names mean equal keys and values, on any device that computes the
//! same numbers.

use std::collections::VecDeque;
use std::fmt::{self, Display};

use sha2::{Digest, Sha256};

use super::pool::{BlockId, BlockPool, Parent};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(crate) [u8; 32]);

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Name {
    /// What precedes the first block of a sequence.
    pub(crate) fn root(self, salt: u64) -> Name {
        Name::of(&[&self.0, b"salt", &salt.to_le_bytes()])
    }

    /// The block with these tokens after the one with this name.
    pub(crate) fn followed_by(self, tokens: &[u32]) -> Name {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        Name(hasher.finalize().into())
    }

    pub(crate) fn of(parts: &[&[u8]]) -> Name {
        let mut hasher = Sha256::new();
        parts.iter().for_each(|part| hasher.update(part));
        Name(hasher.finalize().into())
    }
}

/// A full block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Name,
    /// The name of what precedes it.
    pub(crate) parent: Name,
    pub(crate) tokens: Vec<u32>,
}

/// The names of a pool's blocks.
#[derive(Debug)]
pub(super) struct Names {
    /// The model and its cache.
    model: Name,
    /// By block; of full ones whose content is known.
    names: Vec<Name>,
    /// Blocks that are no longer known, and whose content is on the device until something is written.
    leaving: VecDeque<(BlockId, Named)>,
}

impl BlockPool {
    /// With names of blocks for a model and its cache, so that [`BlockPool::next_leaving`] tells what leaves.
    pub(crate) fn with_names(mut self, model: Name) -> BlockPool {
        let names = vec![model; self.count()];
        self.names_of_blocks = Some(Names { model, names, leaving: VecDeque::new() });
        self
    }

    /// The name of what precedes a block. `None`: blocks have no names.
    pub(crate) fn name_of(&self, parent: Parent) -> Option<Name> {
        let names = self.names_of_blocks.as_ref()?;
        Some(match parent {
            Parent::Root(salt) => names.model.root(salt),
            Parent::Block(id) => names.names[id as usize],
        })
    }

    /// Names a full block whose content has become known.
    pub(super) fn give_name(&mut self, id: BlockId, parent: Parent, tokens: &[u32]) {
        let Some(name) = self.name_of(parent) else { return };
        if let Some(names) = &mut self.names_of_blocks {
            names.names[id as usize] = name.followed_by(tokens);
        }
    }

    /// Notes that a full block is about to become unknown.
    pub(super) fn note_leaving(&mut self, id: BlockId) {
        let Some(named) = self.named_block(id) else { return };
        if let Some(names) = &mut self.names_of_blocks {
            names.leaving.push_back((id, named));
        }
    }

    /// A full block whose content is known.
    fn named_block(&self, id: BlockId) -> Option<Named> {
        if self.content(id).len() < self.positions() {
            return None;
        }
        let (parent, name) = (self.name_of(self.parent(id))?, self.name_of(Parent::Block(id))?);
        Some(Named { name, parent, tokens: self.content(id).to_vec() })
    }

    /// A block whose content leaves, and is to be moved before anything is written.
    pub(crate) fn next_leaving(&mut self) -> Option<(BlockId, Named)> {
        self.names_of_blocks.as_mut()?.leaving.pop_front()
    }

    /// Forgets blocks that were about to leave, so that they are not moved.
    pub(crate) fn drop_leaving(&mut self, ids: &[BlockId]) {
        if let Some(names) = &mut self.names_of_blocks {
            names.leaving.retain(|(id, _)| !ids.contains(id));
        }
    }

    /// Forgets all blocks that were about to leave.
    pub(super) fn drop_all_leaving(&mut self) {
        if let Some(names) = &mut self.names_of_blocks {
            names.leaving.clear();
        }
    }

    /// The full blocks without users, those that were released last first: what precedes a block is before it.
    pub(crate) fn kept_blocks(&self) -> Vec<(BlockId, Named)> {
        let ids: Vec<BlockId> = self.kept_from_newest().collect();
        self.named_blocks(&ids)
    }

    /// Those of the blocks that are full, and whose content is known.
    pub(crate) fn named_blocks(&self, ids: &[BlockId]) -> Vec<(BlockId, Named)> {
        ids.iter().filter_map(|&id| Some((id, self.named_block(id)?))).collect()
    }

    /// Whether blocks that are dropped are kept elsewhere.
    pub(crate) fn has_names(&self) -> bool {
        self.names_of_blocks.is_some()
    }
}
