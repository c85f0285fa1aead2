//! Everything that can be wrong with a vocabulary, or with a text for it.

use akunu_format::FormatError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    #[error("the model file has no `{key}`, so it has no vocabulary that text could be tokenized with")]
    MissingKey { key: &'static str },
    #[error(transparent)]
    Metadata(#[from] FormatError),
    #[error(
        "unknown tokenizer model `{name}`: `llama` (SentencePiece BPE), `gpt2` (byte-level BPE) and \
         `bert` (WordPiece) are supported"
    )]
    UnknownModel { name: String },
    #[error(
        "unknown pre-tokenizer `{name}` (`tokenizer.ggml.pre`): text would be split wrongly without knowing it. \
         Known are: {known}"
    )]
    UnknownPreTokenizer { name: String, known: String },
    #[error("the vocabulary has no tokens")]
    Empty,
    #[error("the vocabulary has {tokens} tokens, and `{key}` has {found} entries")]
    WrongLength { key: &'static str, found: usize, tokens: usize },
    #[error("`{key}` is {id}, and the vocabulary has {tokens} tokens")]
    IdOutOfRange { key: &'static str, id: u64, tokens: usize },
    #[error("the vocabulary asks for `{key}` around every text, but does not say which token that is")]
    MissingSpecial { key: &'static str },
    #[error("merge {index}, `{merge}`, is not two tokens separated by a space")]
    MalformedMerge { index: usize, merge: String },
    #[error("merge {index}, `{merge}`, names `{part}`, which is not a token of the vocabulary")]
    MergeOfUnknownToken { index: usize, merge: String, part: String },
    #[error("the vocabulary has neither a token for `{text}` nor one for unknown text")]
    Unencodable { text: String },
    #[error("the text has {len} bytes, and at most {max} can be tokenized at once")]
    TextTooLong { len: usize, max: usize },
}

/// A piece of someone's file as an error shows it: short, and with nothing in it that upsets a terminal.
pub(crate) fn printable(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut out: String = text.escape_debug().take(SHOWN).collect();
    if text.escape_debug().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}
