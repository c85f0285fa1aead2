//! Products of several rows, with weights unpacked to panels.

use std::arch::aarch64::*;

use super::bytes::Bytes;
use super::lanes::Neon;
use super::quants::{QuantNeon, no_scales};
use super::registers::{integers, put_columns};
use super::simd;
use crate::formats::{Min, Quant, Sub};
use crate::isa::Lanes;
use crate::panel::{Chunk, Panel};
use crate::tile::Panels;

impl<M: Bytes, Q: QuantNeon> Panels<Q> for Neon<M> {
    #[inline(always)]
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
        simd!(unpack_panel::<M, Q>(panel, rows, blocks));
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize>(
        panel: *const Panel,
        blocks: usize,
        x: [Chunk; R],
        acc: [*mut f32; R],
    ) {
        // SAFETY: a valid, unpacked panel, as the caller promises.
        let panel = unsafe { &*panel };
        for b in 0..blocks {
            simd!(if M::WIDE && Q::SUB != Sub::Half {
                multiply_block::<M, Q, 4, R>(panel, b, &x, &acc);
            } else {
                multiply_block::<M, Q, 2, R>(panel, b, &x, &acc);
            });
        }
    }
}

/// [`crate::tile::Panels::unpack`]. The offset is subtracted from each quant if the result fits in a byte.
///
/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
unsafe fn unpack_panel<M: Bytes, Q: QuantNeon>(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
    simd!({
        let panel = &mut *panel;
        for b in 0..blocks {
            for quarter in 0..4 {
                let mut v = [[vdupq_n_s8(0); 2]; 4];
                for o in 0..4 {
                    let row = rows[quarter * 4 + o].add(b / 8 * Q::OCTET_BYTES);
                    v[o] = Q::load(row, b % 8);
                    // Prefetch the same blocks of the next panel, two octets further: about a cache line for every
                    // other block.
                    let next = row.wrapping_add(2 * Q::OCTET_BYTES + b % 8 * (Q::OCTET_BYTES / 8));
                    Neon::<M>::prefetch(next);
                    if !Q::SIGNED && Q::OFFSET != 0 {
                        for v in &mut v[o] {
                            *v = vsubq_s8(*v, vdupq_n_s8(Q::OFFSET as i8));
                        }
                    }
                }
                M::place(&mut panel.quants[b], quarter, v);
            }
        }
        if Q::PLANES {
            return;
        }
        for octet in 0..blocks / 8 {
            for quarter in 0..4 {
                octet_scales::<Q>(panel, rows, octet, quarter);
            }
        }
        // After the last whole octet only its blocks may be read.
        for (o, row) in rows.iter().enumerate() {
            for b in blocks / 8 * 8..blocks {
                panel.set_scales::<Neon<M>, Q>(o, b, row.add(b / 8 * Q::OCTET_BYTES));
            }
        }
    });
}

/// Stores the scales of a whole octet of four outputs.
///
/// # Safety
/// The octet can be read at each row.
#[inline(always)]
unsafe fn octet_scales<Q: QuantNeon>(
    panel: &mut Panel,
    rows: &[*const u8; 16],
    octet: usize,
    quarter: usize,
) {
    simd!({
        let mut scales = [no_scales(); 4];
        for o in 0..4 {
            scales[o] = Q::scales(rows[quarter * 4 + o].add(octet * Q::OCTET_BYTES));
        }
        let from = quarter * 4;
        let zero = [vdupq_n_u32(0); 4];
        for i in 0..2 {
            let (mut d, mut m) = (zero, zero);
            for o in 0..4 {
                d[o] = vreinterpretq_u32_f32(scales[o].d[i]);
                m[o] = vreinterpretq_u32_f32(scales[o].m[i]);
            }
            let first = octet * 8 + i * 4;
            put_columns(&mut panel.d[first..first + 4], from, d);
            if Q::MIN != Min::None {
                put_columns(&mut panel.m[first..first + 4], from, m);
            }
        }
        for i in 0..4 {
            // Two per block.
            let first = octet * 16 + i * 4;
            let (mut sub, mut min) = (zero, zero);
            for o in 0..4 {
                sub[o] = vreinterpretq_u32_f32(vcvtq_f32_s32(integers(scales[o].half_sub)[i]));
                min[o] = vreinterpretq_u32_f32(vcvtq_f32_s32(integers(scales[o].half_min)[i]));
            }
            if Q::SUB == Sub::Half {
                put_columns(&mut panel.sub[first..first + 4], from, sub);
            }
            if Q::MIN == Min::Half {
                put_columns(&mut panel.min[first..first + 4], from, min);
            }
        }
    });
}

