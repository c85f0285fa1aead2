//! MLX's types on x86: quants of any width in a bit stream, and scales in separate planes.

use std::arch::x86_64::*;

use akunu_format::ScaleType;

use super::avx2::simd;
use super::x86_quants::{Nibbles, QuantX86, Scales, and, load32, no_scales, put_columns};
use super::x86_wide::{and_wide, join_integers};
use crate::panel::F16x;
use crate::quants::{Affine, Quant};

impl<const BITS: usize> QuantX86 for Affine<BITS> {
    const NIBBLES: Option<Nibbles> = if BITS == 4 { Some(Nibbles::Pairs) } else { None };

    #[inline(always)]
    unsafe fn load(w: *const u8, b: usize) -> __m256i {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(match BITS {
            8 => _mm256_xor_si256(load32(w), _mm256_set1_epi8(-128)),
            4 => {
                let v = _mm256_cvtepu8_epi16(_mm_loadu_si128(w.cast()));
                and(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), 15)
            }
            _ => unpacked::<BITS>(w),
        })
    }

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        let at = w.wrapping_add(b * Self::BLOCK.bytes);
        simd!(match BITS {
            8 => _mm512_xor_si512(_mm512_loadu_si512(at.cast()), _mm512_set1_epi8(-128)),
            4 => {
                let v = _mm512_cvtepu8_epi16(load32(at));
                and_wide(_mm512_or_si512(v, _mm512_slli_epi16(v, 4)), 15)
            }
            _ => join_integers(Self::load(w, b), Self::load(w, b + 1)),
        })
    }

    #[inline(always)]
    unsafe fn scales(_w: *const u8) -> Scales {
        no_scales()
    }
}

/// How the quants of a block are unpacked: sixteen words of two quants, each 128-bit lane from its own sixteen bytes.
struct Apart<const BITS: usize>;

impl<const BITS: usize> Apart<BITS> {
    /// The bytes that are read for each 128-bit lane: the block's first and last ones.
    const READ: usize = if BITS > 4 { 16 } else { 8 };
    const BYTES: usize = 4 * BITS;
    /// The two bytes that contain each word's quants.
    const PLACES: [u8; 32] = {
        let mut places = [0; 32];
        let mut word = 0;
        while word < 16 {
            let lane_start = if word < 8 { 0 } else { Self::READ - 2 * BITS };
            let byte = lane_start + word % 8 * 2 * BITS / 8;
            places[word * 2] = byte as u8;
            places[word * 2 + 1] = byte as u8 + 1;
            word += 1;
        }
        places
    };
    /// The factors (powers of two) that shift them to the top of the word.
    const FACTORS: [u16; 16] = {
        let mut factors = [0; 16];
        let mut word = 0;
        while word < 16 {
            factors[word] = 1 << (16 - 2 * BITS - word * 2 * BITS % 8);
            word += 1;
        }
        factors
    };
}

#[inline(always)]
fn shift_words(bits: usize) -> __m128i {
    simd!(_mm_cvtsi32_si128(bits as i32))
}

/// Unpacks a block; reads no bytes outside the block.
///
/// # Safety
/// A block can be read at `w`.
#[inline(always)]
unsafe fn unpacked<const BITS: usize>(w: *const u8) -> __m256i {
    simd!({
        let high = w.add(Apart::<BITS>::BYTES - Apart::<BITS>::READ);
        let (low, high) = if Apart::<BITS>::READ == 16 {
            (_mm_loadu_si128(w.cast()), _mm_loadu_si128(high.cast()))
        } else {
            (_mm_loadl_epi64(w.cast()), _mm_loadl_epi64(high.cast()))
        };
        let v = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), load32(Apart::<BITS>::PLACES.as_ptr()));
        let v = _mm256_mullo_epi16(v, load32(Apart::<BITS>::FACTORS.as_ptr().cast()));
        let v = _mm256_srl_epi16(v, shift_words(16 - 2 * BITS));
        let second = _mm256_sll_epi16(v, shift_words(8 - BITS));
        let mask = (1_i16 << BITS) - 1;
        if BITS <= 4 {
            // The two quants do not overlap.
            and(_mm256_or_si256(v, second), mask as i8)
        } else {
            let first = _mm256_and_si256(v, _mm256_set1_epi16(mask));
            _mm256_or_si256(first, _mm256_and_si256(second, _mm256_set1_epi16(mask << 8)))
        }
    })
}

/// Eight numbers as f32.
///
/// # Safety
/// Eight numbers of the type can be read at `p`.
#[inline(always)]
unsafe fn eight(p: *const u8, kind: ScaleType) -> __m256 {
    simd!(match kind {
        ScaleType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
        ScaleType::BF16 => {
            let v = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(v, 16))
        }
        ScaleType::F32 => _mm256_loadu_ps(p.cast()),
    })
}

/// Four numbers as f32; the upper lanes are unspecified.
///
/// # Safety
/// Four numbers of the type can be read at `p`.
#[inline(always)]
unsafe fn four(p: *const u8, kind: ScaleType) -> __m256 {
    simd!(_mm256_castps128_ps256(match kind {
        ScaleType::F16 => _mm_cvtph_ps(_mm_loadl_epi64(p.cast())),
        ScaleType::BF16 => {
            let v = _mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast()));
            _mm_castsi128_ps(_mm_slli_epi32(v, 16))
        }
        ScaleType::F32 => _mm_loadu_ps(p.cast()),
    }))
}

/// [`super::Lanes::spread`] in two halves.
///
/// # Safety
/// `count / blocks` numbers can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> (__m256, __m256) {
    let mut room = [0_u8; 64];
    simd!({
        let p = if count == 16 {
            p
        } else {
            p.copy_to_nonoverlapping(room.as_mut_ptr(), count / blocks * kind.bytes());
            room.as_ptr()
        };
        match blocks {
            1 => (eight(p, kind), eight(p.add(8 * kind.bytes()), kind)),
            2 => {
                let v = eight(p, kind);
                let low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                let high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
                (_mm256_permutevar8x32_ps(v, low), _mm256_permutevar8x32_ps(v, high))
            }
            _ => {
                let v = four(p, kind);
                let low = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                let high = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
                (_mm256_permutevar8x32_ps(v, low), _mm256_permutevar8x32_ps(v, high))
            }
        }
    })
}

/// [`super::Lanes::transpose`]
#[inline(always)]
pub(crate) fn transpose16(from: &[F16x; 16], to: &mut [F16x; 16]) {
    for octet in 0..2 {
        for group in 0..2 {
            let mut rows = [simd!(_mm256_setzero_ps()); 8];
            for o in 0..8 {
                rows[o] = simd!(_mm256_loadu_ps(from[group * 8 + o].0[octet * 8..].as_ptr()));
            }
            put_columns(&mut to[octet * 8..octet * 8 + 8], group, rows);
        }
    }
}
