//! The inner loop of attention: a few rows of numbers times groups of sixteen columns.

use crate::formats::floats::FloatWeight;
use crate::isa::Lanes;
use crate::panel::SCORES;

/// The prefetch distance in bytes for f16 values, which are read directly from the cache.
const PREFETCH: usize = 4096;
/// The prefetch distance for keys, over all streams that are read alternately.
const KEYS_AHEAD: usize = 16 << 10;

/// `to[r] = Σ a[r][i] · b[i]`, i in order, for groups of sixteen columns; for values `to` is accumulated on.
#[derive(Clone, Copy)]
struct Product {
    a: *const f32,
    /// Row stride in elements.
    a_stride: usize,
    /// f32 or f16.
    b: *const u8,
    /// Stride of i in elements.
    b_stride: usize,
    /// Stride of groups of sixteen columns in elements.
    b_apart: usize,
    n: usize,
    to: *mut f32,
    to_stride: usize,
}

/// The operands that differ between products; each kind of product uses some of them.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(super) a: *const f32,
    pub(super) b: *const u8,
    pub(super) to: *mut f32,
    /// Elements of a head, padded to a multiple of sixteen.
    pub(super) padded: usize,
    pub(super) n: usize,
}

/// A product of (operands, rows, groups of sixteen columns).
///
/// # Safety
/// All elements of the operands for these rows and columns can be read, and the results written; `rows` is at most
/// `most_rows` of the instruction set.
pub(crate) type Multiply = unsafe fn(Operands, usize, usize);

/// The kinds of products. They are large, so each is compiled once, as a separate function.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub(crate) lean_scores: Multiply,
    pub(crate) scores: Multiply,
    pub(crate) values: Multiply,
    pub(crate) lean_values: Multiply,
}

/// Scores from interleaved keys.
///
/// # Safety
/// As for [`Multiply`].
#[inline(always)]
pub(crate) unsafe fn scores<V: Lanes, B: FloatWeight>(o: Operands, rows: usize, sixteens: usize) {
    let Operands { a, b, to, padded, n } = o;
    let b_apart = n * 16;
    let product = Product { a, a_stride: padded, b, b_stride: 16, b_apart, n, to, to_stride: SCORES };
    // SAFETY: the strides are those of the operands, which are valid as the caller promises.
    unsafe { product.multiply::<V, B, true>(rows, sixteens) }
}

/// Adds weights · values.
///
/// # Safety
/// As for [`Multiply`].
#[inline(always)]
pub(crate) unsafe fn values<V: Lanes, B: FloatWeight>(o: Operands, rows: usize, sixteens: usize) {
    let Operands { a, b, to, padded, n } = o;
    let product = Product { a, a_stride: SCORES, b, b_stride: padded, b_apart: 16, n, to, to_stride: padded };
    // SAFETY: the strides are those of the operands, which are valid as the caller promises.
    unsafe { product.multiply::<V, B, false>(rows, sixteens) }
}

/// The most rows at once: as many accumulators as leave registers for the columns.
#[inline(always)]
pub(super) fn most_rows<V: Lanes>() -> usize {
    match V::REGISTERS {
        32.. => 8,
        8.. => 6,
        _ => 1,
    }
}

impl Product {
    /// The most groups of sixteen columns at once: enough independent sums to hide the latency of fma, few enough for
    /// registers.
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
    /// All elements for these rows and columns can be read at `a` and `b`, and the results read and written
    /// at `to`; at most `most_rows` rows.
    #[inline(always)]
    unsafe fn multiply<V: Lanes, B: FloatWeight, const KEYS: bool>(mut self, rows: usize, sixteens: usize) {
        /// Only the combinations that fit the registers are compiled.
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
            // SAFETY: within the rows and columns that the caller promises to be valid.
            unsafe {
                blocks!(columns; 1: 1 2 3 4 5 6 7 8, 2: 1 2 3 4 5 6 7 8, 4: 1 2 3 4, 8: 1 2);
                self.b = self.b.add(columns * self.b_apart * B::BYTES);
                self.to = self.to.add(columns * 16);
            }
            left -= columns;
        }
    }

    /// # Safety
    /// As for [`Product::multiply`], for R rows and C groups of columns.
    #[inline(always)]
    unsafe fn block<V: Lanes, B: FloatWeight, const KEYS: bool, const R: usize, const C: usize>(&self) {
        let mut acc = [[V::zero(); C]; R];
        // SAFETY: within the rows and columns that the caller promises to be valid.
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
                    // At the end of a group, skip to the group after those that are read alternately.
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
