//! Character-level BPE: the characters of a word are merged in the order of a list of merges, as in byte-level BPE.
//! This is the form of SentencePiece's BPE in a `tokenizer.json`.

use crate::bytelevel::{Merges, merges};
use crate::bytes::byte_of_hex;
use crate::error::printable;
use crate::hash::{PairMap, PieceIndex, Pieces, pair};
use crate::merge::NONE;
use crate::scratch::Scratch;
use crate::sentencepiece::AdjacentBytes;
use crate::{TokenKind, TokenizerError, Vocabulary};

#[derive(Debug)]
pub(crate) struct CharLevel {
    /// Tokens of single characters.
    chars: PieceIndex,
    merges: PairMap,
    /// The 256 byte tokens for characters that have no token.
    byte_ids: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    /// Consecutive unknown characters become one unknown token.
    fuse_unknown: bool,
    adjacent: AdjacentBytes,
}

impl CharLevel {
    /// `pieces` are the texts of tokens as in the vocabulary file. Rejects vocabularies whose merges would give a
    /// different result here: merges of byte tokens or of the unknown token, and duplicate merges.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        kinds: &[TokenKind],
        pieces: &Pieces,
        fuse_unknown: bool,
    ) -> Result<CharLevel, TokenizerError> {
        let refused = |what: &str| TokenizerError::Unsupported { what: what.into() };
        let (mut index, mut chars) =
            (PieceIndex::with_capacity(kinds.len()), PieceIndex::with_capacity(4096));
        let (mut byte_ids, mut adjacent) = (Box::new([NONE; 256]), AdjacentBytes::new());
        let mut single = Vec::new();
        for ((id, text), kind) in (0u32..).zip(vocabulary.tokens.iter()).zip(kinds) {
            match (kind, byte_of_hex(text)) {
                (TokenKind::Byte, Some(byte)) => byte_ids[byte as usize] = id,
                (TokenKind::Normal, _) => {
                    index.insert(pieces, id);
                    adjacent.add(text.as_bytes());
                    let mut rest = text.chars();
                    if rest.next().is_some() && rest.next().is_none() {
                        single.push(id);
                    }
                }
                _ => {}
            }
        }
        if single.len() > 4096 {
            chars = PieceIndex::with_capacity(single.len());
        }
        single.iter().for_each(|&id| {
            chars.insert(pieces, id);
        });
        let Merges { map, dropped, repeated } = merges(vocabulary, kinds, pieces, &index)?;
        if dropped || repeated {
            return Err(refused("merges of special tokens, or duplicate merges"));
        }
        let byte_ids = Some(byte_ids).filter(|ids| !ids.contains(&NONE));
        let unknown = vocabulary.special.unknown;
        if byte_ids.is_none() && unknown.is_none() {
            return Err(refused("characters without a token that are skipped"));
        }
        Ok(CharLevel { chars, merges: map, byte_ids, unknown, fuse_unknown, adjacent })
    }

    /// Whether there is a token for every byte, so that no text is unknown.
    pub(crate) fn spells_bytes(&self) -> bool {
        self.byte_ids.is_some()
    }

    /// Appends the tokens of a word.
    pub(crate) fn encode(
        &self,
        word: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.adjacent.each_part(word, scratch, ids, |part, scratch, after_unknown, ids| {
            self.encode_part(part, pieces, scratch, after_unknown, ids)
        })
    }

    /// Returns `false` if some characters have no token.
    fn encode_part(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        after_unknown: &mut bool,
        ids: &mut Vec<u32>,
    ) -> Result<bool, TokenizerError> {
        let (bytes, Scratch { merger, watch, .. }) = (text.as_bytes(), scratch);
        merger.clear();
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            match (self.chars.get(pieces, &bytes[at..end]), &self.byte_ids) {
                (Some(id), _) => merger.push(at, end, id),
                (None, Some(ids)) => {
                    (at..end).for_each(|at| merger.push(at, at + 1, ids[bytes[at] as usize]))
                }
                (None, None) => merger.push(at, end, NONE),
            }
        }
        let mut known = true;
        for part in merger.run(watch, |left, right| self.merges.get(pair(left.id, right.id)))? {
            if part.id != NONE {
                ids.push(part.id);
                *after_unknown = false;
                continue;
            }
            let none = || TokenizerError::Unencodable {
                text: printable(&text[part.start as usize..part.end as usize]),
            };
            let unknown = self.unknown.ok_or_else(none)?;
            if !(self.fuse_unknown && *after_unknown) {
                ids.push(unknown);
            }
            (*after_unknown, known) = (true, false);
        }
        Ok(known)
    }
}
