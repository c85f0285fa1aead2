//! The block layouts of quantised weights, as the scalar implementation decodes them.
//!
//! Everything is addressed by *octets*: eight blocks of 32 weights, which is one k-quant super-block or eight of the
//! older blocks. A weight is `d · sub · (quant − OFFSET) − m · min`.

use akunu_format::blocks::{FP4, IQ4, exponent_scale};
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

/// # Safety
/// `w` is the start of an octet; block `b` < 8 of it can be read.
pub(crate) trait Quant: 'static {
    const BLOCK: Block;
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
    unsafe fn d<V: Lanes>(w: *const u8, b: usize) -> f32;
    /// The scale of the mins, exactly.
    #[inline(always)]
    unsafe fn m<V: Lanes>(_w: *const u8, _b: usize) -> f32 {
        0.0
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

macro_rules! read {
    ($p:expr, $at:expr) => {
        // SAFETY: the offset is inside the block, which can be read, as the trait requires.
        unsafe { *$p.add($at) }
    };
}

#[inline(always)]
pub(crate) fn u16_at(p: *const u8, at: usize) -> u16 {
    u16::from_le_bytes([read!(p, at), read!(p, at + 1)])
}

#[inline(always)]
pub(crate) fn u32_at(p: *const u8, at: usize) -> u32 {
    u32::from_le_bytes([read!(p, at), read!(p, at + 1), read!(p, at + 2), read!(p, at + 3)])
}

/// Elements 0..16 are low nibbles, 16..32 high ones.
#[inline(always)]
fn nibbles(qs: *const u8, i: usize) -> u8 {
    let byte = read!(qs, i % 16);
    if i < 16 { byte & 15 } else { byte >> 4 }
}

macro_rules! simple {
    ($name:ident, $dtype:ident, signed $signed:expr, offset $offset:expr, max $max:expr, min $min:expr,
     |$w:ident, $i:ident| $quant:expr) => {
        pub(crate) struct $name;
        impl Quant for $name {
            const BLOCK: Block = Block::of(DType::$dtype);
            const SIGNED: bool = $signed;
            const OFFSET: i32 = $offset;
            const MAX: i32 = $max;
            const MIN: Min = $min;

            #[inline(always)]
            unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
                let $w = w.wrapping_add(b * Self::BLOCK.bytes);
                std::array::from_fn(|$i| $quant as i8)
            }

            #[inline(always)]
            unsafe fn d<V: Lanes>(w: *const u8, b: usize) -> f32 {
                V::f16(u16_at(w, b * Self::BLOCK.bytes))
            }

            #[inline(always)]
            unsafe fn m<V: Lanes>(w: *const u8, b: usize) -> f32 {
                if Self::MIN == Min::None { 0.0 } else { V::f16(u16_at(w, b * Self::BLOCK.bytes + 2)) }
            }
        }
    };
}

fn fifth(w: *const u8, at: usize, i: usize) -> u8 {
    ((u32_at(w, at) >> i & 1) as u8) << 4
}

simple!(Q40, Q4_0, signed false, offset 8, max 15, min Min::None, |w, i| nibbles(w.wrapping_add(2), i));
simple!(Q41, Q4_1, signed false, offset 0, max 15, min Min::Float, |w, i| nibbles(w.wrapping_add(4), i));
simple!(Q50, Q5_0, signed false, offset 16, max 31, min Min::None,
    |w, i| nibbles(w.wrapping_add(6), i) | fifth(w, 2, i));
simple!(Q51, Q5_1, signed false, offset 0, max 31, min Min::Float,
    |w, i| nibbles(w.wrapping_add(8), i) | fifth(w, 4, i));
simple!(Q80, Q8_0, signed true, offset 0, max 128, min Min::None, |w, i| read!(w, 2 + i));

simple!(Iq4Nl, IQ4NL, signed true, offset 0, max 127, min Min::None,
    |w, i| IQ4[usize::from(nibbles(w.wrapping_add(2), i))]);

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
        std::array::from_fn(|i| FP4_RAISED[usize::from(nibbles(w, i))])
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, b: usize) -> f32 {
        exponent_scale(read!(w, b * 17))
    }
}

