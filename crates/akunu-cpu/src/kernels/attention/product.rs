//! The one loop of attention: a few rows of numbers times sixteens of columns.

use crate::floats::FloatWeight;
use crate::isa::Lanes;
use crate::panel::SCORES;

/// How far ahead of its use halves are asked for, in bytes: they come straight from the cache.
const PREFETCH: usize = 4096;
/// The same of keys, which are read at several places in turn, of all places together.
const KEYS_AHEAD: usize = 16 << 10;

/// `to[r] = Σ a[r][i] · b[i]`, i in order, for sixteens of columns; values are added to what is there.
#[derive(Clone, Copy)]
struct Product {
    a: *const f32,
    /// Elements from a row to the next.
    a_stride: usize,
    /// Floats, or halves.
    b: *const u8,
    /// Elements from an i to the next.
    b_stride: usize,
    /// Elements from a sixteen of columns to the next.
    b_apart: usize,
    n: usize,
    to: *mut f32,
    to_stride: usize,
}

/// What differs from one product to the next; a kind does not look at what it knows.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(super) a: *const f32,
    pub(super) b: *const u8,
    pub(super) to: *mut f32,
    /// Elements of a head, in whole sixteens.
    pub(super) padded: usize,
    pub(super) n: usize,
}

/// Rows and sixteens of columns; as for [`multiply`](Product::multiply).
pub(crate) type Multiply = unsafe fn(Operands, usize, usize);

/// The kinds of products. They are large, so each is compiled by itself, and once.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub(crate) lean_scores: Multiply,
    pub(crate) scores: Multiply,
    pub(crate) values: Multiply,
    pub(crate) lean_values: Multiply,
}

/// Scores, from keys in sixteens of positions.
#[inline(always)]
pub(crate) unsafe fn scores<V: Lanes, B: FloatWeight>(o: Operands, rows: usize, sixteens: usize) {
    let Operands { a, b, to, padded, n } = o;
    let b_apart = n * 16;
    let product = Product { a, a_stride: padded, b, b_stride: 16, b_apart, n, to, to_stride: SCORES };
    // SAFETY: passed on.
    unsafe { product.multiply::<V, B, true>(rows, sixteens) }
}

/// Values by weights, added.
#[inline(always)]
pub(crate) unsafe fn values<V: Lanes, B: FloatWeight>(o: Operands, rows: usize, sixteens: usize) {
    let Operands { a, b, to, padded, n } = o;
    let product = Product { a, a_stride: SCORES, b, b_stride: padded, b_apart: 16, n, to, to_stride: padded };
    // SAFETY: passed on.
    unsafe { product.multiply::<V, B, false>(rows, sixteens) }
}

/// Most rows at once: as many as leave room for the columns in an instruction set's registers.
#[inline(always)]
pub(super) fn most_rows<V: Lanes>() -> usize {
    match V::REGISTERS {
        32.. => 8,
        8.. => 6,
        _ => 1,
    }
}

impl Product {
    /// Most sixteens of columns at once: so many that sums hide each other's latency and yet stay in registers.
    #[inline(always)]
    const fn most_columns<V: Lanes>(rows: usize) -> usize {
        match (V::REGISTERS, rows) {
            (32.., 1..=2) => 8,
            (32.., 3..=4) | (8.., 1) => 4,
            (32.., 5..=8) | (8.., 2) => 2,
            (8.., 3..=6) | (_, 1) => 1,
            _ => 0,
        }
    }

    /// # Safety
    /// Everything that the fields say can be read and written; at most `most_rows` rows.
    #[inline(always)]
    unsafe fn multiply<V: Lanes, B: FloatWeight, const KEYS: bool>(mut self, rows: usize, sixteens: usize) {
        /// Those that there are; the rest compiles to nothing.
        macro_rules! blocks {
            ($columns:expr; $($c:literal: $($r:literal)+),+) => {
                match ($columns, rows) {
                    $($(($c, $r) if const { $c <= Self::most_columns::<V>($r) } => self.block::<V, B, KEYS, $r, $c>(),)+)+
                    _ => {}
                }
            };
        }
        let mut left = sixteens;
        while left > 0 {
            let columns = Self::most_columns::<V>(rows).min(1 << left.ilog2());
            // SAFETY: as the caller promises.
            unsafe {
                blocks!(columns; 1: 1 2 3 4 5 6 7 8, 2: 1 2 3 4 5 6 7 8, 4: 1 2 3 4, 8: 1 2);
                self.b = self.b.add(columns * self.b_apart * B::BYTES);
                self.to = self.to.add(columns * 16);
            }
            left -= columns;
        }
    }

    #[inline(always)]
    unsafe fn block<V: Lanes, B: FloatWeight, const KEYS: bool, const R: usize, const C: usize>(&self) {
        let mut acc = [[V::zero(); C]; R];
        // SAFETY: as the caller promises.
        unsafe {
            if !KEYS {
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = V::load(self.to.add(r * self.to_stride + c * 16));
                    }
                }
            }
            let sixteen = self.b_apart * B::BYTES;
            let near = sixteen.min(KEYS_AHEAD / C);
            for i in 0..self.n {
                let mut b = [V::zero(); C];
                let mut ahead = near;
                if i * 16 * B::BYTES + near >= sixteen {
                    // Past the end of a sixteen, that after those that are read beside it.
                    ahead += (C - 1) * sixteen;
                }
                for c in 0..C {
                    let from = self.b.add((i * self.b_stride + c * self.b_apart) * B::BYTES);
                    if B::BYTES == 2 && KEYS && i % 2 == 0 {
                        V::prefetch(from.wrapping_add(ahead));
                    } else if B::BYTES == 2 && !KEYS && c % 2 == 0 {
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
