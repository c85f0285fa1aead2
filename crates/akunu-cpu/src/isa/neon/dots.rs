//! Products of one row: the integer sums of sixteen blocks of an output at a time, weights in their stored layout.

use std::arch::aarch64::*;

use super::bytes::Bytes;
use super::lanes::Neon;
use super::quants::{Eight, QuantNeon, Scales, no_scales};
use super::registers::{integers, reduce4};
use super::simd;
use crate::formats::{Min, Sub};
use crate::tile::{self, Dot, Terms, Tile};

impl<M: Bytes, Q: QuantNeon> Dot<Q> for Neon<M> {
    #[inline(always)]
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Self> {
        simd!({
            let (high_w, high_x) = (w.wrapping_add(Q::OCTET_BYTES), x.wrapping_add(256));
            let high_sums = sums.wrapping_add(8);
            let low = if blocks >= 8 {
                terms_octet::<M, Q>(w, x, sums)
            } else {
                terms_part::<M, Q>(w, x, sums, blocks)
            };
            let high = if blocks == 16 {
                terms_octet::<M, Q>(high_w, high_x, high_sums)
            } else {
                terms_part::<M, Q>(high_w, high_x, high_sums, blocks.saturating_sub(8))
            };
            Terms {
                sum: join(low.sum, high.sum),
                d: join(low.d, high.d),
                min_sum: join(low.min_sum, high.min_sum),
                m: join(low.m, high.m),
            }
        })
    }

    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { tile::rows_or_panels::<Self, Q>(t) }
    }
}

#[inline(always)]
fn join<M>(low: [float32x4_t; 2], high: [float32x4_t; 2]) -> Neon<M> {
    Neon::of([low[0], low[1], high[0], high[1]])
}

/// The first or the second eight lanes of [`crate::tile::Dot::terms`]. Written out, because in loops the arrays of
/// registers would be kept in memory.
///
/// # Safety
/// A whole octet can be read at each pointer; the processor has the features of `M`.
#[inline(always)]
unsafe fn terms_octet<M: Bytes, Q: QuantNeon>(w: *const u8, x: *const i8, sums: *const i32) -> Terms<Eight> {
    simd!({
        let scales = Q::scales(w);
        let v = if Q::SUB == Sub::Half {
            let sums = [
                two_blocks::<M, Q>(w, x, 0),
                two_blocks::<M, Q>(w, x, 2),
                two_blocks::<M, Q>(w, x, 4),
                two_blocks::<M, Q>(w, x, 6),
            ];
            weighted(sums, scales.half_sub)
        } else {
            [four_blocks::<M, Q>(w, x, 0), four_blocks::<M, Q>(w, x, 4)]
        };
        let mins = if Q::MIN == Min::Half {
            let ones = [vdupq_n_s8(1); 4];
            let sums = [
                four_halves::<M>(ones, x),
                four_halves::<M>(ones, x.add(64)),
                four_halves::<M>(ones, x.add(128)),
                four_halves::<M>(ones, x.add(192)),
            ];
            weighted(sums, scales.half_min)
        } else {
            [vld1q_s32(sums), vld1q_s32(sums.add(4))]
        };
        finish_terms::<Q>(v, mins, &scales)
    })
}

/// The terms of `blocks` < 8 blocks of the older types; nothing past the last block is read.
///
/// # Safety
/// `blocks` blocks can be read at each pointer.
#[inline(always)]
unsafe fn terms_part<M: Bytes, Q: QuantNeon>(
    w: *const u8,
    x: *const i8,
    sums: *const i32,
    blocks: usize,
) -> Terms<Eight> {
    simd!({
        let zero = [vdupq_n_s32(0); 4];
        let (mut v, mut d, mut m, mut mins) = ([zero; 2], [0.0_f32; 8], [0.0_f32; 8], [0_i32; 8]);
        // Super-blocks are always whole octets.
        for b in 0..if Q::BLOCKS == 1 { blocks } else { 0 } {
            v[b / 4][b % 4] = block::<M, Q>(w, x, b);
            (d[b], m[b]) = Q::block_scales::<Neon<M>>(w, b);
            mins[b] = *sums.add(b);
        }
        let (d, m) = (
            [vld1q_f32(d[..4].as_ptr()), vld1q_f32(d[4..].as_ptr())],
            [vld1q_f32(m[..4].as_ptr()), vld1q_f32(m[4..].as_ptr())],
        );
        let mins = [vld1q_s32(mins[..4].as_ptr()), vld1q_s32(mins[4..].as_ptr())];
        finish_terms::<Q>([reduce4(v[0]), reduce4(v[1])], mins, &Scales { d, m, ..no_scales() })
    })
}

