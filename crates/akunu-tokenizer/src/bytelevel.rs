//! Byte-level BPE: the bytes of a word are merged in the order of a list of merges. In most vocabularies every byte is
//! a token; bytes that have none are dropped, as in Hugging Face's `tokenizers` and llama.cpp.

use std::collections::HashSet;

use crate::bytes::append_bytes;
use crate::error::printable;
use crate::hash::{Merge, PairMap, PieceIndex, Pieces, pair};
use crate::merge::NONE;
use crate::pretokenizer::PreTokenizer;
use crate::scratch::Scratch;
use crate::{Model, TokenKind, TokenizerError, Vocabulary};

#[derive(Debug)]
pub(crate) struct ByteLevel {
    pre: PreTokenizer,
    /// The token of each byte, or [`NONE`].
    byte_ids: [u32; 256],
    merges: PairMap,
    /// Index of whole words, if words that are tokens are not split (`ignore_merges`).
    words: Option<PieceIndex>,
    repeated_merges: bool,
}

impl ByteLevel {
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        pre: PreTokenizer,
        kinds: &[TokenKind],
        pieces: &Pieces,
    ) -> Result<ByteLevel, TokenizerError> {
        let mut index = PieceIndex::with_capacity(kinds.len());
        // Merges refer to tokens of the base vocabulary; a token with the same text that was added later has lower
        // priority.
        for wanted in
            [[TokenKind::Normal, TokenKind::Unused], [TokenKind::UserDefined, TokenKind::UserDefined]]
        {
            for (id, kind) in kinds.iter().enumerate() {
                if wanted.contains(kind) {
                    index.insert(pieces, id as u32);
                }
            }
        }
        let Merges { map: merges, repeated, .. } = merges(vocabulary, kinds, pieces, &index)?;
        let mut byte_ids = [NONE; 256];
        for byte in 0..=255u8 {
            byte_ids[byte as usize] = index.get(pieces, &[byte]).unwrap_or(NONE);
        }
        Ok(ByteLevel {
            pre,
            byte_ids,
            merges,
            words: Some(index).filter(|_| vocabulary.ignore_merges),
            repeated_merges: repeated,
        })
    }

    /// Whether the list of merges contains a pair twice. Other implementations then use the later one.
    pub(crate) fn has_repeated_merges(&self) -> bool {
        self.repeated_merges
    }

    /// Whether every byte has a token.
    pub(crate) fn has_every_byte(&self) -> bool {
        !self.byte_ids.contains(&NONE)
    }

    pub(crate) fn pre_tokenizer(&self) -> &PreTokenizer {
        &self.pre
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        pieces: &Pieces,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.pre.split(text, &mut |word| {
            crate::work::count(1);
            scratch.watch.step()?;
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
        let Scratch { merger, watch, .. } = scratch;
        merger.clear();
        for (at, &byte) in word.iter().enumerate() {
            let id = self.byte_ids[byte as usize];
            // The bytes around a dropped byte may merge.
            if id != NONE {
                merger.push(at, at + 1, id);
            }
        }
        let parts = merger.run(watch, |left, right| self.merges.get(pair(left.id, right.id)))?;
        ids.extend(parts.iter().map(|part| part.id));
        Ok(())
    }
}

/// A pair of tokens and the token that they merge to.
type Found = (u32, u32, u32);

/// Minimum number of merges per thread; below this, another thread costs more than it saves.
const MERGES_A_THREAD: usize = 16_384;

/// The merges of a vocabulary by pairs of ids; the rank is the position in the list.
#[derive(Debug)]
pub(crate) struct Merges {
    pub(crate) map: PairMap,
    /// Merges that produce control tokens were dropped, since text never becomes such a token.
    pub(crate) dropped: bool,
    /// A pair occurs more than once; the first occurrence is used.
    pub(crate) repeated: bool,
}

/// Converts pairs of texts to pairs of ids.
pub(crate) fn merges(
    vocabulary: &Vocabulary,
    kinds: &[TokenKind],
    pieces: &Pieces,
    index: &PieceIndex,
) -> Result<Merges, TokenizerError> {
    let list = &vocabulary.merges;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let chunk = list.len().div_ceil(threads).max(MERGES_A_THREAD);
    let look_up =
        |start: usize| look_up(vocabulary, kinds, pieces, index, start..list.len().min(start + chunk));
    let parts: Vec<Result<Vec<Option<Found>>, TokenizerError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (chunk..list.len())
            .step_by(chunk)
            .map(|start| (start, std::thread::Builder::new().spawn_scoped(scope, move || look_up(start))))
            .collect();
        let first = look_up(0);
        // If no thread can be started, the work is done here.
        let join = |(start, thread): (usize, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| {
            thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(|| look_up(start))
        };
        std::iter::once(first).chain(others.into_iter().map(join)).collect()
    });
    let map = PairMap::with_capacity(list.len());
    let mut merges = Merges { map, dropped: false, repeated: false };
    let mut rank = 0;
    for part in parts {
        for found in part? {
            match found {
                Some((left, right, id)) => {
                    merges.repeated |= !merges.map.insert(pair(left, right), Merge { rank, id });
                }
                None => merges.dropped = true,
            }
            rank += 1;
        }
    }
    Ok(merges)
}

