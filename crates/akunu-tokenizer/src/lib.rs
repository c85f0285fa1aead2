//! Converts text to token ids and back.
//!
//! ```text
//! "Hello world<|im_end|>" ─special─▶ ["Hello world", 151645] ─pretokenizer─▶ ["Hello", " world"] ─merge─▶ ids
//! ids ─token_bytes─▶ bytes ─stream─▶ complete characters
//! ```
//!
//! Start with `merge`, the BPE algorithm. `bytelevel` and `sentencepiece` define the ranks of merges, and
//! `pretokenizer` the word boundaries.

mod bytelevel;
mod bytes;
mod cache;
mod cancel;
mod charlevel;
mod charsmap;
pub mod chat;
mod eog;
mod error;
mod files;
mod gguf;
#[cfg(test)]
mod growth;
mod hash;
mod hf;
mod infill;
mod languages;
mod merge;
mod model_file;
mod native;
#[cfg(feature = "oracle")]
#[doc(hidden)]
pub mod oracle;
mod pretokenizer;
mod protobuf;
mod ranks;
mod regex;
mod scratch;
mod sentencepiece;
mod special;
mod speech;
mod speech_files;
mod stream;
mod template;
mod trie;
mod unicode;
mod unigram;
mod vocabulary;
mod wordpiece;
mod work;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub use cancel::cancellable;
pub use error::TokenizerError;
pub use gguf::{GgufVocabulary, gguf_of_ranks, gguf_vocabulary};
pub use hf::{HfTokenizer, Sidecar, tokenizer_json};
pub use infill::{InfillFile, InfillTokens};
pub use languages::{language_code, language_name};
pub use model_file::from_model_file;
pub use native::NativeTokenizer;
pub use speech::{SpeechTokens, TIMESTAMP_STEP, non_speech_tokens};
pub use stream::StreamDecoder;
pub use template::{Encoding, Template};
pub use vocabulary::{Model, SpecialTokens, TokenKind, Vocabulary};

/// Maximum size in bytes of a text that is tokenized at once. Positions in it fit into 32 bits, including added spaces.
pub const MAX_TEXT: usize = 1 << 30;

/// The tokenizer of a GGUF file.
pub fn from_gguf(metadata: &akunu_format::Metadata) -> Result<NativeTokenizer, TokenizerError> {
    NativeTokenizer::new(Vocabulary::from_gguf(metadata)?)
}

/// The tokenizer of a file that has the tokens of a model of speech with `rows` embeddings in the order of their ranks.
pub fn from_ranks(tokens: &[&[u8]], rows: usize) -> Result<NativeTokenizer, TokenizerError> {
    NativeTokenizer::new(Vocabulary::from_speech_ranks(tokens, rows)?)
}

/// The tokenizer of a folder: its `tokenizer.json`, or else its `tokenizer.model`, or the older files of a vocabulary of
/// speech (`vocab.json`, `merges.txt` and `added_tokens.json`).
pub fn from_folder(folder: &Path) -> Result<Arc<dyn Tokenizer>, TokenizerError> {
    let (json, model) = (folder.join("tokenizer.json"), folder.join("tokenizer.model"));
    if json.is_file() {
        return Ok(Arc::new(HfTokenizer::open(json)?));
    }
    if model.is_file() {
        return Ok(Arc::new(from_model_file(model)?));
    }
    if let Some(vocabulary) = speech_files::read(folder)? {
        return Ok(Arc::new(NativeTokenizer::new(vocabulary)?));
    }
    Err(TokenizerError::NoVocabulary { folder: folder.display().to_string() })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens around a text that the vocabulary asks for, such as begin- and end-of-text tokens.
    pub add_special: bool,
    /// Recognise special tokens such as `<|im_end|>` in the text. Otherwise they are treated as plain text, so that
    /// user input cannot end a turn.
    pub parse_special: bool,
}

pub trait Tokenizer: Debug + Send + Sync {
    /// Appends the tokens of `text`. After an error `ids` is unchanged.
    fn encode_into(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError>;

    fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        self.encode_into(text, options, &mut ids)?;
        Ok(ids)
    }

