//! MLX's types, whose scales and offsets are in planes of their own.

use std::array::from_fn;

use super::{Block, Min, Quant, u8_at};
use crate::isa::Lanes;

/// MLX's types of `BITS` bits, for every group size and scale type: 32 quants are a bit stream of `4 · BITS` bytes.
pub(crate) struct Affine<const BITS: usize>;

impl<const BITS: usize> Quant for Affine<BITS> {
    const BLOCK: Block = Block { weights: 32, bytes: 4 * BITS };
    // Pair sums of unsigned times signed bytes would overflow 16 bits, so 8-bit quants are stored minus 128.
    const SIGNED: bool = BITS == 8;
    const OFFSET: i32 = if BITS == 8 { -128 } else { 0 };
    const MAX: i32 = if BITS == 8 { 128 } else { (1 << BITS) - 1 };
    const MIN: Min = Min::Float;
    const PLANES: bool = true;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| {
            let (byte, shift) = (i * BITS / 8, i * BITS % 8);
            let next = if shift + BITS > 8 { u8_at(w, byte + 1) } else { 0 };
            let both = u16::from_le_bytes([u8_at(w, byte), next]);
            let quant = (both >> shift & ((1 << BITS) - 1)) as i32;
            (quant + Self::OFFSET) as i8
        })
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(_w: *const u8, _b: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn m<V: Lanes>(_w: *const u8, _b: usize) -> f32 {
        0.0
    }
}
