//! Work stealing over ranges of units. Each part of a stage has a range, from which its worker takes one piece after
//! another. A worker whose own range is empty steals half of what remains of the largest other range. So a worker
//! that is slow, or that the system has preempted, delays the others only a little.

use std::ops::Range;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache_padded::CachePadded;

/// The range of `0..total` that belongs to one of `parts` parts of nearly equal size.
#[inline(always)]
pub fn partition(total: usize, part: usize, parts: usize) -> Range<usize> {
    total * part / parts..total * (part + 1) / parts
}

/// A work-stealing queue. It holds one range for each part, with start and end packed into one number: the units that
/// no worker has taken yet. The worker that begins a part takes from that part's range first and then from the
/// others, until every range that has begun is empty. So all ranges are empty when a stage is over.
///
/// Relaxed memory ordering is sufficient, because the queue hands over nothing but numbers. The data that workers
/// read was written before the stage began, and the data that they write is read after it has ended; the pool's
/// barrier orders both. A range that was taken never becomes available again within a stage, so the
/// compare-and-exchange cannot succeed on a stale value (no ABA problem).
#[derive(Debug)]
pub struct WorkQueue(Box<[CachePadded<AtomicU64>]>);

impl WorkQueue {
    pub fn new(parts: usize) -> WorkQueue {
        WorkQueue((0..parts).map(|_| CachePadded(AtomicU64::new(0))).collect())
    }

    /// Empties all ranges. This is necessary after work that was given up before its end.
    pub fn clear(&self) {
        for left in &self.0 {
            left.0.store(0, Ordering::Relaxed);
        }
    }

    /// Makes the units of a part available. They have to be less than 2³².
    #[inline]
    pub fn begin(&self, part: usize, range: Range<usize>) {
        self.0[part].0.store(packed(&range), Ordering::Relaxed);
    }

    /// Takes the next units for the worker that began `part`: `piece` of them, or fewer at the end of a range.
    /// Returns `None` when every range is empty.
    #[inline]
    pub fn take(&self, part: usize, piece: usize) -> Option<Range<usize>> {
        let own = &self.0[part].0;
        loop {
            let next = |Range { start, end }: Range<usize>| {
                let middle = end.min(start + piece);
                [start..middle, middle..end]
            };
            if let Some(taken) = cut(own, next) {
                return Some(taken);
            }
            let left = |part: &usize| unpacked(self.0[*part].0.load(Ordering::Relaxed)).len();
            let other = (0..self.0.len()).max_by_key(left).filter(|part| left(part) > 0)?;
            // Steals the larger half, in whole pieces.
            let half = |Range { start, end }: Range<usize>| {
                let middle = start + (end - start) / piece / 2 * piece;
                [middle..end, start..middle]
            };
            if let Some(taken) = cut(&self.0[other].0, half) {
                own.store(packed(&taken), Ordering::Relaxed);
            }
        }
    }
}

/// Splits a range in two: takes the first range that `split` returns and leaves the second one. Returns `None` for an
/// empty range.
fn cut(left: &AtomicU64, split: impl Fn(Range<usize>) -> [Range<usize>; 2]) -> Option<Range<usize>> {
    let mut now = left.load(Ordering::Relaxed);
    loop {
        let range = unpacked(now);
        if range.is_empty() {
            return None;
        }
        let [taken, rest] = split(range);
        match left.compare_exchange_weak(now, packed(&rest), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(taken),
            Err(other) => now = other,
        }
    }
}

fn packed(range: &Range<usize>) -> u64 {
    (range.start as u64) << 32 | range.end as u64
}

fn unpacked(number: u64) -> Range<usize> {
    (number >> 32) as usize..(number & 0xffff_ffff) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Begins a part and takes all that there is, as a worker does.
    fn all_of(queue: &WorkQueue, part: usize, parts: usize, total: usize, piece: usize) -> Vec<Range<usize>> {
        queue.begin(part, partition(total, part, parts));
        std::iter::from_fn(|| queue.take(part, piece)).collect()
    }

    fn are_all_once(pieces: impl Iterator<Item = Range<usize>>, total: usize) -> bool {
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_by_key(|piece| piece.start);
        let end = pieces.iter().try_fold(0, |end, piece| (piece.start == end).then_some(piece.end));
        end == Some(total)
    }

    #[test]
    fn one_worker_takes_a_part_in_order_and_then_the_others() {
        let queue = WorkQueue::new(3);
        queue.begin(1, 10..17);
        let taken = all_of(&queue, 0, 3, 30, 4);
        assert_eq!(taken[..3], [0..4, 4..8, 8..10]);
        assert!(are_all_once(taken.into_iter(), 17));
        assert_eq!(queue.take(0, 4), None);
        queue.begin(2, 5..6);
        queue.clear();
        assert_eq!(queue.take(1, 4), None);
    }

    #[test]
    fn every_unit_is_taken_once_by_whoever_comes() {
        const TOTAL: usize = if cfg!(miri) { 50 } else { 1000 };
        for (parts, total, piece) in [(2, TOTAL, 1), (2, 37, 4), (3, TOTAL, 7), (5, 64, 3), (4, 3, 1)] {
            let (queue, start) = (WorkQueue::new(parts), Barrier::new(parts));
            for _ in 0..if cfg!(miri) { 2 } else { 200 } {
                let taken: Vec<Vec<_>> = std::thread::scope(|scope| {
                    let worker = |part| {
                        let (queue, start) = (&queue, &start);
                        scope.spawn(move || {
                            start.wait();
                            all_of(queue, part, parts, total, piece)
                        })
                    };
                    let workers: Vec<_> = (0..parts).map(worker).collect();
                    workers.into_iter().map(|worker| worker.join().unwrap()).collect()
                });
                assert!(are_all_once(taken.into_iter().flatten(), total));
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    fn model(parts: usize, total: usize, piece: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(if parts > 2 { 1 } else { 3 });
        builder.check(move || {
            let queue = Arc::new(WorkQueue::new(parts));
            queue.clear();
            let taken: Vec<_> = (0..total).map(|_| AtomicU64::new(0)).collect();
            let taken = Arc::new(taken);
            let worker = move |queue: &WorkQueue, taken: &[AtomicU64], part: usize| {
                queue.begin(part, partition(total, part, parts));
                while let Some(range) = queue.take(part, piece) {
                    for unit in range {
                        assert_eq!(taken[unit].fetch_add(1, Ordering::Relaxed), 0);
                    }
                }
            };
            let threads: Vec<_> = (1..parts)
                .map(|part| {
                    let (queue, taken) = (queue.clone(), taken.clone());
                    loom::thread::spawn(move || worker(&queue, &taken, part))
                })
                .collect();
            worker(&queue, &taken, 0);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(taken.iter().all(|unit| unit.load(Ordering::Relaxed) == 1));
        });
    }

    #[test]
    fn loom_two_workers_balance() {
        model(2, 4, 1);
    }

    #[test]
    fn loom_two_workers_balance_pieces() {
        model(2, 7, 2);
    }

    #[test]
    fn loom_three_workers_balance() {
        model(3, 4, 1);
    }
}
