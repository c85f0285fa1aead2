//! The measured limits of this machine for reading and multiplying, to which the kernels' speed is compared.
//!
//! A pass cannot be faster than its bytes over [`Ceilings::read`] or its operations over [`Ceilings::int8`] and
//! [`Ceilings::f32`]. Machines are shared and their speed drifts, so rounds are measured before and after what they
//! are compared with, and the median counts.

mod multiply;
mod read;

use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use akunu_plan::Cost;

use crate::isa::{Isa, IsaError};
use multiply::Multiply;
use read::Reader;

pub use read::PATTERNS;

/// A working set larger than any cache.
pub const DRAM_BYTES: u64 = 1 << 30;

/// The rate over several rounds, in bytes or operations per second; a multiply-add counts as two operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Rate {
    fn of(samples: &[f64]) -> Rate {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        match sorted.as_slice() {
            [] => Rate::default(),
            [min, .., max] => Rate { median: sorted[sorted.len() / 2], min: *min, max: *max },
            [one] => Rate { median: *one, min: *one, max: *one },
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CeilingsError {
    #[error(transparent)]
    Isa(#[from] IsaError),
    #[error("cannot allocate {0} bytes to read from; close something, or measure without ceilings")]
    Memory(u64),
}

/// The rates of a number of threads over one working set, with one instruction set.
#[derive(Debug)]
pub struct Ceilings {
    isa: Isa,
    threads: usize,
    reader: Reader,
    /// One per pattern of [`PATTERNS`].
    reads: [Vec<f64>; PATTERNS.len()],
    int8: Vec<f64>,
    f32: Vec<f64>,
}

impl Ceilings {
    /// Allocates and writes `working_set` bytes, without measuring.
    pub fn new(isa: Isa, threads: usize, working_set: u64) -> Result<Ceilings, CeilingsError> {
        Ok(Ceilings {
            isa: isa.checked()?,
            threads: threads.max(1),
            reader: Reader::new(working_set).ok_or(CeilingsError::Memory(working_set))?,
            reads: Default::default(),
            int8: vec![],
            f32: vec![],
        })
    }

    /// The same working set with another number of threads; earlier measurements are dropped.
    pub fn with_threads(self, threads: usize) -> Ceilings {
        let (threads, reads, int8, f32) = (threads.max(1), Default::default(), vec![], vec![]);
        Ceilings { threads, reads, int8, f32, ..self }
    }

    /// Measures additional rounds of about a tenth of a second each.
    pub fn measure(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.int8.push(Multiply::Int8.rate(self.isa, self.threads));
            self.f32.push(Multiply::F32.rate(self.isa, self.threads));
            for (pattern, samples) in PATTERNS.into_iter().zip(&mut self.reads) {
                samples.push(self.reader.rate(pattern, self.threads));
            }
        }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    pub fn working_set(&self) -> u64 {
        self.reader.bytes()
    }

    /// The lower bound, in seconds, of the time for a cost: the larger of the times for its bytes and its operations.
    pub fn floor(&self, cost: Cost) -> f64 {
        let reading = cost.bytes() as f64 / self.read().median;
        let multiplying = cost.int8_ops as f64 / self.int8().median + cost.f32_ops as f64 / self.f32().median;
        reading.max(multiplying)
    }

    /// Bytes per second, with the pattern whose median is the best.
    pub fn read(&self) -> Rate {
        let rates = self.reads.iter().map(|samples| Rate::of(samples));
        rates.max_by(|a, b| a.median.total_cmp(&b.median)).unwrap_or_default()
    }

    /// 8-bit integer operations per second, from L1, with the widest available instruction.
    pub fn int8(&self) -> Rate {
        Rate::of(&self.int8)
    }

    /// f32 operations per second, from L1.
    pub fn f32(&self) -> Rate {
        Rate::of(&self.f32)
    }
}

/// A working set well within the last-level cache, if the system says how large that is.
pub fn cache_bytes() -> Option<u64> {
    const MOST: u64 = 96 << 20;
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let kib: u64 = std::fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib * 1024)
    };
    let last = (0..8).filter_map(size).max()?;
    Some(MOST.min(last / 4 * 3))
}

/// Runs `work(thread)` on all threads at once; returns the seconds from the first start to the last end.
fn together(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let gate = Barrier::new(threads);
    let span: Mutex<Option<(Instant, Instant)>> = Mutex::new(None);
    let run = |thread: usize| {
        gate.wait();
        let start = Instant::now();
        work(thread);
        let end = Instant::now();
        let mut span = span.lock().unwrap_or_else(PoisonError::into_inner);
        *span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let run = &run;
            scope.spawn(move || run(thread));
        }
        run(0);
    });
    let span = *span.lock().unwrap_or_else(PoisonError::into_inner);
    span.map_or(f64::INFINITY, |(first, last)| (last - first).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_there_after_a_round_and_working_sets_are_kept() {
        let mut ceilings = Ceilings::new(Isa::best(), 2, 3 << 20).unwrap();
        assert_eq!((ceilings.working_set(), ceilings.read()), (3 << 20, Rate::default()));
        ceilings.measure(2);
        for rate in [ceilings.read(), ceilings.int8(), ceilings.f32()] {
            assert!(0.0 < rate.min && rate.min <= rate.median && rate.median <= rate.max, "{rate:?}");
            assert!(rate.max.is_finite(), "{rate:?}");
        }
        let bytes = Cost { weight_bytes: ceilings.read().median as u64, ..Cost::default() };
        assert!((ceilings.floor(bytes) - 1.0).abs() < 1e-6);
        let ops =
            Cost { int8_ops: ceilings.int8().median as u64, f32_ops: ceilings.f32().median as u64, ..bytes };
        assert!((ceilings.floor(ops) - 2.0).abs() < 1e-6);
        assert_eq!(ceilings.with_threads(1).int8(), Rate::default());
    }

    #[test]
    fn a_rate_is_the_median_with_its_extremes() {
        let rate = |samples: &[f64]| {
            let rate = Rate::of(samples);
            (rate.min, rate.median, rate.max)
        };
        assert_eq!(rate(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(rate(&[7.0]), (7.0, 7.0, 7.0));
    }
}
