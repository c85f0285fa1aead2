//! Products of one row.

use super::lanes::Scalar;
use crate::formats::{Min, Quant, Sub};
use crate::tile::{self, Dot, Terms, Tile};

impl<Q: Quant> Dot<Q> for Scalar {
    #[inline(never)]
    unsafe fn terms(w: *const u8, x: *const i8, _sums: *const i32, blocks: usize) -> Terms<Scalar> {
        let mut t = Terms { sum: [0.0; 16], d: [0.0; 16], min_sum: [0.0; 16], m: [0.0; 16] };
        for l in 0..blocks {
            // SAFETY: `l` < `blocks`, and `blocks` blocks of both can be read, as the caller promises.
            unsafe {
                let (w, b) = (w.add(l / 8 * Q::OCTET_BYTES), l % 8);
                let (sum, mins) = integers::<Q>(w, b, x.add(l * 32));
                (t.sum[l], t.min_sum[l]) = (sum as f32, mins as f32);
                (t.d[l], t.m[l]) = Q::block_scales::<Scalar>(w, b);
            }
        }
        Terms { sum: Scalar(t.sum), d: Scalar(t.d), min_sum: Scalar(t.min_sum), m: Scalar(t.m) }
    }

    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same tile, with the same contract.
        unsafe { tile::rows_or_panels::<Self, Q>(t) }
    }
}

/// The exact integers of one block: Σ quant · x and Σ x, including the sub-scales and mins of halves.
///
/// # Safety
/// Block `b` can be read at `w`, and 32 activations at `x`.
#[inline(always)]
unsafe fn integers<Q: Quant>(w: *const u8, b: usize, x: *const i8) -> (i32, i32) {
    // SAFETY: a whole block of weights and 32 activations, as the caller promises.
    unsafe {
        let sub = if Q::SUB == Sub::Half { Q::sub(w, b) } else { [1, 1] };
        let min = if Q::MIN == Min::Half { Q::min(w, b) } else { [1, 1] };
        sums(&quants::<Q>(w, b), Q::OFFSET, &x.cast::<[i8; 32]>().read(), sub, min)
    }
}

/// The same of any type; only how its quants are read is compiled for each.
#[inline(never)]
fn sums(quants: &[i8; 32], offset: i32, x: &[i8; 32], sub: [i32; 2], min: [i32; 2]) -> (i32, i32) {
    let (mut sum, mut mins) = (0, 0);
    for half in 0..2 {
        let (mut dot, mut xs) = (0, 0);
        for i in half * 16..half * 16 + 16 {
            let x = i32::from(x[i]);
            dot += (i32::from(quants[i]) - offset) * x;
            xs += x;
        }
        sum += dot * sub[half];
        mins += xs * min[half];
    }
    (sum, mins)
}

/// # Safety
/// Block `b` can be read at `w`.
#[inline(never)]
pub(super) unsafe fn quants<Q: Quant>(w: *const u8, b: usize) -> [i8; 32] {
    // SAFETY: as the caller promises.
    unsafe { Q::quants(w, b) }
}
