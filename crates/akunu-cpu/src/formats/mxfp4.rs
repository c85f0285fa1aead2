//! MXFP4: blocks of 32 four-bit floats, whose scale is a power of two.

use std::array::from_fn;

use akunu_format::blocks::{FP4, exponent_scale};
use akunu_plan::DType;

use super::{Block, Quant, nibbles, u8_at};
use crate::isa::Lanes;

/// [`FP4`] shifted to start at zero: unsigned bytes multiply faster.
pub(crate) const FP4_RAISED: [i8; 16] = {
    let mut raised = FP4;
    let mut i = 0;
    while i < 16 {
        raised[i] += FP4_OFFSET;
        i += 1;
    }
    raised
};

const FP4_OFFSET: i8 = 12;

pub(crate) struct Mxfp4;

impl Quant for Mxfp4 {
    const BLOCK: Block = Block::of(DType::MXFP4);
    const SIGNED: bool = false;
    const OFFSET: i32 = FP4_OFFSET as i32;
    const MAX: i32 = 24;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let w = w.wrapping_add(b * 17 + 1);
        from_fn(|i| FP4_RAISED[usize::from(nibbles(w, i))])
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, b: usize) -> f32 {
        exponent_scale(u8_at(w, b * 17))
    }
}
