//! The blocks of a KV cache: which have users, and what those that others may use contain.
//!
//! A block whose content is known is a node of a tree, below the block that precedes it in its sequence, or below the
//! root of its salt: a path is a prefix that some sequence had. Sequences that begin alike use the same blocks. A hash
//! of the parent and the tokens finds a node; both are then compared, so that no two prefixes are ever taken for one.
//! A node without users is kept until its memory is wanted; the one that was released first is the first to go. Lists
//! link blocks, so that nothing is allocated while sequences grow.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::events::EventLog;
use super::names::Names;
use super::siblings::Siblings;
use super::windows::{LOST, WindowBlock, Windows};

pub(crate) type BlockId = u32;

/// No block, in a link.
pub(super) const NONE: BlockId = BlockId::MAX;

/// What precedes a block in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    /// Nothing. Sequences with different salts share no blocks.
    Root(u64),
    Block(BlockId),
}

/// The neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: BlockId,
    after: BlockId,
}

const UNLINKED: Links = Links { before: NONE, after: NONE };

#[derive(Debug)]
struct Block {
    /// Sequences that have the block.
    users: u32,
    /// How many tokens of its content are known, the first of [`BlockPool::tokens`]; 0 if none. Only full blocks have
    /// children.
    len: usize,
    parent: Parent,
    /// The tree of its children.
    children: BlockId,
    siblings: Siblings,
    /// Among the kept blocks.
    kept: Links,
    /// The next block whose name has the same hash.
    same_hash: BlockId,
    /// The block of sliding-window layers with the same content.
    window: WindowBlock,
}

/// The longest known prefix of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its whole blocks.
    pub(crate) blocks: Vec<BlockId>,
    /// A block whose first tokens are the next ones, and how many of them.
    pub(crate) part: Option<(BlockId, usize)>,
}

#[derive(Debug)]
pub(crate) struct BlockPool {
    /// Positions of a block.
    positions: usize,
    blocks: Vec<Block>,
    /// `[block][position]`
    tokens: Vec<u32>,
    /// Blocks without content and users. The next one to use is the last.
    free: Vec<BlockId>,
    /// Full blocks, by the hash of their parent and tokens.
    names: HashMap<u64, BlockId>,
    /// The tree of the children of each root.
    roots: HashMap<u64, BlockId>,
    /// The oldest and the newest of the blocks with content that have no users. What follows a block in the tree is
    /// released before it, so the oldest one has no children.
    oldest: BlockId,
    newest: BlockId,
    /// Full blocks whose content is known.
    full_known: usize,
    /// The number of blocks without users whose content is known, and that of their tokens.
    kept: usize,
    kept_tokens: usize,
    /// Blocks that sequences may still take, and that are kept available for them.
    promised: usize,
    /// The blocks of sliding-window layers, if these have their own.
    pub(super) windows: Option<Windows>,
    /// If blocks that leave are moved elsewhere.
    pub(super) names_of_blocks: Option<Names>,
    /// If what becomes known and unknown is reported.
    pub(super) events: Option<EventLog>,
}

fn hash_of(parent: Parent, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, tokens).hash(&mut hasher);
    hasher.finish()
}

impl BlockPool {
    pub(crate) fn new(count: usize, positions: usize) -> BlockPool {
        let block = || Block {
            users: 0,
            len: 0,
            parent: Parent::Root(0),
            children: NONE,
            siblings: Siblings::NONE,
            kept: UNLINKED,
            same_hash: NONE,
            window: LOST,
        };
        BlockPool {
            positions,
            blocks: (0..count).map(|_| block()).collect(),
            tokens: vec![0; count * positions],
            free: (0..count as BlockId).rev().collect(),
            // Twice as many as there can be, so that removed entries never make it grow.
            names: HashMap::with_capacity(2 * count),
            roots: HashMap::with_capacity(2 * count),
            oldest: NONE,
            newest: NONE,
            full_known: 0,
            kept: 0,
            kept_tokens: 0,
            promised: 0,
            windows: None,
            names_of_blocks: None,
            events: None,
        }
    }

    /// Positions of a block.
    pub(crate) fn positions(&self) -> usize {
        self.positions
    }

    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Full blocks whose content is known.
    pub(crate) fn full_known(&self) -> usize {
        self.full_known
    }

