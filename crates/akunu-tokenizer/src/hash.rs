//! Fast seeded hashing, and the two lookups of tokenization: text → token, and pair → merge.
//!
//! The seed is random, so that no file can be crafted whose entries all collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An odd constant with well distributed bits (2⁶⁴ divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies to 128 bits and folds the result: every input bit affects every output bit.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    /// The same in all unit tests, which count steps: what a cache holds depends on it.
    pub(crate) fn random() -> Seed {
        let state = if cfg!(test) { 0 } else { RandomState::new().hash_one(0u8) };
        Seed(state | 1)
    }

    #[inline]
    pub(crate) fn hash_bytes(self, bytes: &[u8]) -> u64 {
        let mut hash = self.0 ^ bytes.len() as u64;
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), SPREAD);
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        fold(hash ^ u64::from_le_bytes(last), SPREAD ^ self.0)
    }

    #[inline]
    pub(crate) fn hash_word(self, word: u128) -> u64 {
        fold(fold(word as u64 ^ self.0, SPREAD) ^ (word >> 64) as u64, SPREAD)
    }
}

/// The result of merging two neighbours, and its rank: lower ranks are merged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

/// Maps pairs to merges: open addressing, with all data of an entry in one place.
///
/// Filling the map takes most of the time of loading a large vocabulary, and lookups most of the time of merging: each
/// causes one cache miss, and not more.
#[derive(Debug)]
pub(crate) struct PairMap {
    seed: Seed,
    slots: Vec<(u64, Merge)>,
}

/// The pair of [`NONE`] with itself, which never merges.
const NO_PAIR: u64 = u64::MAX;

impl PairMap {
    /// With space for `count` pairs.
    pub(crate) fn with_capacity(count: usize) -> PairMap {
        let slots = count.saturating_mul(3).div_ceil(2).max(8).next_power_of_two();
        PairMap { seed: Seed::random(), slots: vec![(NO_PAIR, Merge { rank: 0, id: 0 }); slots] }
    }

    #[inline(always)]
    fn probe(&self, pair: u64) -> usize {
        let mask = self.slots.len() - 1;
        crate::work::count(1);
        let mut at = fold(self.seed.0 ^ pair, SPREAD) as usize & mask;
        while self.slots[at].0 != pair && self.slots[at].0 != NO_PAIR {
            at = (at + 1) & mask;
        }
        at
    }

    /// If a pair is inserted several times, the first merge is kept, and this returns `false` for the others. No more
    /// pairs may be inserted than were reserved.
    pub(crate) fn insert(&mut self, pair: u64, merge: Merge) -> bool {
        let at = self.probe(pair);
        let vacant = self.slots[at].0 == NO_PAIR;
        if vacant {
            self.slots[at] = (pair, merge);
        }
        vacant
    }

    #[inline(always)]
    pub(crate) fn get(&self, pair: u64) -> Option<Merge> {
        let (found, merge) = self.slots[self.probe(pair)];
        if found == NO_PAIR { None } else { Some(merge) }
    }
}

#[inline(always)]
pub(crate) fn pair(left: u32, right: u32) -> u64 {
    (left as u64) << 32 | right as u64
}

impl BuildHasher for Seed {
    type Hasher = PairHasher;

