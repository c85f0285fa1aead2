//! Tokenizes a rendered conversation: special tokens are recognised only where the template wrote them.

use std::ops::Range;

use super::{ChatError, Rendered};
use crate::trie::Trie;
use crate::{EncodeOptions, TokenKind, Tokenizer};

impl Rendered {
    /// The tokens of the conversation, without a begin-of-text token unless the template contains one, as in `<s>`.
    ///
    /// Text of a message that looks like a special token is tokenized as plain text. The text is split only at such
    /// positions.
    pub fn encode(&self, tokenizer: &dyn Tokenizer) -> Result<Vec<u32>, ChatError> {
        let mut ids = Vec::new();
        self.encode_from(0, tokenizer, &mut ids)?;
        Ok(ids)
    }

    /// Appends the tokens of the text after the first `from` bytes, whose tokens are `ids`. `from` must be a character
    /// boundary.
    pub fn encode_from(
        &self,
        from: usize,
        tokenizer: &dyn Tokenizer,
        ids: &mut Vec<u32>,
    ) -> Result<(), ChatError> {
        let mut at = from;
        for range in self.lookalikes(tokenizer) {
            let (start, end) = (range.start.max(at), range.end.max(at));
            append(tokenizer, &self.text[at..start], true, ids)?;
            append(tokenizer, &self.text[start..end], false, ids)?;
            at = end;
        }
        append(tokenizer, &self.text[at..], true, ids)
    }

    /// Ranges of untrusted text that contain the text of a special token, or a part of one.
    fn lookalikes(&self, tokenizer: &dyn Tokenizer) -> Vec<Range<usize>> {
        if self.untrusted.is_empty() {
            return Vec::new();
        }
        let controls = Controls::of(tokenizer);
        let text = self.text.as_bytes();
        let holds = |range: &&Range<usize>| {
            // A token may begin before the range and extend into it, or the other way round.
            let from = range.start.saturating_sub(controls.longest);
            (from..range.end).any(|at| controls.longest_at(text, at) > range.start.saturating_sub(at))
        };
        self.untrusted.iter().filter(holds).cloned().collect()
    }
}

/// The texts of all control tokens.
#[derive(Debug)]
struct Controls {
    texts: Trie,
    longest: usize,
}

impl Controls {
    fn of(tokenizer: &dyn Tokenizer) -> Controls {
        let mut controls = Controls { texts: Trie::new(), longest: 0 };
        for id in 0..tokenizer.vocab_size() as u32 {
            let kind = tokenizer.token_kind(id);
            let control = matches!(kind, Some(TokenKind::Control | TokenKind::Unknown));
            if let Some(text) = tokenizer.token_text(id).filter(|_| control) {
                controls.texts.insert(text.as_bytes(), id);
                controls.longest = controls.longest.max(text.len());
            }
        }
        controls
    }

    /// The length of the longest control token at this position; 0 if there is none.
    fn longest_at(&self, text: &[u8], at: usize) -> usize {
        self.texts.longest(text, at, |_| true).map_or(0, |(_, end)| end - at)
    }
}

/// Continues after `ids`, without the space prefix that is added only at the beginning of a text.
fn append(
    tokenizer: &dyn Tokenizer,
    text: &str,
    parse_special: bool,
    ids: &mut Vec<u32>,
) -> Result<(), ChatError> {
    if text.is_empty() {
        return Ok(());
    }
    let options = EncodeOptions { add_special: false, parse_special };
    if ids.is_empty() || !tokenizer.has_space_prefix() {
        return Ok(tokenizer.encode_into(text, options, ids)?);
    }
    // After a newline, which is a separate token, no space prefix is added.
    let newline = tokenizer.encode("\n", options)?;
    let mut with_newline = tokenizer.encode(&format!("\n{text}"), options)?;
    match with_newline.starts_with(&newline) {
        true => ids.extend(with_newline.drain(newline.len()..)),
        false => tokenizer.encode_into(text, options, ids)?,
    }
    Ok(())
}
