//! Working memory of one encoding. Kept for the next: threads that encode at the same time have one each.

use std::sync::{Mutex, PoisonError};

use crate::cache::WordCache;
use crate::merge::Merger;
use crate::unigram::Way;

#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) cache: WordCache,
    pub(crate) merger: Merger,
    pub(crate) text: String,
    pub(crate) ways: Vec<Way>,
}

/// Working memories that are kept.
const MAX_SCRATCH: usize = 16;
/// Bytes of text that a kept one holds on to.
const KEPT_TEXT: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    /// Lends a working memory to `work`.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let pool = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool().pop();
        let mut scratch = kept.unwrap_or_default();
        let result = work(&mut scratch);
        scratch.merger.release_excess();
        scratch.ways.clear();
        scratch.ways.shrink_to(1 << 14);
        scratch.text.clear();
        scratch.text.shrink_to(KEPT_TEXT);
        let mut pool = pool();
        if pool.len() < MAX_SCRATCH {
            pool.push(scratch);
        }
        result
    }
}
