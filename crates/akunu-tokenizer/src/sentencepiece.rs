//! SentencePiece's BPE: characters merge into the token with the best score, again and again. A character that
//! has no token is spelled in bytes.

use crate::TokenizerError;
use crate::error::printable;
use crate::hash::{Merge, PieceIndex, Pieces};
use crate::merge::NONE;
use crate::native::Scratch;
use crate::{TokenKind, Vocabulary};

/// How vocabularies write a space.
pub(crate) const SPACE_MARK: char = '▁';

#[derive(Debug)]
pub(crate) struct SentencePiece {
    index: PieceIndex,
    /// By id: how soon a token is merged to. Equal scores have equal ranks.
    ranks: Vec<u32>,
    /// `<0x00>` and so on, or [`NONE`].
    byte_ids: [u32; 256],
    unknown: Option<u32>,
    /// Some token has a space behind something else (`▁of▁the`), so words cannot be looked at one by one.
    crosses_words: bool,
}

impl SentencePiece {
    pub(crate) fn new(vocabulary: &Vocabulary, kinds: &[TokenKind], pieces: &Pieces) -> SentencePiece {
        let mut index = PieceIndex::with_capacity(kinds.len());
        let (mut byte_ids, mut crosses_words) = ([NONE; 256], false);
        for (id, kind) in kinds.iter().enumerate() {
            let bytes = pieces.get(id as u32).unwrap_or_default();
            match kind {
                TokenKind::Normal | TokenKind::Unused => {
                    index.insert(pieces, id as u32);
                    crosses_words |= bytes.windows(2).any(|pair| pair[0] != b' ' && pair[1] == b' ');
                }
                TokenKind::Byte => {
                    if let [byte] = bytes
                        && byte_ids[*byte as usize] == NONE
                    {
                        byte_ids[*byte as usize] = id as u32;
                    }
                }
                _ => {}
            }
        }
        let ranks = ranks(&vocabulary.scores, kinds.len());
        SentencePiece { index, ranks, byte_ids, unknown: vocabulary.special.unknown, crosses_words }
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
        if add_space {
            spaced.push(' ');
        }
        // Tokens are kept with real spaces, and the mark that files use for them means one in a text, too.
        for (at, part) in text.split(SPACE_MARK).enumerate() {
            if at > 0 {
                spaced.push(' ');
            }
            spaced.push_str(part);
        }
        let result = self.encode_words(&spaced, pieces, scratch, ids);
        scratch.text = spaced;
        result
    }

    /// A word is its spaces and what follows up to the next space. If no token reaches over that border, merging
    /// words one by one is merging the whole, and words that were seen before need no merging.
    fn encode_words(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let spaces = bytes[start..].iter().position(|&byte| byte != b' ').unwrap_or(bytes.len() - start);
            let letters = bytes[start + spaces..].iter().position(|&byte| byte == b' ');
            let end = match letters {
                Some(letters) if !self.crosses_words => start + spaces + letters,
                _ => bytes.len(),
            };
            let word = &text[start..end];
            if !scratch.cache.append(word.as_bytes(), ids) {
                let before = ids.len();
                self.encode_word(word, pieces, scratch, ids)?;
                scratch.cache.keep(word.as_bytes(), &ids[before..]);
            }
            start = end;
        }
        Ok(())
    }

    fn encode_word(
        &self,
        word: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let bytes = word.as_bytes();
        let merger = &mut scratch.merger;
        merger.clear();
        for (at, c) in word.char_indices() {
            let end = at + c.len_utf8();
            merger.push(at, end, self.index.get(pieces, &bytes[at..end]).unwrap_or(NONE));
        }
        let parts = merger.run(|left, right| {
            let id = self.index.get(pieces, &bytes[left.start as usize..right.end as usize])?;
            Some(Merge { rank: self.ranks[id as usize], id })
        });
        let mut after_unknown = false;
        for part in parts {
            if part.id != NONE {
                ids.push(part.id);
                after_unknown = false;
                continue;
            }
            let character = &bytes[part.start as usize..part.end as usize];
            if character.iter().all(|&byte| self.byte_ids[byte as usize] != NONE) {
                ids.extend(character.iter().map(|&byte| self.byte_ids[byte as usize]));
                after_unknown = false;
                continue;
            }
            let text = &word[part.start as usize..part.end as usize];
            let none = || TokenizerError::Unencodable { text: printable(text) };
            let unknown = self.unknown.ok_or_else(none)?;
            // However long, a stretch of unknown text is one unknown token.
            if !after_unknown {
                ids.push(unknown);
            }
            after_unknown = true;
        }
        Ok(())
    }
}

/// Ranks from scores: the highest score is rank 0. What is not a number comes last.
fn ranks(scores: &[f32], count: usize) -> Vec<u32> {
    let score = |id: usize| {
        let score = scores.get(id).copied().unwrap_or(0.0);
        // Adding zero makes −0 and 0 the same score.
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

    #[test]
    fn ranks_follow_scores() {
        assert_eq!(ranks(&[-1.0, 0.0, f32::NAN, -1.0, -0.0, -5.0], 6), [1, 0, 3, 1, 0, 2]);
        assert_eq!(ranks(&[], 3), [0, 0, 0]);
    }
}
