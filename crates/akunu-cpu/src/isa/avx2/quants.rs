//! How quantised blocks are decoded: 32 quants in a register.

use std::arch::x86_64::*;

use akunu_format::blocks::IQ4;

use super::registers::load32;
use super::simd;
use crate::formats::iq::{Iq4Nl, Iq4Xs, iq4_scales};
use crate::formats::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, k4_scales, q3k_scales};
use crate::formats::lattices::Lattice;
use crate::formats::legacy::{Q40, Q41, Q50, Q51, Q80};
use crate::formats::mxfp4::{FP4_RAISED, Mxfp4};
use crate::formats::{Min, Quant, Sub, u16_at, u32_at};

/// The scales of an octet; unused fields of a type are zero.
pub(crate) struct Scales {
    /// Including the sub-scales and mins of whole blocks.
    pub(crate) d: __m256,
    pub(crate) m: __m256,
    /// Of halves, one per byte.
    pub(crate) half_sub: __m128i,
    pub(crate) half_min: __m128i,
}

/// A type whose blocks AVX2 decodes.
///
/// # Safety
/// `w` is the start of an octet, of which the blocks in question can be read; the processor has AVX2, FMA and F16C.
pub(crate) trait QuantAvx2: Quant {
    /// [`Quant::quants`]
    unsafe fn load(w: *const u8, b: usize) -> __m256i;
    unsafe fn scales(w: *const u8) -> Scales;
}

#[inline(always)]
pub(crate) fn no_scales() -> Scales {
    simd!(Scales {
        d: _mm256_setzero_ps(),
        m: _mm256_setzero_ps(),
        half_sub: _mm_setzero_si128(),
        half_min: _mm_setzero_si128(),
    })
}

#[inline(always)]
pub(crate) fn and(v: __m256i, mask: i8) -> __m256i {
    simd!(_mm256_and_si256(v, _mm256_set1_epi8(mask)))
}

/// Shifts bytes right; the bits shifted in from the byte above must be masked off.
#[inline(always)]
fn shift(v: __m256i, bits: usize) -> __m256i {
    simd!(_mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32)))
}

/// `value` in each byte whose bit `bit` is set.
#[inline(always)]
fn where_bit(v: __m256i, bit: usize, value: i8) -> __m256i {
    let mask = (1_u8 << bit) as i8;
    simd!(and(_mm256_cmpeq_epi8(and(v, mask), _mm256_set1_epi8(mask)), value))
}

/// The low nibbles of sixteen bytes, then the high ones.
#[inline(always)]
fn nibbles16(p: *const u8) -> __m256i {
    simd!({
        let v = _mm_loadu_si128(p.cast());
        and(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), 15)
    })
}

/// Byte i of the word eight times, for each i.
#[inline(always)]
fn bytes_of_eights(word: u32) -> __m256i {
    simd!({
        let byte_of =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        _mm256_shuffle_epi8(_mm256_set1_epi32(word as i32), byte_of)
    })
}

/// −1 in byte i if bit i of the word is set.
#[inline(always)]
fn where_bits(word: u32) -> __m256i {
    simd!({
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes_of_eights(word), bit), bit)
    })
}

/// 16 in byte i if bit i of the word at `p` is set.
#[inline(always)]
fn fifth_bits(p: *const u8) -> __m256i {
    and(where_bits(u32_at(p, 0)), 16)
}

/// Eight f16, `stride` bytes apart.
#[inline(always)]
fn halves(p: *const u8, stride: usize) -> __m256 {
    let half = |i: usize| u16_at(p, i * stride) as i16;
    let low = simd!(_mm_setr_epi16(half(0), half(1), half(2), half(3), 0, 0, 0, 0));
    let high = simd!(_mm_setr_epi16(half(4), half(5), half(6), half(7), 0, 0, 0, 0));
    simd!(_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)))
}

#[inline(always)]
fn half_everywhere(bits: u16) -> __m256 {
    simd!(_mm256_cvtph_ps(_mm_set1_epi16(bits as i16)))
}

#[inline(always)]
fn negative(v: __m256) -> __m256 {
    simd!(_mm256_xor_ps(v, _mm256_set1_ps(-0.0)))
}

#[inline(always)]
fn bytes_to_floats(bytes: u64) -> __m256 {
    simd!(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64))))
}

/// Looks up the nibbles of sixteen bytes in a table.
#[inline(always)]
fn looked_up(table: &[i8; 16], p: *const u8) -> __m256i {
    simd!({
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles16(p))
    })
}

/// The scales of blocks of 32 that begin with d as f16, and with m as another if the type has one.
#[inline(always)]
fn leading_halves<Q: Quant>(w: *const u8) -> Scales {
    let stride = Q::BLOCK.bytes;
    let d = halves(w, stride);
    let m = if Q::MIN == Min::None { d } else { halves(w.wrapping_add(2), stride) };
    Scales { d, m, ..no_scales() }
}

