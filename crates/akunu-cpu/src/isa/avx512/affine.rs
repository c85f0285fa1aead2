//! MLX's types: quants of any width in a bit stream.

use std::arch::x86_64::*;

use super::quants::{Nibbles, QuantAvx512};
use super::registers::{and_wide, join_integers};
use crate::formats::Quant;
use crate::formats::affine::Affine;
use crate::isa::avx2::quants::QuantAvx2;
use crate::isa::avx2::registers::load32;
use crate::isa::avx2::simd;

impl<const BITS: usize> QuantAvx512 for Affine<BITS> {
    const NIBBLES: Option<Nibbles> = if BITS == 4 { Some(Nibbles::Pairs) } else { None };

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
}
