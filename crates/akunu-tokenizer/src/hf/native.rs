//! A `tokenizer.json` on this crate's tokenizers, with the same ids as in the `tokenizers` library. Forms that most
//! files have are done in one pass over a text; any other is done step by step.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use akunu_format::Strings;

use super::added::{Added, Part};
use super::file::{AddedToken, File, Model as FileModel, Vocab};
use super::models::{self, Index, Speller};
use super::normalize::{Normalizer, push_marked};
use super::recognise::{self, Cut, Kind, Method, Prepend, Unknown};
use super::steps::{Steps, is_punctuation};
use super::unigram::UnigramWords;
use super::{missing, post};
use crate::bytelevel::ByteLevel;
use crate::bytes::{append_bytes, byte_of_hex, is_written_in_bytes};
use crate::cancel::Watch;
use crate::charlevel::CharLevel;
use crate::error::printable;
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
    ByteLevel {
        model: Box<ByteLevel>,
        prefix_space: bool,
    },
    CharLevel {
        model: CharLevel,
        cut: Cut,
    },
    Unigram {
        model: Speller,
        cut: Cut,
    },
    WordPiece(WordPiece),
    /// Any file. `why`: what of it is of none of the other forms.
    Steps {
        model: Speller,
        steps: Steps,
        why: String,
    },
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) native: Native,
    pub(super) vocabulary: Vocabulary,
    /// Text to use in decoding, if it differs from the token's own.
    pub(super) surfaces: Vec<(u32, String)>,
    pub(super) template: Template,
}

/// The kinds in `vocabulary` are those of the whole vocabulary; to the model, all its tokens are normal. `general`: step
/// by step, whatever the file contains.
pub(super) fn build(file: &File<'_>, general: bool) -> Result<Built, TokenizerError> {
    if let Some(version) = file.version.as_deref().filter(|version| *version != "1.0") {
        let what = format!("version {} of the format of `tokenizer.json`", printable(version));
        return Err(TokenizerError::Unsupported { what });
    }
    let model = file.model.as_ref().ok_or(missing("model"))?;
    let vocab = model.vocab.as_ref().ok_or(missing("model.vocab"))?;
    let kind = kind(model, vocab)?;
    let normalizer = Normalizer::of(&file.normalizer)?;
    let template = post::template(&file.post_processor)?;
    let Tokens { mut vocabulary, consecutive, added } = tokens(file, vocab)?;
    crate::native::limit_lengths(&vocabulary.tokens)?;
    vocabulary.special.unknown = unknown(model, vocab);
    let known = vocabulary.tokens.len();
    if let Some(id) = template.tokens().find(|&id| id as usize >= known) {
        return Err(TokenizerError::IdOutOfRange { key: "post_processor", id: id.into(), tokens: known });
    }
    let (mut raw, mut in_normalized, mut surfaces) = (Added::new(), Added::new(), Vec::new());
    for (id, token) in &added {
        if !token.normalized {
            raw.insert(&token.content, *id, token);
            continue;
        }
        let mut text = String::new();
        let text = normalizer.apply(&token.content, &mut text, &mut Watch::new())?;
        if text != token.content {
            surfaces.push((*id, text.to_string()));
        }
        in_normalized.insert(text, *id, token);
    }
    let recognised = match (general, consecutive) {
        (true, _) => Err("asked for".into()),
        (false, false) => Err("ids that are not consecutive".into()),
        (false, true) => recognise::method(file, model, kind, &normalizer)
            .and_then(|method| words(file, model, vocab, &normalizer, method, &mut vocabulary)),
    };
    let (words, pieces) = match recognised {
        Ok(found) => found,
        Err(why) => general_words(file, model, vocab, kind, &vocabulary, why)?,
    };
    let scratch = Pool::default();
    let native = Native { raw, normalized: in_normalized, normalizer, model: words, pieces, scratch };
    Ok(Built { native, vocabulary, surfaces, template })
}

