//! The IQ1 to IQ3 types: a code is a point of a lattice, which gives the magnitudes of four or eight elements at once.
//!
//! A sub-block has 32 elements: eight or four points, and for IQ2 and IQ3 a sign for each element. A sign may have no
//! bit of its own: of the eight that belong to eight elements, an even number is negative. The points of IQ1 are −8, 0
//! and 8 (eight times the values of the format), and 1 is added or subtracted; so all elements are integers here, and
//! the scale of a block, [`scale_of`], is stored as an eighth, a quarter or all of it.
//!
//! The tables are part of the format. `lattices.bin` contains them; `tests/oracle/lattices.py` wrote it.

use std::array::from_fn;

use half::f16;

use crate::DType;

static FILE: &[u8; 2 * 4608] = include_bytes!("lattices.bin");

/// `N` points of the file, from point `first` on: two bits for each of eight coordinates or three for each of four,
/// the first one lowest.
const fn codes<const N: usize>(first: usize) -> [u16; N] {
    let mut codes = [0; N];
    let mut i = 0;
    while i < N {
        codes[i] = u16::from_le_bytes([FILE[2 * (first + i)], FILE[2 * (first + i) + 1]]);
        i += 1;
    }
    codes
}

/// The coordinates of points, one in each byte.
const fn eights<const N: usize>(codes: [u16; N], values: [i8; 4]) -> [u64; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < N {
        let mut k = 0;
        while k < 8 {
            points[i] |= (values[codes[i] as usize >> (2 * k) & 3] as u8 as u64) << (8 * k);
            k += 1;
        }
        i += 1;
    }
    points
}

const fn fours<const N: usize>(codes: [u16; N], values: [u8; 8]) -> [u32; N] {
    let mut points = [0; N];
    let mut i = 0;
    while i < N {
        let mut k = 0;
        while k < 4 {
            points[i] |= (values[codes[i] as usize >> (3 * k) & 7] as u32) << (8 * k);
            k += 1;
        }
        i += 1;
    }
    points
}

const IQ2_VALUES: [i8; 4] = [8, 25, 43, 0];
static IQ2_XXS: [u64; 256] = eights(codes(0), IQ2_VALUES);
static IQ2_XS: [u64; 512] = eights(codes(256), IQ2_VALUES);
static IQ2_S: [u64; 1024] = eights(codes(768), IQ2_VALUES);
static IQ3_XXS: [u32; 256] = fours(codes(1792), [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [u32; 512] = fours(codes(2048), [1, 3, 5, 7, 9, 11, 13, 15]);
static IQ1: [u64; 2048] = eights(codes(2560), [-8, 0, 8, 0]);

/// The points of a type by their codes, coordinate i in byte i. Any code that [`Codes`] can have is a place in it.
#[derive(Clone, Copy, Debug)]
pub enum Points {
    Eights(&'static [u64]),
    Fours(&'static [u32]),
}

#[inline(always)]
pub fn points(dtype: DType) -> Points {
    match dtype {
        DType::IQ2XXS => Points::Eights(&IQ2_XXS),
        DType::IQ2XS => Points::Eights(&IQ2_XS),
        DType::IQ2S => Points::Eights(&IQ2_S),
        DType::IQ3XXS => Points::Fours(&IQ3_XXS),
        DType::IQ3S => Points::Fours(&IQ3_S),
        _ => Points::Eights(&IQ1),
    }
}

/// The points of a lattice as `lattices.bin` has them; none for other types.
pub fn lattice_codes(dtype: DType) -> Vec<u16> {
    let (first, count) = match dtype {
        DType::IQ2XXS => (0, 256),
        DType::IQ2XS => (256, 512),
        DType::IQ2S => (768, 1024),
        DType::IQ3XXS => (1792, 256),
        DType::IQ3S => (2048, 512),
        DType::IQ1S | DType::IQ1M => (2560, 2048),
        _ => (0, 0),
    };
    let pairs = FILE.as_chunks::<2>().0;
    pairs[first..first + count].iter().map(|pair| u16::from_le_bytes(*pair)).collect()
}

/// 32 elements without their scale.
#[derive(Clone, Copy, Debug)]
pub struct SubBlock {
    /// Coordinates: element i is byte i % 8 of point i / 8.
    pub points: [u64; 4],
    /// IQ2 and IQ3: bit i is set if element i is negative. IQ1: byte i, 1 or −1, is added to the elements of point i.
    pub signs: u32,
}

/// The 7-bit fields of a word, each with an eighth bit that makes their number of ones even.
#[inline(always)]
fn with_parity(fields: u32) -> u32 {
    let signs = fields & 0x7f | fields << 1 & 0x7f00 | fields << 2 & 0x7f_0000 | fields << 3 & 0x7f00_0000;
    let mut odd = signs ^ signs >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    signs | (odd & 0x0101_0101) << 7
}

#[inline(always)]
fn word(byte: impl Fn(usize) -> u8, at: usize) -> u32 {
    u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)])
}

#[inline(always)]
fn half_word(byte: impl Fn(usize) -> u8, at: usize) -> u32 {
    u32::from(u16::from_le_bytes([byte(at), byte(at + 1)]))
}

/// The codes of a sub-block's points: four of nine bits in sixteen each (IQ2_XS), or four or eight whose lower eight
/// bits are bytes of `low`, and whose upper ones are in `upper`, as [`upper_bits`] says.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    pub low: u64,
    pub upper: u32,
}

