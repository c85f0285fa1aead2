//! Byte-level BPE: a word's bytes merge in the order of a list of pairs. Any text can be encoded, because every
//! byte is a token.

use std::collections::{HashMap, HashSet};

use crate::bytes::append_bytes;
use crate::error::printable;
use crate::hash::{Merge, PairMap, PieceIndex, Pieces, Seed, pair};
use crate::merge::NONE;
use crate::native::Scratch;
use crate::pretokenizer::PreTokenizer;
use crate::{TokenKind, TokenizerError, Vocabulary};

#[derive(Debug)]
pub(crate) struct ByteLevel {
    pre: PreTokenizer,
    /// The token of each byte, or [`NONE`].
    byte_ids: [u32; 256],
    merges: PairMap,
    /// Whole words, if words that are tokens stay whole.
    words: Option<PieceIndex>,
    unknown: Option<u32>,
}

impl ByteLevel {
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        kinds: &[TokenKind],
        pieces: &Pieces,
    ) -> Result<ByteLevel, TokenizerError> {
        let pre = PreTokenizer::named(&vocabulary.pre)?;
        let mut index = PieceIndex::with_capacity(kinds.len());
        // Merges mean the tokens that they made; one that was added later under the same text comes second.
        for wanted in
            [[TokenKind::Normal, TokenKind::Unused], [TokenKind::UserDefined, TokenKind::UserDefined]]
        {
            for (id, kind) in kinds.iter().enumerate() {
                if wanted.contains(kind) {
                    index.insert(pieces, id as u32);
                }
            }
        }
        let merges = merges(vocabulary, kinds, pieces, &index)?;
        let mut byte_ids = [NONE; 256];
        for byte in 0..=255u8 {
            byte_ids[byte as usize] = index.get(pieces, &[byte]).unwrap_or(NONE);
        }
        Ok(ByteLevel {
            pre,
            byte_ids,
            merges,
            words: Some(index).filter(|_| vocabulary.ignore_merges),
            unknown: vocabulary.special.unknown,
        })
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.pre.split(text, &mut |word| {
            if scratch.cache.append(word.as_bytes(), ids) {
                return Ok(());
            }
            let start = ids.len();
            self.encode_word(word.as_bytes(), pieces, scratch, ids)?;
            scratch.cache.keep(word.as_bytes(), &ids[start..]);
            Ok(())
        })
    }

    fn encode_word(
        &self,
        word: &[u8],
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Some(id) = self.words.as_ref().and_then(|words| words.get(pieces, word)) {
            ids.push(id);
            return Ok(());
        }
        let merger = &mut scratch.merger;
        merger.clear();
        for (at, &byte) in word.iter().enumerate() {
            merger.push(at, at + 1, self.byte_ids[byte as usize]);
        }
        for part in merger.run(|left, right| self.merges.get(&pair(left.id, right.id)).copied()) {
            if part.id != NONE {
                ids.push(part.id);
            } else {
                let byte = word[part.start as usize];
                let none = || TokenizerError::Unencodable { text: format!("byte 0x{byte:02X}") };
                ids.push(self.unknown.ok_or_else(none)?);
            }
        }
        Ok(())
    }
}

/// Pairs of ids from pairs of texts; the rank is the place in the list.
fn merges(
    vocabulary: &Vocabulary,
    kinds: &[TokenKind],
    pieces: &Pieces,
    index: &PieceIndex,
) -> Result<PairMap, TokenizerError> {
    let list = &vocabulary.merges;
    let mut map: PairMap = HashMap::with_capacity_and_hasher(list.len(), Seed::random());
    let mut control_texts: Option<HashSet<&str>> = None;
    let mut bytes = Vec::new();
    for (rank, merge) in list.iter().enumerate() {
        // A part may begin with a space of its own, in vocabularies that do not write bytes as characters.
        let gap = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let (left, right) = match gap.map(|at| (&merge[..at], &merge[at + 1..])) {
            Some((left, right)) if !right.is_empty() => (left, right),
            _ => return Err(TokenizerError::MalformedMerge { index: rank, merge: printable(merge) }),
        };
        bytes.clear();
        append_bytes(left, &mut bytes);
        let middle = bytes.len();
        append_bytes(right, &mut bytes);
        let found = [&bytes[..middle], &bytes[middle..], &bytes].map(|part| index.get(pieces, part));
        if let [Some(left), Some(right), Some(id)] = found {
            map.entry(pair(left, right)).or_insert(Merge { rank: rank as u32, id });
            continue;
        }
        // A merge that spells a control token is left out: text never becomes one.
        let control = control_texts.get_or_insert_with(|| control_texts_of(vocabulary, kinds));
        let whole = format!("{left}{right}");
        for (part, found) in [left, right, &whole].into_iter().zip(found) {
            if found.is_none() && !control.contains(part) {
                let (merge, part) = (printable(merge), printable(part));
                return Err(TokenizerError::MergeOfUnknownToken { index: rank, merge, part });
            }
        }
    }
    Ok(map)
}

fn control_texts_of<'v>(vocabulary: &'v Vocabulary, kinds: &[TokenKind]) -> HashSet<&'v str> {
    let special =
        |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::Byte);
    vocabulary.tokens.iter().zip(kinds).filter(|(_, kind)| special(kind)).map(|(text, _)| text).collect()
}
