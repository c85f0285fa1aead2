//! Unigram: finds the split of a text into tokens with the highest sum of scores (Viterbi), from left to right: the
//! best path to a position extends the best path to an earlier one.

use std::collections::HashMap;

use crate::hash::{Pieces, Seed};
use crate::merge::{Merger, NONE};

/// The score of a character without a token is the lowest score minus this.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Unigram {
    trie: HashMap<u64, Node, Seed>,
    nodes: u32,
    unknown_score: f64,
}

/// A trie node, with the token that ends there or [`NONE`].
#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    id: u32,
    score: f64,
}

/// The best path to a position: its last token, and the start of that token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BestPath {
    score: f64,
    start: u32,
    id: u32,
}

const NO_PATH: BestPath = BestPath { score: f64::NEG_INFINITY, start: NONE, id: NONE };

fn edge(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}

impl Unigram {
    pub(crate) fn new() -> Unigram {
        Unigram { trie: HashMap::with_hasher(Seed::random()), nodes: 1, unknown_score: -UNKNOWN_PENALTY }
    }

    /// Adds a token. A score that is not finite is replaced by the lowest possible one.
    pub(crate) fn insert(&mut self, pieces: &Pieces, id: u32, score: f64) {
        let bytes = pieces.get(id).unwrap_or_default();
        let Some((&last, start)) = bytes.split_last() else { return };
        let score = if score.is_finite() { score } else { -1e9 };
        self.unknown_score = self.unknown_score.min(score - UNKNOWN_PENALTY);
        let mut node = 0;
        for &byte in start {
            node = self.step(node, byte).next;
        }
        let end = self.step(node, last);
        if end.id == NONE {
            (end.id, end.score) = (id, score);
        }
    }

    fn step(&mut self, node: u32, byte: u8) -> &mut Node {
        let nodes = &mut self.nodes;
        self.trie.entry(edge(node, byte)).or_insert_with(|| {
            *nodes += 1;
            Node { next: *nodes - 1, id: NONE, score: 0.0 }
        })
    }

    /// Splits `text` and leaves its tokens as the parts of `merger`; an unknown character is a part without a token.
    pub(crate) fn cut(&self, text: &str, paths: &mut Vec<BestPath>, merger: &mut Merger) {
        let bytes = text.as_bytes();
        paths.clear();
        paths.resize(bytes.len() + 1, NO_PATH);
        paths[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let (so_far, width) = (paths[start].score, c.len_utf8());
            let mut offer = |end: usize, score: f64, id: u32| {
                if score > paths[end].score {
                    paths[end] = BestPath { score, start: start as u32, id };
                }
            };
            let (mut node, mut has_single) = (0, false);
            for (at, &byte) in bytes.iter().enumerate().skip(start) {
                let Some(next) = self.trie.get(&edge(node, byte)) else { break };
                node = next.next;
                if next.id != NONE && text.is_char_boundary(at + 1) {
                    offer(at + 1, so_far + next.score, next.id);
                    has_single |= at + 1 == start + width;
                }
            }
            if !has_single {
                offer(start + width, so_far + self.unknown_score, NONE);
            }
        }
        // Backtracking from the end gives the parts in reverse order.
        merger.clear();
        let mut end = bytes.len();
        while end > 0 {
            let path_to = paths[end];
            // Every position is reachable one character at a time; the fallback guarantees termination.
            let start = if (path_to.start as usize) < end { path_to.start as usize } else { end - 1 };
            merger.push(start, end, path_to.id);
            end = start;
        }
        merger.reverse();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The highest sum of all splits of `text`, by exhaustive search.
    fn best(text: &str, tokens: &[(String, f64)], unknown: f64) -> f64 {
        let mut highest = f64::NEG_INFINITY;
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        for cuts in 0..1u32 << places.len() {
            let ends = places.iter().enumerate().filter(|(i, _)| cuts >> i & 1 == 1).map(|(_, &at)| at);
            let (mut start, mut sum) = (0, 0.0);
            for end in ends.chain([text.len()]) {
                let part = &text[start..end];
                let known = tokens.iter().find(|token| token.0 == part).map(|token| token.1);
                // A single character may be unknown, if no token spells it.
                sum += match known {
                    Some(score) => score,
                    None if part.chars().count() == 1 => unknown,
                    None => f64::NEG_INFINITY,
                };
                start = end;
            }
            highest = highest.max(sum);
        }
        highest
    }

    proptest! {
        #[test]
        fn no_other_split_has_a_higher_sum(
            tokens in proptest::collection::hash_map("[abé▁]{1,4}", -12i8..3, 1..25), text in "[abé▁c]{1,10}",
        ) {
            // Integer scores, so that sums are exact in any order.
            let tokens: Vec<(String, f64)> =
                tokens.into_iter().map(|(text, score)| (text, score.into())).collect();
            let (mut unigram, mut pieces) = (Unigram::new(), Pieces::default());
            for (id, (text, score)) in tokens.iter().enumerate() {
                pieces.push_with(|out| out.extend_from_slice(text.as_bytes()));
                unigram.insert(&pieces, id as u32, *score);
            }
            let unknown = tokens.iter().map(|token| token.1).fold(0.0, f64::min) - UNKNOWN_PENALTY;
            let (mut paths, mut merger) = (Vec::new(), Merger::default());
            unigram.cut(&text, &mut paths, &mut merger);
            let (mut end, mut sum) = (0, 0.0);
            for part in merger.parts() {
                prop_assert_eq!(part.start, end);
                end = part.end;
                let spelled = &text[part.start as usize..part.end as usize];
                sum += match tokens.get(part.id as usize) {
                    Some((token, score)) => {
                        prop_assert_eq!(token, spelled);
                        *score
                    }
                    None => unknown,
                };
            }
            prop_assert_eq!(end as usize, text.len());
            prop_assert_eq!(sum, best(&text, &tokens, unknown));
        }
    }
}
