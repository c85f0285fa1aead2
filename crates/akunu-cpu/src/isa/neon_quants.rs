//! How NEON decodes quantised blocks: 32 quants in two registers.

use std::arch::aarch64::*;

use akunu_format::blocks::IQ4;

use super::Lanes;
use super::neon::{Neon, put_columns, simd, widen_f16};
use super::neon_dots::Bytes;
use crate::panel::Panel;
use crate::quants::{
    Affine, FP4_RAISED, Iq4Nl, Iq4Xs, Min, Mxfp4, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, Quant,
    Sub, iq4_scales, k4_scales, q3k_scales, u16_at, u32_at,
};
use crate::tile::Terms;

/// Eight lanes.
pub(crate) type Eight = [float32x4_t; 2];

/// The scales of an octet; unused fields of a type are zero.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// Including the sub-scales and mins of whole blocks.
    d: Eight,
    m: Eight,
    /// Of halves, one per byte.
    half_sub: int8x16_t,
    half_min: int8x16_t,
}

/// # Safety
/// As for [`Quant`].
pub(crate) trait QuantNeon: Quant {
    /// [`Quant::quants`]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2];
    unsafe fn scales(w: *const u8) -> Scales;
}

#[inline(always)]
fn no_scales() -> Scales {
    let (zero, bytes) = simd!((vdupq_n_f32(0.0), vdupq_n_s8(0)));
    Scales { d: [zero; 2], m: [zero; 2], half_sub: bytes, half_min: bytes }
}

#[inline(always)]
fn load32(p: *const u8) -> [uint8x16_t; 2] {
    simd!([vld1q_u8(p), vld1q_u8(p.add(16))])
}

