//! The text of a conversation with its token ids, so that earlier text keeps its ids.

use std::ops::Range;

use akunu_tokenizer::Tokenizer;
use akunu_tokenizer::chat::{ChatError, Rendered};

/// A text and its ids, with the boundaries at which both are known: the ends of prompts and answers.
///
/// A conversation grows at its end. Only new text is encoded. Earlier text keeps its ids, because the ids that a model generated may
/// differ from those of the tokenizer for the same text. So the earlier text is found in the KV cache up to the last token.
#[derive(Clone, Debug, Default)]
pub struct TokenizedHistory {
    text: String,
    ids: Vec<u32>,
    /// The ranges of the last prompt that come from messages, not from the template.
    outside: Vec<Range<usize>>,
    prompt_len: usize,
    /// Known boundaries, ascending: the length of the text in bytes, and the number of ids.
    boundaries: Vec<(usize, usize)>,
}

impl TokenizedHistory {
    /// Tokenizes a prompt: uses the known ids for the common prefix, and encodes the rest.
    pub fn encode(&mut self, prompt: &Rendered, tokenizer: &dyn Tokenizer) -> Result<&[u32], ChatError> {
        let agreeing = self.boundaries.iter().rposition(|&(len, _)| self.agrees(prompt, len));
        self.boundaries.truncate(agreeing.map_or(0, |index| index + 1));
        let (text_len, ids_len) = self.boundaries.last().copied().unwrap_or_default();
        self.ids.truncate(ids_len);
        if let Err(error) = prompt.encode_from(text_len, tokenizer, &mut self.ids) {
            *self = TokenizedHistory::default();
            return Err(error);
        }
        self.text.clone_from(&prompt.text);
        self.outside.clone_from(&prompt.untrusted);
        self.prompt_len = prompt.text.len();
        self.boundaries.push((self.text.len(), self.ids.len()));
        Ok(&self.ids)
    }

    /// Appends the text that the model generated after the last prompt.
    pub fn append(&mut self, text: &str, ids: &[u32]) {
        self.text.push_str(text);
        self.ids.extend_from_slice(ids);
        self.boundaries.push((self.text.len(), self.ids.len()));
    }

    /// Whether a text begins with the whole history.
    pub fn begins(&self, text: &Rendered) -> bool {
        self.agrees(text, self.text.len())
    }

    /// Whether a text has the same first `len` bytes, of the same origin: text in a message that imitates a conversation must not
    /// get the ids of one. (The origin of an answer's text does not matter.)
    fn agrees(&self, text: &Rendered, len: usize) -> bool {
        let end = len.min(self.prompt_len);
        text.text.as_bytes().starts_with(&self.text.as_bytes()[..len])
            && within(&text.untrusted, end).eq(within(&self.outside, end))
    }
}

/// The parts of ranges before `end`.
fn within(ranges: &[Range<usize>], end: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let cut = move |range: &Range<usize>| range.start..range.end.min(end);
    ranges.iter().map(cut).filter(|range| !range.is_empty())
}
