//! How x86 decodes quantised blocks: 32 quants in a 256-bit register, or 64 in a 512-bit one. Shared by AVX2 and
//! AVX-512, which differ in how they multiply.

use std::arch::x86_64::*;

use akunu_format::blocks::IQ4;

use super::Lanes;
use super::avx2::{Avx2, first_lanes, pairs, simd};
use super::x86_wide::{
    and_wide, both_shifted, join, join_integers, k4_of_two, looked_up_wide, nibbles_of_two, q3k_raised,
    q6k_raised, where_bits,
};
use crate::panel::{F16x, Panel};
use crate::quants::{
    FP4_RAISED, Iq4Nl, Iq4Xs, Min, Mxfp4, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, Quant, Sub,
    iq4_scales, k4_scales, q3k_scales, u16_at, u32_at,
};
use crate::tile::Terms;

/// The scales of an octet; unused fields of a type are zero.
pub(crate) struct Scales {
    /// Including the sub-scales and mins of whole blocks.
    pub(crate) d: __m256,
    pub(crate) m: __m256,
    /// Of halves, one per byte.
    pub(crate) half_sub: __m128i,
    pub(crate) half_min: __m128i,
}

/// Which quants share bytes as low and high nibbles, for types whose nibbles are the quants.
#[derive(Clone, Copy)]
pub(crate) enum Nibbles {
    /// The halves of a block, whose sixteen bytes begin at this offset in the block.
    Halves(usize),
    /// Two blocks, whose 32 bytes are consecutive from this offset in an octet on.
    Blocks(usize),
    /// Two adjacent quants; a block has no other bytes.
    Pairs,
}

/// # Safety
/// `w` is the start of an octet, of which the blocks in question can be read; the processor has AVX2, FMA and F16C.
pub(crate) trait QuantX86: Quant {
    /// A block begins with d as f16, and with m as another f16 if the type has one.
    const LEADING_HALVES: bool = false;

    /// The layout of nibbles, if more than two blocks of them can be decoded at once.
    const NIBBLES: Option<Nibbles> = None;

    /// The offset of the quants that [`QuantX86::raised_two`] returns.
    const RAISED: i32 = 0;

    /// [`Quant::quants`]
    unsafe fn load(w: *const u8, b: usize) -> __m256i;
    unsafe fn scales(w: *const u8) -> Scales;

    /// The quants of blocks `b` (even) and `b + 1`.
    ///
    /// # Safety
    /// As for the trait; the processor has AVX-512.
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        // SAFETY: blocks `b` and `b + 1` of the octet can be read, as the caller promises.
        unsafe { join_integers(Self::load(w, b), Self::load(w, b + 1)) }
    }

    /// The same, shifted to be non-negative, for types whose halves have scales.
    ///
    /// # Safety
    /// As for [`QuantX86::load_two`].
    #[inline(always)]
    unsafe fn raised_two(w: *const u8, b: usize) -> __m512i {
        // SAFETY: the same contract.
        unsafe { Self::load_two(w, b) }
    }

    /// d and m of two octets with these scales.
    ///
    /// # Safety
    /// As for the trait; the processor has AVX-512.
    #[inline(always)]
    unsafe fn scales_of_two(_w: *const u8, octets: &[Scales; 2]) -> (__m512, __m512) {
        (join(octets[0].d, octets[1].d), join(octets[0].m, octets[1].m))
    }
}

#[inline(always)]
pub(crate) fn no_scales() -> Scales {
    simd!(Scales {
        d: _mm256_setzero_ps(),
        m: _mm256_setzero_ps(),
        half_sub: _mm_setzero_si128(),
        half_min: _mm_setzero_si128(),
    })
}

#[inline(always)]
pub(crate) fn load32(p: *const u8) -> __m256i {
    simd!(_mm256_loadu_si256(p.cast()))
}

#[inline(always)]
pub(crate) fn and(v: __m256i, mask: i8) -> __m256i {
    simd!(_mm256_and_si256(v, _mm256_set1_epi8(mask)))
}

/// Shifts bytes right; the bits shifted in from the byte above must be masked off.
#[inline(always)]
fn shift(v: __m256i, bits: usize) -> __m256i {
    simd!(_mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32)))
}

