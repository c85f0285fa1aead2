//! Decides whether a `tokenizer.json` is of a form that is done in one pass. Every component must be known, including
//! the exact text of regular expressions; otherwise the result is the reason for using the general form.

use serde_json::Value;

use super::file::{File, Model};
use super::normalize::Normalizer;
use super::parts::{sequence, short};
use crate::error::printable;
use crate::pretokenizer::{PreTokenizer, Step};

/// The reason why a file needs the general form.
pub(super) type Unknown = String;

/// The type of a file's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bpe,
    Unigram,
    WordPiece,
    WordLevel,
}

/// Pre-tokenization, and the model applied to each word.
#[derive(Debug)]
pub(super) enum Method {
    /// `prefix_space`: a space is added to text that does not begin with one.
    ByteLevel {
        pre: PreTokenizer,
        prefix_space: bool,
        ignore_merges: bool,
    },
    CharLevel {
        cut: Cut,
        fuse_unknown: bool,
        byte_fallback: bool,
    },
    Unigram {
        cut: Cut,
    },
    WordPiece,
}

/// Word boundaries in vocabularies that write a space as `▁`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// No boundaries.
    Whole,
    Metaspace {
        prepend: Prepend,
        /// Each `▁` begins a word.
        split: bool,
        /// Splits at whitespace first.
        whitespace_first: bool,
    },
}

/// When a `▁` is added to text that does not begin with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    Always,
    /// At the start of the text only, not after an added token.
    First,
    Never,
}

pub(super) fn method(
    file: &File<'_>,
    model: &Model<'_>,
    kind: Kind,
    normalizer: &Normalizer,
) -> Result<Method, Unknown> {
    let set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let plain = matches!(normalizer, Normalizer::None | Normalizer::Nfc);
    let parts = sequence(&file.pre_tokenizer, "pretokenizers");
    match kind {
        Kind::Bpe => {
            let fixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
            if fixes.into_iter().any(set) {
                return Err("BPE with prefixes or suffixes of subwords".into());
            }
            let ignore_merges = model.ignore_merges.unwrap_or(false);
            if parts.last().is_some_and(|last| last["type"] == "ByteLevel") {
                if !plain {
                    return Err(format!("byte-level BPE after the normalizer {}", short(&file.normalizer)));
                }
                return byte_level(&parts, ignore_merges);
            }
            if ignore_merges {
                return Err("ignore_merges in a vocabulary that is not byte-level".into());
            }
            let fuse_unknown = model.fuse_unk.unwrap_or(false);
            let byte_fallback = model.byte_fallback.unwrap_or(false);
            Ok(Method::CharLevel { cut: cut(&parts, normalizer)?, fuse_unknown, byte_fallback })
        }
        Kind::Unigram => Ok(Method::Unigram { cut: cut(&parts, normalizer)? }),
        Kind::WordPiece => {
            let usual = model.continuing_subword_prefix.as_deref() == Some("##")
                && model.max_input_chars_per_word == Some(crate::wordpiece::MAX_WORD);
            let bert = parts.len() == 1 && is(parts[0], "BertPreTokenizer", &[]);
            if usual && bert {
                Ok(Method::WordPiece)
            } else {
                Err("WordPiece with settings other than BERT's".into())
            }
        }
        Kind::WordLevel => Err("whole words as tokens".into()),
    }
}

