//! Checks that a file is a `tokenizer.json` with known component types, before the `tokenizers` crate reads it, for
//! better error messages.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::TokenizerError;
use crate::error::printable;
use crate::files::not_json;

const FILE: &str = "tokenizer.json";
const MODELS: &[&str] = &["BPE", "WordPiece", "WordLevel", "Unigram"];
const NORMALIZERS: &[&str] = &[
    "BertNormalizer",
    "ByteLevel",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Prepend",
    "Replace",
    "Sequence",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: &[&str] = &[
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Digits",
    "FixedLength",
    "Metaspace",
    "Punctuation",
    "Sequence",
    "Split",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
];
const POST_PROCESSORS: &[&str] =
    &["BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"];

/// The parts of the file that are checked before it is loaded. The vocabulary itself is skipped.
#[derive(Debug, Deserialize)]
pub(super) struct Description<'j> {
    #[serde(borrow)]
    model: Option<Model<'j>>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    pub(super) decoder: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Model<'j> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'j, str>>,
    vocab: Option<IgnoredAny>,
    merges: Option<IgnoredAny>,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    unk_id: Value,
}

impl<'j> Description<'j> {
    /// The unknown token: its text, or its id.
    pub(super) fn unknown(&self) -> (Option<&str>, Option<u64>) {
        let model = self.model.as_ref();
        (model.and_then(|model| model.unk_token.as_str()), model.and_then(|model| model.unk_id.as_u64()))
    }

    pub(super) fn read(json: &'j [u8]) -> Result<Description<'j>, TokenizerError> {
        let about: Description<'j> = serde_json::from_slice(json).map_err(|error| not_json(FILE, &error))?;
        let Some(model) = &about.model else { return Err(missing("model")) };
        if model.vocab.is_none() {
            return Err(missing("model.vocab"));
        }
        if let Some(kind) = &model.kind {
            known("model", kind, MODELS)?;
            if kind == "BPE" && model.merges.is_none() {
                return Err(missing("model.merges"));
            }
        }
        let parts = [
            ("normalizer", &about.normalizer, "normalizers", NORMALIZERS),
            ("pre_tokenizer", &about.pre_tokenizer, "pretokenizers", PRE_TOKENIZERS),
            ("post_processor", &about.post_processor, "processors", POST_PROCESSORS),
        ];
        for (key, part, children, names) in parts {
            if let Some(part) = part {
                each(key, part, children, names)?;
            }
        }
        Ok(about)
    }
}

fn each(
    key: &'static str,
    part: &Value,
    children: &str,
    names: &'static [&'static str],
) -> Result<(), TokenizerError> {
    // Old files have no types; the crate recognises their components by fields.
    if let Some(kind) = part["type"].as_str() {
        known(key, kind, names)?;
    }
    if part["type"] == "Precompiled" && part["precompiled_charsmap"].as_str().is_none_or(str::is_empty) {
        return Err(missing("normalizer.precompiled_charsmap"));
    }
    part[children].as_array().into_iter().flatten().try_for_each(|child| each(key, child, children, names))
}

fn known(key: &'static str, kind: &str, names: &'static [&'static str]) -> Result<(), TokenizerError> {
    if names.contains(&kind) {
        return Ok(());
    }
    Err(TokenizerError::UnknownPart { key, name: printable(kind), known: names.join(", ") })
}

fn missing(field: &'static str) -> TokenizerError {
    TokenizerError::MissingField { file: FILE, field }
}