/// The mask of a code's upper bits, and from how many bits on those of the next point follow.
pub const fn upper_bits(dtype: DType) -> (u32, u32) {
    match dtype {
        DType::IQ2S => (3, 2),
        DType::IQ3S => (1, 1),
        DType::IQ1S => (7, 3),
        DType::IQ1M => (7, 4),
        _ => (0, 1),
    }
}

/// The codes of sub-block `sub` < 8 of a block, whose bytes `byte` reads. Inlined, so that a constant type has no cost.
#[inline(always)]
pub fn codes_of(dtype: DType, byte: impl Fn(usize) -> u8 + Copy, sub: usize) -> Codes {
    let (from, bytes) = match dtype {
        DType::IQ2XXS => (2 + 8 * sub, 4),
        DType::IQ2XS | DType::IQ3XXS | DType::IQ3S => (2 + 8 * sub, 8),
        DType::IQ1M => (4 * sub, 4),
        _ => (2 + 4 * sub, 4),
    };
    let low = (0..bytes).fold(0, |low, i| low | u64::from(byte(from + i)) << (8 * i));
    let upper = match dtype {
        DType::IQ2S | DType::IQ3S => u32::from(byte(66 + sub)),
        DType::IQ1S => half_word(byte, 34 + 2 * sub),
        DType::IQ1M => half_word(byte, 32 + 2 * sub),
        _ => 0,
    };
    Codes { low, upper }
}

/// [`SubBlock::signs`] of sub-block `sub` < 8.
#[inline(always)]
pub fn signs_of(dtype: DType, byte: impl Fn(usize) -> u8 + Copy, sub: usize) -> u32 {
    match dtype {
        DType::IQ2XXS => with_parity(word(byte, 6 + 8 * sub)),
        DType::IQ2XS => {
            let fields =
                (0..4).fold(0, |all, i| all | (half_word(byte, 2 + 8 * sub + 2 * i) >> 9) << (7 * i));
            with_parity(fields)
        }
        DType::IQ3XXS => with_parity(word(byte, 66 + 4 * sub)),
        DType::IQ2S => word(byte, 34 + 4 * sub),
        DType::IQ3S => word(byte, 74 + 4 * sub),
        DType::IQ1S if byte(35 + 2 * sub) >> 7 == 0 => 0x0101_0101,
        DType::IQ1S => 0xffff_ffff,
        _ => {
            let upper = half_word(byte, 32 + 2 * sub);
            u32::from_le_bytes(from_fn(|i| if upper >> (4 * i) & 8 == 0 { 1 } else { 0xff }))
        }
    }
}

