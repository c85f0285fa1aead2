//! A `tokenizer.json` as plain data, with strings borrowed from the file. Unknown fields are ignored, as in the
//! `tokenizers` library.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::limited::Part;

#[derive(Debug, Deserialize)]
pub(super) struct File<'j> {
    #[serde(default)]
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Part,
    #[serde(default)]
    pub(super) pre_tokenizer: Part,
    #[serde(default)]
    pub(super) post_processor: Part,
    #[serde(default)]
    pub(super) decoder: Part,
    #[serde(borrow, default)]
    pub(super) model: Option<Model<'j>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct AddedToken {
    /// Where it is said to be: the order of the added tokens decides.
    #[serde(rename = "id")]
    _id: u32,
    pub(super) content: String,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Model<'j> {
    /// Files of the first versions have none.
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(borrow, default)]
    pub(super) vocab: Option<Vocab<'j>>,
    #[serde(borrow, default)]
    pub(super) merges: Option<Merges<'j>>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) unk_id: Option<usize>,
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(super) ignore_merges: Option<bool>,
    #[serde(default)]
    pub(super) max_input_chars_per_word: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Vocab<'j> {
    /// Texts and ids, in any order.
    Ids(Vec<(Cow<'j, str>, u32)>),
    /// Texts and scores; the id is the position.
    Scores(Vec<(Cow<'j, str>, f64)>),
}

impl Vocab<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Vocab::Ids(tokens) => tokens.len(),
            Vocab::Scores(tokens) => tokens.len(),
        }
    }

    /// The ids of all tokens and their texts, in the order of the file.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &str)> {
        (0..self.len()).map(|at| match self {
            Vocab::Ids(tokens) => (tokens[at].1, &*tokens[at].0),
            Vocab::Scores(tokens) => (at as u32, &*tokens[at].0),
        })
    }
}

#[derive(Debug)]
pub(super) struct Merges<'j>(pub(super) Vec<(Cow<'j, str>, Cow<'j, str>)>);

/// A string of the file, borrowed if it contains no escapes.
pub(super) struct Text<'j>(pub(super) Cow<'j, str>);

impl<'de: 'j, 'j> Deserialize<'de> for Text<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfText;
        impl<'de> Visitor<'de> for OfText {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_string())))
            }
        }
        deserializer.deserialize_str(OfText)
    }
}

/// Initial capacity: typical for real vocabularies, and small compared with the file.
const USUAL: usize = 1 << 15;

/// Tokens or merges. The largest published vocabularies have 262,144 tokens and 514,906 merges.
const MAX_ENTRIES: usize = 1 << 21;

fn push<T, E: Error>(entries: &mut Vec<T>, entry: T) -> Result<(), E> {
    if entries.len() == MAX_ENTRIES {
        return Err(E::custom(format_args!("more than {MAX_ENTRIES} tokens or merges")));
    }
    entries.push(entry);
    Ok(())
}

impl<'de: 'j, 'j> Deserialize<'de> for Vocab<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfVocab;
        impl<'de> Visitor<'de> for OfVocab {
            type Value = Vocab<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens with their ids, or a list of tokens with their scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab<'de>, A::Error> {
                let mut tokens = Vec::with_capacity(USUAL);
                while let Some((Text(text), id)) = map.next_entry()? {
                    push(&mut tokens, (text, id))?;
                }
                Ok(Vocab::Ids(tokens))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab<'de>, A::Error> {
                let mut tokens = Vec::with_capacity(USUAL);
                while let Some((Text(text), score)) = list.next_element()? {
                    push(&mut tokens, (text, score))?;
                }
                Ok(Vocab::Scores(tokens))
            }
        }
        deserializer.deserialize_any(OfVocab)
    }
}

/// One merge: `"a b"`, or `["a", "b"]`. A line with a version is none.
struct Pair<'j>(Option<(Cow<'j, str>, Cow<'j, str>)>);

impl<'de: 'j, 'j> Deserialize<'de> for Pair<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfPair;
        /// The two parts of a merge in one string.
        fn halves(text: &str) -> Option<(&str, &str)> {
            text.split_once(' ').filter(|(_, right)| !right.contains(' '))
        }
        fn is_version(text: &str) -> bool {
            text.starts_with("#version")
        }
        impl<'de> Visitor<'de> for OfPair {
            type Value = Pair<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens that merge")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Pair<'de>, E> {
                if is_version(text) {
                    return Ok(Pair(None));
                }
                let (left, right) = halves(text).ok_or_else(|| E::custom("not two tokens"))?;
                Ok(Pair(Some((Cow::Borrowed(left), Cow::Borrowed(right)))))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Pair<'de>, E> {
                if is_version(text) {
                    return Ok(Pair(None));
                }
                let (left, right) = halves(text).ok_or_else(|| E::custom("not two tokens"))?;
                Ok(Pair(Some((Cow::Owned(left.to_string()), Cow::Owned(right.to_string())))))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pair<'de>, A::Error> {
                let short = || A::Error::custom("not two tokens");
                let Text(left) = list.next_element()?.ok_or_else(short)?;
                let Text(right) = list.next_element()?.ok_or_else(short)?;
                match list.next_element::<IgnoredAny>()? {
                    None => Ok(Pair(Some((left, right)))),
                    Some(_) => Err(short()),
                }
            }
        }
        deserializer.deserialize_any(OfPair)
    }
}

impl<'de: 'j, 'j> Deserialize<'de> for Merges<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMerges;
        impl<'de> Visitor<'de> for OfMerges {
            type Value = Merges<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges<'de>, A::Error> {
                let mut pairs = Vec::with_capacity(USUAL);
                while let Some(Pair(pair)) = list.next_element()? {
                    if let Some(pair) = pair {
                        push(&mut pairs, pair)?;
                    }
                }
                Ok(Merges(pairs))
            }
        }
        deserializer.deserialize_seq(OfMerges)
    }
}
