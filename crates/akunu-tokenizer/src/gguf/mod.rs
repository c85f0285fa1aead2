//! Writes the vocabulary of a folder as GGUF keys: the same keys as llama.cpp's converter, and only if reading them
//! back gives the same ids.

pub(crate) mod agree;
mod scores;

use std::path::Path;

use akunu_format::{Array, Metadata, Strings, Value};

use crate::chat::ChatTemplates;
use crate::error::printable;
use crate::hf::{HfTokenizer, Sidecar};
use crate::sentencepiece::SPACE_MARK;
use crate::speech_files;
use crate::{
    Model, NativeTokenizer, SpecialTokens, SpeechTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary,
    from_gguf,
};

/// The keys, and notes on what a GGUF file cannot represent of this vocabulary.
#[derive(Debug)]
pub struct GgufVocabulary {
    pub metadata: Metadata,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// The vocabulary of a folder, for a model with `rows` embeddings.
pub fn gguf_vocabulary(folder: &Path, rows: usize) -> Result<GgufVocabulary, TokenizerError> {
    let (json, model) = (folder.join("tokenizer.json"), folder.join("tokenizer.model"));
    let found = if json.is_file() {
        from_json(&json, &model)?
    } else if model.is_file() {
        Found::of(crate::model_file::read(&model)?)?
    } else if let Some(vocabulary) = speech_files::read(folder)? {
        Found::of(vocabulary)?
    } else {
        return Err(TokenizerError::NoVocabulary { folder: folder.display().to_string() });
    };
    let templates = ChatTemplates::from_folder(folder).map_err(|error| refused(error.to_string()))?;
    let mut written = write(found, rows)?;
    templates.write_gguf(&mut written.metadata);
    Ok(written)
}

/// The vocabulary of [`crate::from_ranks`].
pub fn gguf_of_ranks(tokens: &[&[u8]], rows: usize) -> Result<GgufVocabulary, TokenizerError> {
    write(Found::of(Vocabulary::from_speech_ranks(tokens, rows)?)?, rows)
}

fn write(mut found: Found, rows: usize) -> Result<GgufVocabulary, TokenizerError> {
    let tokens = found.vocabulary.tokens.len();
    if tokens > rows {
        return Err(refused(format!("{tokens} tokens, but the model has {rows} embeddings")));
    }
    let mut metadata = keys(&found, rows);
    let read_back = from_gguf(&metadata)?;
    let shown = found.vocabulary.model != Model::WordPiece;
    let checks = agree::Checks { composed: found.composed, shown, around: found.around, pairs: found.pairs };
    let user_defined =
        !found.vocabulary.splits_at_user_defined && found.vocabulary.kinds.contains(&TokenKind::UserDefined);
    agree::check(&*found.tokenizer, &read_back, checks).map_err(|difference| {
        let reason = "; readers of GGUF files match user-defined tokens before a text is normalized, and SentencePiece \
                      does so afterwards";
        refused(difference + if user_defined { reason } else { "" })
    })?;
    end_ids(&*found.tokenizer, &read_back, &mut metadata, &mut found.notes);
    Ok(GgufVocabulary { metadata, notes: found.notes })
}

/// A vocabulary in GGUF's form, and the tokenizer that it was made from.
struct Found {
    vocabulary: Vocabulary,
    tokenizer: Box<dyn Tokenizer>,
    /// Only composed (NFC) text gets the same tokens.
    composed: bool,
    /// The keys state the special tokens around a text.
    around: bool,
    /// The keys state the special tokens of text pairs.
    pairs: bool,
    notes: Vec<String>,
}

impl Found {
    fn of(vocabulary: Vocabulary) -> Result<Found, TokenizerError> {
        let tokenizer = Box::new(NativeTokenizer::new(vocabulary.clone())?);
        Ok(Found { vocabulary, tokenizer, composed: false, around: true, pairs: true, notes: Vec::new() })
    }
}

fn refused(what: impl Into<String>) -> TokenizerError {
    TokenizerError::NoGguf { what: what.into() }
}

fn from_json(path: &Path, model: &Path) -> Result<Found, TokenizerError> {
    let json = crate::files::read(path)?;
    let (tokenizer, mut vocabulary, export) = HfTokenizer::exported(&json, &Sidecar::beside(path)?)?;
    // What stands around a text is then a part of the prompt of a transcription.
    let around = SpeechTokens::new(&tokenizer, tokenizer.vocab_size()).is_none();
    let pairs;
    (vocabulary.special, pairs) = match around {
        true => special(&tokenizer, vocabulary.model)?,
        false => (SpecialTokens { add_bos: false, add_eos: false, ..*tokenizer.special() }, false),
    };
    let mut notes = Vec::new();
    if around && !pairs && tokenizer.template().after().next().is_some() {
        notes.push(
            "what stands around two texts, such as a query and a document, is something that GGUF files cannot ask \
             for; pairs get other tokens than in the original"
                .to_string(),
        );
    }
    match vocabulary.model {
        Model::SentencePiece => {
            vocabulary.scores = match sentence_piece_scores(model, &vocabulary)? {
                Some(scores) => scores,
                None => scores::of_merges(&vocabulary).ok_or_else(|| {
                    refused(
                        "the order of merges cannot be expressed by scores, and there is no tokenizer.model",
                    )
                })?,
            };
            if let Some(unknown) = export.unknown {
                vocabulary.special.unknown = Some(unknown);
                vocabulary.kinds[unknown as usize] = TokenKind::Unknown;
            }
        }
        _ => {
            let bytes = vocabulary.kinds.iter_mut().filter(|kind| **kind == TokenKind::Byte);
            bytes.for_each(|kind| *kind = TokenKind::Normal);
            vocabulary.special.unknown = vocabulary.special.unknown.or(export.unknown);
        }
    }
    if let Some(composed) = export.composed {
        let difference = if composed {
            "text is composed to NFC first in the original; GGUF files cannot ask for that"
        } else {
            "text is not composed to NFC in the original, but by readers of GGUF files with this pre-tokenizer"
        };
        notes.push(format!("{difference}, so text that is not composed gets other tokens"));
    }
    if export.stripping > 0 {
        notes.push(format!(
            "{} added tokens consume the spaces around them, which GGUF files cannot represent",
            export.stripping
        ));
    }
    Ok(Found {
        vocabulary,
        tokenizer: Box::new(tokenizer),
        composed: export.composed.is_some(),
        around,
        pairs,
        notes,
    })
}

/// Scores from a `tokenizer.model` beside the JSON, if it has the same tokens.
fn sentence_piece_scores(model: &Path, vocabulary: &Vocabulary) -> Result<Option<Vec<f32>>, TokenizerError> {
    if !model.is_file() {
        return Ok(None);
    }
    let own = crate::model_file::read(model)?;
    let same = own.model == Model::SentencePiece
        && own.tokens.len() <= vocabulary.tokens.len()
        && own.tokens.iter().zip(vocabulary.tokens.iter()).all(|(a, b)| a == b);
    Ok(same.then(|| {
        let mut scores = own.scores;
        scores.resize(vocabulary.tokens.len(), 0.0);
        scores
    }))
}

/// The special tokens and flags that llama.cpp's converter would write, from which the tokens around a text follow.
/// Also whether those around two texts follow from them.
fn special(tokenizer: &HfTokenizer, model: Model) -> Result<(SpecialTokens, bool), TokenizerError> {
    let template = tokenizer.template();
    let (before, after) = (template.before().collect::<Vec<u32>>(), template.after().collect::<Vec<u32>>());
    let mut special = *tokenizer.special();
    let around = || refused("more than one token before or after a text");
    match before[..] {
        [] => special.add_bos = false,
        [id] => (special.bos, special.add_bos) = (Some(id), true),
        _ => return Err(around()),
    }
    special.add_separator = false;
    match after[..] {
        [] => special.add_eos = false,
        [id] => (special.eos, special.add_eos) = (Some(id), true),
        _ => return Err(around()),
    }
    if model == Model::WordPiece && special.add_eos {
        special.separator = special.eos;
    }
    // Between two texts: the tokens that end the first one, and at most one more token.
    let between = template.between();
    let pairs = match between.as_deref().and_then(|between| between.strip_prefix(&after[..])) {
        Some([]) => true,
        Some(&[id])
            if special.separator == Some(id) || special.separator.is_none() && special.eos == Some(id) =>
        {
            (special.separator, special.add_separator) = (Some(id), true);
            true
        }
        _ => false,
    };
    Ok((special, pairs))
}

fn keys(found: &Found, rows: usize) -> Metadata {
    let vocabulary = &found.vocabulary;
    let mut out = Metadata::default();
    let mut put = |key: &str, value: Value| {
        out.insert(format!("tokenizer.ggml.{key}"), value);
    };
    let model = match vocabulary.model {
        Model::SentencePiece => "llama",
        Model::Unigram => "t5",
        Model::ByteLevel => "gpt2",
        Model::WordPiece => "bert",
    };
    put("model", Value::String(model.into()));
    let pre = if vocabulary.model == Model::ByteLevel { &vocabulary.pre } else { "default" };
    put("pre", Value::String(pre.into()));
    let written = |(id, text): (usize, &str)| match vocabulary.model {
        Model::WordPiece if vocabulary.kinds[id] == TokenKind::Normal => match text.strip_prefix("##") {
            Some(rest) => rest.to_string(),
            None => format!("▁{text}"),
        },
        // As llama.cpp's converter does, because llama.cpp matches these tokens in the text as it is.
        Model::SentencePiece | Model::Unigram if vocabulary.kinds[id] == TokenKind::UserDefined => {
            text.replace(SPACE_MARK, " ")
        }
        _ => text.to_string(),
    };
    let count = vocabulary.tokens.len();
    let unused = (count..rows).map(|id| format!("[PAD{id}]"));
    let tokens: Strings = vocabulary.tokens.iter().enumerate().map(written).chain(unused).collect();
    put("tokens", Value::Array(Array::Strings(tokens)));
    let mut kinds: Vec<i32> = vocabulary.kinds.iter().map(|&kind| kind as i32).collect();
    kinds.resize(count, TokenKind::Normal as i32);
    // Unused ids get a placeholder.
    for (kind, text) in kinds.iter_mut().zip(vocabulary.tokens.iter()) {
        *kind = if text.is_empty() { TokenKind::Unused as i32 } else { *kind };
    }
    kinds.resize(rows, TokenKind::Unused as i32);
    put("token_type", Value::Array(Array::I32(kinds)));
    if matches!(vocabulary.model, Model::SentencePiece | Model::Unigram) {
        let mut scores = vocabulary.scores.clone();
        scores.resize(rows, 0.0);
        put("scores", Value::Array(Array::F32(scores)));
        put("add_space_prefix", Value::Bool(vocabulary.add_space_prefix));
        if vocabulary.model == Model::Unigram {
            put("remove_extra_whitespaces", Value::Bool(vocabulary.remove_extra_spaces));
        }
        if !vocabulary.charsmap.is_empty() {
            put("precompiled_charsmap", Value::Array(Array::U8(vocabulary.charsmap.clone())));
        }
    }
    if vocabulary.model == Model::ByteLevel {
        put("merges", Value::Array(Array::Strings(vocabulary.merges.clone())));
        put("add_space_prefix", Value::Bool(false));
    }
    if vocabulary.model == Model::WordPiece {
        put("normalizer.lowercase", Value::Bool(vocabulary.lowercase));
        put("normalizer.strip_accents", Value::Bool(vocabulary.strip_accents));
    }
    special_keys(&vocabulary.special, vocabulary.model, &mut put);
    out
}

fn special_keys(special: &SpecialTokens, model: Model, put: &mut impl FnMut(&str, Value)) {
    let ids = [
        ("bos", special.bos),
        ("eos", special.eos),
        ("unknown", special.unknown),
        ("seperator", special.separator), // as GGUF spells it
        ("padding", special.padding),
        ("mask", special.mask),
        ("cls", special.bos.filter(|_| model == Model::WordPiece)),
    ];
    for (name, id) in ids {
        match id {
            Some(id) => put(&format!("{name}_token_id"), Value::U32(id)),
            // Without the key, readers would assume the default id; u32::MAX (−1 in converters) means none.
            None if model != Model::ByteLevel && name != "cls" => {
                put(&format!("{name}_token_id"), Value::U32(u32::MAX));
            }
            None => {}
        }
    }
    put("add_bos_token", Value::Bool(special.add_bos));
    put("add_eos_token", Value::Bool(special.add_eos));
    if special.add_separator || model == Model::WordPiece {
        put("add_sep_token", Value::Bool(special.add_separator));
    }
}

/// All end-of-generation ids for which there are keys: readers know the well-known texts by themselves.
fn end_ids(
    original: &dyn Tokenizer,
    read_back: &dyn Tokenizer,
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) {
    let mut missing: Vec<u32> = original
        .end_of_generation()
        .iter()
        .copied()
        .filter(|id| !read_back.end_of_generation().contains(id))
        .collect();
    let mut free = vec!["eot", "eom"];
    if let Some(eot) = original.special().eot {
        metadata.insert("tokenizer.ggml.eot_token_id", Value::U32(eot));
        missing.retain(|&id| id != eot);
        free.retain(|&name| name != "eot");
    }
    let rest = missing.split_off(missing.len().min(free.len()));
    for (name, id) in free.into_iter().zip(missing) {
        metadata.insert(format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
    }
    if !rest.is_empty() {
        let list: Vec<String> = rest
            .iter()
            .map(|&id| format!("{id} `{}`", printable(original.token_text(id).unwrap_or_default())))
            .collect();
        notes.push(format!(
            "GGUF has keys for only three end-of-generation tokens; these will not end the generation with the new file: {}",
            list.join(", ")
        ));
    }
}
