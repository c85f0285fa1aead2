//! The files of a Whisper vocabulary before `tokenizer.json`: `vocab.json`, `merges.txt` and `added_tokens.json`.

use std::collections::HashMap;
use std::path::Path;

use akunu_format::Strings;
use akunu_format::hf::check_values;

use crate::files;
use crate::{Model, SpecialTokens, TokenKind, TokenizerError, Vocabulary};

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const ADDED: &str = "added_tokens.json";

/// More than any vocabulary has.
const MAX_TOKENS: usize = 1 << 20;

/// `None` if the folder has no such files, or the vocabulary is not one of speech: files of the same names are used by
/// models that split text in other ways, and do not say so.
pub(crate) fn read(folder: &Path) -> Result<Option<Vocabulary>, TokenizerError> {
    if !folder.join(VOCAB).is_file() || !folder.join(MERGES).is_file() {
        return Ok(None);
    }
    let mut texts = ids(folder, VOCAB)?;
    if folder.join(ADDED).is_file() {
        texts.extend(ids(folder, ADDED)?);
    }
    if !texts.contains_key("<|startoftranscript|>") {
        return Ok(None);
    }
    let wrong = |problem: String| TokenizerError::TokenList { problem };
    let count = texts.values().max().map_or(0, |last| *last as usize + 1);
    if count > MAX_TOKENS {
        return Err(wrong(format!("{count} tokens are more than any model has")));
    }
    let mut by_id: Vec<Option<&str>> = vec![None; count];
    for (text, id) in &texts {
        if by_id[*id as usize].replace(text).is_some() {
            return Err(wrong(format!("two tokens have the id {id}")));
        }
    }
    let kind = |text: &Option<&str>| match text {
        None | Some("") => TokenKind::Unused,
        Some(text) if text.starts_with("<|") && text.ends_with("|>") => TokenKind::Control,
        Some(_) => TokenKind::Normal,
    };
    let mut vocabulary = Vocabulary::new(Model::ByteLevel, "gpt-2");
    vocabulary.kinds = by_id.iter().map(kind).collect();
    vocabulary.tokens = by_id.iter().map(|text| text.unwrap_or_default()).collect();
    vocabulary.merges = merges(folder)?;
    let end = texts.get("<|endoftext|>").copied();
    vocabulary.special = SpecialTokens { bos: end, eos: end, ..SpecialTokens::default() };
    Ok(Some(vocabulary))
}

/// A JSON object of texts and ids.
fn ids(folder: &Path, file: &'static str) -> Result<HashMap<String, u32>, TokenizerError> {
    let path = folder.join(file);
    let bytes = files::read(&path)?;
    check_values(&bytes).map_err(|error| error.in_file(&path))?;
    serde_json::from_slice(&bytes).map_err(|error| files::not_json(file, &error))
}

/// The lines after the version.
fn merges(folder: &Path) -> Result<Strings, TokenizerError> {
    let bytes = files::read(&folder.join(MERGES))?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| TokenizerError::TokenList { problem: format!("{MERGES} is not UTF-8") })?;
    let is_version = |at: usize, line: &str| at == 0 && line.starts_with("#version");
    let lines = text.lines().enumerate().filter(|(at, line)| !line.is_empty() && !is_version(*at, line));
    Ok(lines.map(|(_, line)| line).collect())
}
