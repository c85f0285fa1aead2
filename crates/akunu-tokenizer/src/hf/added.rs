//! Added tokens: matched before the model sees a text, first in the original text, then (for tokens with `normalized`)
//! in the normalized text. Behaves like the `tokenizers` library, including its corner cases.

use super::file::AddedToken;
use super::steps::is_word;
use crate::TokenizerError;
use crate::cancel::Watch;
use crate::trie::Trie;

/// A set of added tokens that are matched together.
#[derive(Debug)]
pub(super) struct Added {
    trie: Trie,
    tokens: Vec<Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    id: u32,
    special: bool,
    /// Also consumes preceding (lstrip) or following (rstrip) whitespace.
    lstrip: bool,
    rstrip: bool,
    /// Matches whole words only.
    single_word: bool,
}

/// A part of a text: a token, or a range that is still text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Token(u32),
    Text { start: usize, end: usize },
}

impl Added {
    pub(super) fn new() -> Added {
        Added { trie: Trie::new(), tokens: Vec::new() }
    }

    /// Adds a token with a text. If the text is empty or another token's, it is never found.
    pub(super) fn insert(&mut self, text: &str, id: u32, token: &AddedToken) {
        self.trie.insert(text.as_bytes(), self.tokens.len() as u32);
        let AddedToken { special, lstrip, rstrip, single_word, .. } = *token;
        self.tokens.push(Found { id, special, lstrip, rstrip, single_word });
    }

    /// Passes the parts of `text` to `emit` in order. With `plain`, special tokens are treated as text; they are still
    /// matched, so that no other token is found inside them.
    pub(super) fn split(
        &self,
        text: &str,
        plain: bool,
        mut emit: impl FnMut(Part) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (bytes, mut watch) = (text.as_bytes(), Watch::new());
        // `space_end` is the end of the whitespace after the last token that consumed it.
        let (mut done, mut at, mut space_end) = (0, 0, 0);
        while at < bytes.len() && !self.trie.is_empty() {
            watch.step()?;
            let Some((place, end)) = self.trie.longest(bytes, at, |_| true) else {
                at += 1;
                continue;
            };
            let token = self.tokens[place as usize];
            let (mut start, mut stop) = (at, end);
            at = end;
            if plain && token.special {
                continue;
            }
            let joins = |c: Option<char>| token.single_word && c.is_some_and(is_word);
            if joins(text[..start].chars().next_back()) || joins(text[stop..].chars().next()) {
                continue;
            }
            if token.lstrip {
                // Whitespace that an earlier token consumed stays with that token.
                start = if done < start { done + text[done..start].trim_end().len() } else { done };
            }
            if token.rstrip {
                // A token within whitespace that was searched before is followed by the rest of it.
                if space_end < stop {
                    space_end = text.len() - text[stop..].trim_start().len();
                }
                stop = space_end;
            }
            if done < start {
                emit(Part::Text { start: done, end: start })?;
            }
            // A token all of which an earlier one consumed is none.
            if start < stop {
                emit(Part::Token(token.id))?;
            }
            done = stop;
        }
        if done < text.len() {
            emit(Part::Text { start: done, end: text.len() })?;
        }
        Ok(())
    }
}
