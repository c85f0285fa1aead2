//! Reading of a file's parts: flattening of sequences, fields, patterns.

use serde_json::Value;

use crate::TokenizerError;
use crate::cancel::Watch;
use crate::error::printable;
use crate::regex::Regex;

/// The flattened parts of a sequence; a single part is a sequence of one.
pub(super) fn sequence<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    match value {
        Value::Null => Vec::new(),
        value if value["type"] == "Sequence" || value.get("type").is_none() && value[key].is_array() => {
            value[key].as_array().into_iter().flatten().flat_map(|part| sequence(part, key)).collect()
        }
        value => vec![value],
    }
}

/// The value, shortened for a message.
pub(super) fn short(value: &Value) -> String {
    printable(&value.to_string())
}

pub(super) fn unknown_part(key: &'static str, part: &Value, known: &str) -> TokenizerError {
    let name = part["type"].as_str().map_or_else(|| short(part), printable);
    TokenizerError::UnknownPart { key, name, known: known.into() }
}

/// A part that is known, but has a field that cannot be used.
pub(super) fn malformed(part: &Value, field: &str) -> TokenizerError {
    TokenizerError::Json { file: super::FILE, message: format!("no usable `{field}` in {}", short(part)) }
}

/// A field that is true or false. Without a default it must be there.
pub(super) fn flag(part: &Value, key: &str, default: Option<bool>) -> Result<bool, TokenizerError> {
    match (&part[key], default) {
        (Value::Bool(flag), _) => Ok(*flag),
        (Value::Null, Some(default)) => Ok(default),
        _ => Err(malformed(part, key)),
    }
}

pub(super) fn text<'v>(part: &'v Value, key: &str) -> Result<&'v str, TokenizerError> {
    part[key].as_str().ok_or_else(|| malformed(part, key))
}

/// A field of one character.
pub(super) fn character(part: &Value, key: &str) -> Result<char, TokenizerError> {
    let mut chars = text(part, key)?.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(malformed(part, key)),
    }
}

/// What a text is searched for.
#[derive(Debug)]
pub(super) enum Pattern {
    Text(String),
    Regex(Regex),
}

impl Pattern {
    pub(super) fn of(value: &Value) -> Result<Pattern, TokenizerError> {
        let regex = |text: &str| {
            Regex::new(text).map_err(|reason| TokenizerError::Unsupported {
                what: format!("the regular expression `{}`: {reason}", printable(text)),
            })
        };
        match (value["String"].as_str(), value["Regex"].as_str()) {
            (Some(""), None) => Ok(Pattern::Regex(regex("")?)),
            (Some(text), None) => Ok(Pattern::Text(text.to_string())),
            (None, Some(text)) => Ok(Pattern::Regex(regex(text)?)),
            _ => Err(malformed(value, "Regex")),
        }
    }

    /// Passes the matches in `text` to `found`, in order: their starts and ends. There is none in an empty text.
    pub(super) fn each_match(
        &self,
        text: &str,
        watch: &mut Watch,
        mut found: impl FnMut(usize, usize) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        match self {
            _ if text.is_empty() => {}
            Pattern::Text(wanted) => {
                for (start, _) in text.match_indices(wanted) {
                    watch.step()?;
                    found(start, start + wanted.len())?;
                }
            }
            Pattern::Regex(regex) => regex.each_match(text, watch, found)?,
        }
        Ok(())
    }
}
