//! Parts, sums and transposes of registers.

use std::arch::aarch64::*;

use akunu_format::ScaleType;

use super::simd;
use crate::panel::F16x;

/// The first `n` ≤ 4 elements; the other lanes are 0.
///
/// # Safety
/// `n` elements can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
    simd!({
        let zero = vdupq_n_f32(0.0);
        match n {
            0 => zero,
            1 => vsetq_lane_f32::<0>(p.read_unaligned(), zero),
            2 => vcombine_f32(vld1_f32(p), vget_low_f32(zero)),
            3 => {
                let two = vcombine_f32(vld1_f32(p), vget_low_f32(zero));
                vsetq_lane_f32::<2>(p.add(2).read_unaligned(), two)
            }
            _ => vld1q_f32(p),
        }
    })
}

#[inline(always)]
pub(crate) unsafe fn store_part(v: float32x4_t, p: *mut f32, n: usize) {
    simd!(match n {
        0 => {}
        1 => p.write_unaligned(vgetq_lane_f32::<0>(v)),
        2 => vst1_f32(p, vget_low_f32(v)),
        3 => {
            vst1_f32(p, vget_low_f32(v));
            p.add(2).write_unaligned(vgetq_lane_f32::<2>(v));
        }
        _ => vst1q_f32(p, v),
    });
}

#[inline(always)]
pub(crate) unsafe fn widen_f16(p: *const u8) -> float32x4_t {
    simd!(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))))
}

#[inline(always)]
pub(crate) unsafe fn widen_bf16(p: *const u8) -> float32x4_t {
    simd!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p)))))
}

/// Four numbers as f32.
///
/// # Safety
/// Four numbers of the type can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn four(p: *const u8, kind: ScaleType) -> float32x4_t {
    simd!(match kind {
        ScaleType::F16 => widen_f16(p),
        ScaleType::BF16 => widen_bf16(p),
        ScaleType::F32 => vld1q_f32(p.cast()),
    })
}

/// The first two steps of the canonical reduction tree.
#[inline(always)]
pub(crate) fn fold(v: [float32x4_t; 4]) -> float32x4_t {
    simd!(vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3])))
}

/// Its third step, for two values at once: `[a a b b]`.
#[inline(always)]
pub(crate) fn halve(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    simd!({
        let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        let (low, high) = (vzip1q_f64(a, b), vzip2q_f64(a, b));
        vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
    })
}

/// The sums of four registers, in order.
#[inline(always)]
pub(crate) fn reduce4(v: [int32x4_t; 4]) -> int32x4_t {
    simd!(vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])))
}

/// Sixteen bytes as four registers of integers.
#[inline(always)]
pub(crate) fn integers(v: int8x16_t) -> [int32x4_t; 4] {
    simd!({
        let (low, high) = (vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    })
}

/// Transposes four rows.
#[inline(always)]
pub(crate) fn transpose4(v: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    simd!({
        let (a, b) = (vtrn1q_u32(v[0], v[1]), vtrn2q_u32(v[0], v[1]));
        let (c, d) = (vtrn1q_u32(v[2], v[3]), vtrn2q_u32(v[2], v[3]));
        let (a, b) = (vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b));
        let (c, d) = (vreinterpretq_u64_u32(c), vreinterpretq_u64_u32(d));
        [
            vreinterpretq_u32_u64(vtrn1q_u64(a, c)),
            vreinterpretq_u32_u64(vtrn1q_u64(b, d)),
            vreinterpretq_u32_u64(vtrn2q_u64(a, c)),
            vreinterpretq_u32_u64(vtrn2q_u64(b, d)),
        ]
    })
}

/// Stores the columns of four rows as `[column][first + row]`.
#[inline(always)]
pub(crate) fn put_columns(to: &mut [F16x], first: usize, rows: [uint32x4_t; 4]) {
    for (column, to) in transpose4(rows).into_iter().zip(to) {
        let to = to.0[first..first + 4].as_mut_ptr();
        simd!(vst1q_u32(to.cast(), column));
    }
}
