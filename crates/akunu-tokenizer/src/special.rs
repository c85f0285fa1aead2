//! Tokens that are matched before the model sees a text: control tokens such as `<|im_end|>`, if the caller asks for
//! them, and user-defined tokens (always).

use crate::cancel::Watch;
use crate::trie::Trie;
use crate::{TokenKind, TokenizerError};

#[derive(Debug)]
pub(crate) struct SpecialTexts {
    trie: Trie,
    tokens: Vec<Token>,
    any_user_defined: bool,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    id: u32,
    user_defined: bool,
    /// The whitespace after it belongs to it.
    strip_after: bool,
}

/// A part of a text: plain text, or a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

impl SpecialTexts {
    pub(crate) fn new() -> SpecialTexts {
        SpecialTexts { trie: Trie::new(), tokens: Vec::new(), any_user_defined: false }
    }

    /// Adds a token, unless it is of another kind, or its text is that of an earlier token.
    pub(crate) fn insert(&mut self, id: u32, text: &str, kind: TokenKind, strip_after: bool) {
        let user_defined = kind == TokenKind::UserDefined;
        let wanted = user_defined || matches!(kind, TokenKind::Control | TokenKind::Unknown);
        if wanted && self.trie.insert(text.as_bytes(), self.tokens.len() as u32) {
            self.tokens.push(Token { id, user_defined, strip_after });
            self.any_user_defined |= user_defined;
        }
    }

    /// Passes the parts of `text` to `emit` in order: the longest token at each position, and the text between tokens.
    pub(crate) fn split<'t>(
        &self,
        text: &'t str,
        parse_special: bool,
        mut emit: impl FnMut(Fragment<'t>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (bytes, mut watch) = (text.as_bytes(), Watch::new());
        let (mut done, mut at) = (0, 0);
        while at < bytes.len() && (parse_special || self.any_user_defined) {
            watch.step()?;
            match self.longest(bytes, at, parse_special) {
                Some((token, end)) => {
                    if done < at {
                        emit(Fragment::Text(&text[done..at]))?;
                    }
                    emit(Fragment::Token(token.id))?;
                    let rest = &text[end..];
                    let rest = if token.strip_after { rest.trim_start() } else { rest };
                    at = text.len() - rest.len();
                    done = at;
                }
                None => at += 1,
            }
        }
        if done < text.len() {
            emit(Fragment::Text(&text[done..]))?;
        }
        Ok(())
    }

    fn longest(&self, bytes: &[u8], at: usize, parse_special: bool) -> Option<(Token, usize)> {
        let wanted = |place: u32| parse_special || self.tokens[place as usize].user_defined;
        let (place, end) = self.trie.longest(bytes, at, wanted)?;
        Some((self.tokens[place as usize], end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments(text: &str, parse_special: bool) -> Vec<Fragment<'_>> {
        let tokens = [
            (1, "<s>", TokenKind::Control),
            (2, "<s>x", TokenKind::UserDefined),
            (3, "  ", TokenKind::UserDefined),
            (4, "    ", TokenKind::UserDefined),
            (5, "normal", TokenKind::Normal),
            (6, "", TokenKind::Control),
            (7, "é", TokenKind::Control),
        ];
        let mut out = Vec::new();
        let keep = |fragment| {
            out.push(fragment);
            Ok(())
        };
        let mut special = SpecialTexts::new();
        tokens.into_iter().for_each(|(id, text, kind)| special.insert(id, text, kind, id == 1));
        special.split(text, parse_special, keep).unwrap();
        out
    }

    #[test]
    fn the_longest_token_wins_at_each_place() {
        use Fragment::{Text, Token};
        assert_eq!(fragments("a<s>xb<s>", true), [Text("a"), Token(2), Text("b"), Token(1)]);
        assert_eq!(fragments("       ", true), [Token(4), Token(3), Text(" ")]);
        assert_eq!(fragments("èé<s", true), [Text("è"), Token(7), Text("<s")]);
        assert_eq!(fragments("", true), []);
        assert_eq!(fragments("<s> \n a<s>", true), [Token(1), Text("a"), Token(1)]);
    }

    #[test]
    fn control_tokens_are_text_unless_asked_for_and_user_defined_ones_never_are() {
        use Fragment::{Text, Token};
        assert_eq!(fragments("<s>é<s>x", false), [Text("<s>é"), Token(2)]);
        assert_eq!(fragments("normal", true), [Text("normal")]);
    }
}
