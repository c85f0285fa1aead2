//! Which tokens may follow: the vocabulary as a trie of bytes, traversed together with the grammar's machine.

use akunu_tokenizer::{TokenKind, Tokenizer};

use super::machine::{Machine, Stack};
use super::text::plain_len;

/// Maximum steps of the machine for one mask. Highly ambiguous grammars would otherwise block other requests.
const MOST_STEPS: usize = 20_000_000;

/// A set of token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    words: Vec<u64>,
    /// Whether the text may end here.
    pub(crate) may_end: bool,
}

impl Mask {
    fn new(vocab: usize) -> Mask {
        Mask { words: vec![0; vocab.div_ceil(64)], may_end: false }
    }

    fn insert(&mut self, id: u32) {
        self.words[id as usize / 64] |= 1 << (id % 64);
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// A byte in the trie; its children follow it.
#[derive(Clone, Copy, Debug)]
struct TreeNode {
    byte: u8,
    depth: u16,
    /// The index after the last descendant.
    after: u32,
    /// The first of the ids of tokens that end here; the next node has the end of the range.
    ids: u32,
}

/// A trie of byte strings, in depth-first order.
#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<TreeNode>,
    ids: Vec<u32>,
    deepest: usize,
}

impl Tree {
    fn new(mut tokens: Vec<(&[u8], u32)>) -> Tree {
        tokens.sort_unstable();
        let (mut tree, mut open, mut last): (Tree, Vec<usize>, &[u8]) = (Tree::default(), Vec::new(), &[]);
        for (bytes, id) in tokens {
            let common = bytes.iter().zip(last).take_while(|(a, b)| a == b).count();
            tree.close(&mut open, common);
            for (depth, &byte) in bytes.iter().enumerate().skip(common) {
                open.push(tree.nodes.len());
                let ids = tree.ids.len() as u32;
                tree.nodes.push(TreeNode { byte, depth: depth as u16, after: 0, ids });
            }
            tree.ids.push(id);
            tree.deepest = tree.deepest.max(bytes.len());
            last = bytes;
        }
        tree.close(&mut open, 0);
        tree
    }

    fn close(&mut self, open: &mut Vec<usize>, keep: usize) {
        let after = self.nodes.len() as u32;
        open.drain(keep..).for_each(|node| self.nodes[node].after = after);
    }

    /// The tokens that end at a node.
    fn ids_of(&self, node: usize) -> &[u32] {
        let end = self.nodes.get(node + 1).map_or(self.ids.len(), |next| next.ids as usize);
        &self.ids[self.nodes[node].ids as usize..end]
    }
}

/// The tokens of a model that have text.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Number of ids with a logit.
    size: usize,
    /// Tokens that need no escapes in a JSON string: by their number of characters, all of them, and as a trie.
    by_len: Vec<(u32, u32)>,
    plain: Mask,
    plain_tree: Tree,
    /// All other tokens.
    tree: Tree,
}

impl Vocabulary {
    pub(crate) fn new(tokenizer: &dyn Tokenizer, size: usize) -> Vocabulary {
        let (mut plain, mut by_len) = (Mask::new(size), Vec::new());
        let (mut plain_tokens, mut others) = (Vec::new(), Vec::new());
        for id in 0..tokenizer.vocab_size().min(size) as u32 {
            let bytes = tokenizer.token_bytes(id).filter(|bytes| !bytes.is_empty());
            let is_text = !tokenizer.is_control(id) && tokenizer.token_kind(id) != Some(TokenKind::Unused);
            let Some(bytes) = bytes.filter(|_| is_text) else { continue };
            match plain_len(bytes) {
                Some(chars) => {
                    plain.insert(id);
                    by_len.push((chars, id));
                    plain_tokens.push((bytes, id));
                }
                None => others.push((bytes, id)),
            }
        }
        by_len.sort_unstable();
        Vocabulary { size, by_len, plain, plain_tree: Tree::new(plain_tokens), tree: Tree::new(others) }
    }

    /// The tokens that may follow, in addition to those of `marks`. `None`: too expensive to compute.
    pub(super) fn allowed(
        &self,
        machine: &Machine,
        stacks: &[Stack],
        marks: &[(u32, Box<[u8]>)],
    ) -> Option<Mask> {
        let room = machine.plain(stacks);
        let mut mask = match room {
            Some(u32::MAX) => self.plain.clone(),
            _ => Mask::new(self.size),
        };
        if let Some(room) = room.filter(|room| *room < u32::MAX) {
            let some = self.by_len.iter().take_while(|(chars, _)| *chars <= room);
            some.for_each(|&(_, id)| mask.insert(id));
        }
        let mut walk = Traversal { machine, steps: 0, levels: vec![stacks.to_vec()] };
        walk.tree(&self.tree, &mut mask)?;
        if room.is_none() {
            walk.tree(&self.plain_tree, &mut mask)?;
        }
        for (id, text) in marks {
            if walk.takes(text) {
                mask.insert(*id);
            }
        }
        mask.may_end = machine.may_end(stacks);
        Some(mask)
    }
}

struct Traversal<'a> {
    machine: &'a Machine,
    steps: usize,
    /// The machines after each prefix of the current path.
    levels: Vec<Vec<Stack>>,
}

impl Traversal<'_> {
    fn tree(&mut self, tree: &Tree, mask: &mut Mask) -> Option<()> {
        self.levels.resize_with(self.levels.len().max(tree.deepest + 1), Vec::new);
        let mut at = 0;
        while let Some(node) = tree.nodes.get(at) {
            let (before, rest) = self.levels.split_at_mut(node.depth as usize + 1);
            let (from, to) = (&before[node.depth as usize], &mut rest[0]);
            self.machine.step(from, node.byte, to);
            // Each of the other tokens is checked.
            self.steps += from.len() + to.len() * to.len() / 16;
            if self.steps > MOST_STEPS {
                return None;
            }
            if to.is_empty() {
                at = node.after as usize;
                continue;
            }
            tree.ids_of(at).iter().for_each(|&id| mask.insert(id));
            at += 1;
        }
        Some(())
    }

    fn takes(&self, text: &[u8]) -> bool {
        let (mut from, mut to) = (self.levels[0].clone(), Vec::new());
        for &byte in text {
            self.machine.step(&from, byte, &mut to);
            std::mem::swap(&mut from, &mut to);
        }
        !from.is_empty()
    }
}
