//! Tokens that were added to a vocabulary: found in a text before the model sees it, first in the text as it stands,
//! then, those that ask for it, in the normalised text. As `tokenizers` finds them, its corner cases included.

use super::file::AddedToken;
use crate::trie::Trie;

/// Some added tokens, all of which are looked for together.
#[derive(Debug)]
pub(super) struct Added {
    trie: Trie,
    tokens: Vec<Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    id: u32,
    special: bool,
    /// Takes the spaces in front; takes those that follow.
    lstrip: bool,
    rstrip: bool,
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

    /// `false` if the text is empty, or another token's.
    pub(super) fn insert(&mut self, text: &str, token: &AddedToken) -> bool {
        let fresh = self.trie.insert(text, self.tokens.len() as u32);
        let AddedToken { id, special, lstrip, rstrip, .. } = *token;
        self.tokens.push(Found { id, special, lstrip, rstrip });
        fresh
    }

    /// Hands the parts of `text` to `emit` in order. With `plain`, special tokens are text; but they are found, so that
    /// what is within one is not.
    pub(super) fn split<E>(
        &self,
        text: &str,
        plain: bool,
        mut emit: impl FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = text.as_bytes();
        let (mut done, mut at) = (0, 0);
        while at < bytes.len() && !self.trie.is_empty() {
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
            if token.lstrip {
                // What an earlier token took stays with that.
                start = if done < start { done + text[done..start].trim_end().len() } else { done };
            }
            if token.rstrip {
                stop = text.len() - text[stop..].trim_start().len();
            }
            if done < start {
                emit(Part::Text { start: done, end: start })?;
            }
            emit(Part::Token(token.id))?;
            done = stop;
        }
        if done < text.len() {
            emit(Part::Text { start: done, end: text.len() })?;
        }
        Ok(())
    }
}
