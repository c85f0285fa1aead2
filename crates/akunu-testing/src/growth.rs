//! Time and memory of an input and of one eight times as large.
#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use crate::thread_time;

/// The system's allocator, which also measures what each thread takes. A test installs it as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasuringAllocator;

thread_local! {
    /// What the thread has allocated and not freed, and the largest value of that, in bytes.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Counts bytes. A thread that is ending has no counters any more.
fn add(bytes: i64) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

/// A layout has at most `isize::MAX` bytes.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: every call is passed to the system's allocator unchanged, and the counters do not allocate.
unsafe impl GlobalAlloc for MeasuringAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(signed(layout.size()));
        // SAFETY: the caller guarantees a layout of non-zero size, which is all that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-signed(layout.size()));
        // SAFETY: `at` comes from `alloc` or `realloc`, and so from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both exist while the bytes are moved.
        add(signed(bytes));
        // SAFETY: as in `dealloc`; the caller guarantees that `bytes` is a valid new size.
        let moved = unsafe { System.realloc(at, layout, bytes) };
        add(-signed(layout.size()));
        moved
    }
}

/// What work took of its thread.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub time: Duration,
    /// The most bytes at a time, besides what was allocated before. 0 without [`MeasuringAllocator`].
    pub peak: u64,
}

impl Cost {
    pub fn of<T>(work: impl FnOnce() -> T) -> Cost {
        let before = LIVE.get();
        PEAK.set(before);
        let started = thread_time();
        drop(black_box(work()));
        let time = thread_time() - started;
        Cost { time, peak: u64::try_from(PEAK.get() - before).unwrap_or(0) }
    }

    fn least(self, other: Cost) -> Cost {
        Cost { time: self.time.min(other.time), peak: self.peak.min(other.peak) }
    }
}

/// The larger input has this many times the size: three doublings, so that what grows with the square takes 64 times as
/// much, and small differences between the machine's caches do not decide.
pub const TIMES: usize = 8;

/// What the larger input may take: 2.5 times as much for each doubling.
const MOST: f64 = 2.5 * 2.5 * 2.5;

/// What may be added, because very short times are not measured well, and small buffers do not grow in proportion.
const SLACK: (f64, f64) = (1e-3, 4096.0);

/// Checks that time and memory grow with the input, which must be accepted by `work` if it is to be measured.
///
/// Returns the input of `size` times [`TIMES`], and what it takes.
///
/// # Panics
/// If they grow faster.
#[track_caller]
pub fn assert_growth<I, T>(
    what: &str,
    size: usize,
    input: impl Fn(usize) -> I,
    work: impl Fn(&I) -> T,
) -> (I, Cost) {
    let (small, large) = (input(size), input(size * TIMES));
    let cost = |input: &I, tries: usize| {
        (1..tries).fold(Cost::of(|| work(input)), |least, _| least.least(Cost::of(|| work(input))))
    };
    // Other programs may disturb a measurement, so one of several must hold.
    let mut costs = [Cost { time: Duration::ZERO, peak: 0 }; 2];
    for _ in 0..10 {
        costs = [cost(&small, 3), cost(&large, 2)];
        let [one, many] = costs;
        let within = |one: f64, many: f64, slack: f64| many <= MOST * one + slack;
        if within(one.time.as_secs_f64(), many.time.as_secs_f64(), SLACK.0)
            && within(one.peak as f64, many.peak as f64, SLACK.1)
        {
            return (large, many);
        }
    }
    panic!("{what}: {:?} for {size}, {:?} for {TIMES} times as much", costs[0], costs[1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: MeasuringAllocator = MeasuringAllocator;

    #[test]
    fn the_peak_is_what_is_alive_at_a_time() {
        let cost = Cost::of(|| {
            drop(vec![0_u8; 1 << 20]);
            vec![0_u8; 3 << 20]
        });
        assert_eq!(cost.peak, 3 << 20);
        let moved = Cost::of(|| {
            let mut bytes = vec![0_u8; 1000];
            bytes.reserve_exact(1000);
            bytes
        });
        assert_eq!(moved.peak, 3000);
    }

    #[test]
    fn what_grows_with_its_input_is_accepted() {
        let (large, cost) = assert_growth("a copy", 1 << 12, |size| vec![1_u8; size], Clone::clone);
        assert_eq!((large.len(), cost.peak), (8 << 12, 8 << 12));
    }

    #[test]
    #[should_panic(expected = "pairs: ")]
    fn memory_that_grows_with_the_square_is_refused() {
        assert_growth("pairs", 100, |size| size, |size| vec![0_u8; size * size]);
    }

    #[test]
    #[should_panic(expected = "sums: ")]
    fn time_that_grows_with_the_square_is_refused() {
        let sums = |values: &Vec<u64>| {
            values.iter().flat_map(|a| values.iter().map(move |b| black_box(a ^ *b))).max()
        };
        assert_growth("sums", 500, |size| (0..size as u64).collect::<Vec<_>>(), sums);
    }
}
