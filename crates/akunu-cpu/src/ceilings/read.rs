//! The peak memory read rate.

use super::together;

/// (streams per thread, prefetch distance of each in bytes; 0: no prefetch). Which is best depends on the chip.
pub const PATTERNS: [(usize, usize); 7] =
    [(1, 0), (1, 2048), (1, 8192), (2, 1024), (4, 1024), (4, 2048), (8, 512)];

/// Two cache lines.
const STEP: usize = 128;

/// The fewest bytes per measurement: a part of a large working set, several passes over a small one.
const READ: usize = 256 << 20;

/// A working set, and where the next measurement starts: each continues where the last one ended, so that it reads
/// what has not been read for the longest time.
pub(super) struct Reader {
    words: Vec<u64>,
    next: usize,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({} bytes)", self.bytes())
    }
}

impl Reader {
    pub(super) fn new(bytes: u64) -> Option<Reader> {
        let count = usize::try_from(bytes / 8).ok()?;
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(count).ok()?;
        ask_for_huge_pages(words.as_mut_ptr().cast(), count * 8);
        // Writing allocates every page.
        words.extend(0..count as u64);
        Some(Reader { words, next: 0 })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Bytes per second.
    pub(super) fn rate(&mut self, pattern: (usize, usize), threads: usize) -> f64 {
        let all = self.words.len();
        let piece = all.min(READ / 8);
        if self.next + piece > all {
            self.next = 0;
        }
        let words = &self.words[self.next..self.next + piece];
        self.next += piece;
        let times = (READ / 8).div_ceil(piece.max(1)).min(1 << 16);
        let share = piece / threads / (STEP / 8) * (STEP / 8);
        let seconds = together(threads, |thread| {
            let part = &words[thread * share..][..share];
            for _ in 0..times {
                std::hint::black_box(read(std::hint::black_box(part), pattern));
            }
        });
        (share * threads * times * 8) as f64 / seconds
    }
}

fn read(words: &[u64], (streams, ahead): (usize, usize)) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected on this processor.
        return unsafe { avx2(words, streams, ahead) };
    }
    plain(words, streams, ahead)
}

/// Streams without prefetching.
fn plain(words: &[u64], streams: usize, _ahead: usize) -> u64 {
    let part = words.len() / streams / (STEP / 8) * (STEP / 8);
    let mut sums = [0u64; STEP / 8];
    for at in (0..part).step_by(STEP / 8) {
        for stream in 0..streams {
            let line = &words[stream * part + at..][..STEP / 8];
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum ^= word;
            }
        }
    }
    sums.into_iter().fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(words: &[u64], streams: usize, ahead: usize) -> u64 {
    use std::arch::x86_64::*;
    let part = words.len() * 8 / streams / STEP * STEP;
    let start = words.as_ptr().cast::<u8>();
    let mut sums = [_mm256_setzero_si256(); 4];
    for at in (0..part).step_by(STEP) {
        for stream in 0..streams {
            let line = start.wrapping_add(stream * part + at);
            if ahead > 0 {
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(ahead).cast());
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(ahead + 64).cast());
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the load is within the stream's part of the words.
                *sum = unsafe { _mm256_xor_si256(*sum, _mm256_loadu_si256(line.add(32 * i).cast())) };
            }
        }
    }
    let [a, b, c, d] = sums;
    let sum = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    _mm256_extract_epi64::<0>(sum) as u64
        ^ _mm256_extract_epi64::<1>(sum) as u64
        ^ _mm256_extract_epi64::<2>(sum) as u64
        ^ _mm256_extract_epi64::<3>(sum) as u64
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    let skip = start.align_offset(PAGE);
    if bytes > skip + PAGE {
        // SAFETY: whole pages inside an allocation, whose contents stay unchanged; a failure is harmless.
        unsafe { libc::madvise(start.add(skip).cast(), (bytes - skip) / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_start: *mut u8, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// All words are read with every pattern, which their exclusive or shows.
    #[test]
    fn every_pattern_reads_every_word() {
        let words: Vec<u64> = (0..8192u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let expected = words.iter().fold(0, |a, b| a ^ b);
        for (streams, ahead) in PATTERNS {
            assert_eq!(read(&words, (streams, ahead)), expected);
            assert_eq!(plain(&words, streams, ahead), expected);
        }
    }

    #[test]
    fn a_working_set_smaller_than_a_line_for_each_thread_is_no_trouble() {
        let mut reader = Reader::new(8).unwrap();
        assert!(reader.rate((8, 512), 3) >= 0.0);
        assert_eq!(Reader::new(0).unwrap().bytes(), 0);
    }
}