/// `value` in each byte whose bit `bit` is set.
#[inline(always)]
fn where_bit(v: __m256i, bit: usize, value: i8) -> __m256i {
    let mask = (1_u8 << bit) as i8;
    simd!(and(_mm256_cmpeq_epi8(and(v, mask), _mm256_set1_epi8(mask)), value))
}

/// The low nibbles of sixteen bytes, then the high ones.
#[inline(always)]
fn nibbles16(p: *const u8) -> __m256i {
    simd!({
        let v = _mm_loadu_si128(p.cast());
        and(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), 15)
    })
}

/// 16 in byte i if bit i of the word at `p` is set.
#[inline(always)]
fn fifth_bits(p: *const u8) -> __m256i {
    simd!({
        let byte_of =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(u32_at(p, 0) as i32), byte_of);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        and(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), 16)
    })
}

/// Eight f16, `stride` bytes apart.
#[inline(always)]
fn halves(p: *const u8, stride: usize) -> __m256 {
    macro_rules! half {
        ($i:expr) => {
            u16_at(p, $i * stride) as i16
        };
    }
    let low = simd!(_mm_setr_epi16(half!(0), half!(1), half!(2), half!(3), 0, 0, 0, 0));
    let high = simd!(_mm_setr_epi16(half!(4), half!(5), half!(6), half!(7), 0, 0, 0, 0));
    simd!(_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)))
}

#[inline(always)]
fn half_everywhere(bits: u16) -> __m256 {
    simd!(_mm256_cvtph_ps(_mm_set1_epi16(bits as i16)))
}

#[inline(always)]
fn negative(v: __m256) -> __m256 {
    simd!(_mm256_xor_ps(v, _mm256_set1_ps(-0.0)))
}

#[inline(always)]
fn bytes_to_floats(bytes: u64) -> __m256 {
    simd!(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64))))
}

/// Looks up the nibbles of sixteen bytes in a table.
#[inline(always)]
fn looked_up(table: &[i8; 16], p: *const u8) -> __m256i {
    simd!({
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles16(p))
    })
}

macro_rules! load_two {
    (|$w:ident, $b:ident| $load:expr) => {
        #[inline(always)]
        unsafe fn load_two($w: *const u8, $b: usize) -> __m512i {
            simd!($load)
        }
    };
}

macro_rules! older {
    ($name:ident, |$w:ident| $load:expr $(, two |$v:ident, $b:ident| $two:expr)? $(, nibbles at $at:literal)?) => {
        impl QuantX86 for $name {
            const LEADING_HALVES: bool = true;
            $(const NIBBLES: Option<Nibbles> = Some(Nibbles::Halves($at));)?
            $(load_two!(|$v, $b| $two);)?

            #[inline(always)]
            unsafe fn load(w: *const u8, b: usize) -> __m256i {
                let $w = w.wrapping_add(b * Self::BLOCK.bytes);
                simd!($load)
            }

            #[inline(always)]
            unsafe fn scales(w: *const u8) -> Scales {
                let stride = Self::BLOCK.bytes;
                let d = halves(w, stride);
                let m = if Self::MIN == Min::None { d } else { halves(w.wrapping_add(2), stride) };
                Scales { d, m, ..no_scales() }
            }
        }
    };
}

older!(Q40, |w| nibbles16(w.add(2)), two | w, b | nibbles_of_two(w.add(b * 18 + 2), w.add(b * 18 + 20)), nibbles at 2);
older!(Q41, |w| nibbles16(w.add(4)), two | w, b | nibbles_of_two(w.add(b * 20 + 4), w.add(b * 20 + 24)), nibbles at 4);
older!(Q50, |w| _mm256_or_si256(nibbles16(w.add(6)), fifth_bits(w.add(2))));
older!(Q51, |w| _mm256_or_si256(nibbles16(w.add(8)), fifth_bits(w.add(4))));
older!(Q80, |w| load32(w.add(2)));
older!(
    Iq4Nl,
    |w| looked_up(&IQ4, w.add(2)),
    two | w,
    b | looked_up_wide(&IQ4, nibbles_of_two(w.add(b * 18 + 2), w.add(b * 18 + 20)))
);

