//! Text to token ids and back.
//!
//! ```text
//! "Hello world<|im_end|>" ─special─▶ ["Hello world", 151645] ─pretokenizer─▶ ["Hello", " world"] ─merge─▶ ids
//! ids ─token_bytes─▶ bytes ─stream─▶ whole characters
//! ```
//!
//! Read `merge` first: it is BPE. `bytelevel` and `sentencepiece` say what merges and how soon, `pretokenizer`
//! where it may not.

mod bytelevel;
mod bytes;
mod cache;
mod charlevel;
mod charsmap;
pub mod chat;
mod eog;
mod error;
mod files;
mod gguf;
mod hash;
mod hf;
mod merge;
mod model_file;
mod native;
mod pretokenizer;
mod protobuf;
mod scratch;
mod sentencepiece;
mod special;
mod stream;
mod template;
mod trie;
mod unicode;
mod unigram;
mod vocabulary;
mod wordpiece;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub use error::TokenizerError;
pub use gguf::{GgufVocabulary, gguf_vocabulary};
pub use hf::{HfTokenizer, Sidecar};
pub use model_file::from_model_file;
pub use native::NativeTokenizer;
pub use stream::StreamDecoder;
pub use template::{Encoding, Template};
pub use vocabulary::{Model, SpecialTokens, TokenKind, Vocabulary};

/// The longest text that can be tokenized at once, in bytes. Positions in it fit 32 bits, spaces added.
pub const MAX_TEXT: usize = 1 << 30;

/// The tokenizer of a GGUF file.
pub fn from_gguf(metadata: &akunu_format::Metadata) -> Result<NativeTokenizer, TokenizerError> {
    NativeTokenizer::new(Vocabulary::from_gguf(metadata)?)
}

/// The tokenizer of a folder: its `tokenizer.json`, or else its `tokenizer.model`.
pub fn from_folder(folder: &Path) -> Result<Arc<dyn Tokenizer>, TokenizerError> {
    let (json, model) = (folder.join("tokenizer.json"), folder.join("tokenizer.model"));
    if json.is_file() {
        return Ok(Arc::new(HfTokenizer::open(json)?));
    }
    if model.is_file() {
        return Ok(Arc::new(from_model_file(model)?));
    }
    Err(TokenizerError::NoVocabulary { folder: folder.display().to_string() })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add what the model wants around a text: begin- and end-of-text tokens, as its vocabulary says.
    pub add_special: bool,
    /// Read `<|im_end|>` and the like as the tokens they name. Without this, such text stays text: nothing that
    /// a user writes can end a turn.
    pub parse_special: bool,
}

pub trait Tokenizer: Debug + Send + Sync {
    /// Appends the tokens of `text`. After an error `ids` is as it was.
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

    /// Two texts as the model reads them together, such as a query and a document: `[CLS] first [SEP] second [SEP]`.
    /// Without special tokens it is the tokens of both, one after the other.
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
            what: "a post-processor that does not take each text of a pair once".into(),
        };
        pair.ok_or_else(unknown)
    }

    /// Shortens the tokens of one text to `most` of them and says whether that took any. If they end with what the
    /// model wants after a text, the last of them stay. [`Encoding::truncate`] does it for pairs.
    fn truncate(&self, ids: &mut Vec<u32>, most: usize) -> bool {
        template::truncate(ids, most, self.template())
    }

    /// What the model wants around texts.
    fn template(&self) -> &Template;

    fn vocab_size(&self) -> usize;

    /// The bytes that a token adds to a text: none for a control token, part of a character for some.
    /// `None` for an id that is not in the vocabulary (models may have more logits than tokens).
    fn token_bytes(&self, id: u32) -> Option<&[u8]>;

    /// A token as the vocabulary writes it: `▁the`, `Ġthe`, `<|im_end|>`.
    fn token_text(&self, id: u32) -> Option<&str>;

    fn token_kind(&self, id: u32) -> Option<TokenKind>;

    /// The token with just this text, control tokens included. Looks through all of them: ask once, not often.
    fn find_token(&self, text: &str) -> Option<u32>;

    fn special(&self) -> &SpecialTokens;

    /// Every token after which generation stops, sorted.
    fn end_of_generation(&self) -> &[u32];

    /// What turns text into ids here, in a few words.
    fn describe(&self) -> String;

    /// Does a text begin with a space that encoding put there and decoding takes away?
    fn has_space_prefix(&self) -> bool;

    /// Is the token one that text never contains: control, or "unknown"?
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

    /// The text of a whole sequence. Control tokens and ids outside the vocabulary add nothing; bytes that are
    /// not UTF-8 become U+FFFD.
    fn decode(&self, ids: &[u32]) -> String {
        let mut bytes: Vec<u8> = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id).unwrap_or_default());
        }
        let prefix = self.has_space_prefix() && bytes.first() == Some(&b' ');
        String::from_utf8_lossy(&bytes[prefix as usize..]).into_owned()
    }
}
