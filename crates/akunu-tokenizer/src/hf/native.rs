//! A supported `tokenizer.json` on this crate's own tokenizers: the same ids as with the `tokenizers` crate, but
//! faster.

use std::collections::HashSet;

use akunu_format::Strings;
use tokenizers::NormalizerWrapper;
use unicode_categories::UnicodeCategories;

use super::added::{Added, Part};
use super::file::{File, Vocab};
use super::library;
use super::normalize::{Normalizer, push_marked};
use super::post;
use super::recognise::{self, Cut, Method, Prepend, Unknown};
use super::unigram::UnigramWords;
use crate::bytelevel::ByteLevel;
use crate::bytes::{append_bytes, byte_of_hex, is_written_in_bytes};
use crate::charlevel::CharLevel;
use crate::hash::Pieces;
use crate::pretokenizer::{self, PreTokenizer};
use crate::scratch::{Pool, Scratch};
use crate::template::Template;
use crate::wordpiece::WordPiece;
use crate::{Model, TokenKind, TokenizerError, Vocabulary};

#[derive(Debug)]
pub(super) struct Native {
    /// Tokens matched in the original text, and in the normalized text.
    raw: Added,
    normalized: Added,
    normalizer: Normalizer,
    model: Words,
    /// By id: the texts that the model matches.
    pieces: Pieces,
    scratch: Pool,
}

#[derive(Debug)]
enum Words {
    ByteLevel { model: Box<ByteLevel>, prefix_space: bool },
    CharLevel { model: CharLevel, cut: Cut },
    Unigram { model: UnigramWords, cut: Cut },
    WordPiece(WordPiece),
}

/// A supported file.
#[derive(Debug)]
pub(super) struct Recognised {
    pub(super) native: Native,
    pub(super) vocabulary: Vocabulary,
    /// Text to use in decoding, if it differs from the token's own.
    pub(super) surfaces: Vec<(u32, String)>,
    pub(super) template: Template,
}

/// The kinds in `vocabulary` are those of the whole vocabulary; to the model, all its tokens are normal.
pub(super) fn build(file: &File<'_>) -> Result<Recognised, Unknown> {
    let normalizer = Normalizer::of(&file.normalizer)?;
    let method = recognise::method(file, &normalizer)?;
    let template = post::template(&file.post_processor)?;
    let model = match method {
        Method::ByteLevel { .. } => Model::ByteLevel,
        Method::CharLevel { .. } => Model::SentencePiece,
        Method::Unigram { .. } => Model::Unigram,
        Method::WordPiece => Model::WordPiece,
    };
    let mut vocabulary = vocabulary(file, model)?;
    let known = vocabulary.tokens.len() as u32;
    if template.tokens().any(|id| id >= known) {
        return Err("a post-processor's token that is not in the vocabulary".into());
    }
    let (mut raw, mut in_normalized, mut surfaces) = (Added::new(), Added::new(), Vec::new());
    for token in &file.added_tokens {
        if token.single_word {
            return Err("added tokens that match whole words only".into());
        }
        let mut text = String::new();
        let fresh = if token.normalized {
            let text = normalizer.apply(&token.content, &mut text).map_err(|error| error.to_string())?;
            if text != token.content {
                surfaces.push((token.id, text.to_string()));
            }
            in_normalized.insert(text, token)
        } else {
            raw.insert(&token.content, token)
        };
        if !fresh {
            return Err("duplicate or empty added tokens".into());
        }
    }
    surfaces.sort();
    let (words, pieces) = words(file, &normalizer, method, &mut vocabulary)?;
    let scratch = Pool::default();
    let native = Native { raw, normalized: in_normalized, normalizer, model: words, pieces, scratch };
    Ok(Recognised { native, vocabulary, surfaces, template })
}