macro_rules! k_quant {
    ($name:ident, |$w:ident, $b:ident| $load:expr, two $two:expr, scales $scales:expr
     $(, nibbles at $nibbles:literal)? $(, raised by $raised:literal $raised_two:expr)? $(, of two $of_two:expr)?) => {
        impl QuantX86 for $name {
            $(const NIBBLES: Option<Nibbles> = Some(Nibbles::Blocks($nibbles));)?
            $(
                const RAISED: i32 = $raised;

                #[inline(always)]
                unsafe fn raised_two($w: *const u8, $b: usize) -> __m512i {
                    simd!($raised_two)
                }
            )?
            $(
                #[inline(always)]
                unsafe fn scales_of_two($w: *const u8, _octets: &[Scales; 2]) -> (__m512, __m512) {
                    simd!($of_two)
                }
            )?
            load_two!(|$w, $b| $two);

            #[inline(always)]
            unsafe fn load($w: *const u8, $b: usize) -> __m256i {
                simd!($load)
            }

            #[inline(always)]
            unsafe fn scales($w: *const u8) -> Scales {
                simd!($scales)
            }
        }
    };
}

#[inline(always)]
unsafe fn k4(w: *const u8) -> Scales {
    let (sub, min) = k4_scales(w);
    let d = half_everywhere(u16_at(w, 0));
    let m = negative(half_everywhere(u16_at(w, 2)));
    simd!(Scales {
        d: _mm256_mul_ps(d, bytes_to_floats(sub)),
        m: _mm256_mul_ps(m, bytes_to_floats(min)),
        ..no_scales()
    })
}

k_quant!(Q4K, |w, b| and(shift(load32(w.add(16 + b / 2 * 32)), b % 2 * 4), 15),
    two and_wide(both_shifted(w.add(16 + b / 2 * 32), 0, 4), 15),
    scales k4(w), nibbles at 16, of two k4_of_two(w, Self::OCTET_BYTES));

k_quant!(Q5K, |w, b| {
    let low = and(shift(load32(w.add(48 + b / 2 * 32)), b % 2 * 4), 15);
    _mm256_or_si256(low, where_bit(load32(w.add(16)), b, 16))
}, two {
    let low = and_wide(both_shifted(w.add(48 + b / 2 * 32), 0, 4), 15);
    _mm512_or_si512(low, where_bits(w.add(16), b, 16))
}, scales k4(w), of two k4_of_two(w, Self::OCTET_BYTES));

k_quant!(Q6K, |w, b| {
    let (half, quarter) = (b / 4, b % 4);
    let low = and(shift(load32(w.add(half * 64 + quarter % 2 * 32)), quarter / 2 * 4), 15);
    let high = and(shift(load32(w.add(128 + half * 32)), quarter * 2), 3);
    _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32))
}, two _mm512_sub_epi8(q6k_raised(w, b), _mm512_set1_epi8(Self::RAISED as i8)), scales Scales {
    d: half_everywhere(u16_at(w, 208)),
    half_sub: _mm_loadu_si128(w.add(192).cast()),
    ..no_scales()
}, raised by 32 q6k_raised(w, b));

k_quant!(Q3K, |w, b| {
    let low = and(shift(load32(w.add(32 + b / 4 * 32)), b % 4 * 2), 3);
    _mm256_sub_epi8(_mm256_or_si256(low, where_bit(load32(w), b, 4)), _mm256_set1_epi8(4))
}, two _mm512_sub_epi8(q3k_raised(w, b), _mm512_set1_epi8(Self::RAISED as i8)), scales {
    let [a, b, c, d] = q3k_scales(w).map(|v| v as i32);
    Scales {
        d: half_everywhere(u16_at(w, 108)),
        half_sub: _mm_sub_epi8(_mm_setr_epi32(a, b, c, d), _mm_set1_epi8(32)),
        ..no_scales()
    }
}, raised by 4 q3k_raised(w, b));

k_quant!(Iq4Xs, |w, b| looked_up(&IQ4, w.add(8 + b * 16)),
two looked_up_wide(&IQ4, nibbles_of_two(w.add(8 + b * 16), w.add(24 + b * 16))), scales {
    let (lower, upper) = iq4_scales(w);
    let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let lower = _mm256_srlv_epi32(_mm256_set1_epi32(lower as i32), _mm256_slli_epi32(places, 2));
    let upper = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from(upper)), _mm256_slli_epi32(places, 1));
    let lower = _mm256_and_si256(lower, _mm256_set1_epi32(15));
    let upper = _mm256_slli_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(3)), 4);
    let sub = _mm256_sub_epi32(_mm256_or_si256(lower, upper), _mm256_set1_epi32(32));
    Scales { d: _mm256_mul_ps(half_everywhere(u16_at(w, 0)), _mm256_cvtepi32_ps(sub)), ..no_scales() }
});