    fn build_hasher(&self) -> PairHasher {
        PairHasher(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    #[inline(always)]
    fn write_u64(&mut self, pair: u64) {
        self.0 = fold(self.0 ^ pair, SPREAD);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = Seed(self.0).hash_bytes(bytes);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Maps byte strings to their ids in [`Pieces`]: open addressing with (part of the hash, id).
#[derive(Debug)]
pub(crate) struct PieceIndex {
    seed: Seed,
    slots: Vec<Slot>,
    longest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u32,
    /// `VACANT`, or an id.
    id: u32,
}

const VACANT: u32 = u32::MAX;

/// Byte strings by id, concatenated in one allocation.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// Adds a piece, whose bytes `write` appends, with the next id.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }
}

impl<'t> FromIterator<&'t str> for Pieces {
    fn from_iter<I: IntoIterator<Item = &'t str>>(texts: I) -> Pieces {
        let mut pieces = Pieces::default();
        texts.into_iter().for_each(|text| pieces.push_with(|out| out.extend_from_slice(text.as_bytes())));
        pieces
    }
}

impl PieceIndex {
    /// With space for `count` pieces.
    pub(crate) fn with_capacity(count: usize) -> PieceIndex {
        let slots = (count.saturating_mul(2)).max(8).next_power_of_two();
        PieceIndex { seed: Seed::random(), slots: vec![Slot { tag: 0, id: VACANT }; slots], longest: 0 }
    }

    /// Length in bytes of the longest inserted piece.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The position of `bytes`, or the vacant slot where they would be inserted.
    #[inline]
    fn probe(&self, pieces: &Pieces, bytes: &[u8]) -> (usize, u32) {
        crate::work::count(1 + bytes.len() / 8);
        let hash = self.seed.hash_bytes(bytes);
        let (tag, mask) = ((hash >> 32) as u32, self.slots.len() - 1);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.id == VACANT || slot.tag == tag && pieces.get(slot.id) == Some(bytes) {
                return (at, tag);
            }
            at = (at + 1) & mask;
        }
    }

    /// If several ids have the same bytes, the first is kept, and this returns `false` for the others. Empty pieces are
    /// not inserted.
    pub(crate) fn insert(&mut self, pieces: &Pieces, id: u32) -> bool {
        let Some(bytes) = pieces.get(id).filter(|bytes| !bytes.is_empty()) else { return false };
        let (at, tag) = self.probe(pieces, bytes);
        let vacant = self.slots[at].id == VACANT;
        if vacant {
            self.slots[at] = Slot { tag, id };
            self.longest = self.longest.max(bytes.len());
        }
        vacant
    }

    #[inline]
    pub(crate) fn get(&self, pieces: &Pieces, bytes: &[u8]) -> Option<u32> {
        if bytes.is_empty() || bytes.len() > self.longest {
            return None;
        }
        let id = self.slots[self.probe(pieces, bytes).0].id;
        Some(id).filter(|&id| id != VACANT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_and_the_first_of_equals_wins() {
        let mut map = PairMap::with_capacity(300);
        for left in 0..300 {
            map.insert(pair(left, left / 2), Merge { rank: left, id: 7 });
        }
        map.insert(pair(4, 2), Merge { rank: 9, id: 9 });
        assert_eq!(map.get(pair(4, 2)), Some(Merge { rank: 4, id: 7 }));
        assert_eq!(map.get(pair(299, 149)).map(|merge| merge.rank), Some(299));
        assert_eq!((map.get(pair(2, 4)), map.get(pair(u32::MAX, u32::MAX))), (None, None));
    }

    #[test]
    fn pieces_are_found_by_their_bytes_and_the_first_of_equals_wins() {
        let mut pieces = Pieces::default();
        let texts = ["", "a", "ab", "a", "a longer piece than eight bytes", "b"];
        for text in texts {
            pieces.push_with(|out| out.extend(text.bytes()));
        }
        let mut index = PieceIndex::with_capacity(texts.len());
        let fresh: Vec<bool> = (0..6).map(|id| index.insert(&pieces, id)).collect();
        assert_eq!(fresh, [false, true, true, false, true, true]);
        let find = |text: &str| index.get(&pieces, text.as_bytes());
        assert_eq!([find("a"), find("ab"), find("b"), find("")], [Some(1), Some(2), Some(5), None]);
        assert_eq!(
            [find(texts[4]), find("c"), find("a longer piece than eight byteS")],
            [Some(4), None, None]
        );
        assert_eq!(pieces.get(6), None);
    }
}