/// The tokens of the file by id, and their kinds. Ids without a token are unused and empty.
fn vocabulary(file: &File<'_>, model: Model) -> Result<Vocabulary, Unknown> {
    let (count, last) = match &file.model.vocab {
        Vocab::Ids(tokens) => (tokens.len(), tokens.iter().map(|token| token.1).max()),
        Vocab::Scores(tokens) => (tokens.len(), (tokens.len() as u32).checked_sub(1)),
    };
    // With gaps, added tokens could get ids that are in use.
    if last.is_none_or(|last| last as usize + 1 != count) {
        return Err("ids that are not consecutive".into());
    }
    let mut texts: Vec<Option<&str>> = vec![None; count + file.added_tokens.len()];
    match &file.model.vocab {
        Vocab::Ids(tokens) => tokens.iter().for_each(|(text, id)| texts[*id as usize] = Some(text)),
        Vocab::Scores(tokens) => (0..count).for_each(|id| texts[id] = Some(&tokens[id].0)),
    }
    if texts[..count].contains(&None) {
        return Err("duplicate ids".into());
    }
    let in_model: HashSet<&str> = file.added_tokens.iter().map(|token| token.content.as_str()).collect();
    let in_model: HashSet<&str> =
        texts[..count].iter().flatten().filter(|text| in_model.contains(*text)).copied().collect();
    let (mut next, mut special) = (count, Vec::new());
    for token in &file.added_tokens {
        let id = token.id as usize;
        if in_model.contains(token.content.as_str()) {
            if texts.get(id) != Some(&Some(token.content.as_str())) {
                return Err("an added token whose id differs from the vocabulary's".into());
            }
        } else {
            if id != next {
                return Err("added tokens whose ids do not follow those of the vocabulary".into());
            }
            texts[id] = Some(&token.content);
            next += 1;
        }
        special.push((id, if token.special { TokenKind::Control } else { TokenKind::UserDefined }));
    }
    texts.truncate(next);
    let mut vocabulary = Vocabulary::new(model, "");
    vocabulary.tokens = texts.iter().map(|text| text.unwrap_or_default()).collect::<Strings>();
    let byte = |text: &str| byte_of_hex(text).is_some();
    vocabulary.kinds = vocabulary
        .tokens
        .iter()
        .map(|text| if byte(text) { TokenKind::Byte } else { TokenKind::Normal })
        .collect();
    special.into_iter().for_each(|(id, kind)| vocabulary.kinds[id] = kind);
    if let Some(merges) = &file.model.merges {
        if merges.0.iter().any(|(left, right)| left.contains(' ') || right.contains(' ')) {
            return Err("merges of tokens with spaces in them".into());
        }
        let list = &mut vocabulary.merges;
        merges.0.iter().for_each(|(left, right)| list.push(&[left, " ", right]));
    } else if file.model.kind == "BPE" {
        return Err("no merges".into());
    }
    if let Vocab::Scores(tokens) = &file.model.vocab {
        vocabulary.scores = tokens.iter().map(|token| token.1 as f32).collect();
        vocabulary.scores.resize(next, 0.0);
    }
    Ok(vocabulary)
}

fn words(
    file: &File<'_>,
    normalizer: &Normalizer,
    method: Method,
    vocabulary: &mut Vocabulary,
) -> Result<(Words, Pieces), Unknown> {
    let said = |error: TokenizerError| error.to_string();
    let count = match &file.model.vocab {
        Vocab::Ids(tokens) => tokens.len(),
        Vocab::Scores(tokens) => tokens.len(),
    };
    let unknown = file.model.unk_token.as_deref();
    let unknown = unknown.and_then(|text| vocabulary.tokens.iter().position(|token| token == text));
    let unknown = unknown.or(file.model.unk_id).filter(|&id| id < count);
    vocabulary.special.unknown = unknown.map(|id| id as u32);
    // To the model its own tokens are text, and added tokens do not exist.
    let kind_of = |wanted: &dyn Fn(usize, &str) -> TokenKind| -> Vec<TokenKind> {
        let kind = |(id, text)| if id < count { wanted(id, text) } else { TokenKind::Control };
        vocabulary.tokens.iter().enumerate().map(kind).collect()
    };
    match method {
        Method::ByteLevel { pre, prefix_space, ignore_merges } => {
            let mut pieces = Pieces::default();
            vocabulary.tokens.iter().for_each(|text| pieces.push_with(|out| append_bytes(text, out)));
            // A token that is not written in bytes can never be produced.
            let kinds = kind_of(&|_, text| {
                if is_written_in_bytes(text) { TokenKind::Normal } else { TokenKind::Control }
            });
            vocabulary.ignore_merges = ignore_merges;
            no_special_from_text(file, &pre, ignore_merges)?;
            let model = ByteLevel::new(vocabulary, pre, &kinds, &pieces).map_err(said)?;
            // Bytes without a token are dropped, unless there is an unknown token.
            if model.has_repeated_merges() || file.model.unk_token.is_some() && !model.has_every_byte() {
                return Err("duplicate merges, or bytes that become unknown tokens".into());
            }
            let composed = *normalizer == Normalizer::Nfc;
            vocabulary.pre =
                model.pre_tokenizer().name(ignore_merges, composed).unwrap_or_default().to_string();
            Ok((Words::ByteLevel { model: Box::new(model), prefix_space }, pieces))
        }
        Method::CharLevel { cut, fuse_unknown, byte_fallback } => {
            let mut pieces = Pieces::default();
            vocabulary
                .tokens
                .iter()
                .for_each(|text| pieces.push_with(|out| out.extend_from_slice(text.as_bytes())));
            let kinds = kind_of(&|id, text| match text {
                _ if Some(id) == unknown => TokenKind::Unknown,
                text if byte_fallback && byte_of_hex(text).is_some() => TokenKind::Byte,
                _ => TokenKind::Normal,
            });
            if file.model.unk_token.as_deref().is_some_and(|text| text.chars().nth(1).is_none()) {
                return Err("an unknown token that is a single character".into());
            }
            no_special_from_text(file, &PreTokenizer::of_steps(Vec::new()), false)?;
            let model = CharLevel::new(vocabulary, &kinds, &pieces, fuse_unknown).map_err(said)?;
            if byte_fallback && !model.spells_bytes() {
                return Err("bytes without a token".into());
            }
            Ok((Words::CharLevel { model, cut }, pieces))
        }
        Method::Unigram { cut, byte_fallback } => {
            let Vocab::Scores(tokens) = &file.model.vocab else {
                return Err("a Unigram vocabulary without scores".into());
            };
            let (model, pieces) =
                UnigramWords::new(tokens, file.model.unk_id, byte_fallback, &vocabulary.kinds)?;
            Ok((Words::Unigram { model, cut }, pieces))
        }
        Method::WordPiece => {
            let pieces = word_pieces(&vocabulary.tokens);
            let kinds =
                kind_of(&|_, text| if text.contains(' ') { TokenKind::Control } else { TokenKind::Normal });
            if unknown.is_none() {
                return Err("no unknown token".into());
            }
            Ok((Words::WordPiece(WordPiece::new(vocabulary, &kinds, &pieces)), pieces))
        }
    }
}

