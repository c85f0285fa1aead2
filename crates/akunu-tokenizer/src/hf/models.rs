//! The models of a `tokenizer.json` in their general forms: the tokens of a word, with all settings of the format.

use std::borrow::Cow;

use super::file::Model;
use super::missing;
use super::unigram::UnigramWords;
use crate::TokenizerError;
use crate::error::printable;
use crate::hash::{Merge, PairMap, PieceIndex, Pieces, pair};
use crate::scratch::Scratch;
use crate::trie::Trie;

/// A model, with the special tokens that it itself treats as text.
#[derive(Debug)]
pub(super) struct Speller {
    model: Words,
    /// Sorted.
    special: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum Words {
    Bpe(Bpe),
    Unigram(UnigramWords),
    WordPiece(WordPiece),
    WordLevel(WordLevel),
}

impl Speller {
    pub(super) fn new(model: Words, special: Vec<u32>) -> Speller {
        Speller { model, special }
    }

    /// The name of the model.
    pub(super) fn describe(&self) -> &'static str {
        match self.model {
            Words::Bpe(_) => "BPE",
            Words::Unigram(_) => "Unigram",
            Words::WordPiece(_) => "WordPiece",
            Words::WordLevel(_) => "WordLevel",
        }
    }

    /// Appends the tokens of a word. With `plain`, special tokens are encoded as their characters.
    pub(super) fn encode(
        &self,
        word: &str,
        plain: bool,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        scratch.watch.step()?;
        if scratch.cache.append(word.as_bytes(), ids) {
            return Ok(());
        }
        let before = ids.len();
        self.encode_anew(word, pieces, scratch, ids)?;
        let is_special = |id: &u32| self.special.binary_search(id).is_ok();
        // Words with special tokens are rare, and the cache does not distinguish the modes.
        if !ids[before..].iter().any(is_special) {
            scratch.cache.keep(word.as_bytes(), &ids[before..]);
        } else if plain {
            for id in ids.split_off(before) {
                match pieces.get(id).and_then(|bytes| std::str::from_utf8(bytes).ok()) {
                    Some(text) if is_special(&id) => {
                        for c in text.chars() {
                            self.encode_anew(c.encode_utf8(&mut [0; 4]), pieces, scratch, ids)?;
                        }
                    }
                    _ => ids.push(id),
                }
            }
        }
        Ok(())
    }

    fn encode_anew(
        &self,
        word: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match &self.model {
            Words::Bpe(model) => model.encode(word, pieces, scratch, ids),
            Words::Unigram(model) => model.encode(word, pieces, scratch, ids),
            Words::WordPiece(model) => model.encode(word, scratch, ids),
            Words::WordLevel(model) => model.encode(word, pieces, ids),
        }
    }
}

/// The tokens of a model by their texts.
#[derive(Debug)]
pub(super) struct Index<'p> {
    pieces: &'p Pieces,
    index: PieceIndex,
}

impl<'p> Index<'p> {
    pub(super) fn new(pieces: &'p Pieces, ids: &[u32]) -> Index<'p> {
        let mut index = PieceIndex::with_capacity(ids.len());
        ids.iter().for_each(|&id| {
            index.insert(pieces, id);
        });
        Index { pieces, index }
    }

    pub(super) fn get(&self, text: &str) -> Option<u32> {
        self.index.get(self.pieces, text.as_bytes())
    }
}

/// BPE: the characters of a word are merged in the order of a list.
#[derive(Debug)]
pub(super) struct Bpe {
    index: PieceIndex,
    merges: PairMap,
    /// Added to characters that do not begin a word.
    prefix: String,
    /// Added to the last character of a word.
    suffix: String,
    unknown: Option<u32>,
    /// The file names no unknown token: unknown characters are dropped.
    drops_unknown: bool,
    fuse_unknown: bool,
    byte_ids: Option<Box<[Option<u32>; 256]>>,
    /// Words that are tokens are not split.
    ignore_merges: bool,
}

impl Bpe {
    pub(super) fn new(
        model: &Model<'_>,
        index: Index<'_>,
        unknown: Option<u32>,
    ) -> Result<Bpe, TokenizerError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let prefix = text(&model.continuing_subword_prefix);
        let list = model.merges.as_ref().map_or(&[][..], |merges| &merges.0);
        let merges = merges(list, &prefix, &index)?;
        let byte_ids = model
            .byte_fallback
            .unwrap_or(false)
            .then(|| Box::new(std::array::from_fn(|byte| index.get(&format!("<0x{byte:02X}>")))));
        Ok(Bpe {
            merges,
            prefix,
            suffix: text(&model.end_of_word_suffix),
            unknown,
            drops_unknown: model.unk_token.is_none(),
            fuse_unknown: model.fuse_unk.unwrap_or(false),
            byte_ids,
            ignore_merges: model.ignore_merges.unwrap_or(false),
            index: index.index,
        })
    }

