//! How quantised blocks are decoded: 32 quants in two registers.

use std::arch::aarch64::*;

use akunu_format::blocks::IQ4;

use super::registers::widen_f16;
use super::simd;
use crate::formats::iq::{Iq4Nl, Iq4Xs, iq4_scales};
use crate::formats::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, k4_scales, q3k_scales};
use crate::formats::lattices::Lattice;
use crate::formats::legacy::{Q40, Q41, Q50, Q51, Q80};
use crate::formats::mxfp4::{FP4_RAISED, Mxfp4};
use crate::formats::{Min, Quant, Sub, u16_at, u32_at};

/// Eight lanes.
pub(crate) type Eight = [float32x4_t; 2];

/// The scales of an octet; unused fields of a type are zero.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// Including the sub-scales and mins of whole blocks.
    pub(crate) d: Eight,
    pub(crate) m: Eight,
    /// Of halves, one per byte.
    pub(crate) half_sub: int8x16_t,
    pub(crate) half_min: int8x16_t,
}

/// # Safety
/// As for [`Quant`].
pub(crate) trait QuantNeon: Quant {
    /// [`Quant::quants`]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2];
    unsafe fn scales(w: *const u8) -> Scales;
}

#[inline(always)]
pub(crate) fn no_scales() -> Scales {
    let (zero, bytes) = simd!((vdupq_n_f32(0.0), vdupq_n_s8(0)));
    Scales { d: [zero; 2], m: [zero; 2], half_sub: bytes, half_min: bytes }
}

#[inline(always)]
pub(crate) fn load32(p: *const u8) -> [uint8x16_t; 2] {
    simd!([vld1q_u8(p), vld1q_u8(p.add(16))])
}

#[inline(always)]
pub(crate) fn signed(v: [uint8x16_t; 2]) -> [int8x16_t; 2] {
    simd!([vreinterpretq_s8_u8(v[0]), vreinterpretq_s8_u8(v[1])])
}

#[inline(always)]
fn and(v: [uint8x16_t; 2], mask: u8) -> [uint8x16_t; 2] {
    simd!([vandq_u8(v[0], vdupq_n_u8(mask)), vandq_u8(v[1], vdupq_n_u8(mask))])
}

#[inline(always)]
fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    simd!([vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])])
}

#[inline(always)]
pub(crate) fn less(v: [uint8x16_t; 2], offset: u8) -> [uint8x16_t; 2] {
    simd!([vsubq_u8(v[0], vdupq_n_u8(offset)), vsubq_u8(v[1], vdupq_n_u8(offset))])
}

/// Shifts each byte right.
#[inline(always)]
fn shift(v: [uint8x16_t; 2], bits: usize) -> [uint8x16_t; 2] {
    let by = simd!(vdupq_n_s8(-(bits as i8)));
    simd!([vshlq_u8(v[0], by), vshlq_u8(v[1], by)])
}

/// `value` in each byte whose bit `bit` is set.
#[inline(always)]
fn where_bit(v: [uint8x16_t; 2], bit: usize, value: u8) -> [uint8x16_t; 2] {
    let mask = simd!(vdupq_n_u8(1 << bit));
    and(simd!([vtstq_u8(v[0], mask), vtstq_u8(v[1], mask)]), value)
}

/// The low nibbles of sixteen bytes, then the high ones.
#[inline(always)]
pub(crate) fn nibbles16(p: *const u8) -> [uint8x16_t; 2] {
    simd!({
        let v = vld1q_u8(p);
        [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
    })
}

/// Byte i of the word eight times, for each i.
#[inline(always)]
fn bytes_of_eights(word: u32) -> [uint8x16_t; 2] {
    simd!({
        let word = vreinterpretq_u8_u32(vdupq_n_u32(word));
        let low = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let high = vcombine_u8(vdup_n_u8(2), vdup_n_u8(3));
        [vqtbl1q_u8(word, low), vqtbl1q_u8(word, high)]
    })
}

/// 255 in byte i if bit i of the word is set.
#[inline(always)]
fn where_bits(word: u32) -> [uint8x16_t; 2] {
    let bit = simd!(vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)));
    bytes_of_eights(word).map(|bytes| simd!(vtstq_u8(bytes, bit)))
}