/// Computes the terms from eight blocks' products and sums of activations (those of the halves with their mins).
#[inline(always)]
fn finish_terms<Q: QuantNeon>(v: [int32x4_t; 2], mins: [int32x4_t; 2], scales: &Scales) -> Terms<Eight> {
    let zero = simd!(vdupq_n_f32(0.0));
    let (mut sum, mut min_sum) = ([zero; 2], [zero; 2]);
    for i in 0..2 {
        simd!({
            sum[i] = vcvtq_f32_s32(vmlsq_n_s32(v[i], mins[i], Q::OFFSET));
            if Q::MIN != Min::None {
                min_sum[i] = vcvtq_f32_s32(mins[i]);
            }
        });
    }
    Terms { sum, d: scales.d, min_sum, m: scales.m }
}

/// The sums of sixteen halves, each times its factor, added in pairs to eight.
#[inline(always)]
fn weighted(sums: [int32x4_t; 4], numbers: int8x16_t) -> [int32x4_t; 2] {
    let numbers = integers(numbers);
    let mut v = [simd!(vdupq_n_s32(0)); 4];
    for i in 0..4 {
        v[i] = simd!(vmulq_s32(sums[i], numbers[i]));
    }
    simd!([vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])])
}

/// The products of block `b` of an octet, in four partial sums.
///
/// # Safety
/// Block `b` can be read at `w` and `x`.
#[inline(always)]
unsafe fn block<M: Bytes, Q: QuantNeon>(w: *const u8, x: *const i8, b: usize) -> int32x4_t {
    simd!(M::block::<Q>(Q::load(w, b), [vld1q_s8(x.add(b * 32)), vld1q_s8(x.add(b * 32 + 16))]))
}

/// Those of four blocks from `b` on, summed.
///
/// # Safety
/// The four blocks can be read at `w` and `x`.
#[inline(always)]
unsafe fn four_blocks<M: Bytes, Q: QuantNeon>(w: *const u8, x: *const i8, b: usize) -> int32x4_t {
    simd!(reduce4([
        block::<M, Q>(w, x, b),
        block::<M, Q>(w, x, b + 1),
        block::<M, Q>(w, x, b + 2),
        block::<M, Q>(w, x, b + 3),
    ]))
}

/// Those of two blocks from `b` on, with each half separate.
///
/// # Safety
/// The two blocks can be read at `w` and `x`.
#[inline(always)]
unsafe fn two_blocks<M: Bytes, Q: QuantNeon>(w: *const u8, x: *const i8, b: usize) -> int32x4_t {
    simd!({
        let ([q0, q1], [q2, q3]) = (Q::load(w, b), Q::load(w, b + 1));
        four_halves::<M>([q0, q1, q2, q3], x.add(b * 32))
    })
}

/// Σ q · x of four half blocks.
///
/// # Safety
/// 64 activations can be read at `x`.
#[inline(always)]
unsafe fn four_halves<M: Bytes>(q: [int8x16_t; 4], x: *const i8) -> int32x4_t {
    simd!(reduce4([
        M::half_block(q[0], vld1q_s8(x)),
        M::half_block(q[1], vld1q_s8(x.add(16))),
        M::half_block(q[2], vld1q_s8(x.add(32))),
        M::half_block(q[3], vld1q_s8(x.add(48))),
    ]))
}