/// Adds the products of block `b`, G quarters of the outputs at a time.
///
/// # Safety
/// Block `b` can be read in each chunk, and its sixteen accumulators read and written in each of `acc`.
#[inline(always)]
unsafe fn multiply_block<M: Bytes, Q: QuantNeon, const G: usize, const R: usize>(
    panel: &Panel,
    b: usize,
    x: &[Chunk; R],
    acc: &[*mut f32; R],
) {
    simd!({
        let mut mins = [[0.0; 2]; R];
        if Q::MIN != Min::None {
            for r in 0..R {
                mins[r] = sums_of_halves::<Q>(&x[r], b);
            }
        }
        for first in (0..4).step_by(G) {
            let sums = scaled_sums::<M, Q, G, R>(panel, b, first, x);
            for r in 0..R {
                let dx = *x[r].scales.add(b);
                for g in 0..G {
                    let o = (first + g) * 4;
                    let at = acc[r].add(b * 16 + o);
                    let d = vmulq_n_f32(vld1q_f32(panel.d[b].0[o..].as_ptr()), dx);
                    let mut lanes = vfmaq_f32(vld1q_f32(at), sums[r][g], d);
                    if Q::MIN == Min::Half {
                        let low = vmulq_n_f32(vld1q_f32(panel.min[b * 2].0[o..].as_ptr()), mins[r][0]);
                        let high = vld1q_f32(panel.min[b * 2 + 1].0[o..].as_ptr());
                        let min = vmulq_n_f32(vfmaq_n_f32(low, high, mins[r][1]), dx);
                        lanes = vfmaq_f32(lanes, vld1q_f32(panel.m[b].0[o..].as_ptr()), min);
                    } else if Q::MIN != Min::None {
                        lanes = vfmaq_n_f32(lanes, vld1q_f32(panel.m[b].0[o..].as_ptr()), mins[r][0] * dx);
                    }
                    vst1q_f32(at, lanes);
                }
            }
        }
    });
}

/// Σ x of block `b`, or of its halves if they have their own mins.
///
/// # Safety
/// Block `b` of the chunk can be read.
#[inline(always)]
unsafe fn sums_of_halves<Q: Quant>(x: &Chunk, b: usize) -> [f32; 2] {
    simd!({
        let sum = *x.sums.add(b);
        if Q::MIN != Min::Half {
            return [sum as f32, 0.0];
        }
        let first = i32::from(vaddlvq_s8(vld1q_s8(x.quants.add(b * 32))));
        [first as f32, (sum - first) as f32]
    })
}

/// Σ quant · x of block `b`, exactly, including the sub-scales of halves.
///
/// # Safety
/// Block `b` can be read in each chunk.
#[inline(always)]
unsafe fn scaled_sums<M: Bytes, Q: QuantNeon, const G: usize, const R: usize>(
    panel: &Panel,
    b: usize,
    first: usize,
    x: &[Chunk; R],
) -> [[float32x4_t; G]; R] {
    simd!({
        let mut scaled = [[vdupq_n_f32(0.0); G]; R];
        if Q::SUB == Sub::Half {
            let low = M::sums::<Q, G, R>(panel, b, 0..1, first, x);
            let high = M::sums::<Q, G, R>(panel, b, 1..2, first, x);
            for g in 0..G {
                let o = (first + g) * 4;
                let sub = vld1q_f32(panel.sub[b * 2].0[o..].as_ptr());
                let sub_high = vld1q_f32(panel.sub[b * 2 + 1].0[o..].as_ptr());
                for r in 0..R {
                    let low = vmulq_f32(vcvtq_f32_s32(low[r][g]), sub);
                    scaled[r][g] = vfmaq_f32(low, vcvtq_f32_s32(high[r][g]), sub_high);
                }
            }
            return scaled;
        }
        let sums = M::sums::<Q, G, R>(panel, b, 0..2, first, x);
        for r in 0..R {
            for g in 0..G {
                let mut sum = sums[r][g];
                if Q::SIGNED && Q::OFFSET != 0 {
                    // The offset was not subtracted in the panel, as the result would not fit in a byte.
                    sum = vsubq_s32(sum, vdupq_n_s32(Q::OFFSET * *x[r].sums.add(b)));
                }
                scaled[r][g] = vcvtq_f32_s32(sum);
            }
        }
        scaled
    })
}