/// 16 in byte i if bit i of the word at `p` is set.
#[inline(always)]
fn fifth_bits(p: *const u8) -> [uint8x16_t; 2] {
    and(where_bits(u32_at(p, 0)), 16)
}

/// Looks up the nibbles of sixteen bytes in a table.
#[inline(always)]
fn looked_up(table: &[i8; 16], p: *const u8) -> [int8x16_t; 2] {
    simd!({
        let (table, places) = (vld1q_s8(table.as_ptr()), nibbles16(p));
        [vqtbl1q_s8(table, places[0]), vqtbl1q_s8(table, places[1])]
    })
}

/// Eight f16, `stride` bytes apart.
#[inline(always)]
fn halves(p: *const u8, stride: usize) -> Eight {
    let mut bits = [0_u16; 8];
    for i in 0..8 {
        bits[i] = u16_at(p, i * stride);
    }
    let p = bits.as_ptr().cast::<u8>();
    simd!([widen_f16(p), widen_f16(p.add(8))])
}

#[inline(always)]
fn half_everywhere(bits: u16) -> float32x4_t {
    simd!(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))))
}

/// `d` times eight integers.
#[inline(always)]
fn times(d: float32x4_t, numbers: int16x8_t) -> Eight {
    simd!([
        vmulq_f32(d, vcvtq_f32_s32(vmovl_s16(vget_low_s16(numbers)))),
        vmulq_f32(d, vcvtq_f32_s32(vmovl_high_s16(numbers))),
    ])
}

/// The scales of blocks of 32 that begin with d as f16, and with m as another if the type has one.
#[inline(always)]
fn leading_halves<Q: Quant>(w: *const u8) -> Scales {
    let stride = Q::BLOCK.bytes;
    let d = halves(w, stride);
    let m = if Q::MIN == Min::None { d } else { halves(w.wrapping_add(2), stride) };
    Scales { d, m, ..no_scales() }
}

