//! The one loop of attention: a few rows of numbers times sixteens of columns.

use crate::isa::Lanes;

/// `to[r] (+)= Σ a[r][i] · b[i]`, i in order, for sixteens of columns.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) a: *const f32,
    /// Elements from a row to the next.
    pub(super) a_stride: usize,
    pub(super) b: *const f32,
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

    /// # Safety
    /// Everything that the fields say can be read and written; at most `most_rows` rows.
    #[inline(always)]
    pub(super) unsafe fn multiply<V: Lanes>(mut self, rows: usize, sixteens: usize) {
        let mut left = sixteens;
        while left > 0 {
            let columns = if V::WIDE || rows <= 2 { left.min(2) } else { 1 };
            // SAFETY: as the caller promises.
            unsafe {
                match (columns, rows) {
                    (1, 1) => self.block::<V, 1, 1>(),
                    (1, 2) => self.block::<V, 2, 1>(),
                    (1, 3) => self.block::<V, 3, 1>(),
                    (1, 4) => self.block::<V, 4, 1>(),
                    (1, 5) => self.block::<V, 5, 1>(),
                    (1, 6) => self.block::<V, 6, 1>(),
                    (1, 7) if V::WIDE => self.block::<V, 7, 1>(),
                    (1, 8) if V::WIDE => self.block::<V, 8, 1>(),
                    (2, 1) => self.block::<V, 1, 2>(),
                    (2, 2) => self.block::<V, 2, 2>(),
                    (2, 3) if V::WIDE => self.block::<V, 3, 2>(),
                    (2, 4) if V::WIDE => self.block::<V, 4, 2>(),
                    (2, 5) if V::WIDE => self.block::<V, 5, 2>(),
                    (2, 6) if V::WIDE => self.block::<V, 6, 2>(),
                    (2, 7) if V::WIDE => self.block::<V, 7, 2>(),
                    (2, 8) if V::WIDE => self.block::<V, 8, 2>(),
                    _ => {}
                }
                self.b = self.b.add(columns * self.b_apart);
                self.to = self.to.add(columns * 16);
            }
            left -= columns;
        }
    }

    #[inline(always)]
    unsafe fn block<V: Lanes, const R: usize, const C: usize>(&self) {
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
                    b[c] = V::load(self.b.add(i * self.b_stride + c * self.b_apart));
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