k_quant!(Mxfp4, |w, b| looked_up(&FP4_RAISED, w.add(b * 17 + 1)),
two looked_up_wide(&FP4_RAISED, nibbles_of_two(w.add(b * 17 + 1), w.add(b * 17 + 18))), scales {
    let mut exponents = 0_u64;
    for b in 0..8 {
        exponents |= u64::from(*w.add(b * 17)) << (b * 8);
    }
    let e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(exponents as i64));
    // As in `exponent_scale`: the two smallest are subnormal.
    let normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    let least = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    Scales { d: _mm256_castsi256_ps(_mm256_blendv_epi8(normal, least, small)), ..no_scales() }
});

k_quant!(Q2K, |w, b| and(shift(load32(w.add(16 + b / 4 * 32)), b % 4 * 2), 3),
two and_wide(both_shifted(w.add(16 + b / 4 * 32), b % 4 * 2, b % 4 * 2 + 2), 3), scales {
    let bytes = _mm_loadu_si128(w.cast());
    let low = _mm_set1_epi8(15);
    Scales {
        d: half_everywhere(u16_at(w, 80)),
        m: negative(half_everywhere(u16_at(w, 82))),
        half_sub: _mm_and_si128(bytes, low),
        half_min: _mm_and_si128(_mm_srli_epi16(bytes, 4), low),
    }
});

/// The sum of each register, in order.
#[inline(always)]
pub(crate) fn reduce8(v: [__m256i; 8]) -> __m256i {
    simd!({
        let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
        _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31))
    })
}

/// Scales 2b and 2b + 1 of halves, for the pair sums of block b.
#[inline(always)]
fn of_block(halves: __m128i, b: usize) -> __m256i {
    let both = 0x0101_0101_0101_0101 * (2 * b as i64);
    let places = simd!(_mm_set_epi64x(both + 0x0101_0101_0101_0101, both));
    simd!(_mm256_cvtepi8_epi16(_mm_shuffle_epi8(halves, places)))
}

/// [`crate::tile::Dot::terms`] in two halves.
///
/// # Safety
/// `blocks` blocks can be read at each pointer; the processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn terms_16<Q: QuantX86>(
    w: *const u8,
    x: *const i8,
    sums: *const i32,
    blocks: usize,
) -> (Terms<__m256>, Terms<__m256>) {
    simd!({
        let (high_w, high_x, high_sums) =
            (w.wrapping_add(Q::OCTET_BYTES), x.wrapping_add(256), sums.wrapping_add(8));
        if blocks == 16 {
            return (terms_octet::<Q>(w, x, sums), terms_octet::<Q>(high_w, high_x, high_sums));
        }
        if Q::BLOCKS == 8 {
            // Super-blocks are whole octets, so a partial last round has eight blocks.
            return (terms_octet::<Q>(w, x, sums), no_terms());
        }
        if blocks >= 8 {
            let high = terms_part::<Q>(high_w, high_x, high_sums, blocks - 8);
            return (terms_octet::<Q>(w, x, sums), high);
        }
        (terms_part::<Q>(w, x, sums, blocks), no_terms())
    })
}

#[inline(always)]
fn no_terms() -> Terms<__m256> {
    let zero = simd!(_mm256_setzero_ps());
    Terms { sum: zero, d: zero, min_sum: zero, m: zero }
}

/// The products of one block, summed to eight lanes.
///
/// # Safety
/// 32 activations can be read at `x`.
#[inline(always)]
unsafe fn block_sums<Q: QuantX86>(q: __m256i, x: *const i8, sub: __m128i, b: usize) -> __m256i {
    simd!({
        let x = _mm256_loadu_si256(x.cast());
        if Q::SUB == Sub::Half {
            _mm256_madd_epi16(pairs::<Q>(q, x), of_block(sub, b))
        } else {
            _mm256_madd_epi16(pairs::<Q>(q, x), _mm256_set1_epi16(1))
        }
    })
}