    /// Tokens in blocks that are kept without users.
    pub(crate) fn kept_tokens(&self) -> usize {
        self.kept_tokens
    }

    /// Blocks without users: each of them can be taken.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.kept
    }

    /// Keeps `count` more blocks available for [`BlockPool::take_promised`]; false if there are not so many.
    pub(crate) fn promise(&mut self, count: usize) -> bool {
        let fits = self.promised + count <= self.available();
        self.promised += if fits { count } else { 0 };
        fits
    }

    /// Takes back a promise of `count` blocks.
    pub(crate) fn unpromise(&mut self, count: usize) {
        self.promised -= count;
    }

    /// A block for one user, of those that were promised.
    pub(crate) fn take_promised(&mut self) -> Option<BlockId> {
        let block = self.take_any()?;
        self.promised -= 1;
        Some(block)
    }

    /// A block for one user, unless all are in use or promised.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        if self.available() > self.promised { self.take_any() } else { None }
    }

    fn take_any(&mut self) -> Option<BlockId> {
        if self.free.is_empty() && self.oldest != NONE {
            self.forget(self.oldest);
        }
        let id = self.free.pop()?;
        self.blocks[id as usize].users = 1;
        Some(id)
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn at(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// Adds a user.
    pub(crate) fn share(&mut self, id: BlockId) {
        let block = self.at(id);
        block.users += 1;
        if block.users == 1 {
            self.leave_kept(id);
        }
    }

    /// Removes a user.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = self.at(id);
        block.users -= 1;
        match (block.users, block.len) {
            (0, 0) => self.free.push(id),
            (0, len) => {
                let before = std::mem::replace(&mut self.newest, id);
                self.at(id).kept = Links { before, after: NONE };
                match before {
                    NONE => self.oldest = id,
                    before => self.at(before).kept.after = id,
                }
                self.kept += 1;
                self.kept_tokens += len;
            }
            _ => {}
        }
    }

    /// Removes a block from the list of those without users.
    fn leave_kept(&mut self, id: BlockId) {
        let Links { before, after } = std::mem::replace(&mut self.at(id).kept, UNLINKED);
        match before {
            NONE => self.oldest = after,
            before => self.at(before).kept.after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.at(after).kept.before = before,
        }
        self.kept -= 1;
        self.kept_tokens -= self.block(id).len;
    }

    /// What precedes a block whose content is known.
    pub(super) fn parent(&self, id: BlockId) -> Parent {
        self.block(id).parent
    }

    /// The blocks with content that have no users, those that were released last first.
    pub(super) fn kept_from_newest(&self) -> impl Iterator<Item = BlockId> + '_ {
        let before = |id: &BlockId| Some(self.block(*id).kept.before).filter(|id| *id != NONE);
        std::iter::successors(Some(self.newest).filter(|id| *id != NONE), before)
    }

    /// The block of sliding-window layers beside one whose content is known.
    pub(super) fn window_of(&self, id: BlockId) -> WindowBlock {
        self.block(id).window
    }

    pub(super) fn set_window(&mut self, id: BlockId, window: WindowBlock) {
        self.at(id).window = window;
    }

    /// Whether others have the block or find it, so that it must not be written.
    pub(crate) fn is_shared(&self, id: BlockId) -> bool {
        self.block(id).users > 1 || self.is_known(id)
    }

    /// Whether its content is known.
    pub(crate) fn is_known(&self, id: BlockId) -> bool {
        self.block(id).len > 0
    }

    /// The tokens of its known content.
    pub(crate) fn content(&self, id: BlockId) -> &[u32] {
        &self.tokens[id as usize * self.positions..][..self.block(id).len]
    }

    /// Makes a block unknown that only its user has, and nothing in the tree follows, so that it may be written. False if
    /// it is not such a block.
    pub(crate) fn make_own(&mut self, id: BlockId) -> bool {
        let block = self.block(id);
        let is_own = block.users == 1 && block.children == NONE;
        if is_own {
            self.detach(id);
        }
        is_own
    }

    /// Makes a block unknown that only its user has, and forgets what follows it in the tree, which nothing uses. False if
    /// the block has other users, or its user has what follows.
    pub(crate) fn take_over(&mut self, id: BlockId) -> bool {
        let is_own = self.block(id).users == 1 && self.is_unused(self.block(id).children);
        while is_own && self.block(id).children != NONE {
            let below = |id: &BlockId| Some(self.block(*id).children).filter(|id| *id != NONE);
            let leaf = std::iter::successors(Some(id), below).last();
            leaf.into_iter().for_each(|leaf| self.forget(leaf));
        }
        is_own && self.make_own(id)
    }

    /// Forgets all blocks without users, and returns the number of their tokens. They are not moved elsewhere.
    pub(crate) fn forget_kept(&mut self) -> usize {
        let tokens = self.kept_tokens;
        while self.oldest != NONE {
            self.forget(self.oldest);
        }
        self.drop_all_leaving();
        tokens
    }

    /// Frees a kept block without children.
    fn forget(&mut self, id: BlockId) {
        self.leave_kept(id);
        self.detach(id);
        self.free.push(id);
    }

    /// Removes a block without children from the tree, if it is there.
    fn detach(&mut self, id: BlockId) {
        if !self.is_known(id) {
            return;
        }
        if self.block(id).len == self.positions {
            self.note_leaving(id);
            self.note_removed(id);
            self.remove_name(id);
            self.full_known -= 1;
        }
        self.remove_child(self.block(id).parent, id);
        (self.at(id).len, self.at(id).window) = (0, LOST);
    }

    fn remove_name(&mut self, id: BlockId) {
        let hash = hash_of(self.block(id).parent, self.content(id));
        let after = std::mem::replace(&mut self.at(id).same_hash, NONE);
        let Some(first) = self.names.get(&hash).copied() else { return };
        if first == id {
            match after {
                NONE => self.names.remove(&hash),
                after => self.names.insert(hash, after),
            };
            return;
        }
        let mut other = first;
        while self.block(other).same_hash != id {
            other = self.block(other).same_hash;
        }
        self.at(other).same_hash = after;
    }

    /// The tree of the blocks that follow.
    pub(super) fn children(&self, parent: Parent) -> BlockId {
        match parent {
            Parent::Root(salt) => self.roots.get(&salt).copied().unwrap_or(NONE),
            Parent::Block(id) => self.block(id).children,
        }
    }

    pub(super) fn set_children(&mut self, parent: Parent, tree: BlockId) {
        match parent {
            Parent::Block(id) => self.at(id).children = tree,
            Parent::Root(salt) if tree == NONE => {
                self.roots.remove(&salt);
            }
            Parent::Root(salt) => {
                self.roots.insert(salt, tree);
            }
        }
    }

    pub(super) fn siblings(&self, id: BlockId) -> Siblings {
        self.block(id).siblings
    }

    pub(super) fn set_siblings(&mut self, id: BlockId, siblings: Siblings) {
        self.at(id).siblings = siblings;
    }

    pub(super) fn has_users(&self, id: BlockId) -> bool {
        self.block(id).users > 0
    }

    /// The full block with this content.
    fn named(&self, parent: Parent, tokens: &[u32]) -> Option<BlockId> {
        let mut id = *self.names.get(&hash_of(parent, tokens))?;
        while self.block(id).parent != parent || self.content(id) != tokens {
            id = self.block(id).same_hash;
            if id == NONE {
                return None;
            }
        }
        Some(id)
    }

    /// Makes the content of a block known that is in use, and was not known. The parent's content is known. If there is
    /// a full block with the same content already, it is returned instead, and nothing changes.
    pub(crate) fn add(&mut self, id: BlockId, parent: Parent, tokens: &[u32]) -> Option<BlockId> {
        if tokens.len() == self.positions {
            if let Some(same) = self.named(parent, tokens) {
                return Some(same);
            }
            let same_hash = self.names.insert(hash_of(parent, tokens), id);
            self.at(id).same_hash = same_hash.unwrap_or(NONE);
            self.give_name(id, parent, tokens);
            self.note_stored(id, parent, tokens);
            self.full_known += 1;
        }
        self.forget_beginning(parent, tokens);
        self.tokens[id as usize * self.positions..][..tokens.len()].copy_from_slice(tokens);
        let block = self.at(id);
        (block.len, block.parent) = (tokens.len(), parent);
        self.add_child(parent, id);
        None
    }

    /// As [`BlockPool::add`] for the last block of a sequence that ends, with fewer tokens than a block has positions. It
    /// is not added if another one begins with its content.
    pub(crate) fn add_last(&mut self, id: BlockId, parent: Parent, tokens: &[u32]) {
        let alike = self.most_alike(parent, tokens);
        if alike.is_none_or(|(_, shared)| shared < tokens.len()) {
            self.add(id, parent, tokens);
        }
    }

    /// Forgets the block whose content is only the beginning of what is added now, unless it has users. There is at most
    /// one: of several blocks of which one begins like the other, only the longest is kept.
    fn forget_beginning(&mut self, parent: Parent, tokens: &[u32]) {
        if let Some((other, shared)) = self.most_alike(parent, tokens)
            && shared == self.content(other).len()
            && !self.has_users(other)
        {
            self.forget(other);
        }
    }

    /// The longest known prefix of `tokens` that can go on. Its blocks have no more users than before.
    pub(crate) fn find(&self, salt: u64, tokens: &[u32]) -> Found {
        let mut found = Found::default();
        let mut parent = Parent::Root(salt);
        let mut rest = tokens;
        while rest.len() >= self.positions
            && let Some(block) = self.named(parent, &rest[..self.positions])
        {
            found.blocks.push(block);
            parent = Parent::Block(block);
            rest = &rest[self.positions..];
        }
        found.part = self.most_alike(parent, rest).filter(|(_, shared)| *shared > 0);
        self.within_windows(found)
    }
}

