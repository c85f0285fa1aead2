//! Unigram: finds the split of a text into tokens with the highest sum of scores (Viterbi), from left to right: the
//! best path to a position extends the best path to an earlier one.

use crate::TokenizerError;
use crate::cancel::Watch;
use crate::hash::Pieces;
use crate::merge::{Merger, NONE};
use crate::trie::Trie;

/// The score of a character without a token is the lowest score minus this.
const UNKNOWN_PENALTY: f64 = 10.0;

/// SentencePiece lets sums start again from 0 when they exceed this, so that they do not lose precision.
const RESTART: f64 = 100_000.0;

/// The greatest sum before a word for which a kept split is used: far enough from [`RESTART`].
const FAR_FROM_RESTART: f64 = 99_000.0;

/// Splits whose sums differ by less are not certain: below [`RESTART`], a sum of 15 scores is rounded by up to 0.06.
const MARGIN: f64 = 0.15;

/// How a text was split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    /// The sum of scores after the text.
    pub(crate) score: f64,
    /// The split does not depend on the sum before the text, and all of it has tokens.
    pub(crate) certain: bool,
}

#[derive(Debug)]
pub(crate) struct Unigram {
    /// The values are places in `tokens`.
    trie: Trie,
    /// Ids and scores.
    tokens: Vec<(u32, f64)>,
    /// Scores by id.
    scores: Vec<f64>,
    lowest: f64,
    /// Length in bytes of the longest token, or 4, the longest character.
    longest: usize,
    precision: Precision,
}

/// The precision of sums of scores. It decides between splits whose sums are nearly equal, such as those of a run of one
/// character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// As in SentencePiece.
    Single,
    /// As in Hugging Face's `tokenizers`.
    Double,
}

/// The best path to a position: its last token, and the start of that token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BestPath {
    score: f64,
    start: u32,
    id: u32,
}

const NO_PATH: BestPath = BestPath { score: f64::NEG_INFINITY, start: NONE, id: NONE };

impl Unigram {
    pub(crate) fn new(precision: Precision) -> Unigram {
        Unigram {
            trie: Trie::new(),
            tokens: Vec::new(),
            scores: Vec::new(),
            lowest: 0.0,
            longest: 4,
            precision,
        }
    }

    /// Adds a token. A score that is not finite is replaced by the lowest possible one.
    pub(crate) fn insert(&mut self, pieces: &Pieces, id: u32, score: f64) {
        let score = if score.is_finite() { score } else { -1e9 };
        self.lowest = self.lowest.min(score);
        self.insert_always(pieces, id, score);
    }

    /// Adds a token whose score does not count as the lowest one.
    pub(crate) fn insert_always(&mut self, pieces: &Pieces, id: u32, score: f64) {
        let place = self.tokens.len() as u32;
        let bytes = pieces.get(id).unwrap_or_default();
        if self.trie.insert(bytes, place) {
            self.tokens.push((id, score));
            self.scores.resize(self.scores.len().max(id as usize + 1), 0.0);
            self.scores[id as usize] = score;
            self.longest = self.longest.max(bytes.len());
        }
    }

    /// Sets the lowest score, which is otherwise that of the inserted tokens, or 0.
    pub(crate) fn set_lowest(&mut self, lowest: f64) {
        self.lowest = lowest;
    }

    fn rounded(&self, score: f64) -> f64 {
        match self.precision {
            Precision::Single => f64::from(score as f32),
            Precision::Double => score,
        }
    }

    /// Splits `text` and leaves its tokens as the parts of `merger`; an unknown character is a part without a token.
    /// `so_far` is the sum of scores before the text.
    pub(crate) fn cut(
        &self,
        text: &str,
        so_far: f64,
        (paths, merger): (&mut Vec<BestPath>, &mut Merger),
        watch: &mut Watch,
    ) -> Result<Split, TokenizerError> {
        let mut certain = so_far.abs() < FAR_FROM_RESTART;
        let bytes = text.as_bytes();
        paths.clear();
        paths.resize(bytes.len() + 1, NO_PATH);
        paths[0].score = so_far;
        let unknown = self.rounded(self.lowest - UNKNOWN_PENALTY);
        for (start, c) in text.char_indices() {
            crate::work::count(1);
            watch.step()?;
            if self.precision == Precision::Single && paths[start].score.abs() > RESTART {
                let offset = paths[start].score;
                let frontier = paths[start..].iter_mut().take(self.longest + 1);
                frontier.for_each(|path| path.score = self.rounded(path.score - offset));
            }
            let (so_far, width) = (paths[start].score, c.len_utf8());
            let mut offer = |end: usize, score: f64, id: u32| {
                let score = self.rounded(score);
                certain &= (score - paths[end].score).abs() > MARGIN;
                if score > paths[end].score {
                    paths[end] = BestPath { score, start: start as u32, id };
                }
            };
            let mut has_single = false;
            self.trie.each(bytes, start, |place, end| {
                if text.is_char_boundary(end) {
                    let (id, score) = self.tokens[place as usize];
                    offer(end, so_far + score, id);
                    has_single |= end == start + width;
                }
            });
            if !has_single {
                offer(start + width, so_far + unknown, NONE);
            }
        }
        // Backtracking from the end gives the parts in reverse order.
        merger.clear();
        let mut end = bytes.len();
        while end > 0 {
            let path_to = paths[end];
            // Every position is reachable one character at a time; the fallback guarantees termination.
            let start = if (path_to.start as usize) < end { path_to.start as usize } else { end - 1 };
            certain &= path_to.id != NONE;
            merger.push(start, end, path_to.id);
            end = start;
        }
        merger.reverse();
        Ok(Split { score: paths[bytes.len()].score, certain })
    }

    /// The sum of scores after tokens whose split is certain, if it may be used after the sum `so_far`.
    pub(crate) fn sum_after(&self, so_far: f64, ids: &[u32]) -> Option<f64> {
        let score = |id: &u32| self.scores.get(*id as usize).copied().unwrap_or(0.0);
        let sum = ids.iter().fold(so_far, |sum, id| self.rounded(sum + score(id)));
        Some(sum).filter(|_| so_far.abs() < FAR_FROM_RESTART)
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
            let (mut unigram, mut pieces) = (Unigram::new(Precision::Double), Pieces::default());
            for (id, (text, score)) in tokens.iter().enumerate() {
                pieces.push_with(|out| out.extend_from_slice(text.as_bytes()));
                unigram.insert(&pieces, id as u32, *score);
            }
            let unknown = tokens.iter().map(|token| token.1).fold(0.0, f64::min) - UNKNOWN_PENALTY;
            let (mut paths, mut merger) = (Vec::new(), Merger::default());
            unigram.cut(&text, 0.0, (&mut paths, &mut merger), &mut Watch::new()).unwrap();
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
