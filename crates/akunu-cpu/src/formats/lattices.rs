//! The IQ1 to IQ3 types: quants are coordinates of lattice points.

use std::array::from_fn;

use akunu_format::blocks::lattices::{
    Codes, Points, SubBlock, codes_of, points, scale, scale_bits, scale_of, scales_halves, signs_of,
    sub_block, upper_bits,
};
use akunu_plan::DType;

use super::{Block, Quant, Sub, u8_at};
use crate::isa::Lanes;

/// The type with that number in GGUF files.
pub(crate) struct Lattice<const ID: u32>;

impl<const ID: u32> Lattice<ID> {
    pub(crate) const DTYPE: DType = match ID {
        16 => DType::IQ2XXS,
        17 => DType::IQ2XS,
        18 => DType::IQ3XXS,
        19 => DType::IQ1S,
        21 => DType::IQ3S,
        22 => DType::IQ2S,
        _ => DType::IQ1M,
    };

    /// Whether the quants of eight elements are a point plus or minus 1; otherwise each element has a sign.
    pub(crate) const SHIFTED: bool = matches!(Self::DTYPE, DType::IQ1S | DType::IQ1M);

    /// # Safety
    /// Block `b` can be read.
    #[inline(always)]
    pub(crate) unsafe fn block(w: *const u8, b: usize) -> SubBlock {
        sub_block(Self::DTYPE, |at| u8_at(w, at), b)
    }

    /// The codes of block `b`'s points, and its signs.
    ///
    /// # Safety
    /// Block `b` can be read.
    #[inline(always)]
    pub(crate) unsafe fn codes(w: *const u8, b: usize) -> (Codes, u32) {
        let byte = |at| u8_at(w, at);
        (codes_of(Self::DTYPE, byte, b), signs_of(Self::DTYPE, byte, b))
    }

    /// The mask of a code's upper bits, and from how many bits on those of the next point follow.
    pub(crate) const UPPER: (u32, u32) = upper_bits(Self::DTYPE);

    /// Codes have nine bits in sixteen.
    pub(crate) const WIDE: bool = matches!(Self::DTYPE, DType::IQ2XS);

    #[inline(always)]
    pub(crate) fn points() -> Points {
        points(Self::DTYPE)
    }

    /// The integer scales of the halves of eight blocks.
    ///
    /// # Safety
    /// The octet can be read.
    #[inline(always)]
    pub(crate) unsafe fn scales(w: *const u8) -> [u8; 16] {
        from_fn(|half| scale(Self::DTYPE, |at| u8_at(w, at), half))
    }

    /// The bits of d, which is this times [`Lattice::FACTOR`].
    ///
    /// # Safety
    /// The octet can be read.
    #[inline(always)]
    pub(crate) unsafe fn d_bits(w: *const u8) -> u16 {
        scale_bits(Self::DTYPE, |at| u8_at(w, at))
    }

    pub(crate) const FACTOR: f32 = scale_of(Self::DTYPE);
}

impl<const ID: u32> Quant for Lattice<ID> {
    const BLOCK: Block = Block::of(Self::DTYPE);
    const SIGNED: bool = true;
    const MAX: i32 = match Self::DTYPE {
        DType::IQ3XXS => 62,
        DType::IQ3S => 15,
        DType::IQ1S | DType::IQ1M => 9,
        _ => 43,
    };
    const SUB: Sub = if scales_halves(Self::DTYPE) { Sub::Half } else { Sub::Block };

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        // SAFETY: the same contract.
        unsafe { Self::block(w, b) }.elements(Self::DTYPE)
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        // SAFETY: the same contract.
        V::f16(unsafe { Self::d_bits(w) }) * Self::FACTOR
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        from_fn(|half| i32::from(scale(Self::DTYPE, |at| u8_at(w, at), 2 * b + half)))
    }
}
