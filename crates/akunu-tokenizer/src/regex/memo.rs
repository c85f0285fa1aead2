//! What is known of states: pairs of a place in the program that has a mark, and a position in the text.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use crate::TokenizerError;
use crate::hash::Seed;

/// Maximum size in bytes, about.
const MAX_MEMORY: usize = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nothing,
    /// The state leads to no match, nor to the end of its lookaround or atomic group.
    Failed,
    /// The state leads to the end of its lookaround, or to that of its atomic group at this position.
    Ends(u32),
}

#[derive(Debug)]
struct Keyed(Seed);

impl BuildHasher for Keyed {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0, 0)
    }
}

struct KeyHasher(Seed, u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0.hash_word(self.1.into())
    }

    fn write(&mut self, bytes: &[u8]) {
        self.1 = self.0.hash_bytes(bytes);
    }

    fn write_u64(&mut self, key: u64) {
        self.1 = key;
    }
}

/// 64 neighbouring positions of a mark: which failed, which ended, and in `Memo::ends` where.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    failed: u64,
    ended: u64,
    ends: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Memo {
    pages: HashMap<u64, Page, Keyed>,
    ends: Vec<[u32; 64]>,
}

impl Memo {
    pub(super) fn new() -> Memo {
        Memo { pages: HashMap::with_hasher(Keyed(Seed::random())), ends: Vec::new() }
    }

    pub(super) fn get(&self, mark: u32, at: u32) -> Known {
        let Some(page) = self.pages.get(&key(mark, at)) else { return Known::Nothing };
        let bit = at & 63;
        if page.failed >> bit & 1 == 1 {
            Known::Failed
        } else if page.ended >> bit & 1 == 1 {
            let end = page.ends.and_then(|ends| self.ends.get(ends as usize));
            Known::Ends(end.map_or(0, |ends| ends[bit as usize]))
        } else {
            Known::Nothing
        }
    }

    fn page(&mut self, mark: u32, at: u32) -> Result<&mut Page, TokenizerError> {
        // Maps grow to twice their size, and are copied then.
        let size = self.pages.len() * 4 * (8 + size_of::<Page>()) + self.ends.len() * 512;
        if size > MAX_MEMORY {
            return Err(TokenizerError::ExpressionMemory { max: MAX_MEMORY });
        }
        Ok(self.pages.entry(key(mark, at)).or_default())
    }

    pub(super) fn failed(&mut self, mark: u32, at: u32) -> Result<(), TokenizerError> {
        self.page(mark, at)?.failed |= 1 << (at & 63);
        Ok(())
    }

    pub(super) fn forget_failure(&mut self, mark: u32, at: u32) {
        if let Some(page) = self.pages.get_mut(&key(mark, at)) {
            page.failed &= !(1 << (at & 63));
        }
    }

    /// `end` is not kept for lookarounds, which do not need it.
    pub(super) fn ended(&mut self, mark: u32, at: u32, end: Option<u32>) -> Result<(), TokenizerError> {
        let new = self.ends.len() as u32;
        let page = self.page(mark, at)?;
        page.ended |= 1 << (at & 63);
        let Some(end) = end else { return Ok(()) };
        let ends = *page.ends.get_or_insert(new);
        if ends == new {
            self.ends.push([0; 64]);
        }
        if let Some(ends) = self.ends.get_mut(ends as usize) {
            ends[(at & 63) as usize] = end;
        }
        Ok(())
    }
}

fn key(mark: u32, at: u32) -> u64 {
    (u64::from(mark) << 32) | u64::from(at >> 6)
}