impl QuantNeon for Q40 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(nibbles16(w.add(2))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Q41 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(nibbles16(w.add(4))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Q50 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(or(nibbles16(w.add(6)), fifth_bits(w.add(2)))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Q51 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(or(nibbles16(w.add(8)), fifth_bits(w.add(4)))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Q80 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(load32(w.add(2))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Iq4Nl {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(looked_up(&IQ4, w.add(2)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantNeon for Q2K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!(signed(and(shift(load32(w.add(16 + b / 4 * 32)), b % 4 * 2), 3)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let [sub, min] = signed(nibbles16(w));
            Scales {
                d: [half_everywhere(u16_at(w, 80)); 2],
                m: [vnegq_f32(half_everywhere(u16_at(w, 82))); 2],
                half_sub: sub,
                half_min: min,
            }
        })
    }
}

impl QuantNeon for Q3K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!({
            let low = and(shift(load32(w.add(32 + b / 4 * 32)), b % 4 * 2), 3);
            signed(less(or(low, where_bit(load32(w), b, 4)), 4))
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(Scales {
            d: [half_everywhere(u16_at(w, 108)); 2],
            half_sub: vsubq_s8(vreinterpretq_s8_u32(vld1q_u32(q3k_scales(w).as_ptr())), vdupq_n_s8(32)),
            ..no_scales()
        })
    }
}

impl QuantNeon for Q4K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!(signed(and(shift(load32(w.add(16 + b / 2 * 32)), b % 2 * 4), 15)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(k4(w))
    }
}

impl QuantNeon for Q5K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!({
            let low = and(shift(load32(w.add(48 + b / 2 * 32)), b % 2 * 4), 15);
            signed(or(low, where_bit(load32(w.add(16)), b, 16)))
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(k4(w))
    }
}

#[inline(always)]
unsafe fn k4(w: *const u8) -> Scales {
    let (sub, min) = k4_scales(w);
    simd!({
        let (sub, min) = (vmovl_s8(vcreate_s8(sub)), vmovl_s8(vcreate_s8(min)));
        let m = vnegq_f32(half_everywhere(u16_at(w, 2)));
        Scales { d: times(half_everywhere(u16_at(w, 0)), sub), m: times(m, min), ..no_scales() }
    })
}

impl QuantNeon for Q6K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!({
            let (half, quarter) = (b / 4, b % 4);
            let low = and(shift(load32(w.add(half * 64 + quarter % 2 * 32)), quarter / 2 * 4), 15);
            let high = and(shift(load32(w.add(128 + half * 32)), quarter * 2), 3);
            let high = [vshlq_n_u8::<4>(high[0]), vshlq_n_u8::<4>(high[1])];
            signed(less(or(low, high), 32))
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(Scales {
            d: [half_everywhere(u16_at(w, 208)); 2],
            half_sub: vld1q_s8(w.add(192).cast()),
            ..no_scales()
        })
    }
}

impl<const ID: u32> QuantNeon for Lattice<ID> {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!({
            let block = Self::block(w, b);
            let points = [
                vcombine_u8(vcreate_u8(block.points[0]), vcreate_u8(block.points[1])),
                vcombine_u8(vcreate_u8(block.points[2]), vcreate_u8(block.points[3])),
            ];
            if Self::SHIFTED {
                let shifts = bytes_of_eights(block.signs);
                return signed([vaddq_u8(points[0], shifts[0]), vaddq_u8(points[1], shifts[1])]);
            }
            let negative = where_bits(block.signs);
            let one = |i: usize| vsubq_u8(veorq_u8(points[i], negative[i]), negative[i]);
            signed([one(0), one(1)])
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let d = vmulq_n_f32(half_everywhere(Self::d_bits(w)), Self::FACTOR);
            let halves = vld1q_u8(Self::scales(w).as_ptr());
            if Self::SUB == Sub::Half {
                return Scales { d: [d; 2], half_sub: vreinterpretq_s8_u8(halves), ..no_scales() };
            }
            let blocks = vandq_u16(vreinterpretq_u16_u8(halves), vdupq_n_u16(255));
            Scales { d: times(d, vreinterpretq_s16_u16(blocks)), ..no_scales() }
        })
    }
}

impl QuantNeon for Iq4Xs {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!(looked_up(&IQ4, w.add(8 + b * 16)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let (lower, upper) = iq4_scales(w);
            let places = vcombine_s16(vcreate_s16(0x0003_0002_0001_0000), vcreate_s16(0x0003_0002_0001_0000));
            let halves = vcombine_u16(vdup_n_u16(lower as u16), vdup_n_u16((lower >> 16) as u16));
            let lower = vandq_u16(vshlq_u16(halves, vmulq_n_s16(places, -4)), vdupq_n_u16(15));
            let halves = vcombine_u16(vdup_n_u16(upper), vdup_n_u16(upper >> 8));
            let upper = vandq_u16(vshlq_u16(halves, vmulq_n_s16(places, -2)), vdupq_n_u16(3));
            let sub = vreinterpretq_s16_u16(vorrq_u16(lower, vshlq_n_u16::<4>(upper)));
            Scales { d: times(half_everywhere(u16_at(w, 0)), vsubq_s16(sub, vdupq_n_s16(32))), ..no_scales() }
        })
    }
}

impl QuantNeon for Mxfp4 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        simd!(looked_up(&FP4_RAISED, w.add(b * 17 + 1)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let mut exponents = [0; 8];
            for b in 0..8 {
                exponents[b] = *w.add(b * 17);
            }
            let e = vmovl_u8(vld1_u8(exponents.as_ptr()));
            Scales { d: [exponent_scales(vget_low_u16(e)), exponent_scales(vget_high_u16(e))], ..no_scales() }
        })
    }
}

/// 2^(e − 128), as in `exponent_scale`: the two smallest are subnormal.
#[inline(always)]
fn exponent_scales(e: uint16x4_t) -> float32x4_t {
    simd!({
        let e = vreinterpretq_s32_u32(vmovl_u16(e));
        let normal = vshlq_n_s32::<23>(vsubq_s32(e, vdupq_n_s32(1)));
        let least = vshlq_s32(vdupq_n_s32(0x0020_0000), e);
        vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), least, normal))
    })
}