impl QuantAvx2 for Q40 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(nibbles16(w.add(2)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Q41 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(nibbles16(w.add(4)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Q50 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(_mm256_or_si256(nibbles16(w.add(6)), fifth_bits(w.add(2))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Q51 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(_mm256_or_si256(nibbles16(w.add(8)), fifth_bits(w.add(4))))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Q80 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(load32(w.add(2)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Iq4Nl {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(looked_up(&IQ4, w.add(2)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        leading_halves::<Self>(w)
    }
}

impl QuantAvx2 for Q2K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!(and(shift(load32(w.add(16 + b / 4 * 32)), b % 4 * 2), 3))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let bytes = _mm_loadu_si128(w.cast());
            let low = _mm_set1_epi8(15);
            Scales {
                d: half_everywhere(u16_at(w, 80)),
                m: negative(half_everywhere(u16_at(w, 82))),
                half_sub: _mm_and_si128(bytes, low),
                half_min: _mm_and_si128(_mm_srli_epi16(bytes, 4), low),
            }
        })
    }
}

impl QuantAvx2 for Q3K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!({
            let low = and(shift(load32(w.add(32 + b / 4 * 32)), b % 4 * 2), 3);
            _mm256_sub_epi8(_mm256_or_si256(low, where_bit(load32(w), b, 4)), _mm256_set1_epi8(4))
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let [a, b, c, d] = q3k_scales(w).map(|v| v as i32);
            Scales {
                d: half_everywhere(u16_at(w, 108)),
                half_sub: _mm_sub_epi8(_mm_setr_epi32(a, b, c, d), _mm_set1_epi8(32)),
                ..no_scales()
            }
        })
    }
}

impl QuantAvx2 for Q4K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!(and(shift(load32(w.add(16 + b / 2 * 32)), b % 2 * 4), 15))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(k4(w))
    }
}

impl QuantAvx2 for Q5K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!({
            let low = and(shift(load32(w.add(48 + b / 2 * 32)), b % 2 * 4), 15);
            _mm256_or_si256(low, where_bit(load32(w.add(16)), b, 16))
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
    let d = half_everywhere(u16_at(w, 0));
    let m = negative(half_everywhere(u16_at(w, 2)));
    simd!(Scales {
        d: _mm256_mul_ps(d, bytes_to_floats(sub)),
        m: _mm256_mul_ps(m, bytes_to_floats(min)),
        ..no_scales()
    })
}

impl QuantAvx2 for Q6K {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!({
            let (half, quarter) = (b / 4, b % 4);
            let low = and(shift(load32(w.add(half * 64 + quarter % 2 * 32)), quarter / 2 * 4), 15);
            let high = and(shift(load32(w.add(128 + half * 32)), quarter * 2), 3);
            _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32))
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!(Scales {
            d: half_everywhere(u16_at(w, 208)),
            half_sub: _mm_loadu_si128(w.add(192).cast()),
            ..no_scales()
        })
    }
}

impl<const ID: u32> QuantAvx2 for Lattice<ID> {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!({
            let block = Self::block(w, b);
            let [first, second, third, fourth] = block.points.map(u64::cast_signed);
            let points = _mm256_setr_epi64x(first, second, third, fourth);
            if Self::SHIFTED {
                return _mm256_add_epi8(points, bytes_of_eights(block.signs));
            }
            let negative = where_bits(block.signs);
            _mm256_sub_epi8(_mm256_xor_si256(points, negative), negative)
        })
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let d = _mm256_mul_ps(half_everywhere(Self::d_bits(w)), _mm256_set1_ps(Self::FACTOR));
            let scales = Self::scales(w);
            let halves = _mm_loadu_si128(scales.as_ptr().cast());
            if Self::SUB == Sub::Half {
                return Scales { d, half_sub: halves, ..no_scales() };
            }
            let blocks = _mm_and_si128(halves, _mm_set1_epi16(255));
            let subs = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(blocks));
            Scales { d: _mm256_mul_ps(d, subs), ..no_scales() }
        })
    }
}

impl QuantAvx2 for Iq4Xs {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!(looked_up(&IQ4, w.add(8 + b * 16)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let (lower, upper) = iq4_scales(w);
            let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let lower = _mm256_srlv_epi32(_mm256_set1_epi32(lower as i32), _mm256_slli_epi32(places, 2));
            let upper = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from(upper)), _mm256_slli_epi32(places, 1));
            let lower = _mm256_and_si256(lower, _mm256_set1_epi32(15));
            let upper = _mm256_slli_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(3)), 4);
            let sub = _mm256_sub_epi32(_mm256_or_si256(lower, upper), _mm256_set1_epi32(32));
            Scales { d: _mm256_mul_ps(half_everywhere(u16_at(w, 0)), _mm256_cvtepi32_ps(sub)), ..no_scales() }
        })
    }
}

impl QuantAvx2 for Mxfp4 {
    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        simd!(looked_up(&FP4_RAISED, w.add(b * 17 + 1)))
    }

    #[inline(always)]
    unsafe fn scales(w: *const u8) -> Scales {
        simd!({
            let mut exponents = 0_u64;
            for b in 0..8 {
                exponents |= u64::from(*w.add(b * 17)) << (b * 8);
            }
            let e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(exponents as i64));
            // As in `exponent_scale`: the two smallest are subnormal.
            let normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
            let least = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
            Scales { d: _mm256_castsi256_ps(_mm256_blendv_epi8(normal, least, small)), ..no_scales() }
        })
    }
}