/// The type of the model, which files of the first versions do not name.
fn kind(model: &FileModel<'_>, vocab: &Vocab<'_>) -> Result<Kind, TokenizerError> {
    let known = "BPE, WordPiece, WordLevel, Unigram";
    let kind = match model.kind.as_deref() {
        Some("BPE") => Kind::Bpe,
        Some("WordPiece") => Kind::WordPiece,
        Some("WordLevel") => Kind::WordLevel,
        Some("Unigram") => Kind::Unigram,
        Some(name) => {
            let (name, known) = (printable(name), known.into());
            return Err(TokenizerError::UnknownPart { key: "model", name, known });
        }
        None if model.merges.is_some() => Kind::Bpe,
        None if matches!(vocab, Vocab::Scores(_)) => Kind::Unigram,
        None if model.continuing_subword_prefix.is_some() => Kind::WordPiece,
        None => Kind::WordLevel,
    };
    if kind == Kind::Bpe && model.merges.is_none() {
        return Err(missing("model.merges"));
    }
    if (kind == Kind::Unigram) != matches!(vocab, Vocab::Scores(_)) {
        let message = "tokens with scores belong to Unigram models, and only to these".into();
        return Err(TokenizerError::Json { file: super::FILE, message });
    }
    Ok(kind)
}

/// The tokens of a file.
struct Tokens {
    /// By id, with their kinds. Ids without a token are unused and empty.
    vocabulary: Vocabulary,
    /// The model's tokens have the ids from 0 on.
    consecutive: bool,
    added: BTreeMap<u32, AddedToken>,
}

fn tokens(file: &File<'_>, vocab: &Vocab<'_>) -> Result<Tokens, TokenizerError> {
    let count = vocab.len();
    let last = match vocab {
        Vocab::Ids(tokens) => tokens.iter().map(|token| token.1).max(),
        Vocab::Scores(tokens) => (tokens.len() as u32).checked_sub(1),
    };
    let last = last.map_or(0, |last| last as usize + 1);
    // Allows some gaps, but not a file that contains only a token with a huge id.
    if last > count.saturating_mul(2) + 4096 {
        return Err(TokenizerError::IdOutOfRange { key: "model.vocab", id: last as u64 - 1, tokens: count });
    }
    let mut texts: Vec<Option<&str>> = vec![None; last.max(count)];
    for (id, text) in vocab.iter() {
        if texts[id as usize].replace(text).is_some() {
            return Err(TokenizerError::TokenList { problem: format!("two tokens have the id {id}") });
        }
    }
    let contents: HashSet<&str> = file.added_tokens.iter().map(|token| token.content.as_str()).collect();
    let in_model: HashMap<&str, u32> =
        vocab.iter().filter(|(_, text)| contents.contains(text)).map(|(id, text)| (text, id)).collect();
    let consecutive = last == count;
    // As in the `tokenizers` library: an added token that the model does not have gets the next id, whatever the file
    // says; of several with one text the last counts, but it is special if any is.
    let (mut ids, mut added) = (HashMap::new(), BTreeMap::<u32, AddedToken>::new());
    let mut next = count;
    for token in file.added_tokens.iter().filter(|token| !token.content.is_empty()) {
        let text = token.content.as_str();
        let id = *ids.entry(text).or_insert_with(|| {
            in_model.get(text).copied().unwrap_or_else(|| {
                next += 1;
                next as u32 - 1
            })
        });
        let mut token = token.clone();
        token.special |= added.get(&id).is_some_and(|other| other.special);
        added.insert(id, token);
    }
    texts.resize(texts.len().max(next), None);
    added.iter().for_each(|(id, token)| texts[*id as usize] = Some(&token.content));
    if texts.is_empty() {
        return Err(TokenizerError::Empty);
    }
    // The models of GGUF do not matter here.
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, "");
    vocabulary.kinds = texts
        .iter()
        .map(|text| match text {
            None => TokenKind::Unused,
            Some(text) if byte_of_hex(text).is_some() => TokenKind::Byte,
            Some(_) => TokenKind::Normal,
        })
        .collect();
    for (id, token) in &added {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        vocabulary.kinds[*id as usize] = kind;
    }
    vocabulary.tokens = texts.into_iter().map(Option::unwrap_or_default).collect();
    Ok(Tokens { vocabulary, consecutive, added })
}

