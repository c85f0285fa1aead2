//! `tokenizer.json` of Hugging Face folders. A file whose components are all supported uses this crate's own tokenizers
//! (`recognise`, `native`); any other uses the `tokenizers` crate, which defines the format. The bytes of each token,
//! the special tokens and the tokens around a text are determined once, when the file is opened
//! (`docs/decisions/0005-tokenizer-json.md`).

mod added;
mod check;
mod file;
mod limited;
mod native;
mod normalize;
mod pieces;
mod post;
mod recognise;
mod sidecar;
mod unigram;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use akunu_format::Strings;
use tokenizers::{AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _};

use crate::eog::{self, Candidate};
use crate::error::printable;
use crate::hash::Pieces;
use crate::template::{Piece, Template};
use crate::{EncodeOptions, SpecialTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary};
use check::Description;
use file::File;
pub(crate) use native::Export;
use native::{Native, Recognised};
pub(crate) use normalize::{compose, is_composed};
use pieces::Steps;
pub use sidecar::Sidecar;

/// `tokenizers` cannot be cancelled, and takes some fifty bytes for each byte of a text. No context is as long as this.
const MAX_TEXT: usize = 1 << 21;

/// A tokenizer made from a `tokenizer.json`.
pub struct HfTokenizer {
    engine: Engine,
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

/// The implementation that converts text to ids.
enum Engine {
    Native(Box<Native>),
    Library(Box<Library>),
}

/// The `tokenizers` crate.
struct Library {
    inner: tokenizers::Tokenizer,
    /// The added tokens without the special ones: for text in which special tokens must not be recognised.
    plain: AddedVocabulary,
    /// The unknown token. It is marked special in some files, but does not indicate a special token in the text.
    unknown: Option<u32>,
    /// The reason why the library is needed.
    why: String,
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
        match recognise(json) {
            Ok((file, recognised)) => HfTokenizer::native(&file, recognised, sidecar),
            Err(why) => HfTokenizer::library(json, sidecar, why),
        }
    }

    /// A file in the form of GGUF: its vocabulary, without scores and roles of special tokens.
    pub(crate) fn exported(
        json: &[u8],
        sidecar: &Sidecar,
    ) -> Result<(HfTokenizer, Vocabulary, Export), TokenizerError> {
        let refused = |what: String| TokenizerError::NoGguf { what };
        let (file, recognised) = recognise(json).map_err(|why| refused(format!("it has {why}")))?;
        let mut vocabulary = recognised.vocabulary.clone();
        let mut export = recognised.native.export(&mut vocabulary).map_err(refused)?;
        export.stripping = file.added_tokens.iter().filter(|token| token.lstrip || token.rstrip).count();
        Ok((HfTokenizer::native(&file, recognised, sidecar)?, vocabulary, export))
    }

    /// Always uses the `tokenizers` crate, even if the file is supported natively.
    pub fn from_bytes_by_library(json: &[u8], sidecar: &Sidecar) -> Result<HfTokenizer, TokenizerError> {
        HfTokenizer::library(json, sidecar, "it was asked for".into())
    }

