//! SentencePiece. BPE: characters are merged into the token with the highest score, repeatedly. Unigram: see
//! [`crate::unigram`]. A character without a token is encoded as byte tokens.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::TokenizerError;
use crate::charsmap::{CharsMap, Normalizer};
use crate::error::printable;
use crate::hash::{Merge, PieceIndex, Pieces};
use crate::merge::{NONE, Part};
use crate::scratch::Scratch;
use crate::trie::Trie;
use crate::unigram::{Precision, Unigram};
use crate::{Model, TokenKind, Vocabulary};

/// The character that represents a space in vocabularies.
pub(crate) const SPACE_MARK: char = '▁';

#[derive(Debug)]
pub(crate) struct SentencePiece {
    rule: Rule,
    normalizer: Normalizer,
    /// `<0x00>` and so on, or [`NONE`].
    byte_ids: [u32; 256],
    unknown: Option<u32>,
    adjacent: AdjacentBytes,
}

#[derive(Debug)]
enum Rule {
    Merges(Merges),
    Unigram(Unigram),
}

#[derive(Debug)]
struct Merges {
    index: PieceIndex,
    /// The merge rank of each token by id. Equal scores have equal ranks. User-defined tokens have [`NONE`].
    ranks: Vec<u32>,
    /// User-defined tokens: they never merge.
    user_defined: Trie,
    /// By id; empty if no token is unused. Unused tokens take part in merging, and are split again afterwards.
    unused: Vec<bool>,
}

/// The set of byte pairs that are adjacent in some token, one bit each.
///
/// No merge can cross a position between two bytes that are not such a pair. So the text may be split there, for any
/// vocabulary, and its parts can be merged separately with the same result. In most vocabularies such a position
/// precedes every space.
#[derive(Debug)]
pub(crate) struct AdjacentBytes(Vec<u64>);

impl AdjacentBytes {
    fn bit(left: u8, right: u8) -> (usize, u64) {
        let pair = (left as usize) << 8 | right as usize;
        (pair / 64, 1 << (pair % 64))
    }

    /// Appends the tokens of a text part by part, split where no merge can cross: from the cache, or else from
    /// `encode`, which returns whether all of a part had tokens, and is told whether the preceding text had none.
    pub(crate) fn each_part(
        &self,
        text: &str,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Scratch, &mut bool, &mut Vec<u32>) -> Result<bool, TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (mut start, mut after_unknown) = (0, false);
        while start < text.len() {
            let end = self.cut(text.as_bytes(), start);
            let part = &text[start..end];
            start = end;
            scratch.watch.step()?;
            if scratch.cache.append(part.as_bytes(), ids) {
                after_unknown = false;
                continue;
            }
            let before = ids.len();
            // Parts with unknown text are not cached: their tokens depend on the preceding text.
            if encode(part, scratch, &mut after_unknown, ids)? {
                scratch.cache.keep(part.as_bytes(), &ids[before..]);
            }
        }
        Ok(())
    }

    /// An empty set.
    pub(crate) fn new() -> AdjacentBytes {
        AdjacentBytes(vec![0; 1024])
    }

    pub(crate) fn add(&mut self, token: &[u8]) {
        for pair in token.windows(2) {
            let (word, bit) = AdjacentBytes::bit(pair[0], pair[1]);
            self.0[word] |= bit;
        }
    }

    /// The end of the part of `text` that starts at `start`.
    #[inline]
    pub(crate) fn cut(&self, text: &[u8], start: usize) -> usize {
        let mut at = start + 1;
        while at < text.len() {
            let (word, bit) = AdjacentBytes::bit(text[at - 1], text[at]);
            // The second condition: not inside a character, which is merged or encoded as a whole.
            if self.0[word] & bit == 0 && text[at] & 0xc0 != 0x80 {
                break;
            }
            at += 1;
        }
        crate::work::count(at - start);
        at
    }
}

