//! IQ types: quants are indices into a table of values.

use std::array::from_fn;

use akunu_format::blocks::IQ4;
use akunu_plan::DType;

use super::{Block, Quant, Sub, nibbles, u16_at, u32_at};

pub(crate) struct Iq4Nl;

impl Quant for Iq4Nl {
    const BLOCK: Block = Block::of(DType::IQ4NL);
    const SIGNED: bool = true;
    const MAX: i32 = 127;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| IQ4[usize::from(nibbles(w.wrapping_add(2), i))])
    }
}

pub(crate) struct Iq4Xs;

impl Quant for Iq4Xs {
    const BLOCK: Block = Block::of(DType::IQ4XS);
    const SIGNED: bool = true;
    // 32 · 127 · 127 · 32 is still below 2²⁴.
    const MAX: i32 = 127;
    const SUB: Sub = Sub::Block;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(8 + b * 16);
        from_fn(|i| IQ4[usize::from(nibbles(w, i))])
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        let (lower, upper) = iq4_scales(w);
        [(lower >> (b * 4) & 15 | u32::from(upper >> (b * 2) & 3) << 4) as i32 - 32; 2]
    }
}

/// IQ4_XS: the lower four bits of its eight scales in order, and the upper two.
#[inline(always)]
pub(crate) fn iq4_scales(w: *const u8) -> (u32, u16) {
    (u32_at(w, 4), u16_at(w, 2))
}
