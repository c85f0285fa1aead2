//! The BPE algorithm: the neighbours with the best rank are merged until no pair can be merged.
//!
//! The best pair has the lowest rank, and is the leftmost of equals. SentencePiece (ranks from scores) and byte-level
//! BPE (ranks from the list of merges) differ only in how the rank of a pair is found.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::TokenizerError;
use crate::cancel::Watch;
use crate::hash::Merge;

/// No token, no neighbour, or no merge.
pub(crate) const NONE: u32 = u32::MAX;

/// Maximum number of parts for a linear search in each step: quadratic, but faster than other methods because all data
/// fits into one or two cache lines.
const SHORT: usize = 24;

/// A part of the word that is one token so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Byte range within the word.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Its token, or [`NONE`].
    pub(crate) id: u32,
    /// The merge with the next part: its rank ([`NONE`] if there is none) and the resulting token.
    rank: u32,
    merged: u32,
    /// Links to the neighbours, for long words, where removed parts stay in the array.
    previous: u32,
    next: u32,
}

/// Working memory, reused for each word.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    parts: Vec<Part>,
    queue: Queue,
}

impl Merger {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
    }

    /// Adds a part to the end of the word.
    pub(crate) fn push(&mut self, start: usize, end: usize, id: u32) {
        // Callers limit texts to well below 4 GiB.
        let (start, end) = (start as u32, end as u32);
        self.parts.push(Part { start, end, id, rank: NONE, merged: NONE, previous: NONE, next: NONE });
    }

    /// The current parts.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(crate) fn reverse(&mut self) {
        self.parts.reverse();
    }

    /// Releases memory that was needed for an unusually long word.
    pub(crate) fn release_excess(&mut self) {
        const KEPT: usize = 1 << 14;
        self.parts.clear();
        self.parts.shrink_to(KEPT);
        self.queue.clear();
        self.queue.sorted.shrink_to(KEPT);
        self.queue.later.shrink_to(KEPT);
    }

    /// Merges until no pair can be merged, and leaves the remaining parts in order.
    pub(crate) fn run(
        &mut self,
        watch: &mut Watch,
        find: impl Fn(&Part, &Part) -> Option<Merge>,
    ) -> Result<&[Part], TokenizerError> {
        if self.parts.len() <= SHORT {
            self.run_short(find)
        } else {
            self.run_long(watch, find)?
        }
        Ok(&self.parts)
    }

    fn run_short(&mut self, find: impl Fn(&Part, &Part) -> Option<Merge>) {
        let parts = &mut self.parts;
        for at in 1..parts.len() {
            rate(parts, at - 1, Some(at), &find);
        }
        // `min_by_key` returns the first of equal ranks, which is the leftmost.
        while let Some(at) = (0..parts.len()).min_by_key(|&at| parts[at].rank) {
            if parts[at].rank == NONE {
                return;
            }
            parts[at].end = parts[at + 1].end;
            parts[at].id = parts[at].merged;
            parts.remove(at + 1);
            if at > 0 {
                rate(parts, at - 1, Some(at), &find);
            }
            let next = if at + 1 < parts.len() { Some(at + 1) } else { None };
            rate(parts, at, next, &find);
        }
    }

    /// A linked list and a priority queue: O(n log n), for very long words such as a megabyte of spaces.
    fn run_long(
        &mut self,
        watch: &mut Watch,
        find: impl Fn(&Part, &Part) -> Option<Merge>,
    ) -> Result<(), TokenizerError> {
        let (parts, queue) = (&mut self.parts, &mut self.queue);
        queue.clear();
        for at in 0..parts.len() {
            watch.step()?;
            parts[at].previous = at.checked_sub(1).map_or(NONE, |place| place as u32);
            if at + 1 < parts.len() {
                parts[at].next = at as u32 + 1;
                rate(parts, at, Some(at + 1), &find);
                queue.push(parts[at].rank, at);
            }
        }
        while let Some((rank, at)) = queue.pop() {
            watch.step()?;
            // Outdated entries stay in the queue: an entry is valid only if the pair at its position still has its
            // rank. Removed parts have none.
            if parts[at].rank != rank {
                continue;
            }
            let gone = parts[at].next as usize;
            parts[at].end = parts[gone].end;
            parts[at].id = parts[at].merged;
            parts[at].next = parts[gone].next;
            parts[gone].rank = NONE;
            parts[gone].start = parts[gone].end;
            let place = |link: u32| Some(link as usize).filter(|_| link != NONE);
            let (previous, next) = (place(parts[at].previous), place(parts[at].next));
            if let Some(next) = next {
                parts[next].previous = at as u32;
            }
            if let Some(previous) = previous {
                rate(parts, previous, Some(at), &find);
                queue.push(parts[previous].rank, previous);
            }
            rate(parts, at, next, &find);
            queue.push(parts[at].rank, at);
        }
        self.parts.retain(|part| part.start != part.end);
        Ok(())
    }
}