    fn encode(
        &self,
        word: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let find = |text: &str| self.index.get(pieces, text.as_bytes());
        if let Some(id) = find(word).filter(|_| self.ignore_merges) {
            ids.push(id);
            return Ok(());
        }
        let Scratch { merger, watch, .. } = scratch;
        merger.clear();
        let mut count = 0;
        let mut push = |id: u32| {
            merger.push(count, count + 1, id);
            count += 1;
        };
        // An unknown token is added before the next known character, after the bytes of those between.
        let mut pending: Option<u32> = None;
        let mut affixed = String::new();
        for (at, c) in word.char_indices() {
            watch.step()?;
            let end = at + c.len_utf8();
            let (prefix, suffix) =
                (if at == 0 { "" } else { &self.prefix }, if end < word.len() { "" } else { &self.suffix });
            let mut text = &word[at..end];
            if !(prefix.is_empty() && suffix.is_empty()) {
                affixed.clear();
                [prefix, text, suffix].into_iter().for_each(|part| affixed.push_str(part));
                text = &affixed;
            }
            if let Some(id) = find(text) {
                pending.take().into_iter().for_each(&mut push);
                push(id);
                continue;
            }
            let bytes = self.byte_ids.as_ref().map(|ids| text.bytes().map(|byte| ids[byte as usize]));
            if let Some(bytes) = bytes.filter(|bytes| bytes.clone().all(|id| id.is_some())) {
                bytes.flatten().for_each(&mut push);
                continue;
            }
            if self.drops_unknown {
                continue;
            }
            let id = self.unknown.ok_or_else(|| unencodable(text))?;
            match pending {
                Some(_) if self.fuse_unknown => {}
                _ => pending.replace(id).into_iter().for_each(&mut push),
            }
        }
        pending.into_iter().for_each(&mut push);
        let parts = merger.run(watch, |left, right| self.merges.get(pair(left.id, right.id)))?;
        ids.extend(parts.iter().map(|part| part.id));
        Ok(())
    }
}

fn merges(
    list: &[(Cow<'_, str>, Cow<'_, str>)],
    prefix: &str,
    index: &Index<'_>,
) -> Result<PairMap, TokenizerError> {
    let mut map = PairMap::with_capacity(list.len());
    // Of equal pairs the last one counts, and the map keeps the first.
    for (rank, (left, right)) in list.iter().enumerate().rev() {
        let unknown = |part: &str| TokenizerError::MergeOfUnknownToken {
            index: rank,
            merge: printable(&format!("{left} {right}")),
            part: printable(part),
        };
        let id = |text: &str| index.get(text).ok_or_else(|| unknown(text));
        let pair = pair(id(left)?, id(right)?);
        let rest = right.get(prefix.len()..).ok_or_else(|| unknown(right))?;
        map.insert(pair, Merge { rank: rank as u32, id: id(&format!("{left}{rest}"))? });
    }
    Ok(map)
}

/// WordPiece: the longest token that begins a word, then the longest that continues it.
#[derive(Debug)]
pub(super) struct WordPiece {
    /// Tokens by their texts, and those that continue a word by their texts without the prefix.
    begins: Trie,
    continues: Trie,
    unknown: Option<u32>,
    /// Longer words, in characters, are unknown.
    most: usize,
}

impl WordPiece {
    pub(super) fn new(
        model: &Model<'_>,
        pieces: &Pieces,
        ids: &[u32],
        unknown: Option<u32>,
    ) -> Result<WordPiece, TokenizerError> {
        let prefix = model.continuing_subword_prefix.as_deref();
        let prefix = prefix.ok_or(missing("model.continuing_subword_prefix"))?;
        let most = model.max_input_chars_per_word.ok_or(missing("model.max_input_chars_per_word"))?;
        check_unknown(model)?;
        let (mut begins, mut continues) = (Trie::new(), Trie::new());
        for &id in ids {
            let text = pieces.get(id).unwrap_or_default();
            begins.insert(text, id);
            if let Some(rest) = text.strip_prefix(prefix.as_bytes()) {
                continues.insert(rest, id);
            }
        }
        Ok(WordPiece { begins, continues, unknown, most })
    }

    fn encode(&self, word: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let before = ids.len();
        let mut at = 0;
        let mut known = word.chars().nth(self.most).is_none();
        while known && at < word.len() {
            scratch.watch.step()?;
            let trie = if at == 0 { &self.begins } else { &self.continues };
            match trie.longest(word.as_bytes(), at, |_| true) {
                Some((id, end)) => {
                    ids.push(id);
                    at = end;
                }
                None => known = false,
            }
        }
        if !known {
            ids.truncate(before);
            ids.push(self.unknown.ok_or_else(|| unencodable(word))?);
        }
        Ok(())
    }
}

/// WordLevel: a word is a token, or unknown.
#[derive(Debug)]
pub(super) struct WordLevel {
    index: PieceIndex,
    unknown: Option<u32>,
}

impl WordLevel {
    pub(super) fn new(
        model: &Model<'_>,
        index: Index<'_>,
        unknown: Option<u32>,
    ) -> Result<WordLevel, TokenizerError> {
        check_unknown(model)?;
        Ok(WordLevel { index: index.index, unknown })
    }

    fn encode(&self, word: &str, pieces: &Pieces, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let id = self.index.get(pieces, word.as_bytes()).or(self.unknown);
        ids.push(id.ok_or_else(|| unencodable(word))?);
        Ok(())
    }
}

/// These models name an unknown token, which may be missing in the vocabulary.
fn check_unknown(model: &Model<'_>) -> Result<(), TokenizerError> {
    model.unk_token.as_ref().map(drop).ok_or(missing("model.unk_token"))
}

fn unencodable(text: &str) -> TokenizerError {
    TokenizerError::Unencodable { text: printable(text) }
}