#[cfg(test)]
impl BlockPool {
    /// Each block has as many users as `used` names it, and is in use, kept or free.
    pub(crate) fn check<'a>(&self, used: impl Iterator<Item = &'a BlockId>) {
        let mut users = vec![0; self.blocks.len()];
        used.for_each(|&id| users[id as usize] += 1);
        let after = |id: &BlockId| Some(self.block(*id).kept.after).filter(|id| *id != NONE);
        let kept: Vec<BlockId> =
            std::iter::successors(Some(self.oldest).filter(|id| *id != NONE), after).collect();
        assert_eq!(kept.last().copied().unwrap_or(NONE), self.newest);
        let mut known = 0;
        for id in 0..self.blocks.len() as BlockId {
            let block = self.block(id);
            assert_eq!(block.users, users[id as usize], "block {id}");
            let times = |list: &[BlockId]| list.iter().filter(|other| **other == id).count();
            let is_unused = block.users == 0;
            assert_eq!(times(&self.free), usize::from(is_unused && !self.is_known(id)), "block {id}");
            assert_eq!(times(&kept), usize::from(is_unused && self.is_known(id)), "block {id}");
            if !self.is_known(id) {
                assert_eq!(block.children, NONE);
                continue;
            }
            known += 1;
            assert!(self.in_order(block.parent).contains(&id));
            let is_full = block.len == self.positions;
            assert_eq!(self.named(block.parent, self.content(id)), is_full.then_some(id));
            for child in self.in_order(Parent::Block(id)) {
                assert!(is_full && self.block(child).parent == Parent::Block(id));
                assert!(
                    block.users >= self.block(child).users.min(1),
                    "what precedes a block in use is in use"
                );
                let place = |id: BlockId| kept.iter().position(|other| *other == id);
                assert!(place(id).is_none_or(|own| place(child) < Some(own)), "children go first");
            }
        }
        let roots = self.roots.keys().map(|&salt| Parent::Root(salt));
        let all = roots.chain((0..self.blocks.len() as BlockId).map(Parent::Block));
        let mut children = 0;
        for parent in all {
            let siblings = self.in_order(parent);
            let contents: Vec<&[u32]> = siblings.iter().map(|&id| self.content(id)).collect();
            assert!(contents.is_sorted_by(|a, b| a < b && !b.starts_with(a)), "{contents:?}");
            children += siblings.len();
        }
        assert_eq!(children, known);
        let is_full = |block: &&Block| block.len == self.positions;
        assert_eq!(self.full_known, self.blocks.iter().filter(is_full).count());
        assert_eq!(self.kept, kept.len());
        assert_eq!(self.kept_tokens, kept.iter().map(|&id| self.block(id).len).sum::<usize>());
        assert!(self.promised <= self.available());
    }
}