/// WordPiece matches tokens that begin a word with a space in front.
fn word_pieces(tokens: &Strings) -> Pieces {
    let mut pieces = Pieces::default();
    for text in tokens.iter() {
        pieces.push_with(|out| match text.strip_prefix("##") {
            Some(rest) => out.extend_from_slice(rest.as_bytes()),
            None => {
                out.push(b' ');
                out.extend_from_slice(text.as_bytes());
            }
        });
    }
    pieces
}

/// If special tokens are to be treated as text, the model must not produce one: rejects models whose merges spell a
/// special token.
fn no_special_from_text(file: &File<'_>, pre: &PreTokenizer, ignore_merges: bool) -> Result<(), Unknown> {
    let special: HashSet<&str> =
        file.added_tokens.iter().filter(|token| token.special).map(|token| token.content.as_str()).collect();
    let lengths: HashSet<usize> = special.iter().map(|text| text.len()).collect();
    let single = special.iter().any(|text| text.chars().nth(1).is_none());
    let merged = file.model.merges.iter().flat_map(|merges| &merges.0).any(|(left, right)| {
        lengths.contains(&(left.len() + right.len())) && special.contains(format!("{left}{right}").as_str())
    });
    let whole = |text: &&str| -> bool {
        let (mut words, mut bytes) = (0, Vec::new());
        append_bytes(text, &mut bytes);
        let Ok(text) = std::str::from_utf8(&bytes) else { return false };
        let count = |_: &str| -> Result<(), ()> {
            words += 1;
            Ok(())
        };
        pre.split(text, &mut { count }).is_ok() && words == 1
    };
    if single || merged || ignore_merges && special.iter().any(whole) {
        return Err("merges that produce a special token from text".into());
    }
    Ok(())
}

/// Properties that GGUF cannot represent, or represents elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Export {
    pub(crate) unknown: Option<u32>,
    /// Whether text is composed (NFC) first, if the name of the pre-tokenizer implies the opposite.
    pub(crate) composed: Option<bool>,
    /// Number of added tokens that consume whitespace around them.
    pub(crate) stripping: usize,
}

