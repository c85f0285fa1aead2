//! `tokenizer.json` of Hugging Face folders. Forms that most files have are done in one pass (`recognise`, `native`); any
//! other is done in the steps that the file lists (`normalize`, `steps`, `models`). The bytes of each token, the special
//! tokens and the tokens around a text are determined once, when the file is opened
//! (`docs/decisions/0005-tokenizer-json.md`).

mod added;
mod file;
mod limited;
mod models;
mod native;
mod normalize;
mod parts;
mod pieces;
mod post;
mod recognise;
mod sidecar;
mod steps;
mod unigram;
mod written;

use std::collections::HashMap;
use std::path::Path;

use akunu_format::Strings;

use crate::eog::{self, Candidate};
use crate::files::not_json;
use crate::hash::Pieces;
use crate::template::Template;
use crate::{EncodeOptions, SpecialTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary};
use file::File;
pub(crate) use native::Export;
use native::{Built, Native};
pub(crate) use normalize::{compose, is_composed};
use pieces::Steps;
pub use sidecar::Sidecar;
pub use written::tokenizer_json;

const FILE: &str = "tokenizer.json";

/// The longest text in the general form, which takes some fifty bytes for each word, and a word may be a character.
const MAX_TEXT_IN_GENERAL: usize = 1 << 22;

/// The longest text after normalization, which may make it longer.
const MAX_NORMALIZED: usize = 1 << 26;

/// A tokenizer made from a `tokenizer.json`.
pub struct HfTokenizer {
    native: Box<Native>,
    texts: Strings,
    kinds: Vec<TokenKind>,
    pieces: Pieces,
    /// Tokens whose bytes at the beginning of a text are others than usual.
    firsts: HashMap<u32, Vec<u8>>,
    template: Template,
    special: SpecialTokens,
    /// The token that the model uses for unknown text.
    unknown: Option<u32>,
    end_of_generation: Vec<u32>,
    space_prefix: bool,
}

impl std::fmt::Debug for HfTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HfTokenizer")
            .field("tokens", &self.kinds.len())
            .field("encoder", &self.describe())
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

impl HfTokenizer {
    /// Opens a `tokenizer.json`, and the files beside it that describe its tokens: `tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json`, `config.json`.
    pub fn open(path: impl AsRef<Path>) -> Result<HfTokenizer, TokenizerError> {
        let path = path.as_ref();
        let json = crate::files::read(path)?;
        let sidecar = Sidecar::beside(path)?;
        HfTokenizer::from_bytes(&json, &sidecar)
    }

    pub fn from_bytes(json: &[u8], sidecar: &Sidecar) -> Result<HfTokenizer, TokenizerError> {
        let file = read(json)?;
        HfTokenizer::built(&file, native::build(&file, false)?, sidecar)
    }

    /// Always uses the general form of pre-tokenization and models, which gives the same ids, but is slower.
    pub fn from_bytes_in_general_form(json: &[u8], sidecar: &Sidecar) -> Result<HfTokenizer, TokenizerError> {
        let file = read(json)?;
        HfTokenizer::built(&file, native::build(&file, true)?, sidecar)
    }

    /// A file in the form of GGUF: its vocabulary, without scores and roles of special tokens.
    pub(crate) fn exported(
        json: &[u8],
        sidecar: &Sidecar,
    ) -> Result<(HfTokenizer, Vocabulary, Export), TokenizerError> {
        let file = read(json)?;
        let built = native::build(&file, false)?;
        let mut vocabulary = built.vocabulary.clone();
        let export = built.native.export(&mut vocabulary);
        let mut export = export.map_err(|what| TokenizerError::NoGguf { what })?;
        export.stripping = file.added_tokens.iter().filter(|token| token.lstrip || token.rstrip).count();
        Ok((HfTokenizer::built(&file, built, sidecar)?, vocabulary, export))
    }

    fn built(file: &File<'_>, built: Built, sidecar: &Sidecar) -> Result<HfTokenizer, TokenizerError> {
        let Built { native, vocabulary, surfaces, template } = built;
        let steps = Steps::of(&file.decoder)?;
        let unknown = vocabulary.special.unknown;
        let (texts, kinds) = (vocabulary.tokens, vocabulary.kinds);
        let surface = |id: u32| {
            let at = surfaces.binary_search_by_key(&id, |surface| surface.0).ok()?;
            Some(surfaces[at].1.as_str())
        };
        let pieces = steps.pieces(&texts, &kinds, surface);
        let firsts = steps.firsts(&texts, &kinds, surface, &pieces);
        let mut tokenizer = HfTokenizer {
            native: Box::new(native),
            texts,
            kinds,
            pieces,
            firsts,
            template,
            special: SpecialTokens::default(),
            unknown,
            end_of_generation: Vec::new(),
            space_prefix: steps.have_space_prefix(),
        };
        tokenizer.find_special(sidecar);
        Ok(tokenizer)
    }

    /// Whether the general form of pre-tokenization and models is used.
    pub fn is_general(&self) -> bool {
        self.native.why_general().is_some()
    }

