//! A radix trie for prefix matching: chains of nodes with one child are one edge, labelled with several bytes. So its
//! size is proportional to the number of texts and their bytes, also for long texts.

use std::collections::HashMap;

use crate::hash::Seed;

#[derive(Debug)]
pub(crate) struct Trie {
    /// The root is the first node.
    nodes: Vec<Node>,
    /// By node and first byte of the label.
    edges: HashMap<u64, u32, Seed>,
    labels: Vec<u8>,
    /// First bytes of all texts, to skip most positions quickly.
    first: Box<[bool; 256]>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The label of the edge to this node, in `labels`.
    start: usize,
    len: u32,
    /// The value of the text that ends here, or [`NOTHING`].
    value: u32,
}

const NOTHING: u32 = u32::MAX;

fn edge(node: u32, byte: u8) -> u64 {
    (node as u64) << 8 | byte as u64
}

impl Trie {
    pub(crate) fn new() -> Trie {
        let root = Node { start: 0, len: 0, value: NOTHING };
        let edges = HashMap::with_hasher(Seed::random());
        Trie { nodes: vec![root], edges, labels: Vec::new(), first: Box::new([false; 256]) }
    }

    /// Returns `false` if the text is empty or was inserted before: then the first value is kept.
    pub(crate) fn insert(&mut self, text: &[u8], value: u32) -> bool {
        let Some(&first) = text.first() else { return false };
        self.first[first as usize] = true;
        let (mut node, mut rest) = (0u32, text);
        while let Some(&byte) = rest.first() {
            let Some(&child) = self.edges.get(&edge(node, byte)) else {
                let start = self.labels.len();
                self.labels.extend_from_slice(rest);
                node = self.add(node, byte, Node { start, len: rest.len() as u32, value: NOTHING });
                break;
            };
            let label = self.label(child);
            let common = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            node = if common == label.len() { child } else { self.split(node, byte, child, common) };
            rest = &rest[common..];
        }
        let end = &mut self.nodes[node as usize].value;
        let vacant = *end == NOTHING;
        if vacant {
            *end = value;
        }
        vacant
    }

    /// Adds a node below `parent`, in place of the child there, if any.
    fn add(&mut self, parent: u32, byte: u8, node: Node) -> u32 {
        let number = self.nodes.len() as u32;
        self.nodes.push(node);
        self.edges.insert(edge(parent, byte), number);
        number
    }

    /// Splits the edge to `child` after `len` bytes, and returns the node between its parts.
    fn split(&mut self, parent: u32, byte: u8, child: u32, len: usize) -> u32 {
        let lower = &mut self.nodes[child as usize];
        let upper = Node { start: lower.start, len: len as u32, value: NOTHING };
        lower.start += len;
        lower.len -= len as u32;
        let next = self.labels[lower.start];
        let middle = self.add(parent, byte, upper);
        self.edges.insert(edge(middle, next), child);
        middle
    }

    fn label(&self, node: u32) -> &[u8] {
        let node = self.nodes[node as usize];
        &self.labels[node.start..node.start + node.len as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Calls `found` with the value and the end of each text at `at`, shortest first.
    #[inline]
    pub(crate) fn each(&self, bytes: &[u8], at: usize, mut found: impl FnMut(u32, usize)) {
        if !self.first[bytes[at] as usize] {
            return;
        }
        let (mut node, mut end) = (0, at);
        while let Some(&byte) = bytes.get(end) {
            let Some(&next) = self.edges.get(&edge(node, byte)) else { return };
            let Node { start, len, value } = self.nodes[next as usize];
            crate::work::count(len as usize);
            // The edge was found by the first byte of the label.
            if len > 1 && !bytes[end..].starts_with(&self.labels[start..start + len as usize]) {
                return;
            }
            (node, end) = (next, end + len as usize);
            if value != NOTHING {
                found(value, end);
            }
        }
    }

    /// The value and the end of the longest text at `at` that `wanted` accepts.
    #[inline]
    pub(crate) fn longest(
        &self,
        bytes: &[u8],
        at: usize,
        wanted: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        let mut longest = None;
        self.each(bytes, at, |value, end| {
            if wanted(value) {
                longest = Some((value, end));
            }
        });
        longest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_size_is_that_of_the_texts() {
        let mut trie = Trie::new();
        let texts: Vec<String> =
            (0..500).map(|number| format!("{}{number}", "ab".repeat(number % 7 * 100))).collect();
        for (value, text) in texts.iter().enumerate() {
            assert!(trie.insert(text.as_bytes(), value as u32));
        }
        let bytes: usize = texts.iter().map(String::len).sum();
        assert!(trie.nodes.len() <= 2 * texts.len() + 1 && trie.edges.len() < trie.nodes.len());
        assert!(trie.labels.len() <= bytes, "{} of {bytes}", trie.labels.len());
    }

    proptest! {
        #[test]
        fn every_inserted_prefix_is_found(
            texts in proptest::collection::vec("[abé]{0,6}", 0..30), text in "[abé]{1,10}",
        ) {
            let mut trie = Trie::new();
            let mut known: Vec<&str> = Vec::new();
            for (value, text) in texts.iter().enumerate() {
                let fresh = !text.is_empty() && !texts[..value].contains(text);
                prop_assert_eq!(trie.insert(text.as_bytes(), value as u32), fresh);
                known.push(text);
            }
            prop_assert_eq!(trie.is_empty(), known.iter().all(|text| text.is_empty()));
            let mut expected: Vec<(u32, usize)> = (1..=text.len())
                .filter_map(|end| {
                    let place = known.iter().position(|known| known.as_bytes() == &text.as_bytes()[..end]);
                    Some((place? as u32, end))
                })
                .collect();
            let mut found = Vec::new();
            trie.each(text.as_bytes(), 0, |value, end| found.push((value, end)));
            prop_assert_eq!(&found, &expected);
            expected.retain(|(value, _)| value % 2 == 0);
            prop_assert_eq!(trie.longest(text.as_bytes(), 0, |value| value % 2 == 0), expected.pop());
        }
    }
}