    /// The tokens of one text with their segments.
    fn encode_single(&self, text: &str, options: EncodeOptions) -> Result<Encoding, TokenizerError> {
        let ids = self.encode(text, EncodeOptions { add_special: false, ..options })?;
        Ok(self.template().single(&ids, options.add_special))
    }

    /// The tokens of two texts that the model reads together, such as a query and a document: `[CLS] first [SEP] second
    /// [SEP]`. Without special tokens, the two are concatenated.
    fn encode_pair(
        &self,
        first: &str,
        second: &str,
        options: EncodeOptions,
    ) -> Result<Encoding, TokenizerError> {
        let plain = EncodeOptions { add_special: false, ..options };
        let texts = [self.encode(first, plain)?, self.encode(second, plain)?];
        let pair = self.template().pair([&texts[0], &texts[1]], options.add_special);
        let unknown = || TokenizerError::Unsupported {
            what: "a post-processor that does not contain each text of a pair once".into(),
        };
        pair.ok_or_else(unknown)
    }

    /// Truncates the tokens of one text to `most` tokens and returns whether any were removed. Special tokens that end
    /// the text are kept. [`Encoding::truncate`] does the same for pairs.
    fn truncate(&self, ids: &mut Vec<u32>, most: usize) -> bool {
        template::truncate(ids, most, self.template())
    }

    /// The special tokens around texts.
    fn template(&self) -> &Template;

    fn vocab_size(&self) -> usize;

    /// The bytes that a token adds to a text: none for a control token, part of a character for some. `None` for an id
    /// that is not in the vocabulary (models may have more logits than tokens).
    fn token_bytes(&self, id: u32) -> Option<&[u8]>;

    /// The text of a token in the vocabulary: `▁the`, `Ġthe`, `<|im_end|>`.
    fn token_text(&self, id: u32) -> Option<&str>;

    fn token_kind(&self, id: u32) -> Option<TokenKind>;

    /// The token with exactly this text, control tokens included. A linear search: do not call it repeatedly.
    fn find_token(&self, text: &str) -> Option<u32>;

    fn special(&self) -> &SpecialTokens;

    /// All end-of-generation tokens, sorted.
    fn end_of_generation(&self) -> &[u32];

    /// A short description of the implementation.
    fn describe(&self) -> String;

    /// Settings that the vocabulary's file does not state, for the user.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Whether encoding adds a space at the beginning of a text.
    fn has_space_prefix(&self) -> bool;

    /// The bytes that a token adds at the beginning of a text: usually without the space that encoding adds there.
    fn first_bytes(&self, id: u32) -> Option<&[u8]> {
        let bytes = self.token_bytes(id)?;
        Some(if self.has_space_prefix() { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes })
    }

    /// Whether a text has not begun while its tokens add nothing but the spaces that [`Tokenizer::first_bytes`] removes.
    fn skips_leading_spaces(&self) -> bool {
        false
    }

    /// Whether each byte of invalid UTF-8 becomes U+FFFD, as in SentencePiece. Otherwise the bytes of an incomplete
    /// character become one, as Unicode recommends.
    fn replaces_each_byte(&self) -> bool {
        false
    }

    /// Whether this is a control token or the unknown token, which no text contains.
    fn is_control(&self, id: u32) -> bool {
        matches!(self.token_kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation().binary_search(&id).is_ok()
    }

    fn bos(&self) -> Option<u32> {
        self.special().bos
    }

    fn eos(&self) -> Option<u32> {
        self.special().eos
    }

    /// The text of a whole sequence. Control tokens and ids outside the vocabulary add nothing; invalid UTF-8 becomes
    /// U+FFFD.
    fn decode(&self, ids: &[u32]) -> String {
        let (mut decoder, mut text) = (StreamDecoder::new(), String::new());
        for &id in ids {
            decoder.push(self, id, &mut text);
        }
        decoder.finish(&mut text);
        text
    }
}