#[inline(always)]
unsafe fn terms_octet<Q: QuantX86>(w: *const u8, x: *const i8, sums: *const i32) -> Terms<__m256> {
    simd!({
        let scales = Q::scales(w);
        let mut v = [_mm256_setzero_si256(); 8];
        for b in 0..8 {
            v[b] = block_sums::<Q>(Q::load(w, b), x.add(b * 32), scales.half_sub, b);
        }
        let mut mins = [_mm256_setzero_si256(); 8];
        if Q::MIN == Min::Half {
            for b in 0..8 {
                let x = _mm256_loadu_si256(x.add(b * 32).cast());
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
                mins[b] = _mm256_madd_epi16(pairs, of_block(scales.half_min, b));
            }
        }
        finish_terms::<Q>(v, mins, _mm256_loadu_si256(sums.cast()), &scales)
    })
}

/// The terms of `blocks` < 8 blocks of the older types; nothing past the last block is read.
///
/// # Safety
/// `blocks` blocks can be read at each pointer.
#[inline(always)]
unsafe fn terms_part<Q: QuantX86>(
    w: *const u8,
    x: *const i8,
    sums: *const i32,
    blocks: usize,
) -> Terms<__m256> {
    simd!({
        let zero = _mm256_setzero_si256();
        let (mut v, mut d, mut m) = ([zero; 8], [0.0_f32; 8], [0.0_f32; 8]);
        for b in 0..blocks {
            v[b] = block_sums::<Q>(Q::load(w, b), x.add(b * 32), _mm_setzero_si128(), b);
            (d[b], m[b]) = (Q::d::<Avx2>(w, b), Q::m::<Avx2>(w, b));
        }
        let scales = Scales { d: _mm256_loadu_ps(d.as_ptr()), m: _mm256_loadu_ps(m.as_ptr()), ..no_scales() };
        let sums = _mm256_maskload_epi32(sums, first_lanes(blocks).0);
        finish_terms::<Q>(v, [zero; 8], sums, &scales)
    })
}

/// Computes the terms from eight blocks' products and sums of activations.
///
/// # Safety
/// Eight blocks can be read at each pointer.
#[inline(always)]
unsafe fn finish_terms<Q: QuantX86>(
    v: [__m256i; 8],
    mins: [__m256i; 8],
    sums: __m256i,
    scales: &Scales,
) -> Terms<__m256> {
    simd!({
        let mut sum = reduce8(v);
        if Q::OFFSET != 0 {
            sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(sums, _mm256_set1_epi32(Q::OFFSET)));
        }
        let min_sum = match Q::MIN {
            Min::None => _mm256_setzero_si256(),
            Min::Float | Min::Block => sums,
            Min::Half => reduce8(mins),
        };
        let (d, m) = (scales.d, scales.m);
        Terms { sum: _mm256_cvtepi32_ps(sum), d, min_sum: _mm256_cvtepi32_ps(min_sum), m }
    })
}

/// Transposes eight rows of eight 32-bit words.
#[inline(always)]
fn transpose8(v: [__m256i; 8]) -> [__m256i; 8] {
    simd!({
        // Columns (0 1 | 4 5) and (2 3 | 6 7) of two rows each, then each column of four rows.
        let (a0, a1) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
        let (b0, b1) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
        let (c0, c1) = (_mm256_unpacklo_epi32(v[4], v[5]), _mm256_unpackhi_epi32(v[4], v[5]));
        let (d0, d1) = (_mm256_unpacklo_epi32(v[6], v[7]), _mm256_unpackhi_epi32(v[6], v[7]));
        let t = [
            _mm256_unpacklo_epi64(a0, b0),
            _mm256_unpackhi_epi64(a0, b0),
            _mm256_unpacklo_epi64(a1, b1),
            _mm256_unpackhi_epi64(a1, b1),
        ];
        let u = [
            _mm256_unpacklo_epi64(c0, d0),
            _mm256_unpackhi_epi64(c0, d0),
            _mm256_unpacklo_epi64(c1, d1),
            _mm256_unpackhi_epi64(c1, d1),
        ];
        let mut columns = [_mm256_setzero_si256(); 8];
        for i in 0..4 {
            columns[i] = _mm256_permute2x128_si256(t[i], u[i], 0x20);
            columns[i + 4] = _mm256_permute2x128_si256(t[i], u[i], 0x31);
        }
        columns
    })
}