#[inline(always)]
pub fn sub_block(dtype: DType, byte: impl Fn(usize) -> u8 + Copy, sub: usize) -> SubBlock {
    let Codes { low, upper } = codes_of(dtype, byte, sub);
    let (mask, step) = upper_bits(dtype);
    let code = |i: usize| {
        if dtype == DType::IQ2XS {
            return (low >> (16 * i)) as usize & 511;
        }
        usize::from((low >> (8 * i)) as u8) | ((upper >> (step * i as u32) & mask) << 8) as usize
    };
    let points = match points(dtype) {
        Points::Eights(points) => from_fn(|i| points[code(i)]),
        Points::Fours(points) => {
            from_fn(|i| u64::from(points[code(2 * i)]) | u64::from(points[code(2 * i + 1)]) << 32)
        }
    };
    SubBlock { points, signs: signs_of(dtype, byte, sub) }
}

impl SubBlock {
    /// Its elements.
    pub fn elements(&self, dtype: DType) -> [i8; 32] {
        from_fn(|i| {
            let coordinate = (self.points[i / 8] >> (i % 8 * 8)) as i8;
            match dtype {
                DType::IQ1S | DType::IQ1M => coordinate + (self.signs >> (i / 8 * 8)) as i8,
                _ if self.signs >> i & 1 == 1 => -coordinate,
                _ => coordinate,
            }
        })
    }
}

/// The odd integer that scales half `half` < 16 of the sub-blocks; the two halves of a sub-block have the same one
/// unless [`scales_halves`].
#[inline(always)]
pub fn scale(dtype: DType, byte: impl Fn(usize) -> u8 + Copy, half: usize) -> u8 {
    let nibble = |at: usize, upper: usize| byte(at) >> (4 * upper) & 15;
    let stored = match dtype {
        DType::IQ2XXS => byte(9 + half / 2 * 8) >> 4,
        DType::IQ2XS => nibble(66 + half / 2, half % 2),
        DType::IQ2S => nibble(74 + half / 2, half % 2),
        DType::IQ3XXS => byte(69 + half / 2 * 4) >> 4,
        DType::IQ3S => nibble(106 + half / 4, half / 2 % 2),
        DType::IQ1S => byte(35 + half / 2 * 2) >> 4 & 7,
        _ => (half_word(byte, 48 + half / 4 * 2) >> (half % 4 * 3)) as u8 & 7,
    };
    2 * stored + 1
}

/// Whether each half of a sub-block has a scale of its own.
pub const fn scales_halves(dtype: DType) -> bool {
    matches!(dtype, DType::IQ2XS | DType::IQ2S | DType::IQ1M)
}

/// The bits of the block's f16.
#[inline(always)]
pub fn scale_bits(dtype: DType, byte: impl Fn(usize) -> u8 + Copy) -> u16 {
    if dtype == DType::IQ1M {
        // The upper four bits of each word of scales.
        return (0..4).fold(0, |bits, i| bits | u16::from(byte(49 + 2 * i) >> 4) << (4 * i));
    }
    u16::from_le_bytes([byte(0), byte(1)])
}

/// What the f16 is multiplied by.
pub const fn scale_of(dtype: DType) -> f32 {
    match dtype {
        DType::IQ3S => 1.0,
        DType::IQ3XXS => 0.25,
        _ => 0.125,
    }
}

/// All products are exact.
pub(super) fn decode(dtype: DType, block: &[u8], out: &mut [f32; 256]) {
    let byte = |at: usize| block[at];
    let d = f16::from_bits(scale_bits(dtype, byte)).to_f32() * scale_of(dtype);
    for (sub, out) in out.chunks_mut(32).enumerate() {
        let elements = sub_block(dtype, byte, sub).elements(dtype);
        for (i, (out, element)) in out.iter_mut().zip(elements).enumerate() {
            let scale = f32::from(scale(dtype, byte, 2 * sub + i / 16));
            *out = d * scale * f32::from(element);
        }
    }
}