    /// Determines the roles of the special tokens.
    fn find_special(&mut self, sidecar: &Sidecar) {
        let named = |text: &Option<String>| text.as_deref().and_then(|text| self.find_token(text));
        let known = |id: &Option<u32>| id.filter(|&id| (id as usize) < self.kinds.len());
        let first = self.template.before().next();
        let classes = named(&sidecar.cls);
        let bos = named(&sidecar.bos).or_else(|| known(&sidecar.bos_id)).or(classes).or(first);
        let eos = named(&sidecar.eos).or_else(|| sidecar.eos_ids.first().and_then(|&id| known(&Some(id))));
        let mut special = SpecialTokens {
            bos,
            eos,
            eot: None,
            unknown: named(&sidecar.unk).or_else(|| unknown(&self.kinds)),
            separator: named(&sidecar.sep),
            padding: named(&sidecar.pad),
            mask: named(&sidecar.mask),
            infill: [None; 3],
            add_bos: false,
            add_eos: false,
            add_separator: false,
        };
        // In LLaMA-like folders, these flags override the post-processor.
        if let (Some(wanted), Some(bos)) = (sidecar.add_bos, special.bos) {
            self.template.set_first(bos, wanted);
        }
        if let (Some(wanted), Some(eos)) = (sidecar.add_eos, special.eos) {
            self.template.set_last(eos, wanted);
        }
        let ends_with = |wanted: u32| self.template.after().any(|id| id == wanted);
        special.add_bos = special.bos.is_some_and(|bos| self.template.before().any(|id| id == bos));
        special.add_eos = special.eos.is_some_and(ends_with);
        special.add_separator = special.separator.is_some_and(ends_with);
        self.find_ends(special, sidecar);
    }

    fn find_ends(&mut self, mut special: SpecialTokens, sidecar: &Sidecar) {
        let candidates: Vec<Candidate<'_>> = (0u32..)
            .zip(self.texts.iter())
            .zip(&self.kinds)
            .filter(|((_, text), kind)| is_added(**kind) && eog::is_end_text(text))
            .map(|((id, text), _)| Candidate { id, text })
            .collect();
        // Without other files, the first well-known end-of-text token in the vocabulary is used.
        let ends = ["</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>"];
        let alone = ends.iter().find_map(|end| candidates.iter().find(|c| c.text == *end)).map(|c| c.id);
        special.eos = special.eos.or(alone);
        let (mut ids, eot) = eog::collect(&special, &candidates);
        ids.extend(sidecar.eos_ids.iter().filter(|&&id| (id as usize) < self.kinds.len()));
        ids.sort_unstable();
        ids.dedup();
        (special.eot, self.special.eot) = (eot, eot);
        (self.special, self.end_of_generation) = (special, ids);
    }
}

impl Tokenizer for HfTokenizer {
    fn encode_into(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let max = if self.is_general() { MAX_TEXT_IN_GENERAL } else { crate::MAX_TEXT };
        if text.len() > max {
            return Err(TokenizerError::TextTooLong { len: text.len(), max });
        }
        let before = ids.len();
        if options.add_special {
            ids.extend(self.template.before());
        }
        let text_start = ids.len();
        if let Err(error) = self.native.encode(text, !options.parse_special, ids) {
            ids.truncate(before);
            return Err(error);
        }
        // What a user writes must not end the text, in vocabularies where the unknown token does.
        if let Some(unknown) =
            self.unknown.filter(|&id| !options.parse_special && self.is_end_of_generation(id))
        {
            let known: Vec<u32> = ids.drain(text_start..).filter(|&id| id != unknown).collect();
            ids.extend(known);
        }
        if options.add_special {
            ids.extend(self.template.after());
        }
        Ok(())
    }

    fn template(&self) -> &Template {
        &self.template
    }

    fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)
    }

    fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    fn find_token(&self, text: &str) -> Option<u32> {
        (0u32..).zip(self.texts.iter()).find(|(_, token)| *token == text).map(|(id, _)| id)
    }

    fn special(&self) -> &SpecialTokens {
        &self.special
    }

    fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    fn describe(&self) -> String {
        self.native.describe()
    }

    fn has_space_prefix(&self) -> bool {
        self.space_prefix
    }

    fn first_bytes(&self, id: u32) -> Option<&[u8]> {
        if let Some(first) = self.firsts.get(&id) {
            return Some(first);
        }
        let bytes = self.pieces.get(id)?;
        Some(if self.space_prefix { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes })
    }
}

fn read(json: &[u8]) -> Result<File<'_>, TokenizerError> {
    serde_json::from_slice(json).map_err(|error| not_json(FILE, &error))
}

/// Refuses what a normalizer or pre-tokenizer has made too long.
fn limit(len: usize) -> Result<(), TokenizerError> {
    match len > MAX_NORMALIZED {
        true => Err(TokenizerError::TextTooLong { len, max: MAX_NORMALIZED }),
        false => Ok(()),
    }
}

fn missing(field: &'static str) -> TokenizerError {
    TokenizerError::MissingField { file: FILE, field }
}

fn unknown(kinds: &[TokenKind]) -> Option<u32> {
    kinds.iter().position(|&kind| kind == TokenKind::Unknown).map(|id| id as u32)
}

fn is_added(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
}