/// IQ4_XS: the lower four bits of its eight scales in order, and the upper two.
#[inline(always)]
pub(crate) fn iq4_scales(w: *const u8) -> (u32, u16) {
    (u32_at(w, 4), u16_at(w, 2))
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
        std::array::from_fn(|i| IQ4[usize::from(nibbles(w, i))])
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        V::f16(u16_at(w, 0))
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        let (lower, upper) = iq4_scales(w);
        [(lower >> (b * 4) & 15 | u32::from(upper >> (b * 2) & 3) << 4) as i32 - 32; 2]
    }
}

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
        std::array::from_fn(|i| {
            let (byte, shift) = (i * BITS / 8, i * BITS % 8);
            let next = if shift + BITS > 8 { read!(w, byte + 1) } else { 0 };
            let both = u16::from_le_bytes([read!(w, byte), next]);
            let quant = (both >> shift & ((1 << BITS) - 1)) as i32;
            (quant + Self::OFFSET) as i8
        })
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(_w: *const u8, _b: usize) -> f32 {
        0.0
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

/// The sixteen 6-bit scales of Q3_K, still offset by 32, one per byte.
#[inline(always)]
pub(crate) fn q3k_scales(w: *const u8) -> [u32; 4] {
    let (l0, l1, h) = (u32_at(w, 96), u32_at(w, 100), u32_at(w, 104));
    let join = |nibbles: u32, top: u32| (nibbles & 0x0f0f_0f0f) | (top & 0x0303_0303) << 4;
    [join(l0, h), join(l1, h >> 2), join(l0 >> 4, h >> 4), join(l1 >> 4, h >> 6)]
}

pub(crate) struct Q2K;
impl Quant for Q2K {
    const BLOCK: Block = Block::of(DType::Q2K);
    const SIGNED: bool = false;
    const MAX: i32 = 3;
    const SUB: Sub = Sub::Half;
    const MIN: Min = Min::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        std::array::from_fn(|i| (read!(w, 16 + b / 4 * 32 + i) >> (b % 4 * 2) & 3) as i8)
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        V::f16(u16_at(w, 80))
    }

    #[inline(always)]
    unsafe fn m<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        V::f16(u16_at(w, 82))
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(read!(w, b * 2) & 15), i32::from(read!(w, b * 2 + 1) & 15)]
    }

    #[inline(always)]
    unsafe fn min(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(read!(w, b * 2) >> 4), i32::from(read!(w, b * 2 + 1) >> 4)]
    }
}

pub(crate) struct Q3K;
impl Quant for Q3K {
    const BLOCK: Block = Block::of(DType::Q3K);
    const SIGNED: bool = true;
    const MAX: i32 = 4;
    const SUB: Sub = Sub::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        std::array::from_fn(|i| {
            let low = read!(w, 32 + b / 4 * 32 + i) >> (b % 4 * 2) & 3;
            let high = (read!(w, i) >> b & 1) << 2;
            (low | high) as i8 - 4
        })
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        V::f16(u16_at(w, 108))
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        let scales = q3k_scales(w);
        let at = |k: usize| (scales[k / 4] >> (k % 4 * 8) & 63) as i32 - 32;
        [at(b * 2), at(b * 2 + 1)]
    }
}

macro_rules! k45 {
    ($name:ident, $dtype:ident, max $max:expr, |$w:ident, $b:ident, $i:ident| $quant:expr) => {
        pub(crate) struct $name;
        impl Quant for $name {
            const BLOCK: Block = Block::of(DType::$dtype);
            const SIGNED: bool = false;
            const MAX: i32 = $max;
            const SUB: Sub = Sub::Block;
            const MIN: Min = Min::Block;

            #[inline(always)]
            unsafe fn quants($w: *const u8, $b: usize) -> [i8; 32] {
                std::array::from_fn(|$i| $quant as i8)
            }

            #[inline(always)]
            unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
                V::f16(u16_at(w, 0))
            }

            #[inline(always)]
            unsafe fn m<V: Lanes>(w: *const u8, _b: usize) -> f32 {
                V::f16(u16_at(w, 2))
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
    };
}

k45!(Q4K, Q4K, max 15, |w, b, i| read!(w, 16 + b / 2 * 32 + i) >> (b % 2 * 4) & 15);
k45!(Q5K, Q5K, max 31,
    |w, b, i| (read!(w, 48 + b / 2 * 32 + i) >> (b % 2 * 4) & 15) | (read!(w, 16 + i) >> b & 1) << 4);

pub(crate) struct Q6K;
impl Quant for Q6K {
    const BLOCK: Block = Block::of(DType::Q6K);
    const SIGNED: bool = true;
    const MAX: i32 = 32;
    const SUB: Sub = Sub::Half;

    #[inline(always)]
    unsafe fn quants(w: *const u8, b: usize) -> [i8; 32] {
        let (half, quarter) = (b / 4, b % 4);
        std::array::from_fn(|i| {
            let low = read!(w, half * 64 + quarter % 2 * 32 + i) >> (quarter / 2 * 4) & 15;
            let high = read!(w, 128 + half * 32 + i) >> (quarter * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    #[inline(always)]
    unsafe fn d<V: Lanes>(w: *const u8, _b: usize) -> f32 {
        V::f16(u16_at(w, 208))
    }

    #[inline(always)]
    unsafe fn sub(w: *const u8, b: usize) -> [i32; 2] {
        [i32::from(read!(w, 192 + b * 2) as i8), i32::from(read!(w, 193 + b * 2) as i8)]
    }
}