/// The token that the model uses for unknown text.
fn unknown(model: &FileModel<'_>, vocab: &Vocab<'_>) -> Option<u32> {
    let named = |name: &str| vocab.iter().rev().find(|(_, text)| *text == name).map(|(id, _)| id);
    match &model.unk_token {
        Some(name) => named(name),
        None => model.unk_id.filter(|&id| id < vocab.len()).map(|id| id as u32),
    }
}

/// The general form of any file.
fn general_words(
    file: &File<'_>,
    model: &FileModel<'_>,
    vocab: &Vocab<'_>,
    kind: Kind,
    vocabulary: &Vocabulary,
    why: String,
) -> Result<(Words, Pieces), TokenizerError> {
    let steps = Steps::of(&file.pre_tokenizer)?;
    let mut texts = vec![""; vocabulary.tokens.len()];
    vocab.iter().for_each(|(id, text)| texts[id as usize] = text);
    let pieces: Pieces = texts.into_iter().collect();
    // Of equal tokens the last one counts, and indices keep the first.
    let ids: Vec<u32> = vocab.iter().rev().map(|(id, _)| id).collect();
    let unknown = vocabulary.special.unknown;
    let words = match (kind, vocab) {
        (Kind::Bpe, _) => models::Words::Bpe(models::Bpe::new(model, Index::new(&pieces, &ids), unknown)?),
        (Kind::WordPiece, _) => {
            models::Words::WordPiece(models::WordPiece::new(model, &pieces, &ids, unknown)?)
        }
        (Kind::Unigram, Vocab::Scores(tokens)) => models::Words::Unigram(unigram(model, tokens)?.0),
        _ => models::Words::WordLevel(models::WordLevel::new(model, Index::new(&pieces, &ids), unknown)?),
    };
    let model = Speller::new(words, special(vocabulary));
    Ok((Words::Steps { model, steps, why }, pieces))
}

