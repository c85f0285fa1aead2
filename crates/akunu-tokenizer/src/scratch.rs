//! Working memory of an encoding, reused by later ones. Threads that encode at the same time have one each.

use std::sync::{Mutex, PoisonError};

use crate::cache::WordCache;
use crate::cancel::Watch;
use crate::merge::Merger;
use crate::unigram::BestPath;

#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) cache: WordCache,
    pub(crate) merger: Merger,
    pub(crate) text: String,
    pub(crate) paths: Vec<BestPath>,
    pub(crate) watch: Watch,
}

/// Maximum number of buffers in the pool.
const MAX_SCRATCH: usize = 16;
/// Text buffers larger than this are released.
const KEPT_TEXT: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    /// Calls `work` with a buffer from the pool.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let pool = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool().pop();
        let mut scratch = kept.unwrap_or_default();
        scratch.watch = Watch::new();
        let result = work(&mut scratch);
        scratch.watch = Watch::default();
        scratch.merger.release_excess();
        scratch.paths.clear();
        scratch.paths.shrink_to(1 << 14);
        scratch.text.clear();
        scratch.text.shrink_to(KEPT_TEXT);
        let mut pool = pool();
        if pool.len() < MAX_SCRATCH {
            pool.push(scratch);
        }
        result
    }
}
