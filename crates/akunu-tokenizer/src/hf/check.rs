//! Checks that a file is a `tokenizer.json` with known component types, before the `tokenizers` crate reads it, for
//! better error messages.

use std::borrow::Cow;
use std::fmt;

use akunu_format::hf::most_values;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::file::Text;
use super::limited::Part;
use crate::TokenizerError;
use crate::error::printable;
use crate::files::not_json;
use crate::native::{LONG, MAX_LONG, MAX_TOKEN, too_many_long};

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
    normalizer: Option<Part>,
    pre_tokenizer: Option<Part>,
    post_processor: Option<Part>,
    pub(super) decoder: Option<Part>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Debug, Deserialize)]
struct Added {
    #[serde(default)]
    content: String,
}

#[derive(Debug, Deserialize)]
struct Model<'j> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'j, str>>,
    vocab: Option<Sizes>,
    merges: Option<IgnoredAny>,
    #[serde(default)]
    unk_token: Part,
    #[serde(default)]
    unk_id: Part,
}

/// Maximum size in bytes of all tokens of a Unigram vocabulary: the crate needs up to a hundred times their size.
const MAX_SCORED: usize = 1 << 24;

/// Values of a file, keys included: the crate takes up to a hundred bytes for each.
const MAX_VALUES: usize = 1 << 22;

/// The sizes of the tokens in a vocabulary, in bytes.
#[derive(Debug, Default)]
struct Sizes {
    longest: usize,
    /// How many have more than [`LONG`] bytes.
    long: usize,
    total: usize,
    /// The tokens have scores (Unigram) instead of ids.
    scored: bool,
}

impl Sizes {
    fn add(&mut self, text: &str) {
        self.longest = self.longest.max(text.len());
        self.long += usize::from(text.len() > LONG);
        self.total += text.len();
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfSizes;
        impl<'de> Visitor<'de> for OfSizes {
            type Value = Sizes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens with their ids, or a list of tokens with their scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sizes, A::Error> {
                let mut sizes = Sizes::default();
                while let Some((Text(text), IgnoredAny)) = map.next_entry()? {
                    sizes.add(&text);
                }
                Ok(sizes)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
                let mut sizes = Sizes { scored: true, ..Sizes::default() };
                while let Some((Text(text), IgnoredAny)) = list.next_element()? {
                    sizes.add(&text);
                }
                Ok(sizes)
            }
        }
        deserializer.deserialize_any(OfSizes)
    }
}

impl<'j> Description<'j> {
    /// The unknown token: its text, or its id.
    pub(super) fn unknown(&self) -> (Option<&str>, Option<u64>) {
        let model = self.model.as_ref();
        (model.and_then(|model| model.unk_token.as_str()), model.and_then(|model| model.unk_id.as_u64()))
    }

    pub(super) fn read(json: &'j [u8]) -> Result<Description<'j>, TokenizerError> {
        let values = most_values(json);
        if values > MAX_VALUES {
            let what = format!("about {values} JSON values (more than {MAX_VALUES})");
            return Err(TokenizerError::Unsupported { what });
        }
        let about: Description<'j> = serde_json::from_slice(json).map_err(|error| not_json(FILE, &error))?;
        let Some(model) = &about.model else { return Err(missing("model")) };
        let Some(sizes) = &model.vocab else { return Err(missing("model.vocab")) };
        let added = || about.added_tokens.iter().map(|token| token.content.len());
        let longest = added().fold(sizes.longest, usize::max);
        if longest > MAX_TOKEN {
            let what = format!("a token of {longest} bytes (more than {MAX_TOKEN})");
            return Err(TokenizerError::Unsupported { what });
        }
        let long = sizes.long + added().filter(|len| *len > LONG).count();
        if long > MAX_LONG {
            return Err(TokenizerError::TokenList { problem: too_many_long(long) });
        }
        if sizes.scored && sizes.total > MAX_SCORED {
            let what = format!("{} bytes of Unigram tokens (more than {MAX_SCORED})", sizes.total);
            return Err(TokenizerError::Unsupported { what });
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