fn unigram(
    model: &FileModel<'_>,
    tokens: &[(Cow<'_, str>, f64)],
) -> Result<(UnigramWords, Pieces), TokenizerError> {
    UnigramWords::new(tokens, model.unk_id, model.byte_fallback.unwrap_or(false))
}

/// Special tokens, sorted, without the unknown one: it does not indicate a special token in the text.
fn special(vocabulary: &Vocabulary) -> Vec<u32> {
    let kinds = (0u32..).zip(&vocabulary.kinds).filter(|(_, kind)| **kind == TokenKind::Control);
    kinds.map(|(id, _)| id).filter(|&id| Some(id) != vocabulary.special.unknown).collect()
}

/// A form that is done in one pass, or the reason why the file is not of that form.
fn words(
    file: &File<'_>,
    model: &FileModel<'_>,
    vocab: &Vocab<'_>,
    normalizer: &Normalizer,
    method: Method,
    vocabulary: &mut Vocabulary,
) -> Result<(Words, Pieces), Unknown> {
    let said = |error: TokenizerError| match error {
        TokenizerError::Unsupported { what } => what,
        error => error.to_string(),
    };
    let count = vocab.len();
    let unknown = vocabulary.special.unknown.map(|id| id as usize);
    vocabulary.model = match method {
        Method::ByteLevel { .. } => Model::ByteLevel,
        Method::CharLevel { .. } => Model::SentencePiece,
        Method::Unigram { .. } => Model::Unigram,
        Method::WordPiece => Model::WordPiece,
    };
    let merges = model.merges.iter().flat_map(|merges| &merges.0);
    if merges.clone().any(|(left, right)| left.contains(' ') || right.contains(' ')) {
        return Err("merges of tokens with spaces in them".into());
    }
    merges.for_each(|(left, right)| vocabulary.merges.push(&[left, " ", right]));
    if let Vocab::Scores(tokens) = vocab {
        vocabulary.scores = tokens.iter().map(|token| token.1 as f32).collect();
        vocabulary.scores.resize(vocabulary.tokens.len(), 0.0);
    }
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
            no_special_from_text(file, model, &pre, ignore_merges)?;
            let words = ByteLevel::new(vocabulary, pre, &kinds, &pieces).map_err(said)?;
            // Bytes without a token are dropped, unless there is an unknown token.
            if words.has_repeated_merges() || model.unk_token.is_some() && !words.has_every_byte() {
                return Err("duplicate merges, or bytes that become unknown tokens".into());
            }
            let composed = matches!(normalizer, Normalizer::Nfc);
            vocabulary.pre =
                words.pre_tokenizer().name(ignore_merges, composed).unwrap_or_default().to_string();
            Ok((Words::ByteLevel { model: Box::new(words), prefix_space }, pieces))
        }
        Method::CharLevel { cut, fuse_unknown, byte_fallback } => {
            let pieces: Pieces = vocabulary.tokens.iter().collect();
            let kinds = kind_of(&|id, text| match text {
                _ if Some(id) == unknown => TokenKind::Unknown,
                text if byte_fallback && byte_of_hex(text).is_some() => TokenKind::Byte,
                _ => TokenKind::Normal,
            });
            if model.unk_token.as_deref().is_some_and(|text| text.chars().nth(1).is_none()) {
                return Err("an unknown token that is a single character".into());
            }
            no_special_from_text(file, model, &PreTokenizer::of_steps(Vec::new()), false)?;
            let words = CharLevel::new(vocabulary, &kinds, &pieces, fuse_unknown).map_err(said)?;
            if byte_fallback && !words.spells_bytes() {
                return Err("bytes without a token".into());
            }
            Ok((Words::CharLevel { model: words, cut }, pieces))
        }
        Method::Unigram { cut } => {
            let Vocab::Scores(tokens) = vocab else {
                return Err("a Unigram vocabulary without scores".into());
            };
            let (words, pieces) = unigram(model, tokens).map_err(said)?;
            let model = Speller::new(models::Words::Unigram(words), special(vocabulary));
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
fn no_special_from_text(
    file: &File<'_>,
    model: &FileModel<'_>,
    pre: &PreTokenizer,
    ignore_merges: bool,
) -> Result<(), Unknown> {
    let special: HashSet<&str> =
        file.added_tokens.iter().filter(|token| token.special).map(|token| token.content.as_str()).collect();
    let lengths: HashSet<usize> = special.iter().map(|text| text.len()).collect();
    let single = special.iter().any(|text| text.chars().nth(1).is_none());
    let merged = model.merges.iter().flat_map(|merges| &merges.0).any(|(left, right)| {
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
            (Words::WordPiece(_), Normalizer::Bert(bert)) if bert.clean_text => {
                if !bert.chinese {
                    return Err("Chinese characters are not split from words".into());
                }
                (vocabulary.lowercase, vocabulary.strip_accents) = (bert.lowercase, bert.strip_accents);
            }
            (Words::Steps { why, .. }, _) => return Err(format!("it has {why}")),
            _ => return Err(format!("{} of this kind is not supported by GGUF", self.describe())),
        }
        let composed = matches!(self.normalizer, Normalizer::Nfc);
        let composed = Some(composed).filter(|&composed| composed != pretokenizer::composes(&vocabulary.pre));
        Ok(Export { unknown: vocabulary.special.unknown, composed, stripping: 0 })
    }

    /// Why the general form is used, if it is.
    pub(super) fn why_general(&self) -> Option<&str> {
        match &self.model {
            Words::Steps { why, .. } => Some(why),
            _ => None,
        }
    }

    /// The name of the model, and the reason if its general form is used.
    pub(super) fn describe(&self) -> String {
        match &self.model {
            Words::ByteLevel { .. } => "byte-level BPE".into(),
            Words::CharLevel { .. } => "BPE of characters".into(),
            Words::Unigram { .. } => "Unigram".into(),
            Words::WordPiece(_) => "WordPiece".into(),
            Words::Steps { model, why, .. } => format!("{} in the general form ({why})", model.describe()),
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
        let normalized = self.normalizer.apply(text, &mut buffer, &mut scratch.watch);
        let result = normalized.and_then(|text| {
            self.normalized.split(text, plain, |part| match part {
                Part::Token(id) => {
                    ids.push(id);
                    Ok(())
                }
                Part::Text { start, end } => {
                    self.encode_words(&text[start..end], first && start == 0, plain, scratch, ids)
                }
            })
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
            Words::Steps { model, steps, .. } => steps.words(text, first, &mut Watch::new(), |word| {
                model.encode(word, plain, pieces, scratch, ids)
            }),
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
            if !is_punctuation(c) {
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
