//! The blocks that follow a node of the tree, in the order of their tokens: a search tree for each node, linked within
//! the blocks. So the one that begins most like a text is found by comparing a few of them, however many there are.
//!
//! It is a treap: a search tree by content, and a heap by rank. Ranks are numbers that look random, so paths are short.

use super::pool::{BlockId, BlockPool, NONE, Parent};

/// The neighbours of a block among the children of its parent: the trees of those that come before and after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Siblings {
    before: BlockId,
    after: BlockId,
}

impl Siblings {
    pub(super) const NONE: Siblings = Siblings { before: NONE, after: NONE };
}

/// The length of the common prefix.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    /// Compared at once.
    const MANY: usize = 64;
    let pairs = a.chunks_exact(MANY).zip(b.chunks_exact(MANY));
    let same = MANY * pairs.take_while(|(a, b)| a == b).count();
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// A different number for each block (the finaliser of MurmurHash3).
fn rank(id: BlockId) -> u32 {
    let id = (id ^ id >> 16).wrapping_mul(0x85eb_ca6b);
    let id = (id ^ id >> 13).wrapping_mul(0xc2b2_ae35);
    id ^ id >> 16
}

impl BlockPool {
    /// Adds a block with content, which differs from that of all siblings.
    pub(super) fn add_child(&mut self, parent: Parent, id: BlockId) {
        let tree = self.inserted(self.children(parent), id);
        self.set_children(parent, tree);
    }

    pub(super) fn remove_child(&mut self, parent: Parent, id: BlockId) {
        let tree = self.removed(self.children(parent), id);
        self.set_children(parent, tree);
    }

    /// The child whose content has the longest common prefix with `tokens`, and its length.
    pub(super) fn most_alike(&self, parent: Parent, tokens: &[u32]) -> Option<(BlockId, usize)> {
        let mut best: Option<(BlockId, usize)> = None;
        let mut tree = self.children(parent);
        // The neighbours of a text in the order share most with it, and both are on the path to its place.
        while tree != NONE && best.is_none_or(|(_, most)| most < tokens.len()) {
            let content = self.content(tree);
            let shared = common(content, tokens);
            if best.is_none_or(|(_, most)| shared > most) {
                best = Some((tree, shared));
            }
            let Siblings { before, after } = self.siblings(tree);
            tree = if content[shared..] < tokens[shared..] { after } else { before };
        }
        best
    }

    /// Whether no block of a tree has users.
    pub(super) fn is_unused(&self, tree: BlockId) -> bool {
        if tree == NONE {
            return true;
        }
        let Siblings { before, after } = self.siblings(tree);
        !self.has_users(tree) && self.is_unused(before) && self.is_unused(after)
    }

    fn inserted(&mut self, tree: BlockId, id: BlockId) -> BlockId {
        if tree == NONE || rank(id) > rank(tree) {
            let (before, after) = self.divided(tree, id);
            self.set_siblings(id, Siblings { before, after });
            return id;
        }
        let mut siblings = self.siblings(tree);
        if self.content(id) < self.content(tree) {
            siblings.before = self.inserted(siblings.before, id);
        } else {
            siblings.after = self.inserted(siblings.after, id);
        }
        self.set_siblings(tree, siblings);
        tree
    }

    /// The blocks of a tree before and after the place of one that is not in it.
    fn divided(&mut self, tree: BlockId, id: BlockId) -> (BlockId, BlockId) {
        if tree == NONE {
            return (NONE, NONE);
        }
        let Siblings { before, after } = self.siblings(tree);
        if self.content(id) < self.content(tree) {
            let (first, second) = self.divided(before, id);
            self.set_siblings(tree, Siblings { before: second, after });
            (first, tree)
        } else {
            let (first, second) = self.divided(after, id);
            self.set_siblings(tree, Siblings { before, after: first });
            (tree, second)
        }
    }

    fn removed(&mut self, tree: BlockId, id: BlockId) -> BlockId {
        if tree == NONE {
            return NONE;
        }
        let mut siblings = self.siblings(tree);
        if tree == id {
            self.set_siblings(id, Siblings::NONE);
            return self.joined(siblings.before, siblings.after);
        }
        if self.content(id) < self.content(tree) {
            siblings.before = self.removed(siblings.before, id);
        } else {
            siblings.after = self.removed(siblings.after, id);
        }
        self.set_siblings(tree, siblings);
        tree
    }

    /// One tree of two, of which all blocks of the first come before those of the second.
    fn joined(&mut self, first: BlockId, second: BlockId) -> BlockId {
        if first == NONE || second == NONE {
            return if first == NONE { second } else { first };
        }
        if rank(first) > rank(second) {
            let Siblings { before, after } = self.siblings(first);
            let after = self.joined(after, second);
            self.set_siblings(first, Siblings { before, after });
            first
        } else {
            let Siblings { before, after } = self.siblings(second);
            let before = self.joined(first, before);
            self.set_siblings(second, Siblings { before, after });
            second
        }
    }
}

#[cfg(test)]
impl BlockPool {
    pub(super) fn depth(&self, tree: BlockId) -> usize {
        if tree == NONE {
            return 0;
        }
        let Siblings { before, after } = self.siblings(tree);
        1 + self.depth(before).max(self.depth(after))
    }

    /// The children of a node in order; the heap is checked, too.
    pub(super) fn in_order(&self, parent: Parent) -> Vec<BlockId> {
        fn visit(pool: &BlockPool, tree: BlockId, all: &mut Vec<BlockId>) {
            if tree != NONE {
                let Siblings { before, after } = pool.siblings(tree);
                for child in [before, after].into_iter().filter(|child| *child != NONE) {
                    assert!(rank(child) < rank(tree));
                }
                visit(pool, before, all);
                all.push(tree);
                visit(pool, after, all);
            }
        }
        let mut all = Vec::new();
        visit(self, self.children(parent), &mut all);
        all
    }
}
