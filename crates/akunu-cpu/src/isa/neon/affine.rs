//! MLX's types: quants of any width in a bit stream, and scales in separate planes.

use std::arch::aarch64::*;

use super::quants::{QuantNeon, Scales, less, load32, nibbles16, no_scales, signed};
use super::simd;
use crate::formats::Quant;
use crate::formats::affine::Affine;

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