/// [`crate::tile::Dot::unpack`]
///
/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack_panel<Q: QuantX86>(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
    simd!({
        let panel = &mut *panel;
        for b in 0..blocks {
            let at = b / 8 * Q::OCTET_BYTES;
            for group in 0..2 {
                let mut v = [_mm256_setzero_si256(); 8];
                for o in 0..8 {
                    let row = rows[group * 8 + o].add(at);
                    v[o] = Q::load(row, b % 8);
                    // Prefetch the same blocks of the next panel, two octets further: about a cache line for every
                    // other block.
                    Avx2::prefetch(row.wrapping_add(2 * Q::OCTET_BYTES + b % 8 * (Q::OCTET_BYTES / 8)));
                }
                for (step, v) in transpose8(v).into_iter().enumerate() {
                    _mm256_store_si256(panel.quants[b][step].as_mut_ptr().add(group * 32).cast(), v);
                }
            }
        }
        panel.steps = 8;
        if !Q::PLANES {
            unpack_scales::<Avx2, Q>(panel, rows, blocks);
        }
    });
}

/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack_scales<V: Lanes, Q: QuantX86>(
    panel: &mut Panel,
    rows: &[*const u8; 16],
    blocks: usize,
) {
    simd!({
        for octet in 0..blocks / 8 {
            for group in 0..2 {
                octet_scales::<Q>(panel, rows, octet, group);
            }
        }
        // After the last whole octet only its blocks may be read.
        for (o, row) in rows.iter().enumerate() {
            for b in blocks / 8 * 8..blocks {
                panel.set_scales::<V, Q>(o, b, row.add(b / 8 * Q::OCTET_BYTES));
            }
        }
    });
}

/// Stores the columns of eight rows as `[column][group of eight outputs]`.
#[inline(always)]
pub(crate) fn put_columns(to: &mut [F16x], group: usize, rows: [__m256; 8]) {
    let mut v = [simd!(_mm256_setzero_si256()); 8];
    for o in 0..8 {
        v[o] = simd!(_mm256_castps_si256(rows[o]));
    }
    let columns = transpose8(v);
    for b in 0..8 {
        simd!(_mm256_store_si256(to[b].0.as_mut_ptr().add(group * 8).cast(), columns[b]));
    }
}

/// Stores the scales of a whole octet of eight outputs.
///
/// # Safety
/// The octet can be read at each row.
#[inline(always)]
unsafe fn octet_scales<Q: QuantX86>(panel: &mut Panel, rows: &[*const u8; 16], octet: usize, group: usize) {
    simd!({
        let zero = [_mm256_setzero_ps(); 8];
        let (mut d, mut m, mut sub, mut min) = (zero, zero, zero, zero);
        let (mut sub_high, mut min_high) = (zero, zero);
        for o in 0..8 {
            let scales = Q::scales(rows[group * 8 + o].add(octet * Q::OCTET_BYTES));
            (d[o], m[o]) = (scales.d, scales.m);
            if Q::SUB == Sub::Half {
                (sub[o], sub_high[o]) = bytes_of_halves(scales.half_sub);
                (min[o], min_high[o]) = bytes_of_halves(scales.half_min);
            }
        }
        let first = octet * 8;
        put_columns(&mut panel.d[first..first + 8], group, d);
        if Q::MIN != Min::None {
            put_columns(&mut panel.m[first..first + 8], group, m);
        }
        // Two per block.
        let at = first * 2;
        if Q::SUB == Sub::Half {
            put_columns(&mut panel.sub[at..at + 8], group, sub);
            put_columns(&mut panel.sub[at + 8..at + 16], group, sub_high);
        }
        if Q::MIN == Min::Half {
            put_columns(&mut panel.min[at..at + 8], group, min);
            put_columns(&mut panel.min[at + 8..at + 16], group, min_high);
        }
    });
}

/// Sixteen signed bytes as floats.
#[inline(always)]
fn bytes_of_halves(v: __m128i) -> (__m256, __m256) {
    simd!({
        let high = _mm_unpackhi_epi64(v, v);
        (_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)))
    })
}