#[inline(always)]
fn signed(v: [uint8x16_t; 2]) -> [int8x16_t; 2] {
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
fn less(v: [uint8x16_t; 2], offset: u8) -> [uint8x16_t; 2] {
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
fn nibbles16(p: *const u8) -> [uint8x16_t; 2] {
    simd!({
        let v = vld1q_u8(p);
        [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
    })
}

/// 16 in byte i if bit i of the word at `p` is set.
#[inline(always)]
fn fifth_bits(p: *const u8) -> [uint8x16_t; 2] {
    simd!({
        let word = vreinterpretq_u8_u32(vdupq_n_u32(u32_at(p, 0)));
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let low = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let high = vcombine_u8(vdup_n_u8(2), vdup_n_u8(3));
        and([vtstq_u8(vqtbl1q_u8(word, low), bit), vtstq_u8(vqtbl1q_u8(word, high), bit)], 16)
    })
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

macro_rules! older {
    ($name:ident, |$w:ident| $load:expr) => {
        impl QuantNeon for $name {
            #[inline(always)]
            unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
                let $w = w.wrapping_add(b * Self::BLOCK.bytes);
                simd!($load)
            }

            #[inline(always)]
            unsafe fn scales(w: *const u8) -> Scales {
                let stride = Self::BLOCK.bytes;
                let d = halves(w, stride);
                let m = if Self::MIN == Min::None { d } else { halves(w.wrapping_add(2), stride) };
                Scales { d, m, ..no_scales() }
            }
        }
    };
}

older!(Q40, |w| signed(nibbles16(w.add(2))));
older!(Q41, |w| signed(nibbles16(w.add(4))));
older!(Q50, |w| signed(or(nibbles16(w.add(6)), fifth_bits(w.add(2)))));
older!(Q51, |w| signed(or(nibbles16(w.add(8)), fifth_bits(w.add(4)))));
older!(Q80, |w| signed(load32(w.add(2))));
older!(Iq4Nl, |w| looked_up(&IQ4, w.add(2)));

macro_rules! k_quant {
    ($name:ident, |$w:ident, $b:ident| $load:expr, scales $scales:expr) => {
        impl QuantNeon for $name {
            #[inline(always)]
            unsafe fn load($w: *const u8, $b: usize) -> [int8x16_t; 2] {
                simd!($load)
            }

            #[inline(always)]
            unsafe fn scales($w: *const u8) -> Scales {
                simd!($scales)
            }
        }
    };
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

k_quant!(Q4K, |w, b| signed(and(shift(load32(w.add(16 + b / 2 * 32)), b % 2 * 4), 15)), scales k4(w));

k_quant!(Q5K, |w, b| {
    let low = and(shift(load32(w.add(48 + b / 2 * 32)), b % 2 * 4), 15);
    signed(or(low, where_bit(load32(w.add(16)), b, 16)))
}, scales k4(w));

k_quant!(Q6K, |w, b| {
    let (half, quarter) = (b / 4, b % 4);
    let low = and(shift(load32(w.add(half * 64 + quarter % 2 * 32)), quarter / 2 * 4), 15);
    let high = and(shift(load32(w.add(128 + half * 32)), quarter * 2), 3);
    let high = [vshlq_n_u8::<4>(high[0]), vshlq_n_u8::<4>(high[1])];
    signed(less(or(low, high), 32))
}, scales Scales {
    d: [half_everywhere(u16_at(w, 208)); 2],
    half_sub: vld1q_s8(w.add(192).cast()),
    ..no_scales()
});

k_quant!(Q3K, |w, b| {
    let low = and(shift(load32(w.add(32 + b / 4 * 32)), b % 4 * 2), 3);
    signed(less(or(low, where_bit(load32(w), b, 4)), 4))
}, scales Scales {
    d: [half_everywhere(u16_at(w, 108)); 2],
    half_sub: vsubq_s8(vreinterpretq_s8_u32(vld1q_u32(q3k_scales(w).as_ptr())), vdupq_n_s8(32)),
    ..no_scales()
});

k_quant!(Q2K, |w, b| signed(and(shift(load32(w.add(16 + b / 4 * 32)), b % 4 * 2), 3)), scales {
    let [sub, min] = signed(nibbles16(w));
    Scales {
        d: [half_everywhere(u16_at(w, 80)); 2],
        m: [vnegq_f32(half_everywhere(u16_at(w, 82))); 2],
        half_sub: sub,
        half_min: min,
    }
});

k_quant!(Iq4Xs, |w, b| looked_up(&IQ4, w.add(8 + b * 16)), scales {
    let (lower, upper) = iq4_scales(w);
    let places = vcombine_s16(vcreate_s16(0x0003_0002_0001_0000), vcreate_s16(0x0003_0002_0001_0000));
    let halves = vcombine_u16(vdup_n_u16(lower as u16), vdup_n_u16((lower >> 16) as u16));
    let lower = vandq_u16(vshlq_u16(halves, vmulq_n_s16(places, -4)), vdupq_n_u16(15));
    let halves = vcombine_u16(vdup_n_u16(upper), vdup_n_u16(upper >> 8));
    let upper = vandq_u16(vshlq_u16(halves, vmulq_n_s16(places, -2)), vdupq_n_u16(3));
    let sub = vreinterpretq_s16_u16(vorrq_u16(lower, vshlq_n_u16::<4>(upper)));
    Scales { d: times(half_everywhere(u16_at(w, 0)), vsubq_s16(sub, vdupq_n_s16(32))), ..no_scales() }
});

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

k_quant!(Mxfp4, |w, b| looked_up(&FP4_RAISED, w.add(b * 17 + 1)), scales {
    let mut exponents = [0; 8];
    for b in 0..8 {
        exponents[b] = *w.add(b * 17);
    }
    let e = vmovl_u8(vld1_u8(exponents.as_ptr()));
    Scales { d: [exponent_scales(vget_low_u16(e)), exponent_scales(vget_high_u16(e))], ..no_scales() }
});

impl<const BITS: usize> QuantNeon for Affine<BITS> {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> [int8x16_t; 2] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(signed(match BITS {
            8 => less(load32(w), 128),
            4 => {
                let [low, high] = nibbles16(w);
                [vzip1q_u8(low, high), vzip2q_u8(low, high)]
            }
            _ => [apart::<BITS, 0>(w), apart::<BITS, 1>(w)],
        }))
    }

    #[inline(always)]
    unsafe fn scales(_w: *const u8) -> Scales {
        no_scales()
    }
}

/// How half a block of MLX's quants is unpacked: eight words of two quants.
struct Apart<const BITS: usize, const HALF: usize>;

impl<const BITS: usize, const HALF: usize> Apart<BITS, HALF> {
    /// The bytes that are read: the block's first or last ones.
    const READ: usize = if BITS > 4 { 16 } else { 8 };
    const FROM: usize = HALF * (4 * BITS - Self::READ);
    /// The two bytes that contain each word's quants.
    const PLACES: [u8; 16] = {
        let mut places = [0; 16];
        let mut word = 0;
        while word < 8 {
            let byte = HALF * 2 * BITS - Self::FROM + word * 2 * BITS / 8;
            places[word * 2] = byte as u8;
            places[word * 2 + 1] = byte as u8 + 1;
            word += 1;
        }
        places
    };
    /// The shifts that align them to the bottom of the word.
    const SHIFTS: [i16; 8] = {
        let mut shifts = [0; 8];
        let mut word = 0;
        while word < 8 {
            shifts[word] = -((word * 2 * BITS % 8) as i16);
            word += 1;
        }
        shifts
    };
}

/// Unpacks half a block; reads no bytes outside the block.
///
/// # Safety
/// A block can be read at `w`.
#[inline(always)]
unsafe fn apart<const BITS: usize, const HALF: usize>(w: *const u8) -> uint8x16_t {
    simd!({
        let w = w.add(Apart::<BITS, HALF>::FROM);
        let v =
            if Apart::<BITS, HALF>::READ == 16 { vld1q_u8(w) } else { vcombine_u8(vld1_u8(w), vdup_n_u8(0)) };
        let v = vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(Apart::<BITS, HALF>::PLACES.as_ptr())));
        let first = vshlq_u16(v, vld1q_s16(Apart::<BITS, HALF>::SHIFTS.as_ptr()));
        let second = vshlq_u16(first, vdupq_n_s16(-(BITS as i16)));
        let both = vreinterpretq_u8_u16(vsliq_n_u16::<8>(first, second));
        vandq_u8(both, vdupq_n_u8((1 << BITS) - 1))
    })
}

/// The sums of four registers, in order.
#[inline(always)]
fn reduce4(v: [int32x4_t; 4]) -> int32x4_t {
    simd!(vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])))
}

/// Sixteen bytes as four registers of integers.
#[inline(always)]
fn integers(v: int8x16_t) -> [int32x4_t; 4] {
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

/// The first or the second eight lanes of [`crate::tile::Dot::terms`]. Written out, because in loops the arrays of
/// registers would be kept in memory.
///
/// # Safety
/// A whole octet can be read at each pointer; the processor has the features of `M`.
#[inline(always)]
pub(crate) unsafe fn terms_octet<M: Bytes, Q: QuantNeon>(
    w: *const u8,
    x: *const i8,
    sums: *const i32,
) -> Terms<Eight> {
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
pub(crate) unsafe fn terms_part<M: Bytes, Q: QuantNeon>(
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

/// [`crate::tile::Panels::unpack`]. The offset is subtracted from each quant if the result fits in a byte.
///
/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack_panel<M: Bytes, Q: QuantNeon>(
    panel: *mut Panel,
    rows: &[*const u8; 16],
    blocks: usize,
) {
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