impl SentencePiece {
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        kinds: &[TokenKind],
        pieces: &Pieces,
    ) -> Result<SentencePiece, TokenizerError> {
        let texts = || (0u32..).zip(vocabulary.tokens.iter()).zip(kinds.iter().copied());
        let mut adjacent = AdjacentBytes::new();
        let mut byte_ids = [NONE; 256];
        let mut kept = Trie::new();
        for ((id, text), kind) in texts() {
            let bytes = pieces.get(id).unwrap_or_default();
            match kind {
                TokenKind::Byte => {
                    if let [byte] = bytes
                        && byte_ids[*byte as usize] == NONE
                    {
                        byte_ids[*byte as usize] = id;
                    }
                }
                TokenKind::UserDefined if vocabulary.splits_at_user_defined => {}
                TokenKind::UserDefined => {
                    kept.insert(text.as_bytes(), id);
                    adjacent.add(bytes);
                }
                TokenKind::Normal | TokenKind::Unused => adjacent.add(bytes),
                TokenKind::Control | TokenKind::Unknown => {}
            }
        }
        // Spaces in a text become space marks, so tokens that contain a space match nothing.
        let matching =
            || texts().filter(|((_, text), _)| !text.contains(' ')).map(|((id, _), kind)| (id, kind));
        let rule = match vocabulary.model {
            Model::Unigram => Rule::Unigram(unigram(vocabulary, matching, pieces)),
            _ => Rule::Merges(Merges::new(vocabulary, matching(), pieces)),
        };
        let normalizer = Normalizer {
            map: CharsMap::read(&vocabulary.charsmap)?,
            remove_extra_spaces: vocabulary.remove_extra_spaces,
            kept,
        };
        let unknown = vocabulary.special.unknown;
        Ok(SentencePiece { rule, normalizer, byte_ids, unknown, adjacent })
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        add_space: bool,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut spaced = std::mem::take(&mut scratch.text);
        spaced.clear();
        self.normalizer.apply(text, add_space, &mut spaced);
        let result = self.encode_parts(&spaced, pieces, scratch, ids);
        scratch.text = spaced;
        result
    }

    fn encode_parts(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match &self.rule {
            Rule::Merges(merges) if merges.unused.is_empty() => {
                self.adjacent.each_part(text, scratch, ids, |part, scratch, after_unknown, ids| {
                    merges.cut(part, pieces, scratch)?;
                    self.push_ids(part, scratch, after_unknown, ids)
                })
            }
            // How an unused token is split depends on the whole text.
            Rule::Merges(merges) => {
                merges.cut_without_unused(text, pieces, scratch)?;
                self.push_ids(text, scratch, &mut false, ids).map(drop)
            }
            // The sum of scores depends on the preceding text, and its rounding may decide between two splits. Words for
            // which it does not are cached.
            Rule::Unigram(unigram) => {
                let (mut start, mut score, mut after_unknown) = (0, 0.0, false);
                while start < text.len() {
                    let part = &text[start..self.adjacent.cut(text.as_bytes(), start)];
                    start += part.len();
                    scratch.watch.step()?;
                    let before = ids.len();
                    if scratch.cache.append(part.as_bytes(), ids) {
                        if let Some(sum) = unigram.sum_after(score, &ids[before..]) {
                            (score, after_unknown) = (sum, false);
                            continue;
                        }
                        ids.truncate(before);
                    }
                    let Scratch { paths, merger, watch, .. } = &mut *scratch;
                    let split = unigram.cut(part, score, (paths, merger), watch)?;
                    self.push_ids(part, scratch, &mut after_unknown, ids)?;
                    score = split.score;
                    if split.certain {
                        scratch.cache.keep(part.as_bytes(), &ids[before..]);
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self.rule {
            Rule::Merges(_) => "SentencePiece BPE",
            Rule::Unigram(_) => "SentencePiece Unigram",
        }
    }

    /// Appends the tokens of the merger's parts of `text`, with byte tokens or the unknown token for parts without a
    /// token. Returns `false` if some of the text is unknown.
    fn push_ids(
        &self,
        text: &str,
        scratch: &Scratch,
        after_unknown: &mut bool,
        ids: &mut Vec<u32>,
    ) -> Result<bool, TokenizerError> {
        let bytes = text.as_bytes();
        let mut known = true;
        for part in scratch.merger.parts() {
            let (start, end) = (part.start as usize, part.end as usize);
            // SentencePiece stores space marks, so an unknown space is spelled as one.
            let part_bytes = match &bytes[start..end] {
                b" " => "▁".as_bytes(),
                other => other,
            };
            let spelled = part_bytes.iter().map(|&byte| self.byte_ids[byte as usize]);
            if part.id != NONE {
                ids.push(part.id);
            } else if spelled.clone().all(|id| id != NONE) {
                ids.extend(spelled);
            } else {
                let none = || TokenizerError::Unencodable { text: printable(&text[start..end]) };
                let unknown = self.unknown.ok_or_else(none)?;
                // A run of unknown text of any length is one unknown token.
                if !*after_unknown {
                    ids.push(unknown);
                }
                (*after_unknown, known) = (true, false);
                continue;
            }
            *after_unknown = false;
        }
        Ok(known)
    }
}

/// The Unigram model of these tokens.
fn unigram<I: Iterator<Item = (u32, TokenKind)>>(
    vocabulary: &Vocabulary,
    tokens: impl Fn() -> I,
    pieces: &Pieces,
) -> Unigram {
    let mut unigram = Unigram::new(Precision::Single);
    let score = |id: u32| vocabulary.scores.get(id as usize).copied().unwrap_or(0.0);
    let scores = || tokens().filter(|token| token.1 == TokenKind::Normal).map(|token| score(token.0));
    for (id, kind) in tokens() {
        match kind {
            TokenKind::Normal => unigram.insert(pieces, id, score(id).into()),
            TokenKind::UserDefined if !vocabulary.splits_at_user_defined => {
                // As in SentencePiece 0.2.3: it depends on the length in bytes.
                let len = vocabulary.tokens.get(id as usize).unwrap_or_default().len();
                unigram.insert_always(pieces, id, f64::from((0.1 * (len as f64 - 1.0)) as f32));
            }
            // Unused tokens keep their id and never match.
            _ => {}
        }
    }
    if let Some(lowest) = scores().filter(|score| score.is_finite()).reduce(f32::min) {
        unigram.set_lowest(lowest.into());
    }
    unigram
}

impl Merges {
    fn new(
        vocabulary: &Vocabulary,
        tokens: impl Iterator<Item = (u32, TokenKind)>,
        pieces: &Pieces,
    ) -> Merges {
        let count = vocabulary.tokens.len();
        let mut merges = Merges {
            index: PieceIndex::with_capacity(count),
            ranks: ranks(&vocabulary.scores, count),
            user_defined: Trie::new(),
            unused: Vec::new(),
        };
        for (id, kind) in tokens {
            match kind {
                TokenKind::Normal => {
                    merges.index.insert(pieces, id);
                }
                TokenKind::Unused => {
                    merges.index.insert(pieces, id);
                    merges.unused.resize(count, false);
                    merges.unused[id as usize] = true;
                }
                TokenKind::UserDefined if !vocabulary.splits_at_user_defined => {
                    merges.user_defined.insert(pieces.get(id).unwrap_or_default(), id);
                    merges.ranks[id as usize] = NONE;
                }
                _ => {}
            }
        }
        merges
    }

    fn is_user_defined(&self, id: u32) -> bool {
        id != NONE && self.ranks[id as usize] == NONE
    }

    /// Leaves the tokens of `text` as the parts of the merger; characters without a token are single parts.
    fn cut(&self, text: &str, pieces: &Pieces, scratch: &mut Scratch) -> Result<(), TokenizerError> {
        self.cut_noting(text, pieces, scratch, |_, _| {})
    }

    fn cut_noting(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        note: impl Fn(u32, &Part),
    ) -> Result<(), TokenizerError> {
        let bytes = text.as_bytes();
        let Scratch { merger, watch, .. } = scratch;
        merger.clear();
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            watch.step()?;
            let found = self.user_defined.longest(bytes, at, |_| true);
            let (id, end) = found.unwrap_or_else(|| {
                let end = at + c.len_utf8();
                (self.index.get(pieces, &bytes[at..end]).unwrap_or(NONE), end)
            });
            merger.push(at, end, id);
            at = end;
        }
        let any_user_defined = !self.user_defined.is_empty();
        merger.run(watch, |left, right| {
            if any_user_defined && (self.is_user_defined(left.id) || self.is_user_defined(right.id)) {
                return None;
            }
            let id = self.index.get(pieces, &bytes[left.start as usize..right.end as usize])?;
            note(id, left);
            Some(Merge { rank: self.ranks[id as usize], id })
        })?;
        Ok(())
    }

    /// The same, without unused tokens: each is split again into the two parts that it was made of, and single
    /// characters have no token. If there are several such pairs for a token, SentencePiece uses the one that it found
    /// last anywhere in the text.
    fn cut_without_unused(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
    ) -> Result<(), TokenizerError> {
        let lengths = RefCell::new(HashMap::new());
        self.cut_noting(text, pieces, scratch, |id, left| {
            if self.unused[id as usize] {
                lengths.borrow_mut().insert(id, left.end - left.start);
            }
        })?;
        let (lengths, merger) = (lengths.into_inner(), &mut scratch.merger);
        let mut rest: Vec<(u32, u32, u32)> =
            merger.parts().iter().rev().map(|part| (part.start, part.end, part.id)).collect();
        merger.clear();
        let bytes = text.as_bytes();
        let find = |start: u32, end: u32| {
            (start, end, self.index.get(pieces, &bytes[start as usize..end as usize]).unwrap_or(NONE))
        };
        while let Some((start, end, id)) = rest.pop() {
            match lengths.get(&id) {
                Some(len) => rest.extend([find(start + len, end), find(start, start + len)]),
                None => {
                    let unused = id != NONE && self.unused[id as usize];
                    merger.push(start as usize, end as usize, if unused { NONE } else { id });
                }
            }
        }
        Ok(())
    }
}

/// Ranks from scores: the highest score gets rank 0. NaN gets the last rank.
fn ranks(scores: &[f32], count: usize) -> Vec<u32> {
    let score = |id: usize| {
        let score = scores.get(id).copied().unwrap_or(0.0);
        // Adding zero makes −0 and 0 equal.
        if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    let mut ranks = vec![0; count];
    for at in 1..count {
        let (previous, id) = (order[at - 1], order[at]);
        ranks[id] = ranks[previous] + (score(id) != score(previous)) as u32;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EncodeOptions, NativeTokenizer, Tokenizer};
    use akunu_format::Strings;
    use proptest::prelude::*;

    /// A direct implementation of the definition, on the whole text at once.
    fn by_definition(text: &str, tokens: &[String], scores: &[f32]) -> Vec<u32> {
        let find = |piece: &str| tokens.iter().position(|token| token == piece);
        let mut pieces: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let joined = |at: usize| format!("{}{}", pieces[at], pieces[at + 1]);
            let mut best: Option<(f32, usize)> = None;
            for at in 0..pieces.len().saturating_sub(1) {
                if let Some(id) = find(&joined(at))
                    && best.is_none_or(|(score, _)| scores[id] > score)
                {
                    best = Some((scores[id], at));
                }
            }
            let Some((_, at)) = best else { break };
            pieces[at] = joined(at);
            pieces.remove(at + 1);
        }
        let mut ids: Vec<u32> = pieces.iter().map(|piece| find(piece).unwrap_or(0) as u32).collect();
        ids.dedup_by(|a, b| *a == 0 && *b == 0);
        ids
    }

    proptest! {
        #[test]
        fn text_in_parts_merges_as_the_whole(
            tokens in proptest::collection::hash_set("[ab▁é]{1,4}", 1..30), text in "[ab▁éc]{0,40}",
            scores in proptest::collection::vec(-5i8..0, 31),
        ) {
            let tokens: Vec<String> = ["<unk>".to_string()].into_iter().chain(tokens).collect();
            let scores: Vec<f32> = scores.iter().take(tokens.len()).map(|&score| score.into()).collect();
            let expected = by_definition(&text, &tokens, &scores);
            let mut vocabulary = Vocabulary::new(crate::Model::SentencePiece, "");
            vocabulary.kinds = vec![TokenKind::Normal; tokens.len()];
            vocabulary.kinds[0] = TokenKind::Unknown;
            (vocabulary.tokens, vocabulary.scores) = (Strings::from_iter(tokens), scores);
            (vocabulary.special.add_bos, vocabulary.add_space_prefix) = (false, false);
            vocabulary.special.unknown = Some(0);
            let tokenizer = NativeTokenizer::new(vocabulary).unwrap();
            // Twice: the second time from the cache.
            for _ in 0..2 {
                prop_assert_eq!(&tokenizer.encode(&text, EncodeOptions::default()).unwrap(), &expected);
            }
        }
    }

    #[test]
    fn ranks_follow_scores() {
        assert_eq!(ranks(&[-1.0, 0.0, f32::NAN, -1.0, -0.0, -5.0], 6), [1, 0, 3, 1, 0, 2]);
        assert_eq!(ranks(&[], 3), [0, 0, 0]);
    }
}
