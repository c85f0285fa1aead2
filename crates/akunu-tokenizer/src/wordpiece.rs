//! WordPiece as in BERT: text is cleaned and split at whitespace and punctuation. Each word is split into the longest
//! token that matches, then the longest that matches the rest. A word for which this fails is one unknown token.

use crate::hash::{PieceIndex, Pieces};
use crate::scratch::Scratch;
use crate::unicode::{Class, without_marks};
use crate::{TokenKind, TokenizerError, Vocabulary};

/// Maximum length of a word in characters; longer words are unknown.
pub(crate) const MAX_WORD: usize = 100;

#[derive(Debug)]
pub(crate) struct WordPiece {
    /// Tokens that begin a word start with a space.
    index: PieceIndex,
    unknown: Option<u32>,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    pub(crate) fn new(vocabulary: &Vocabulary, kinds: &[TokenKind], pieces: &Pieces) -> WordPiece {
        let mut index = PieceIndex::with_capacity(kinds.len());
        for (id, kind) in kinds.iter().enumerate() {
            if matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::UserDefined) {
                index.insert(pieces, id as u32);
            }
        }
        WordPiece {
            index,
            unknown: vocabulary.special.unknown,
            lowercase: vocabulary.lowercase,
            strip_accents: vocabulary.strip_accents,
        }
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut word = std::mem::take(&mut scratch.text);
        let mut empty = String::new();
        word.clear();
        let mut result = Ok(());
        let mut flush = |word: &mut String| {
            if !word.is_empty() && result.is_ok() {
                result = self.encode_word(word, pieces, scratch, ids);
            }
            word.clear();
        };
        for c in text.chars() {
            crate::work::count(1);
            let class = Class::of(c);
            let line_space = matches!(c, '\t' | '\n' | '\r');
            if c == '\0'
                || c == char::REPLACEMENT_CHARACTER
                || class.is(Class::CONTROL)
                || c.is_control() && !line_space
            {
                continue;
            }
            if class.is(Class::SPACE) {
                flush(&mut word);
                continue;
            }
            if is_cjk(c) {
                flush(&mut word);
            }
            empty.clear();
            if self.strip_accents {
                without_marks(c, &mut empty)
            } else {
                empty.push(c)
            }
            for c in empty.chars() {
                let alone = c.is_ascii_punctuation() || Class::of(c).is(Class::PUNCTUATION) || is_cjk(c);
                if alone {
                    flush(&mut word);
                }
                if self.lowercase {
                    word.extend(c.to_lowercase())
                } else {
                    word.push(c)
                }
                if alone {
                    flush(&mut word);
                }
            }
        }
        flush(&mut word);
        scratch.text = word;
        result
    }

    /// Appends the tokens of one word.
    pub(crate) fn encode_word(
        &self,
        word: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        scratch.watch.step()?;
        if scratch.cache.append(word.as_bytes(), ids) {
            return Ok(());
        }
        let before = ids.len();
        if word.chars().count() > MAX_WORD || !self.spell(word, pieces, ids) {
            ids.truncate(before);
            let none = || TokenizerError::Unencodable { text: crate::error::printable(word) };
            ids.push(self.unknown.ok_or_else(none)?);
        }
        scratch.cache.keep(word.as_bytes(), &ids[before..]);
        Ok(())
    }

    /// Appends the tokens of a word; returns `false`, after some of them, if the rest has no token.
    fn spell(&self, word: &str, pieces: &Pieces, ids: &mut Vec<u32>) -> bool {
        let spaced = format!(" {word}");
        let mut start = 0;
        while start < spaced.len() {
            let end = spaced.len().min(start.saturating_add(self.index.longest()));
            let found = (start + 1..=end)
                .rev()
                .filter(|&end| spaced.is_char_boundary(end))
                .find_map(|end| Some((self.index.get(pieces, &spaced.as_bytes()[start..end])?, end)));
            let Some((id, end)) = found else { return false };
            ids.push(id);
            start = end;
        }
        true
    }
}

/// Whether this is a CJK character, each of which is a word. The ranges are those of BERT.
pub(crate) fn is_cjk(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}
