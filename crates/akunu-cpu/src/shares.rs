//! How workers share out a command's work: a part for each, taken piece by piece; whoever is done with his own takes half of
//! what is left of another's. So nobody waits long for a worker that is slower, or that the system has set aside.

use std::ops::Range;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stages::Alone;

/// What a part has of `0..total`.
#[inline(always)]
pub(crate) fn share(total: usize, part: usize, parts: usize) -> Range<usize> {
    total * part / parts..total * (part + 1) / parts
}

/// What nobody has taken yet of each part, its start and end in one number. Whoever begins a part takes from it, then from the
/// others, until nothing is left of any that has begun; so all are empty when a command is over.
///
/// Nothing is handed over but numbers: what workers read was there before the command began, and what they write is
/// seen once it is over. No range comes back, since what was taken is never left again.
#[derive(Debug)]
pub(crate) struct Shares(Box<[Alone<AtomicU64>]>);

impl Shares {
    pub(crate) fn new(parts: usize) -> Shares {
        Shares((0..parts).map(|_| Alone(AtomicU64::new(0))).collect())
    }

    /// Forgets what a command left that did not come to its end.
    pub(crate) fn clear(&self) {
        for left in &self.0 {
            left.0.store(0, Ordering::Relaxed);
        }
    }

    /// Puts up a part, below 2³² like all of them.
    pub(crate) fn begin(&self, part: usize, range: Range<usize>) {
        self.0[part].0.store(packed(&range), Ordering::Relaxed);
    }

    /// The next `piece` units, or what is left of them, for the worker that began `part`.
    pub(crate) fn take(&self, part: usize, piece: usize) -> Option<Range<usize>> {
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
            // In whole pieces, the larger half.
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

/// The first of the two that `parted` makes of what is left, unless that is nothing; the second one stays.
fn cut(left: &AtomicU64, parted: impl Fn(Range<usize>) -> [Range<usize>; 2]) -> Option<Range<usize>> {
    let mut now = left.load(Ordering::Relaxed);
    loop {
        let range = unpacked(now);
        if range.is_empty() {
            return None;
        }
        let [taken, rest] = parted(range);
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

    /// As a worker does.
    fn all_of(shares: &Shares, part: usize, parts: usize, total: usize, piece: usize) -> Vec<Range<usize>> {
        shares.begin(part, share(total, part, parts));
        std::iter::from_fn(|| shares.take(part, piece)).collect()
    }

    fn are_all_once(pieces: impl Iterator<Item = Range<usize>>, total: usize) -> bool {
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_by_key(|piece| piece.start);
        let end = pieces.iter().try_fold(0, |end, piece| (piece.start == end).then_some(piece.end));
        end == Some(total)
    }

    #[test]
    fn one_worker_takes_a_part_in_order_and_then_the_others() {
        let shares = Shares::new(3);
        shares.begin(1, 10..17);
        let taken = all_of(&shares, 0, 3, 30, 4);
        assert_eq!(taken[..3], [0..4, 4..8, 8..10]);
        assert!(are_all_once(taken.into_iter(), 17));
        assert_eq!(shares.take(0, 4), None);
        shares.begin(2, 5..6);
        shares.clear();
        assert_eq!(shares.take(1, 4), None);
    }

    #[test]
    fn every_unit_is_taken_once_by_whoever_comes() {
        for (parts, total, piece) in [(2, 1000, 1), (2, 37, 4), (3, 1000, 7), (5, 64, 3), (4, 3, 1)] {
            let (shares, start) = (Shares::new(parts), Barrier::new(parts));
            for _ in 0..200 {
                let taken: Vec<Vec<_>> = std::thread::scope(|scope| {
                    let worker = |part| {
                        let (shares, start) = (&shares, &start);
                        scope.spawn(move || {
                            start.wait();
                            all_of(shares, part, parts, total, piece)
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
            let shares = Arc::new(Shares::new(parts));
            shares.clear();
            let taken: Vec<_> = (0..total).map(|_| AtomicU64::new(0)).collect();
            let taken = Arc::new(taken);
            let worker = move |shares: &Shares, taken: &[AtomicU64], part: usize| {
                shares.begin(part, share(total, part, parts));
                while let Some(range) = shares.take(part, piece) {
                    for unit in range {
                        assert_eq!(taken[unit].fetch_add(1, Ordering::Relaxed), 0);
                    }
                }
            };
            let threads: Vec<_> = (1..parts)
                .map(|part| {
                    let (shares, taken) = (shares.clone(), taken.clone());
                    loom::thread::spawn(move || worker(&shares, &taken, part))
                })
                .collect();
            worker(&shares, &taken, 0);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(taken.iter().all(|unit| unit.load(Ordering::Relaxed) == 1));
        });
    }

    #[test]
    fn loom_two_workers_share() {
        model(2, 4, 1);
    }

    #[test]
    fn loom_two_workers_share_pieces() {
        model(2, 7, 2);
    }

    #[test]
    fn loom_three_workers_share() {
        model(3, 4, 1);
    }
}
