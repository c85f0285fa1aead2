//! The one loop of attention: a few rows of numbers times sixteens of columns.

use crate::floats::FloatWeight;
use crate::isa::Lanes;

/// How far ahead of its use halves are asked for, in bytes: they come straight from the cache.
const PREFETCH: usize = 4096;

/// `to[r] (+)= Σ a[r][i] · b[i]`, i in order, for sixteens of columns.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) a: *const f32,
    /// Elements from a row to the next.
    pub(super) a_stride: usize,
    /// Floats, or halves.
    pub(super) b: *const u8,
    /// Elements from an i to the next.
    pub(super) b_stride: usize,
    /// Elements from a sixteen of columns to the next.
    pub(super) b_apart: usize,
    pub(super) n: usize,
    pub(super) to: *mut f32,
    pub(super) to_stride: usize,
    /// Adds to what is there, instead of to 0.
    pub(super) adds: bool,
}

impl Product {
    /// Most rows at once: as many as leave room for the columns in an instruction set's registers.
    #[inline(always)]
    pub(super) fn most_rows<V: Lanes>() -> usize {
        if V::WIDE { 8 } else { 6 }
    }

    /// Sixteens of columns at once: so many that sums hide each other's latency and yet stay in registers.
    #[inline(always)]
    fn columns<V: Lanes>(rows: usize, left: usize) -> usize {
        let most = match (V::WIDE, rows) {
            (true, 1..=2) => 8,
            (true, 3..=4) | (false, 1) => 4,
            (true, _) | (false, 2) => 2,
            (false, _) => 1,
        };
        most.min(1 << left.ilog2())
    }

    /// # Safety
    /// Everything that the fields say can be read and written; at most `most_rows` rows.
    #[inline(always)]
    pub(super) unsafe fn multiply<V: Lanes, B: FloatWeight>(mut self, rows: usize, sixteens: usize) {
        let mut left = sixteens;
        while left > 0 {
            let columns = Self::columns::<V>(rows, left);
            // SAFETY: as the caller promises.
            unsafe {
                match (columns, rows) {
                    (1, 1) => self.block::<V, B, 1, 1>(),
                    (1, 2) => self.block::<V, B, 2, 1>(),
                    (1, 3) => self.block::<V, B, 3, 1>(),
                    (1, 4) => self.block::<V, B, 4, 1>(),
                    (1, 5) => self.block::<V, B, 5, 1>(),
                    (1, 6) => self.block::<V, B, 6, 1>(),
                    (1, 7) if V::WIDE => self.block::<V, B, 7, 1>(),
                    (1, 8) if V::WIDE => self.block::<V, B, 8, 1>(),
                    (2, 1) => self.block::<V, B, 1, 2>(),
                    (2, 2) => self.block::<V, B, 2, 2>(),
                    (2, 3) if V::WIDE => self.block::<V, B, 3, 2>(),
                    (2, 4) if V::WIDE => self.block::<V, B, 4, 2>(),
                    (2, 5) if V::WIDE => self.block::<V, B, 5, 2>(),
                    (2, 6) if V::WIDE => self.block::<V, B, 6, 2>(),
                    (2, 7) if V::WIDE => self.block::<V, B, 7, 2>(),
                    (2, 8) if V::WIDE => self.block::<V, B, 8, 2>(),
                    (4, 1) => self.block::<V, B, 1, 4>(),
                    (4, 2) if V::WIDE => self.block::<V, B, 2, 4>(),
                    (4, 3) if V::WIDE => self.block::<V, B, 3, 4>(),
                    (4, 4) if V::WIDE => self.block::<V, B, 4, 4>(),
                    (8, 1) if V::WIDE => self.block::<V, B, 1, 8>(),
                    (8, 2) if V::WIDE => self.block::<V, B, 2, 8>(),
                    _ => {}
                }
                self.b = self.b.add(columns * self.b_apart * B::BYTES);
                self.to = self.to.add(columns * 16);
            }
            left -= columns;
        }
    }

    #[inline(always)]
    unsafe fn block<V: Lanes, B: FloatWeight, const R: usize, const C: usize>(&self) {
        let mut acc = [[V::zero(); C]; R];
        // SAFETY: as the caller promises.
        unsafe {
            if self.adds {
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = V::load(self.to.add(r * self.to_stride + c * 16));
                    }
                }
            }
            for i in 0..self.n {
                let mut b = [V::zero(); C];
                for c in 0..C {
                    let from = self.b.add((i * self.b_stride + c * self.b_apart) * B::BYTES);
                    if B::BYTES == 2 && c % 2 == 0 {
                        V::prefetch(from.wrapping_add(PREFETCH));
                    }
                    b[c] = B::load::<V>(from);
                }
                for r in 0..R {
                    let a = V::splat(*self.a.add(r * self.a_stride + i));
                    for c in 0..C {
                        acc[r][c] = b[c].fma(a, acc[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    acc[r][c].store(self.to.add(r * self.to_stride + c * 16));
                }
            }
        }
    }
}
