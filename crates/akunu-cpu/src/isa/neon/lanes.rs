//! Sixteen lanes in four registers.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use akunu_format::ScaleType;

use super::bytes::Bytes;
use super::registers::{fold, four, halve, load_part, put_columns, store_part, widen_bf16, widen_f16};
use super::simd;
use crate::isa::Lanes;
use crate::panel::F16x;

/// Lanes 0..4, 4..8, 8..12 and 12..16. `M` is the way to multiply bytes.
#[derive(Clone, Copy)]
pub(crate) struct Neon<M>(pub(crate) [float32x4_t; 4], PhantomData<M>);

impl<M> Neon<M> {
    #[inline(always)]
    pub(crate) fn of(quarters: [float32x4_t; 4]) -> Neon<M> {
        Neon(quarters, PhantomData)
    }
}

/// An operation on all four registers. A macro, because an intrinsic that is passed as a function
/// would be called instead of inlined.
macro_rules! each {
    ($op:ident, $($v:expr),+) => {
        Neon::of([$op($($v.0[0]),+), $op($($v.0[1]),+), $op($($v.0[2]),+), $op($($v.0[3]),+)])
    };
}

impl<M: Bytes> Lanes for Neon<M> {
    const REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Neon::of([simd!(vdupq_n_f32(x)); 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        simd!(Neon::of([vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))]))
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self {
        let mut v = [simd!(vdupq_n_f32(0.0)); 4];
        for i in 0..4 {
            v[i] = simd!(load_part(p.wrapping_add(i * 4), n.saturating_sub(i * 4)));
        }
        Neon::of(v)
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for i in 0..4 {
            simd!(vst1q_f32(p.add(i * 4), self.0[i]));
        }
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        for i in 0..4 {
            simd!(store_part(self.0[i], p.wrapping_add(i * 4), n.saturating_sub(i * 4)));
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        simd!(Neon::of([widen_f16(p), widen_f16(p.add(8)), widen_f16(p.add(16)), widen_f16(p.add(24))]))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        simd!(Neon::of([widen_bf16(p), widen_bf16(p.add(8)), widen_bf16(p.add(16)), widen_bf16(p.add(24))]))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        for i in 0..4 {
            simd!(vst1_u8(p.add(i * 8), vreinterpret_u8_f16(vcvt_f16_f32(self.0[i]))));
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        simd!({
            let v = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
            Neon::of([
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ])
        })
    }

    #[inline(always)]
    fn f16(bits: u16) -> f32 {
        simd!(vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)))))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        simd!(each!(vaddq_f32, self, b))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        simd!(each!(vsubq_f32, self, b))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        simd!(each!(vmulq_f32, self, b))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        simd!(each!(vdivq_f32, self, b))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        simd!(each!(vfmaq_f32, c, self, b))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        each!(larger, self, b)
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        each!(smaller, self, b)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        simd!(each!(vabsq_f32, self))
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        each!(with_sign, self, sign)
    }

    #[inline(always)]
    fn round(self) -> Self {
        simd!(each!(vrndnq_f32, self))
    }

    #[inline(always)]
    fn scale2(self, n: Self) -> Self {
        each!(times_power, self, n)
    }

    #[inline(always)]
    fn select_lt(a: Self, b: Self, x: Self, y: Self) -> Self {
        each!(select_less, a, b, x, y)
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        simd!({
            let v = fold(self.0);
            vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
        })
    }

    #[inline(always)]
    fn deinterleave(a: Self, b: Self) -> [Self; 2] {
        simd!({
            let (a, b) = (a.0, b.0);
            [
                Neon::of([
                    vuzp1q_f32(a[0], a[1]),
                    vuzp1q_f32(a[2], a[3]),
                    vuzp1q_f32(b[0], b[1]),
                    vuzp1q_f32(b[2], b[3]),
                ]),
                Neon::of([
                    vuzp2q_f32(a[0], a[1]),
                    vuzp2q_f32(a[2], a[3]),
                    vuzp2q_f32(b[0], b[1]),
                    vuzp2q_f32(b[2], b[3]),
                ]),
            ]
        })
    }

    #[inline(always)]
    fn interleave(even: Self, odd: Self) -> [Self; 2] {
        simd!({
            let (x, y) = (even.0, odd.0);
            [
                Neon::of([
                    vzip1q_f32(x[0], y[0]),
                    vzip2q_f32(x[0], y[0]),
                    vzip1q_f32(x[1], y[1]),
                    vzip2q_f32(x[1], y[1]),
                ]),
                Neon::of([
                    vzip1q_f32(x[2], y[2]),
                    vzip2q_f32(x[2], y[2]),
                    vzip1q_f32(x[3], y[3]),
                    vzip2q_f32(x[3], y[3]),
                ]),
            ]
        })
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        simd!({
            let v = self.0;
            let v = larger(larger(v[0], v[2]), larger(v[1], v[3]));
            let v = larger(v, vextq_f32::<2>(v, v));
            vgetq_lane_f32::<0>(larger(v, vextq_f32::<1>(v, v)))
        })
    }

    #[inline(always)]
    fn eq_mask(self, b: Self) -> u32 {
        const BITS: [u32; 16] = {
            let mut bits = [0; 16];
            let mut l = 0;
            while l < 16 {
                bits[l] = 1 << l;
                l += 1;
            }
            bits
        };
        simd!({
            let mut mask = vdupq_n_u32(0);
            for i in 0..4 {
                let equal = vceqq_f32(self.0[i], b.0[i]);
                mask = vorrq_u32(mask, vandq_u32(equal, vld1q_u32(BITS[i * 4..].as_ptr())));
            }
            vaddvq_u32(mask)
        })
    }

    #[inline(always)]
    unsafe fn sums8(v: [Self; 8], out: *mut f32) {
        for i in 0..2 {
            let (a, b) = (
                halve(fold(v[i * 4].0), fold(v[i * 4 + 1].0)),
                halve(fold(v[i * 4 + 2].0), fold(v[i * 4 + 3].0)),
            );
            simd!(vst1q_f32(out.add(i * 4), vpaddq_f32(a, b)));
        }
    }

    #[inline(always)]
    unsafe fn quantise_lanes([a, b]: [Self; 2], quants: *mut i8) -> (f32, i32) {
        let (a, b) = (a.0, b.0);
        simd!(quantise_32([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]], quants))
    }

    #[inline(always)]
    unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> Self {
        let mut room = [0_u8; 64];
        simd!({
            let p = if count == 16 {
                p
            } else {
                p.copy_to_nonoverlapping(room.as_mut_ptr(), count / blocks * kind.bytes());
                room.as_ptr()
            };
            let a = four(p, kind);
            let more = p.add(4 * kind.bytes());
            Neon::of(match blocks {
                1 => {
                    let (c, d) = (more.add(4 * kind.bytes()), more.add(8 * kind.bytes()));
                    [a, four(more, kind), four(c, kind), four(d, kind)]
                }
                2 => {
                    let b = four(more, kind);
                    [vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)]
                }
                _ => [
                    vdupq_laneq_f32::<0>(a),
                    vdupq_laneq_f32::<1>(a),
                    vdupq_laneq_f32::<2>(a),
                    vdupq_laneq_f32::<3>(a),
                ],
            })
        })
    }

    #[inline(always)]
    fn transpose(from: &[F16x; 16], to: &mut [F16x; 16]) {
        for i in (0..16).step_by(4) {
            for j in (0..16).step_by(4) {
                let mut v = [simd!(vdupq_n_u32(0)); 4];
                for k in 0..4 {
                    v[k] = simd!(vld1q_u32(from[i + k].0[j..].as_ptr().cast()));
                }
                put_columns(&mut to[j..j + 4], i, v);
            }
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        simd!(asm!("prfm pldl1keep, [{}]", in(reg) p.addr(), options(nomem, nostack, preserves_flags)));
    }
}

