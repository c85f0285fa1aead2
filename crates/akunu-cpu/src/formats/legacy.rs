//! GGML's first types: blocks of 32 weights, which begin with the scale and the min.

use std::array::from_fn;

use akunu_plan::DType;

use super::{Block, Min, Quant, nibbles, u8_at, u32_at};

pub(crate) struct Q40;

impl Quant for Q40 {
    const BLOCK: Block = Block::of(DType::Q4_0);
    const SIGNED: bool = false;
    const OFFSET: i32 = 8;
    const MAX: i32 = 15;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| nibbles(w.wrapping_add(2), i) as i8)
    }
}

pub(crate) struct Q41;

impl Quant for Q41 {
    const BLOCK: Block = Block::of(DType::Q4_1);
    const SIGNED: bool = false;
    const MAX: i32 = 15;
    const MIN: Min = Min::Float;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| nibbles(w.wrapping_add(4), i) as i8)
    }
}

pub(crate) struct Q50;

impl Quant for Q50 {
    const BLOCK: Block = Block::of(DType::Q5_0);
    const SIGNED: bool = false;
    const OFFSET: i32 = 16;
    const MAX: i32 = 31;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| (nibbles(w.wrapping_add(6), i) | fifth(w, 2, i)) as i8)
    }
}

pub(crate) struct Q51;

impl Quant for Q51 {
    const BLOCK: Block = Block::of(DType::Q5_1);
    const SIGNED: bool = false;
    const MAX: i32 = 31;
    const MIN: Min = Min::Float;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| (nibbles(w.wrapping_add(8), i) | fifth(w, 4, i)) as i8)
    }
}

pub(crate) struct Q80;

impl Quant for Q80 {
    const BLOCK: Block = Block::of(DType::Q8_0);
    const SIGNED: bool = true;
    const MAX: i32 = 128;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * Self::BLOCK.bytes);
        from_fn(|i| u8_at(w, 2 + i) as i8)
    }
}

/// The fifth bit of quant `i`, from the word at byte `at`.
#[inline(always)]
fn fifth(w: *const u8, at: usize, i: usize) -> u8 {
    ((u32_at(w, at) >> i & 1) as u8) << 4
}
