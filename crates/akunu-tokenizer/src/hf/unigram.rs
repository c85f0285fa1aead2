//! Unigram as in `tokenizers`: each unknown run of a word becomes one unknown token, or byte tokens.

use std::borrow::Cow;

use super::recognise::Unknown;
use crate::hash::{PieceIndex, Pieces};
use crate::merge::NONE;
use crate::scratch::Scratch;
use crate::unigram::{Precision, Unigram};
use crate::{TokenKind, TokenizerError};

#[derive(Debug)]
pub(super) struct UnigramWords {
    unigram: Unigram,
    index: PieceIndex,
    unknown: u32,
    /// The token of each byte, or [`NONE`].
    byte_ids: Option<Box<[u32; 256]>>,
    /// Special tokens that the model itself treats as ordinary tokens, sorted.
    special: Vec<u32>,
}

impl UnigramWords {
    pub(super) fn new(
        tokens: &[(Cow<'_, str>, f64)],
        unknown: Option<usize>,
        byte_fallback: bool,
        kinds: &[TokenKind],
    ) -> Result<(UnigramWords, Pieces), Unknown> {
        let unknown = unknown.filter(|&id| id < tokens.len()).ok_or("no unknown token")? as u32;
        let (mut pieces, mut index) = (Pieces::default(), PieceIndex::with_capacity(tokens.len()));
        let (mut unigram, mut byte_ids) = (Unigram::new(Precision::Double), Box::new([NONE; 256]));
        let mut special = Vec::new();
        for ((id, (text, score)), kind) in (0u32..).zip(tokens).zip(kinds) {
            pieces.push_with(|out| out.extend_from_slice(text.as_bytes()));
            if !index.insert(&pieces, id) || !score.is_finite() {
                return Err("duplicate or empty tokens, or tokens without a score".into());
            }
            unigram.insert(&pieces, id, *score);
            if let Some(byte) = crate::bytes::byte_of_hex(text)
                && *text == format!("<0x{byte:02X}>")
            {
                byte_ids[byte as usize] = id;
            }
            if *kind == TokenKind::Control && id != unknown {
                special.push(id);
            }
        }
        // Our implementation initialises the penalty differently, which matters only if every score is positive.
        if tokens.iter().all(|token| token.1 > 0.0) {
            return Err("scores that are all positive".into());
        }
        let byte_ids = Some(byte_ids).filter(|_| byte_fallback);
        Ok((UnigramWords { unigram, index, unknown, byte_ids, special }, pieces))
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
        if scratch.cache.append(word.as_bytes(), ids) {
            return Ok(());
        }
        let before = ids.len();
        self.encode_anew(word, pieces, scratch, ids)?;
        // Words with special tokens are rare, and the cache does not distinguish the modes.
        if !ids[before..].iter().any(|id| self.special.binary_search(id).is_ok()) {
            scratch.cache.keep(word.as_bytes(), &ids[before..]);
        } else if plain {
            for id in ids.split_off(before) {
                match pieces.get(id).and_then(|bytes| std::str::from_utf8(bytes).ok()) {
                    Some(text) if self.special.binary_search(&id).is_ok() => {
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
        let Scratch { paths, merger, watch, .. } = scratch;
        self.unigram.cut(word, 0.0, (paths, merger), watch)?;
        let is_unknown = |id: u32| id == NONE || id == self.unknown;
        let mut parts = scratch.merger.parts().iter().peekable();
        while let Some(part) = parts.next() {
            if !is_unknown(part.id) {
                ids.push(part.id);
                continue;
            }
            let (start, mut end) = (part.start as usize, part.end as usize);
            while let Some(next) = parts.next_if(|next| is_unknown(next.id)) {
                end = next.end as usize;
            }
            let text = &word.as_bytes()[start..end];
            let bytes = self.byte_ids.as_ref().map(|ids| text.iter().map(|&byte| ids[byte as usize]));
            match (self.index.get(pieces, text), bytes) {
                (Some(id), _) => ids.push(id),
                (None, Some(bytes)) if bytes.clone().all(|id| id != NONE) => ids.extend(bytes),
                _ => ids.push(self.unknown),
            }
        }
        Ok(())
    }
}