/// 2^e
#[inline(always)]
fn power(e: int32x4_t) -> float32x4_t {
    simd!(vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(e, vdupq_n_s32(127)))))
}

#[inline(always)]
fn times_power(x: float32x4_t, n: float32x4_t) -> float32x4_t {
    simd!({
        let n = vcvtnq_s32_f32(n);
        let half = vshrq_n_s32::<1>(n);
        vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(n, half)))
    })
}

/// `a > b ? a : b`. The maximum instruction differs for NaN and signed zeros.
#[inline(always)]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    simd!(vbslq_f32(vcgtq_f32(a, b), a, b))
}

#[inline(always)]
fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    simd!(vbslq_f32(vcltq_f32(a, b), a, b))
}

#[inline(always)]
fn with_sign(magnitude: float32x4_t, sign: float32x4_t) -> float32x4_t {
    simd!(vbslq_f32(vdupq_n_u32(0x8000_0000), sign, magnitude))
}

#[inline(always)]
fn select_less(a: float32x4_t, b: float32x4_t, x: float32x4_t, y: float32x4_t) -> float32x4_t {
    simd!(vbslq_f32(vcltq_f32(a, b), x, y))
}

/// [`akunu_plan::q8::quantise_block`] of 32 elements.
///
/// # Safety
/// 32 bytes can be written at `quants`.
#[inline(always)]
unsafe fn quantise_32(v: [float32x4_t; 8], quants: *mut i8) -> (f32, i32) {
    simd!({
        let mut most = vdupq_n_u32(0);
        for v in v {
            most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v)));
        }
        let largest = f32::from_bits(vmaxvq_u32(most));
        let inverse = 127.0 / largest;
        if !largest.is_finite() || !inverse.is_finite() {
            vst1q_s8(quants, vdupq_n_s8(0));
            vst1q_s8(quants.add(16), vdupq_n_s8(0));
            return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
        }
        let mut words = [vdupq_n_s16(0); 4];
        for i in 0..4 {
            let low = vcvtnq_s32_f32(vmulq_n_f32(v[i * 2], inverse));
            let high = vcvtnq_s32_f32(vmulq_n_f32(v[i * 2 + 1], inverse));
            words[i] = vmovn_high_s32(vmovn_s32(low), high);
        }
        vst1q_s8(quants, vmovn_high_s16(vmovn_s16(words[0]), words[1]));
        vst1q_s8(quants.add(16), vmovn_high_s16(vmovn_s16(words[2]), words[3]));
        let sum = vaddq_s16(vaddq_s16(words[0], words[1]), vaddq_s16(words[2], words[3]));
        (largest / 127.0, i32::from(vaddvq_s16(sum)))
    })
}
