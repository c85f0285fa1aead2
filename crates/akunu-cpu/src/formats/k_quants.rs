//! K-quants: super-blocks of 256 weights, whose scales are products of a float and small integers.

use std::array::from_fn;

use akunu_plan::DType;

use super::{Block, Min, Quant, Sub, u8_at, u32_at};

pub(crate) struct Q2K;

impl Quant for Q2K {
    const BLOCK: Block = Block::of(DType::Q2K);
    const D_AT: usize = 80;
    const SIGNED: bool = false;
    const MAX: i32 = 3;
    const SUB: Sub = Sub::Half;
    const MIN: Min = Min::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        from_fn(|i| (u8_at(w, 16 + b / 4 * 32 + i) >> (b % 4 * 2) & 3) as i8)
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(u8_at(w, b * 2) & 15), i32::from(u8_at(w, b * 2 + 1) & 15)]
    }

    #[inline(always)]
    unsafe fn min(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(u8_at(w, b * 2) >> 4), i32::from(u8_at(w, b * 2 + 1) >> 4)]
    }
}

pub(crate) struct Q3K;

impl Quant for Q3K {
    const BLOCK: Block = Block::of(DType::Q3K);
    const D_AT: usize = 108;
    const SIGNED: bool = true;
    const MAX: i32 = 4;
    const SUB: Sub = Sub::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        from_fn(|i| {
            let low = u8_at(w, 32 + b / 4 * 32 + i) >> (b % 4 * 2) & 3;
            let high = (u8_at(w, i) >> b & 1) << 2;
            (low | high) as i8 - 4
        })
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        let scales = q3k_scales(w);
        let at = |k: usize| (scales[k / 4] >> (k % 4 * 8) & 63) as i32 - 32;
        [at(b * 2), at(b * 2 + 1)]
    }
}

/// The sixteen 6-bit scales of Q3_K, still offset by 32, one per byte.
#[inline(always)]
pub(crate) fn q3k_scales(w: *const u8) -> [u32; 4] {
    let (l0, l1, h) = (u32_at(w, 96), u32_at(w, 100), u32_at(w, 104));
    let join = |nibbles: u32, top: u32| (nibbles & 0x0f0f_0f0f) | (top & 0x0303_0303) << 4;
    [join(l0, h), join(l1, h >> 2), join(l0 >> 4, h >> 4), join(l1 >> 4, h >> 6)]
}

pub(crate) struct Q4K;

impl Quant for Q4K {
    const BLOCK: Block = Block::of(DType::Q4K);
    const SIGNED: bool = false;
    const MAX: i32 = 15;
    const SUB: Sub = Sub::Block;
    const MIN: Min = Min::Block;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        from_fn(|i| (u8_at(w, 16 + b / 2 * 32 + i) >> (b % 2 * 4) & 15) as i8)
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [(k4_scales(w).0 >> (b * 8) & 63) as i32; 2]
    }

    #[inline(always)]
    unsafe fn min(w: *const u8, b: usize) -> [i32; 2] {
        [(k4_scales(w).1 >> (b * 8) & 63) as i32; 2]
    }
}

pub(crate) struct Q5K;

impl Quant for Q5K {
    const BLOCK: Block = Block::of(DType::Q5K);
    const SIGNED: bool = false;
    const MAX: i32 = 31;
    const SUB: Sub = Sub::Block;
    const MIN: Min = Min::Block;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        from_fn(|i| {
            let low = u8_at(w, 48 + b / 2 * 32 + i) >> (b % 2 * 4) & 15;
            let high = (u8_at(w, 16 + i) >> b & 1) << 4;
            (low | high) as i8
        })
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [(k4_scales(w).0 >> (b * 8) & 63) as i32; 2]
    }

    #[inline(always)]
    unsafe fn min(w: *const u8, b: usize) -> [i32; 2] {
        [(k4_scales(w).1 >> (b * 8) & 63) as i32; 2]
    }
}

/// The eight 6-bit scales and eight 6-bit mins of Q4_K and Q5_K, one per byte.
#[inline(always)]
pub(crate) fn k4_scales(w: *const u8) -> (u64, u64) {
    let (a, b, c) = (u32_at(w, 4), u32_at(w, 8), u32_at(w, 12));
    let high =
        |nibbles: u32, top: u32| u64::from((nibbles & 0x0f0f_0f0f) | (top >> 6 & 0x0303_0303) << 4) << 32;
    (u64::from(a & 0x3f3f_3f3f) | high(c, a), u64::from(b & 0x3f3f_3f3f) | high(c >> 4, b))
}

pub(crate) struct Q6K;

impl Quant for Q6K {
    const BLOCK: Block = Block::of(DType::Q6K);
    const D_AT: usize = 208;
    const SIGNED: bool = true;
    const MAX: i32 = 32;
    const SUB: Sub = Sub::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let (half, quarter) = (b / 4, b % 4);
        from_fn(|i| {
            let low = u8_at(w, half * 64 + quarter % 2 * 32 + i) >> (quarter / 2 * 4) & 15;
            let high = u8_at(w, 128 + half * 32 + i) >> (quarter * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(u8_at(w, 192 + b * 2) as i8), i32::from(u8_at(w, 193 + b * 2) as i8)]
    }
}
