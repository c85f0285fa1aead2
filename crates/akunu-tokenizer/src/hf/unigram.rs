//! Unigram as in `tokenizers`: each unknown run of a word becomes one unknown token, or byte tokens.

use std::borrow::Cow;

use crate::TokenizerError;
use crate::error::printable;
use crate::hash::{PieceIndex, Pieces};
use crate::merge::NONE;
use crate::scratch::Scratch;
use crate::unigram::{Precision, Unigram};

#[derive(Debug)]
pub(super) struct UnigramWords {
    unigram: Unigram,
    index: PieceIndex,
    /// The unknown token, or [`NONE`].
    unknown: u32,
    /// The token of each byte, or [`NONE`].
    byte_ids: Option<Box<[u32; 256]>>,
}

impl UnigramWords {
    pub(super) fn new(
        tokens: &[(Cow<'_, str>, f64)],
        unknown: Option<usize>,
        byte_fallback: bool,
    ) -> Result<(UnigramWords, Pieces), TokenizerError> {
        if tokens.is_empty() {
            return Err(TokenizerError::Empty);
        }
        let unknown = match unknown {
            None => NONE,
            Some(id) if id < tokens.len() => id as u32,
            Some(id) => {
                let (id, tokens) = (id as u64, tokens.len());
                return Err(TokenizerError::IdOutOfRange { key: "model.unk_id", id, tokens });
            }
        };
        let pieces: Pieces = tokens.iter().map(|(text, _)| &**text).collect();
        let mut index = PieceIndex::with_capacity(tokens.len());
        let (mut unigram, mut byte_ids) = (Unigram::new(Precision::Double), Box::new([NONE; 256]));
        // Of equal tokens the last one counts, and the index keeps the first.
        for (id, (text, score)) in tokens.iter().enumerate().rev() {
            let id = id as u32;
            if !index.insert(&pieces, id) {
                continue;
            }
            unigram.insert(&pieces, id, *score);
            if let Some(byte) = crate::bytes::byte_of_hex(text)
                && *text == format!("<0x{byte:02X}>")
            {
                byte_ids[byte as usize] = id;
            }
        }
        unigram.set_lowest(tokens.iter().fold(f64::INFINITY, |lowest, token| lowest.min(token.1)));
        let byte_ids = Some(byte_ids).filter(|_| byte_fallback);
        Ok((UnigramWords { unigram, index, unknown, byte_ids }, pieces))
    }

    /// Appends the tokens of a word.
    pub(super) fn encode(
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
                _ if self.unknown == NONE => {
                    let text = printable(&word[start..end]);
                    return Err(TokenizerError::Unencodable { text });
                }
                _ => ids.push(self.unknown),
            }
        }
        Ok(())
    }
}
