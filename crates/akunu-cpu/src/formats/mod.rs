//! Types of weights, as a format stores them and as the scalar implementation decodes them.
//!
//! A quantised type is a [`Quant`]. Everything is addressed by *octets*: eight blocks of 32 weights, which is one
//! k-quant super-block or eight of the smaller blocks. A weight is `d · sub · (quant − OFFSET) − m · min`. Each
//! instruction set has its own decoders in `quants.rs`. A float type is a [`floats::FloatWeight`].

pub(crate) mod affine;
pub(crate) mod floats;
pub(crate) mod iq;
pub(crate) mod k_quants;
pub(crate) mod lattices;
pub(crate) mod legacy;
pub(crate) mod mxfp4;

use akunu_plan::DType;

use crate::isa::Lanes;

/// Integer sub-scales of a block of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sub {
    None,
    /// One per block.
    Block,
    /// One per half block of 16.
    Half,
}

/// What is subtracted from each weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Min {
    None,
    /// `+ m`, a float per block.
    Float,
    /// `− m · min`, an integer per block.
    Block,
    /// `− m · min`, an integer per half block of 16.
    Half,
}

/// One of the file's blocks.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) weights: usize,
    pub(crate) bytes: usize,
}

impl Block {
    const fn of(dtype: DType) -> Block {
        Block { weights: dtype.block_len(), bytes: dtype.block_bytes() }
    }
}

/// A type of quantised weights.
///
/// # Safety
/// `w` is the start of an octet; block `b` < 8 of it can be read.
pub(crate) trait Quant: 'static {
    const BLOCK: Block;
    /// Where d, an f16, begins in the file's block; m, if there is one, is the f16 after it.
    const D_AT: usize = 0;
    /// Quants can be negative.
    const SIGNED: bool;
    const OFFSET: i32 = 0;
    /// The largest magnitude of a stored quant.
    const MAX: i32;
    const SUB: Sub = Sub::None;
    const MIN: Min = Min::None;
    /// Scales and mins are in separate [`crate::planes`]; `d` and `m` are unused.
    const PLANES: bool = false;
    /// Blocks of 32 per block of the file.
    const BLOCKS: usize = Self::BLOCK.weights / 32;
    const OCTET_BYTES: usize = 8 / Self::BLOCKS * Self::BLOCK.bytes;

    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32];
    /// The block's scale, exactly.
    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, b: usize) -> f32 {
        V::f16(u16_at(w, b / Self::BLOCKS * Self::BLOCK.bytes + Self::D_AT))
    }
    /// The scale of the mins, exactly.
    #[inline(always)]
    unsafe fn m<V: Lanes>(w: *const u8, b: usize) -> f32 {
        if Self::MIN == Min::None {
            return 0.0;
        }
        V::f16(u16_at(w, b / Self::BLOCKS * Self::BLOCK.bytes + Self::D_AT + 2))
    }
    #[inline(always)]
    unsafe fn sub(_w: *const u8, _b: usize) -> [i32; 2] {
        [1, 1]
    }
    #[inline(always)]
    unsafe fn min(_w: *const u8, _b: usize) -> [i32; 2] {
        match Self::MIN {
            Min::Float => [1, 1],
            _ => [0, 0],
        }
    }

    /// The factors of the block's Σ quant · x and Σ x: `d · sub` and `± m · min`, which are exact, without the
    /// sub-scales and mins of halves.
    #[inline(always)]
    unsafe fn block_scales<V: Lanes>(w: *const u8, b: usize) -> (f32, f32) {
        // SAFETY: block `b` can be read at `w`, as the trait requires.
        unsafe {
            let (d, m) = (Self::d::<V>(w, b), Self::m::<V>(w, b));
            let d = if Self::SUB == Sub::Block { d * Self::sub(w, b)[0] as f32 } else { d };
            let m = match Self::MIN {
                Min::None => 0.0,
                Min::Float => m,
                Min::Block => -m * Self::min(w, b)[0] as f32,
                Min::Half => -m,
            };
            (d, m)
        }
    }
}

#[inline(always)]
fn u8_at(p: *const u8, at: usize) -> u8 {
    // SAFETY: the offset is inside the block, which can be read, as `Quant` requires.
    unsafe { *p.add(at) }
}

#[inline(always)]
pub(crate) fn u16_at(p: *const u8, at: usize) -> u16 {
    u16::from_le_bytes([u8_at(p, at), u8_at(p, at + 1)])
}

#[inline(always)]
pub(crate) fn u32_at(p: *const u8, at: usize) -> u32 {
    u32::from_le_bytes([u8_at(p, at), u8_at(p, at + 1), u8_at(p, at + 2), u8_at(p, at + 3)])
}

/// Elements 0..16 are low nibbles, 16..32 high ones.
#[inline(always)]
fn nibbles(qs: *const u8, i: usize) -> u8 {
    let byte = u8_at(qs, i % 16);
    if i < 16 { byte & 15 } else { byte >> 4 }
}