fn byte_level(parts: &[&Value], ignore_merges: bool) -> Result<Method, Unknown> {
    let (mut steps, mut prefix_space) = (Vec::new(), false);
    for (at, part) in parts.iter().enumerate() {
        let last = at + 1 == parts.len();
        let step = match part["type"].as_str().unwrap_or_default() {
            "Split" => Some(split(part)?),
            "Digits" if fields(part, &["individual_digits"]) => match part["individual_digits"].as_bool() {
                Some(true) => Some(Step::Numbers(1)),
                Some(false) => Some(Step::Numbers(usize::MAX)),
                None => return Err("Digits with unknown settings".into()),
            },
            "ByteLevel" if last && fields(part, &["add_prefix_space", "trim_offsets", "use_regex"]) => {
                let flag = |key: &str, default: bool| part.get(key).map_or(Some(default), Value::as_bool);
                let (Some(prefix), Some(regex)) = (flag("add_prefix_space", true), flag("use_regex", true))
                else {
                    return Err("ByteLevel with unknown settings".into());
                };
                if prefix && parts.len() > 1 {
                    return Err("add_prefix_space after another split".into());
                }
                prefix_space = prefix;
                regex.then_some(Step::Gpt2)
            }
            _ => return Err(format!("the pre-tokenizer part {}", short(part))),
        };
        steps.extend(step);
    }
    Ok(Method::ByteLevel { pre: PreTokenizer::of_steps(steps), prefix_space, ignore_merges })
}

fn split(part: &Value) -> Result<Step, Unknown> {
    let known = fields(part, &["pattern", "behavior", "invert"]) && fields(&part["pattern"], &["Regex"]);
    let step = part["pattern"]["Regex"].as_str().filter(|_| known).and_then(Step::of_pattern);
    let shown = || part["pattern"]["Regex"].as_str().map_or_else(|| short(&part["pattern"]), printable);
    let step = step.ok_or_else(|| format!("the expression {}", shown()))?;
    match (part["behavior"].as_str(), part["invert"].as_bool()) {
        (Some("Isolated"), Some(false)) => Ok(step),
        // The text between matches is removed; here the matches cover the whole text.
        (Some("Removed"), Some(true)) if step.is_total() => Ok(step),
        _ => Err("a split that removes text".into()),
    }
}

fn cut(parts: &[&Value], normalizer: &Normalizer) -> Result<Cut, Unknown> {
    let (whitespace_first, rest) = match parts {
        [first, rest @ ..] if is(first, "WhitespaceSplit", &[]) && !rest.is_empty() => (true, rest),
        _ => (false, parts),
    };
    match rest {
        [] => Ok(Cut::Whole),
        // After spaces have become space marks, there is nothing to split.
        [part]
            if matches!(normalizer, Normalizer::Marks { .. })
                && is(part, "Split", &["pattern", "behavior", "invert"])
                && part["pattern"] == serde_json::json!({"String": " "})
                && part["behavior"].as_str().is_some_and(|kind| kind.starts_with("MergedWith"))
                && part["invert"] == false =>
        {
            Ok(Cut::Whole)
        }
        [part] if is(part, "Metaspace", &["replacement", "prepend_scheme", "split", "add_prefix_space"]) => {
            if part["replacement"] != "▁" || matches!(normalizer, Normalizer::Marks { .. }) {
                return Err("a space mark other than ▁".into());
            }
            let prepend = match part["prepend_scheme"].as_str() {
                Some("always") => Prepend::Always,
                None if part.get("prepend_scheme").is_none() => Prepend::Always,
                Some("first") if matches!(normalizer, Normalizer::None) && !whitespace_first => {
                    Prepend::First
                }
                Some("never") => Prepend::Never,
                _ => return Err(format!("the pre-tokenizer part {}", short(part))),
            };
            if part["add_prefix_space"] == false && prepend != Prepend::Never {
                return Err("contradictory space prefixes".into());
            }
            let split = part.get("split").map_or(Some(true), Value::as_bool).ok_or("an unknown split")?;
            Ok(Cut::Metaspace { prepend, split, whitespace_first })
        }
        [part, ..] => Err(format!("the pre-tokenizer part {}", short(part))),
    }
}

/// Whether the value is an object of this type, without unknown fields.
fn is(value: &Value, kind: &str, known: &[&str]) -> bool {
    value["type"] == kind && fields(value, known)
}

fn fields(value: &Value, known: &[&str]) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.keys().all(|key| key == "type" || known.contains(&key.as_str())))
}