/// Possible merges in order: lowest rank first, then leftmost.
///
/// Nearly every merge has a worse rank than all merges that were possible before it, because it builds on one of them.
/// So new entries wait in `later` (a heap, in case one must be processed early after all), and are sorted together when
/// the earlier ones are done: several times faster than a plain heap.
#[derive(Debug, Default)]
struct Queue {
    /// Ascending from `at` on; each entry combines rank and position in one number.
    sorted: Vec<u64>,
    at: usize,
    later: BinaryHeap<Reverse<u64>>,
}

impl Queue {
    fn clear(&mut self) {
        self.sorted.clear();
        self.at = 0;
        self.later.clear();
    }

    #[inline]
    fn push(&mut self, rank: u32, place: usize) {
        if rank != NONE {
            self.later.push(Reverse((rank as u64) << 32 | place as u64));
        }
    }

    fn pop(&mut self) -> Option<(u32, usize)> {
        if self.at == self.sorted.len() {
            self.sorted.clear();
            self.at = 0;
            self.sorted.extend(self.later.drain().map(|Reverse(entry)| entry));
            self.sorted.sort_unstable();
            crate::work::count(self.sorted.len());
        }
        let first = *self.sorted.get(self.at)?;
        let entry = match self.later.peek() {
            Some(&Reverse(early)) if early < first => {
                self.later.pop();
                early
            }
            _ => {
                self.at += 1;
                first
            }
        };
        Some(((entry >> 32) as u32, entry as u32 as usize))
    }
}

/// Stores the merge of the left part with the right one, if there is any.
#[inline(always)]
fn rate(parts: &mut [Part], left: usize, right: Option<usize>, find: impl Fn(&Part, &Part) -> Option<Merge>) {
    crate::work::count(1);
    let found = right.and_then(|right| find(&parts[left], &parts[right]));
    (parts[left].rank, parts[left].merged) = found.map_or((NONE, NONE), |merge| (merge.rank, merge.id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A direct implementation of the definition, without optimisations.
    fn by_definition(mut ids: Vec<u32>, find: impl Fn(u32, u32) -> Option<Merge>) -> Vec<u32> {
        loop {
            let best = (1..ids.len())
                .filter_map(|at| find(ids[at - 1], ids[at]).map(|merge| (merge.rank, at, merge.id)))
                .min();
            let Some((_, at, id)) = best else { return ids };
            ids[at - 1] = id;
            ids.remove(at);
        }
    }

    proptest! {
        #[test]
        fn short_and_long_words_merge_as_the_definition_says(
            word in proptest::collection::vec(0u32..4, 0..80),
            merges in proptest::collection::hash_map((0u32..12, 0u32..12), (0u32..6, 4u32..12), 0..60),
        ) {
            let find = |l: u32, r: u32| merges.get(&(l, r)).map(|&(rank, id)| Merge { rank, id });
            let expected = by_definition(word.clone(), find);
            let mut merger = Merger::default();
            for long in [false, true] {
                merger.clear();
                word.iter().enumerate().for_each(|(at, &id)| merger.push(at, at + 1, id));
                let by_part = |l: &Part, r: &Part| find(l.id, r.id);
                match long {
                    true => merger.run_long(&mut Watch::new(), by_part).unwrap(),
                    false => merger.run_short(by_part),
                }
                prop_assert_eq!(merger.parts.iter().map(|part| part.id).collect::<Vec<_>>(), expected.clone());
                let mut end = 0;
                for part in &merger.parts {
                    prop_assert_eq!(part.start, end);
                    end = part.end;
                }
                prop_assert_eq!(end as usize, word.len());
            }
        }
    }
}
