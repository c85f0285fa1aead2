//! Errors of vocabularies and of tokenization.

use akunu_format::FormatError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    #[error("the model file has no `{key}`, and therefore no vocabulary")]
    MissingKey { key: &'static str },
    #[error(transparent)]
    Metadata(#[from] FormatError),
    #[error(
        "unknown tokenizer model `{name}`: `llama` (SentencePiece BPE), `t5` (SentencePiece Unigram), `gpt2` \
         (byte-level BPE) and `bert` (WordPiece) are supported"
    )]
    UnknownModel { name: String },
    #[error(
        "unknown pre-tokenizer `{name}` (`tokenizer.ggml.pre`): text would be split wrongly without knowing it. \
         Known are: {known}"
    )]
    UnknownPreTokenizer { name: String, known: String },
    #[error("the vocabulary has no tokens")]
    Empty,
    #[error("the vocabulary has {tokens} tokens, but `{key}` has {found} entries")]
    WrongLength { key: &'static str, found: usize, tokens: usize },
    #[error("`{key}` is {id}, but the vocabulary has only {tokens} tokens")]
    IdOutOfRange { key: &'static str, id: u64, tokens: usize },
    #[error("the vocabulary asks for the token `{key}` around every text, but does not define it")]
    MissingSpecial { key: &'static str },
    #[error("merge {index}, `{merge}`, is not two tokens separated by a space")]
    MalformedMerge { index: usize, merge: String },
    #[error("merge {index}, `{merge}`, contains `{part}`, which is not a token of the vocabulary")]
    MergeOfUnknownToken { index: usize, merge: String, part: String },
    #[error("the vocabulary has neither a token for `{text}` nor one for unknown text")]
    Unencodable { text: String },
    #[error("the vocabulary's regular expression needs more than {max} bytes of memory for the text")]
    ExpressionMemory { max: usize },
    #[error("the normalization table (`precompiled_charsmap`) {what}")]
    Normalization { what: &'static str },
    #[error("`tokenizer.model` is not a SentencePiece file: {what}")]
    NotSentencePiece { what: &'static str },
    #[error(
        "{folder} has neither a tokenizer.json nor a tokenizer.model; take the one that was published with the model"
    )]
    NoVocabulary { folder: String },
    #[error("cannot read {path}: {message}")]
    Io { path: String, message: String },
    #[error("{path} has {len} bytes, but a vocabulary may have at most {max}")]
    FileTooLarge { path: String, len: u64, max: u64 },
    #[error("`{file}` is not valid JSON of the expected form: {message}")]
    Json { file: &'static str, message: String },
    #[error("`{file}` has no `{field}`")]
    MissingField { file: &'static str, field: &'static str },
    #[error("`tokenizer.json` has a `{key}` of the unknown type `{name}`; known are: {known}")]
    UnknownPart { key: &'static str, name: String, known: String },
    #[error("this vocabulary needs {what}, which is not supported")]
    Unsupported { what: String },
    #[error("the vocabulary cannot be written as GGUF: {what}")]
    NoGguf { what: String },
    #[error("the vocabulary cannot be written as tokenizer.json: {what}")]
    NoJson { what: String },
    #[error("token {id} has {len} bytes, but at most {max} are supported")]
    TokenTooLong { id: usize, len: usize, max: usize },
    #[error("the vocabulary's list of tokens cannot be used: {problem}")]
    TokenList { problem: String },
    #[error("the text has {len} bytes, but at most {max} can be tokenized at once")]
    TextTooLong { len: usize, max: usize },
    #[error("the tokenization was cancelled")]
    Cancelled,
}

/// Text from an untrusted file for use in an error: truncated, with control characters escaped.
pub(crate) fn printable(text: &str) -> String {
    const SHOWN: usize = 60;
    // Quotes and backslashes are no danger to a terminal, and of regular expressions and JSON they are a part.
    let shown = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    let escaped: String = text.chars().take(SHOWN + 1).map(shown).collect();
    let mut out: String = escaped.chars().take(SHOWN).collect();
    if escaped.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}