impl Native {
    /// Sets the GGUF pre-tokenizer settings in `vocabulary`; returns an error for what GGUF cannot represent.
    pub(super) fn export(&self, vocabulary: &mut Vocabulary) -> Result<Export, String> {
        match (&self.model, &self.normalizer) {
            (Words::ByteLevel { prefix_space: true, .. }, _) => {
                return Err("text gets a space prefix, which byte-level BPE in GGUF does not support".into());
            }
            (Words::ByteLevel { .. }, _) if vocabulary.pre.is_empty() => {
                return Err("GGUF has no name for this pre-tokenizer".into());
            }
            (Words::ByteLevel { .. }, _) => {}
            (Words::CharLevel { model, cut: Cut::Whole }, Normalizer::Marks { prepend })
                if model.spells_bytes() =>
            {
                vocabulary.add_space_prefix = *prepend;
            }
            (Words::WordPiece(_), Normalizer::Bert { inner, .. }) => {
                if let NormalizerWrapper::BertNormalizer(bert) = &**inner {
                    if !bert.handle_chinese_chars {
                        return Err("Chinese characters are not split from words".into());
                    }
                    vocabulary.lowercase = bert.lowercase;
                    vocabulary.strip_accents = bert.strip_accents.unwrap_or(bert.lowercase);
                }
            }
            _ => return Err(format!("{} of this kind is not supported by GGUF", self.describe())),
        }
        let composed = matches!(self.normalizer, Normalizer::Nfc);
        let composed = Some(composed).filter(|&composed| composed != pretokenizer::composes(&vocabulary.pre));
        Ok(Export { unknown: vocabulary.special.unknown, composed, stripping: 0 })
    }

    /// The name of the model.
    pub(super) fn describe(&self) -> &'static str {
        match &self.model {
            Words::ByteLevel { .. } => "byte-level BPE",
            Words::CharLevel { .. } => "BPE of characters",
            Words::Unigram { .. } => "Unigram",
            Words::WordPiece(_) => "WordPiece",
        }
    }

    /// Appends the tokens of a text without any around it. With `plain`, special tokens are treated as text.
    pub(super) fn encode(&self, text: &str, plain: bool, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.scratch.with(|scratch| {
            self.raw.split(text, plain, |part| match part {
                Part::Token(id) => {
                    ids.push(id);
                    Ok(())
                }
                Part::Text { start, end } => {
                    self.encode_part(&text[start..end], start == 0, plain, scratch, ids)
                }
            })
        })
    }

    fn encode_part(
        &self,
        text: &str,
        first: bool,
        plain: bool,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut buffer = std::mem::take(&mut scratch.text);
        buffer.clear();
        let text = self.normalizer.apply(text, &mut buffer).map_err(|error| library(&*error))?;
        let result = self.normalized.split(text, plain, |part| match part {
            Part::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Part::Text { start, end } => {
                self.encode_words(&text[start..end], first && start == 0, plain, scratch, ids)
            }
        });
        scratch.text = buffer;
        result
    }

    fn encode_words(
        &self,
        text: &str,
        first: bool,
        plain: bool,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let pieces = &self.pieces;
        match &self.model {
            Words::ByteLevel { model, prefix_space: true } if !text.starts_with(' ') => {
                model.encode(&format!(" {text}"), pieces, scratch, ids)
            }
            Words::ByteLevel { model, .. } => model.encode(text, pieces, scratch, ids),
            Words::CharLevel { model, cut } => {
                cut.words(text, first, |word| model.encode(word, pieces, scratch, ids))
            }
            Words::Unigram { model, cut } => {
                cut.words(text, first, |word| model.encode(word, plain, pieces, scratch, ids))
            }
            Words::WordPiece(model) => bert_words(text, |word| model.encode_word(word, pieces, scratch, ids)),
        }
    }
}

impl Cut {
    fn words<E>(self, text: &str, first: bool, mut emit: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let Cut::Metaspace { prepend, split, whitespace_first } = self else { return emit(text) };
        let mut buffer = String::new();
        let mut one = |text: &str, first: bool| {
            let starts_with_mark = text.starts_with([' ', '▁']);
            let wanted = prepend == Prepend::Always || prepend == Prepend::First && first;
            buffer.clear();
            if wanted && !starts_with_mark {
                buffer.push('▁');
            }
            push_marked(text, &mut buffer);
            if !split {
                return emit(&buffer);
            }
            let mut start = 0;
            for (at, _) in buffer.match_indices('▁') {
                if at > start {
                    emit(&buffer[start..at])?;
                }
                start = at;
            }
            emit(&buffer[start..])
        };
        if !whitespace_first {
            return one(text, first);
        }
        text.split(char::is_whitespace).filter(|word| !word.is_empty()).try_for_each(|word| one(word, first))
    }
}

/// Splits at whitespace, with punctuation as separate words.
fn bert_words<E>(text: &str, mut emit: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    for word in text.split(char::is_whitespace) {
        let mut start = 0;
        for (at, c) in word.char_indices() {
            if !(c.is_ascii_punctuation() || !c.is_ascii() && c.is_punctuation()) {
                continue;
            }
            if start < at {
                emit(&word[start..at])?;
            }
            start = at + c.len_utf8();
            emit(&word[at..start])?;
        }
        if start < word.len() {
            emit(&word[start..])?;
        }
    }
    Ok(())
}
