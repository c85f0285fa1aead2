//! MLX's types: quants of any width in a bit stream, and scales in separate planes.

use std::arch::x86_64::*;

use super::quants::{QuantAvx2, Scales, and, no_scales};
use super::registers::load32;
use super::simd;
use crate::formats::Quant;
use crate::formats::affine::Affine;

impl<const BITS: usize> QuantAvx2 for Affine<BITS> {
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
