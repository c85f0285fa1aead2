//! A conversation's text with its token ids, so that old text keeps the ids that it had.

use std::ops::Range;

use akunu_tokenizer::Tokenizer;
use akunu_tokenizer::chat::{ChatError, Rendered};

/// A text whose ids are known at some places of it: where prompts ended, and where answers did.
///
/// A conversation grows at its end. Its new text is encoded, and its old text has the ids that it had before: an answer keeps those
/// that the model chose, which need not be those that a tokenizer would choose for the same text. So the old text is
/// found again in the KV cache to the last token.
#[derive(Clone, Debug, Default)]
pub struct TokenizedHistory {
    text: String,
    ids: Vec<u32>,
    /// The ranges of the last prompt that came from messages and not from the template.
    outside: Vec<Range<usize>>,
    prompt_len: usize,
    /// Places where both the length of the text in bytes and the number of ids are known; ascending.
    places: Vec<(usize, usize)>,
}

impl TokenizedHistory {
    /// Gives the ids of a prompt: the known ones as far as the text agrees, and new ones for the rest.
    pub fn encode(&mut self, prompt: &Rendered, tokenizer: &dyn Tokenizer) -> Result<&[u32], ChatError> {
        let agreeing = self.places.iter().rposition(|&(len, _)| self.agrees(prompt, len));
        self.places.truncate(agreeing.map_or(0, |place| place + 1));
        let (text_len, ids_len) = self.places.last().copied().unwrap_or_default();
        self.ids.truncate(ids_len);
        if let Err(error) = prompt.encode_from(text_len, tokenizer, &mut self.ids) {
            *self = TokenizedHistory::default();
            return Err(error);
        }
        self.text.clone_from(&prompt.text);
        self.outside.clone_from(&prompt.untrusted);
        self.prompt_len = prompt.text.len();
        self.places.push((self.text.len(), self.ids.len()));
        Ok(&self.ids)
    }

    /// Adds what the model generated after the last prompt.
    pub fn append(&mut self, text: &str, ids: &[u32]) {
        self.text.push_str(text);
        self.ids.extend_from_slice(ids);
        self.places.push((self.text.len(), self.ids.len()));
    }

    /// Whether a text begins with all that is known.
    pub fn begins(&self, text: &Rendered) -> bool {
        self.agrees(text, self.text.len())
    }

    /// Whether a text has the same first `len` bytes, and from the same hands: a message that spells out a conversation
    /// is none. (An answer's bytes are the model's own, whoever brings them back.)
    fn agrees(&self, text: &Rendered, len: usize) -> bool {
        let end = len.min(self.prompt_len);
        text.text.as_bytes().starts_with(&self.text.as_bytes()[..len])
            && within(&text.untrusted, end).eq(within(&self.outside, end))
    }
}

/// What of some ranges lies before `end`.
fn within(ranges: &[Range<usize>], end: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let cut = move |range: &Range<usize>| range.start..range.end.min(end);
    ranges.iter().map(cut).filter(|range| !range.is_empty())
}
