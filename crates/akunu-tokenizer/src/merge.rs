//! The heart of BPE: neighbours merge, the best pair first, until no two neighbours can.
//!
//! "Best" is the lowest rank, and the leftmost of equals. Both SentencePiece (ranks from scores) and byte-level
//! BPE (ranks from the list of merges) are this; they differ in how a pair finds its rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::hash::Merge;

/// No token, no neighbour, no merge.
pub(crate) const NONE: u32 = u32::MAX;

/// Words of up to this many parts are merged by looking through all of them each time: quadratic, but with
/// everything in one or two cache lines it is faster than any cleverness.
const SHORT: usize = 24;

/// A stretch of the word that is one token so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Byte range within the word.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Its token, or [`NONE`].
    pub(crate) id: u32,
    /// The merge with the part that follows: its rank ([`NONE`] if there is none) and what comes of it.
    rank: u32,
    merged: u32,
    /// Neighbours, in long words, where parts that are gone stay in the array.
    previous: u32,
    next: u32,
}

/// Working memory, kept from word to word.
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
        // Texts are bounded well below 4 GiB before they come here.
        let (start, end) = (start as u32, end as u32);
        self.parts.push(Part { start, end, id, rank: NONE, merged: NONE, previous: NONE, next: NONE });
    }

    /// The parts as they are now.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(crate) fn reverse(&mut self) {
        self.parts.reverse();
    }

    /// Gives back what an unusually long word needed.
    pub(crate) fn release_excess(&mut self) {
        const KEPT: usize = 1 << 14;
        self.parts.clear();
        self.parts.shrink_to(KEPT);
        self.queue.clear();
        self.queue.sorted.shrink_to(KEPT);
        self.queue.later.shrink_to(KEPT);
    }

    /// Merges until nothing can, and leaves the finished parts in order.
    pub(crate) fn run(&mut self, find: impl Fn(&Part, &Part) -> Option<Merge>) -> &[Part] {
        if self.parts.len() <= SHORT {
            self.run_short(find)
        } else {
            self.run_long(find)
        }
        &self.parts
    }

    fn run_short(&mut self, find: impl Fn(&Part, &Part) -> Option<Merge>) {
        let parts = &mut self.parts;
        for at in 1..parts.len() {
            rate(parts, at - 1, Some(at), &find);
        }
        // `min_by_key` gives the first of equal ranks, which is the leftmost.
        while let Some(at) = (0..parts.len()).min_by_key(|&at| parts[at].rank) {
            if parts[at].rank == NONE {
                return;
            }
            parts[at].end = parts[at + 1].end;
            parts[at].id = parts[at].merged;
            parts.remove(at + 1);
            let next = if at + 1 < parts.len() { Some(at + 1) } else { None };
            rate(parts, at, next, &find);
            if at > 0 {
                rate(parts, at - 1, Some(at), &find);
            }
        }
    }

    /// A linked list and a queue: n log n, for the megabyte of spaces that someone will send.
    fn run_long(&mut self, find: impl Fn(&Part, &Part) -> Option<Merge>) {
        let (parts, queue) = (&mut self.parts, &mut self.queue);
        queue.clear();
        for at in 0..parts.len() {
            parts[at].previous = at.checked_sub(1).map_or(NONE, |place| place as u32);
            if at + 1 < parts.len() {
                parts[at].next = at as u32 + 1;
                rate(parts, at, Some(at + 1), &find);
                queue.push(parts[at].rank, at);
            }
        }
        while let Some((rank, at)) = queue.pop() {
            // Entries are not taken out when their pair changes. An entry counts only if the pair that
            // stands there now has its rank: a part that is gone has none.
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
            rate(parts, at, next, &find);
            queue.push(parts[at].rank, at);
            if let Some(previous) = previous {
                rate(parts, previous, Some(at), &find);
                queue.push(parts[previous].rank, previous);
            }
        }
        self.parts.retain(|part| part.start != part.end);
    }
}

/// Merges that were possible when they were entered, the best first: the lowest rank, then the leftmost.
///
/// Nearly every merge is worse than all that were possible before it, because it builds on one of them. So
/// entries wait unordered in `later` (a heap only in so far as one may have to come early after all) and are
/// sorted together when those before them are done: several times faster than taking each from a heap.
#[derive(Debug, Default)]
struct Queue {
    /// Ascending from `at` on; rank and place in one number each.
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

/// Notes at the left part how, if at all, it merges with the right one.
#[inline(always)]
fn rate(parts: &mut [Part], left: usize, right: Option<usize>, find: impl Fn(&Part, &Part) -> Option<Merge>) {
    let found = right.and_then(|right| find(&parts[left], &parts[right]));
    (parts[left].rank, parts[left].merged) = found.map_or((NONE, NONE), |merge| (merge.rank, merge.id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the definition says, without any thought for speed.
    fn plainly(mut ids: Vec<u32>, find: impl Fn(u32, u32) -> Option<Merge>) -> Vec<u32> {
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
            let expected = plainly(word.clone(), find);
            let mut merger = Merger::default();
            for long in [false, true] {
                merger.clear();
                word.iter().enumerate().for_each(|(at, &id)| merger.push(at, at + 1, id));
                let by_part = |l: &Part, r: &Part| find(l.id, r.id);
                if long { merger.run_long(by_part) } else { merger.run_short(by_part) }
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