    fn native(
        file: &File<'_>,
        recognised: Recognised,
        sidecar: &Sidecar,
    ) -> Result<HfTokenizer, TokenizerError> {
        let Recognised { native, vocabulary, surfaces, template } = recognised;
        crate::native::limit_lengths(&vocabulary.tokens)?;
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
            engine: Engine::Native(Box::new(native)),
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

    fn library(json: &[u8], sidecar: &Sidecar, why: String) -> Result<HfTokenizer, TokenizerError> {
        let about = Description::read(json)?;
        let steps = Steps::of(about.decoder.as_deref().unwrap_or(&serde_json::Value::Null))?;
        let text = std::str::from_utf8(json).map_err(|error| library(&error))?;
        // Unlike `from_bytes`, `parse` is not generic: the readers of a file's parts are not compiled here again.
        let mut inner = guard(|| text.parse::<tokenizers::Tokenizer>().map_err(|error| library(&*error)))?;
        // Never truncate or pad a prompt silently.
        inner.with_truncation(None).map_err(|error| library(&*error))?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(false);
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let unknown = match about.unknown() {
            (Some(text), _) => inner.get_model().token_to_id(text),
            (None, id) => id.and_then(|id| u32::try_from(id).ok()),
        };

        let (texts, kinds) = tokens(&inner)?;
        let surfaces = inner.get_added_vocabulary();
        let surfaces: Vec<Option<String>> =
            (0..kinds.len() as u32).map(|id| surfaces.simple_id_to_token(id)).collect();
        let surface = |id: u32| surfaces.get(id as usize)?.as_deref();
        let pieces = steps.pieces(&texts, &kinds, surface);
        let firsts = steps.firsts(&texts, &kinds, surface, &pieces);
        let engine = Library { inner, plain, unknown, why };
        let template = engine.template(&kinds)?;
        let mut tokenizer = HfTokenizer {
            engine: Engine::Library(Box::new(engine)),
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

    /// Whether it uses this crate's own tokenizers.
    pub fn is_native(&self) -> bool {
        matches!(self.engine, Engine::Native(_))
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

impl Library {
    /// The tokens that the post-processor adds around one text and around two, determined with sample texts.
    fn template(&self, kinds: &[TokenKind]) -> Result<Template, TokenizerError> {
        let probes = ["a", "b"];
        let body = |text: &str| guard(|| self.body(text, kinds, false));
        let bodies = [body(probes[0])?, body(probes[1])?];
        // The fast encoding does not set segments unless a post-processor does.
        let encode = |input: tokenizers::EncodeInput<'_>| {
            guard(|| self.inner.encode(input, true).map_err(|error| library(&*error)))
        };
        let single = pieces_of(&encode(probes[0].into())?, &bodies);
        let pair = encode((probes[0], probes[1]).into()).ok();
        let pair = pair.and_then(|pair| pieces_of(&pair, &bodies));
        single.and_then(|single| Template::new(single, pair)).ok_or_else(|| TokenizerError::Unsupported {
            what: "a post-processor that changes the tokens of the text".into(),
        })
    }

    /// The tokens of a text without any around it.
    fn body(&self, text: &str, kinds: &[TokenKind], parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let failed = |error: tokenizers::Error| library(&*error);
        let added = if parse_special { self.inner.get_added_vocabulary() } else { &self.plain };
        let mut parts = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre) = self.inner.get_pre_tokenizer() {
            pre.pre_tokenize(&mut parts).map_err(failed)?;
        }
        let model = self.inner.get_model();
        model.tokenize_in_pretokenized(&mut parts, None).map_err(failed)?;
        let is_text =
            |id: u32| Some(id) == self.unknown || kinds.get(id as usize) != Some(&TokenKind::Control);
        let mut ids = Vec::new();
        for (_, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            for token in tokens.iter().flatten() {
                if parse_special || is_text(token.id) {
                    ids.push(token.id);
                    continue;
                }
                // The text of a special token, in a model that treats it as an ordinary token (Unigram). It is encoded
                // as text, one character at a time.
                for c in token.value.chars() {
                    let spelled = model.tokenize(c.encode_utf8(&mut [0; 4])).map_err(failed)?;
                    ids.extend(spelled.iter().map(|token| token.id));
                }
            }
        }
        Ok(ids)
    }
}

impl Tokenizer for HfTokenizer {
    fn encode_into(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let max = if self.is_native() { crate::MAX_TEXT } else { MAX_TEXT };
        if text.len() > max {
            return Err(TokenizerError::TextTooLong { len: text.len(), max });
        }
        let before = ids.len();
        if options.add_special {
            ids.extend(self.template.before());
        }
        let text_start = ids.len();
        let body = match &self.engine {
            Engine::Native(native) => native.encode(text, !options.parse_special, ids),
            Engine::Library(_) if text.is_empty() => Ok(()),
            Engine::Library(library) => {
                guard(|| library.body(text, &self.kinds, options.parse_special)).map(|body| ids.extend(body))
            }
        };
        if let Err(error) = body {
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
        match &self.engine {
            Engine::Native(_) => {
                (0u32..).zip(self.texts.iter()).find(|(_, token)| *token == text).map(|(id, _)| id)
            }
            Engine::Library(library) => library.inner.token_to_id(text),
        }
    }

    fn special(&self) -> &SpecialTokens {
        &self.special
    }

    fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Describes the implementation used for this file and, if it is not this crate's own, the reason.
    fn describe(&self) -> String {
        match &self.engine {
            Engine::Native(native) => native.describe().into(),
            Engine::Library(library) => {
                format!("the tokenizers library ({})", library.why)
            }
        }
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

/// The file in the form of this crate's own tokenizers, or the reason why it is not supported.
fn recognise(json: &[u8]) -> Result<(File<'_>, Recognised), String> {
    let file: File<'_> =
        serde_json::from_slice(json).map_err(|error| printable(&format!("an unknown part: {error}")))?;
    let recognised = native::build(&file)?;
    Ok((file, recognised))
}

/// The template that produced this encoding of two texts with these tokens. `None` if the texts themselves were
/// tokenized differently.
fn pieces_of(whole: &tokenizers::Encoding, bodies: &[Vec<u32>; 2]) -> Option<Vec<Piece>> {
    let (ids, segments) = (whole.get_ids(), whole.get_type_ids());
    let (texts, added) = (whole.get_sequence_ids(), whole.get_special_tokens_mask());
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < ids.len() {
        let segment = segments[at];
        match texts[at] {
            // A text that occurs a second time is not expected.
            None if added[at] == 0 => return None,
            None => {
                pieces.push(Piece::Token { id: ids[at], segment });
                at += 1;
            }
            Some(place) => {
                let body = bodies.get(place).filter(|body| !body.is_empty())?;
                let end = at + body.len();
                let same = ids.get(at..end)? == body.as_slice();
                let uniform = segments.get(at..end)?.iter().all(|&other| other == segment);
                if !same || !uniform {
                    return None;
                }
                pieces.push(Piece::Text { place, segment });
                at = end;
            }
        }
    }
    Some(pieces)
}

/// Texts and kinds by id. Ids without a token are unused and empty.
fn tokens(inner: &tokenizers::Tokenizer) -> Result<(Strings, Vec<TokenKind>), TokenizerError> {
    let vocab = inner.get_vocab(true);
    let count = vocab.len();
    let last = vocab.values().copied().max().ok_or(TokenizerError::Empty)?;
    // Allows some gaps, but not a file that contains only a token with a huge id.
    let limit = count.saturating_mul(2) + 4096;
    if last as usize >= limit {
        return Err(TokenizerError::IdOutOfRange { key: "model.vocab", id: last.into(), tokens: count });
    }
    let mut by_id = vec![None; last as usize + 1];
    for (text, id) in vocab {
        by_id[id as usize] = Some(text);
    }
    let mut kinds: Vec<TokenKind> = by_id
        .iter()
        .map(|text| match text {
            None => TokenKind::Unused,
            Some(text) if crate::bytes::byte_of_hex(text).is_some() => TokenKind::Byte,
            Some(_) => TokenKind::Normal,
        })
        .collect();
    for (id, token) in inner.get_added_tokens_decoder() {
        let Some(kind) = kinds.get_mut(id as usize) else { continue };
        *kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
    }
    Ok((by_id.into_iter().map(Option::unwrap_or_default).collect(), kinds))
}

fn unknown(kinds: &[TokenKind]) -> Option<u32> {
    kinds.iter().position(|&kind| kind == TokenKind::Unknown).map(|id| id as u32)
}

fn is_added(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
}

pub(super) fn library(error: &(dyn std::error::Error + Send + Sync + 'static)) -> TokenizerError {
    TokenizerError::Library { message: printable(&error.to_string()) }
}

/// The crate may panic on malformed files; this converts panics to errors.
fn guard<T>(work: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(TokenizerError::Library { message: "it failed on this file".into() }))
}
