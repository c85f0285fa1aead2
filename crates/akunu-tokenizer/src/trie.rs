//! A byte trie for longest-prefix matching. Nodes are numbers, and edges are looked up by (node, byte).

use std::collections::HashMap;

use crate::hash::Seed;

#[derive(Debug)]
pub(crate) struct Trie {
    edges: HashMap<u64, u32, Seed>,
    /// By node: the value of the text that ends there, or [`NOTHING`].
    ends: Vec<u32>,
    /// First bytes of all texts, to skip most positions quickly.
    first: [bool; 256],
}

const NOTHING: u32 = u32::MAX;

fn edge(node: u32, byte: u8) -> u64 {
    (node as u64) << 8 | byte as u64
}

impl Trie {
    pub(crate) fn new() -> Trie {
        Trie { edges: HashMap::with_hasher(Seed::random()), ends: vec![NOTHING], first: [false; 256] }
    }

    /// Returns `false` if the text is empty or was inserted before: then the first value is kept.
    pub(crate) fn insert(&mut self, text: &str, value: u32) -> bool {
        let Some(&first) = text.as_bytes().first() else { return false };
        let mut node = 0u32;
        for &byte in text.as_bytes() {
            let fresh = self.ends.len() as u32;
            node = *self.edges.entry(edge(node, byte)).or_insert(fresh);
            if node == fresh {
                self.ends.push(NOTHING);
            }
        }
        self.first[first as usize] = true;
        let end = &mut self.ends[node as usize];
        let vacant = *end == NOTHING;
        if vacant {
            *end = value;
        }
        vacant
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.len() == 1
    }

    /// The value and the end of the longest text at `at` that `wanted` accepts.
    #[inline]
    pub(crate) fn longest(
        &self,
        bytes: &[u8],
        at: usize,
        wanted: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        if !self.first[bytes[at] as usize] {
            return None;
        }
        let (mut node, mut found) = (0, None);
        for (offset, &byte) in bytes[at..].iter().enumerate() {
            let Some(&next) = self.edges.get(&edge(node, byte)) else { break };
            node = next;
            let value = self.ends[node as usize];
            if value != NOTHING && wanted(value) {
                found = Some((value, at + offset + 1));
            }
        }
        found
    }
}