/// The ids of some merges, in order. A merge that produces a control token is dropped: text never becomes such a token.
fn look_up(
    vocabulary: &Vocabulary,
    kinds: &[TokenKind],
    pieces: &Pieces,
    index: &PieceIndex,
    range: std::ops::Range<usize>,
) -> Result<Vec<Option<Found>>, TokenizerError> {
    let mut out = Vec::with_capacity(range.len());
    let mut control_texts: Option<HashSet<&str>> = None;
    let (mut bytes, mut guess) = (Vec::new(), 0u32);
    let append = |text: &str, bytes: &mut Vec<u8>| match vocabulary.model {
        Model::ByteLevel => append_bytes(text, bytes),
        _ => bytes.extend_from_slice(text.as_bytes()),
    };
    for rank in range {
        let merge = vocabulary.merges.get(rank).unwrap_or_default();
        // The first part may begin with a space itself, in vocabularies that do not encode bytes as characters.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let gap = merge.as_bytes()[first..].iter().position(|&byte| byte == b' ').map(|at| first + at);
        let (left, right) = match gap.map(|at| (&merge[..at], &merge[at + 1..])) {
            Some((left, right)) if !right.is_empty() => (left, right),
            _ => return Err(TokenizerError::MalformedMerge { index: rank, merge: printable(merge) }),
        };
        bytes.clear();
        append(left, &mut bytes);
        let middle = bytes.len();
        append(right, &mut bytes);
        let [left_id, right_id] = [&bytes[..middle], &bytes[middle..]].map(|part| index.get(pieces, part));
        // Most lists are sorted by the resulting token: it is the same as before, or the next one.
        let is_normal = |id: &u32| kinds.get(*id as usize) == Some(&TokenKind::Normal);
        let is_it = |id: &u32| pieces.get(*id) == Some(&bytes[..]) && is_normal(id);
        let near = [guess, guess.wrapping_add(1)].into_iter().find(is_it);
        let whole_id = near.or_else(|| index.get(pieces, &bytes));
        if let (Some(left), Some(right), Some(id)) = (left_id, right_id, whole_id) {
            guess = id;
            out.push(Some((left, right, id)));
            continue;
        }
        let control = control_texts.get_or_insert_with(|| control_texts_of(vocabulary, kinds));
        let whole = format!("{left}{right}");
        for (part, found) in [(left, left_id), (right, right_id), (&whole, whole_id)] {
            if found.is_none() && !control.contains(part) {
                let (merge, part) = (printable(merge), printable(part));
                return Err(TokenizerError::MergeOfUnknownToken { index: rank, merge, part });
            }
        }
        out.push(None);
    }
    Ok(out)
}

fn control_texts_of<'v>(vocabulary: &'v Vocabulary, kinds: &[TokenKind]) -> HashSet<&'v str> {
    let special =
        |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::Byte);
    vocabulary.tokens.iter().zip(kinds).filter(|(_, kind)| special(kind)).map(|(text, _)| text).collect()
}
