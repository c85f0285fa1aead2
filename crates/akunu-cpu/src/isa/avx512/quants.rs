//! How quantised blocks are decoded: two blocks in a register.

use std::arch::x86_64::*;

use akunu_format::blocks::IQ4;
use akunu_format::blocks::lattices::{Codes, Points};

use super::lanes::Avx512;
use super::registers::{and_wide, floats_of_halves, join, join_integers, load64, shift_halves};
use crate::formats::iq::{Iq4Nl, Iq4Xs};
use crate::formats::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, k4_scales};
use crate::formats::lattices::Lattice;
use crate::formats::legacy::{Q40, Q41, Q50, Q51, Q80};
use crate::formats::mxfp4::{FP4_RAISED, Mxfp4};
use crate::formats::{Min, Quant, u32_at};
use crate::isa::avx2::quants::{QuantAvx2, Scales, no_scales};
use crate::isa::avx2::simd;

/// A type whose blocks AVX-512 decodes, two at a time where AVX2 decodes one.
///
/// # Safety
/// As for [`QuantAvx2`]; the processor has AVX-512.
pub(crate) trait QuantAvx512: QuantAvx2 {
    /// A block of 32 begins with d as f16, and with m as another f16 if the type has one.
    const LEADING_HALVES: bool = false;

    /// The layout of nibbles, if more than two blocks of them can be decoded at once.
    const NIBBLES: Option<Nibbles> = None;

    /// The offset of the quants that [`QuantAvx512::raised_two`] returns.
    const RAISED: i32 = 0;

    /// The quants of blocks `b` (even) and `b + 1`.
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        // SAFETY: blocks `b` and `b + 1` of the octet can be read, as the caller promises.
        unsafe { join_integers(Self::load(w, b), Self::load(w, b + 1)) }
    }

    /// The same, shifted to be non-negative, for types whose halves have scales.
    #[inline(always)]
    unsafe fn raised_two(w: *const u8, b: usize) -> __m512i {
        // SAFETY: the same contract.
        unsafe { Self::load_two(w, b) }
    }

    /// d and m of two octets with these scales.
    #[inline(always)]
    unsafe fn scales_of_two(_w: *const u8, octets: &[Scales; 2]) -> (__m512, __m512) {
        (join(octets[0].d, octets[1].d), join(octets[0].m, octets[1].m))
    }
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

impl QuantAvx512 for Q40 {
    const LEADING_HALVES: bool = true;
    const NIBBLES: Option<Nibbles> = Some(Nibbles::Halves(2));

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(nibbles_of_two(w.add(b * 18 + 2), w.add(b * 18 + 20)))
    }
}

impl QuantAvx512 for Q41 {
    const LEADING_HALVES: bool = true;
    const NIBBLES: Option<Nibbles> = Some(Nibbles::Halves(4));

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(nibbles_of_two(w.add(b * 20 + 4), w.add(b * 20 + 24)))
    }
}

impl QuantAvx512 for Q50 {
    const LEADING_HALVES: bool = true;
}

impl QuantAvx512 for Q51 {
    const LEADING_HALVES: bool = true;
}

impl QuantAvx512 for Q80 {
    const LEADING_HALVES: bool = true;
}

impl QuantAvx512 for Iq4Nl {
    const LEADING_HALVES: bool = true;

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(looked_up(&IQ4, nibbles_of_two(w.add(b * 18 + 2), w.add(b * 18 + 20))))
    }
}

impl QuantAvx512 for Q2K {
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(and_wide(both_shifted(w.add(16 + b / 4 * 32), b % 4 * 2, b % 4 * 2 + 2), 3))
    }
}

impl QuantAvx512 for Q3K {
    const RAISED: i32 = 4;

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(_mm512_sub_epi8(q3k_raised(w, b), _mm512_set1_epi8(Self::RAISED as i8)))
    }

    #[inline(always)]
    unsafe fn raised_two(w: *const u8, b: usize) -> __m512i {
        simd!(q3k_raised(w, b))
    }
}

impl QuantAvx512 for Q4K {
    const NIBBLES: Option<Nibbles> = Some(Nibbles::Blocks(16));

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(and_wide(both_shifted(w.add(16 + b / 2 * 32), 0, 4), 15))
    }

    #[inline(always)]
    unsafe fn scales_of_two(w: *const u8, _octets: &[Scales; 2]) -> (__m512, __m512) {
        simd!(k4_of_two(w, Self::OCTET_BYTES))
    }
}

impl QuantAvx512 for Q5K {
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!({
            let low = and_wide(both_shifted(w.add(48 + b / 2 * 32), 0, 4), 15);
            _mm512_or_si512(low, where_bits(w.add(16), b, 16))
        })
    }

    #[inline(always)]
    unsafe fn scales_of_two(w: *const u8, _octets: &[Scales; 2]) -> (__m512, __m512) {
        simd!(k4_of_two(w, Self::OCTET_BYTES))
    }
}

impl QuantAvx512 for Q6K {
    const RAISED: i32 = 32;

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(_mm512_sub_epi8(q6k_raised(w, b), _mm512_set1_epi8(Self::RAISED as i8)))
    }

    #[inline(always)]
    unsafe fn raised_two(w: *const u8, b: usize) -> __m512i {
        simd!(q6k_raised(w, b))
    }
}

impl<const ID: u32> QuantAvx512 for Lattice<ID> {
    const RAISED: i32 = 64;

    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!({
            let (first, first_signs) = Self::codes(w, b);
            let (second, second_signs) = Self::codes(w, b + 1);
            let points = match Self::points() {
                // SAFETY: no code is past the end of its type's table.
                Points::Eights(points) => {
                    let codes = codes_of_eights::<ID>(first, second);
                    _mm512_i32gather_epi64::<8>(codes, points.as_ptr().cast())
                }
                Points::Fours(points) => {
                    let codes = codes_of_fours::<ID>(first, second);
                    _mm512_i32gather_epi32::<4>(codes, points.as_ptr().cast())
                }
            };
            let signs = u64::from(first_signs) | u64::from(second_signs) << 32;
            if Self::SHIFTED {
                let bytes = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(signs as i64));
                let eights = _mm512_shuffle_epi8(bytes, _mm512_set4_epi32(0x0808_0808, 0x0808_0808, 0, 0));
                return _mm512_add_epi8(points, eights);
            }
            _mm512_mask_sub_epi8(points, signs, _mm512_setzero_si512(), points)
        })
    }

    #[inline(always)]
    unsafe fn raised_two(w: *const u8, b: usize) -> __m512i {
        simd!(_mm512_add_epi8(Self::load_two(w, b), _mm512_set1_epi8(Self::RAISED as i8)))
    }
}

/// The codes of four points of each of two blocks.
#[inline(always)]
fn codes_of_eights<const ID: u32>(first: Codes, second: Codes) -> __m256i {
    simd!({
        if Lattice::<ID>::WIDE {
            let low = _mm_set_epi64x(second.low as i64, first.low as i64);
            return _mm256_and_si256(_mm256_cvtepu16_epi32(low), _mm256_set1_epi32(511));
        }
        let low = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((first.low | second.low << 32) as i64));
        let (mask, step) = Lattice::<ID>::UPPER;
        if mask == 0 {
            return low;
        }
        let upper = _mm256_set_m128i(_mm_set1_epi32(second.upper as i32), _mm_set1_epi32(first.upper as i32));
        let step = step as i32;
        let steps = _mm256_setr_epi32(0, step, 2 * step, 3 * step, 0, step, 2 * step, 3 * step);
        let upper = _mm256_srlv_epi32(_mm256_slli_epi32(upper, 8), steps);
        _mm256_or_si256(low, _mm256_and_si256(upper, _mm256_set1_epi32((mask << 8) as i32)))
    })
}

/// The codes of eight points of each of two blocks.
#[inline(always)]
fn codes_of_fours<const ID: u32>(first: Codes, second: Codes) -> __m512i {
    simd!({
        let low = _mm512_cvtepu8_epi32(_mm_set_epi64x(second.low as i64, first.low as i64));
        let (mask, _) = Lattice::<ID>::UPPER;
        if mask == 0 {
            return low;
        }
        // The ninth bits of sixteen codes.
        let upper = (first.upper | second.upper << 8) as u16;
        _mm512_mask_or_epi32(low, upper, low, _mm512_set1_epi32(256))
    })
}

impl QuantAvx512 for Iq4Xs {
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(looked_up(&IQ4, nibbles_of_two(w.add(8 + b * 16), w.add(24 + b * 16))))
    }
}

impl QuantAvx512 for Mxfp4 {
    #[inline(always)]
    unsafe fn load_two(w: *const u8, b: usize) -> __m512i {
        simd!(looked_up(&FP4_RAISED, nibbles_of_two(w.add(b * 17 + 1), w.add(b * 17 + 18))))
    }
}

/// The same 32 bytes in both halves, from which the quants of two blocks are extracted.
#[inline(always)]
fn both_shifted(p: *const u8, low: usize, high: usize) -> __m512i {
    simd!(shift_halves(_mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())), low, high))
}

/// Q6_K's quants of two blocks, 32 too large.
///
/// # Safety
/// Blocks `b` and `b + 1` of the octet can be read at `w`; the processor has AVX-512.
#[inline(always)]
unsafe fn q6k_raised(w: *const u8, b: usize) -> __m512i {
    let (half, quarter) = (b / 4, b % 4);
    simd!({
        let low = load64(w.add(half * 64));
        let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(w.add(128 + half * 32).cast()));
        let (low, high) = if quarter == 0 {
            let counts = join_integers(_mm256_set1_epi16(4), _mm256_set1_epi16(2));
            (low, _mm512_sllv_epi16(high, counts))
        } else {
            (_mm512_srli_epi16(low, 4), shift_halves(high, 0, 2))
        };
        // Combines the low four bits of one with the upper bits of the other.
        _mm512_ternarylogic_epi32(low, and_wide(high, 0x30), _mm512_set1_epi8(15), 0xe4)
    })
}

/// Q3_K's quants of two blocks, 4 too large.
///
/// # Safety
/// Blocks `b` and `b + 1` of the octet can be read at `w`; the processor has AVX-512.
#[inline(always)]
unsafe fn q3k_raised(w: *const u8, b: usize) -> __m512i {
    let shift = b % 4 * 2;
    simd!({
        let low = and_wide(both_shifted(w.add(32 + b / 4 * 32), shift, shift + 2), 3);
        _mm512_or_si512(low, where_bits(w, b, 4))
    })
}

/// d and m of two octets, `bytes` apart, of Q4_K or Q5_K.
///
/// # Safety
/// Both octets can be read; the processor has AVX-512.
#[inline(always)]
unsafe fn k4_of_two(w: *const u8, bytes: usize) -> (__m512, __m512) {
    simd!({
        let other = w.add(bytes);
        let (sub, min) = k4_scales(w);
        let (other_sub, other_min) = k4_scales(other);
        let halves = _mm_set_epi32(0, 0, u32_at(other, 0) as i32, u32_at(w, 0) as i32);
        // d and −m of the first octet, then of the other.
        let signed = _mm_xor_ps(_mm_cvtph_ps(halves), _mm_setr_ps(0.0, -0.0, 0.0, -0.0));
        let signed = _mm512_castps128_ps512(signed);
        let places = join_integers(_mm256_setzero_si256(), _mm256_set1_epi32(2));
        let d = _mm512_permutexvar_ps(places, signed);
        let m = _mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(1)), signed);
        (_mm512_mul_ps(d, sixteen_bytes(sub, other_sub)), _mm512_mul_ps(m, sixteen_bytes(min, other_min)))
    })
}

#[inline(always)]
fn sixteen_bytes(low: u64, high: u64) -> __m512 {
    simd!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(high as i64, low as i64))))
}

/// `value` in each byte of the first half whose bit `bit` is set, and of the second half whose bit `bit + 1` is set.
#[inline(always)]
fn where_bits(p: *const u8, bit: usize, value: i8) -> __m512i {
    simd!({
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let mask = |bit: usize| (1_u8 << bit) as i8;
        let bits = join_integers(_mm256_set1_epi8(mask(bit)), _mm256_set1_epi8(mask(bit + 1)));
        _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(v, bits), value)
    })
}

/// The low nibbles of sixteen bytes, then the high ones, of two blocks.
#[inline(always)]
fn nibbles_of_two(first: *const u8, second: *const u8) -> __m512i {
    simd!({
        let v = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        let v = _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128(second.cast()));
        let counts = _mm512_set_epi64(
            0x0004_0004_0004_0004,
            0x0004_0004_0004_0004,
            0,
            0,
            0x0004_0004_0004_0004,
            0x0004_0004_0004_0004,
            0,
            0,
        );
        and_wide(_mm512_srlv_epi16(v, counts), 15)
    })
}

/// Looks up nibbles in a table.
#[inline(always)]
fn looked_up(table: &[i8; 16], nibbles: __m512i) -> __m512i {
    simd!({
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, nibbles)
    })
}

/// The offset of quants that are loaded as unsigned.
pub(crate) const fn offset<Q: QuantAvx512>() -> i32 {
    if Q::SIGNED { Q::OFFSET + 128 } else { Q::OFFSET }
}

/// Whether quants minus their offset fit in a signed byte.
pub(crate) const fn is_signed<Q: QuantAvx512>() -> bool {
    !Q::SIGNED || Q::OFFSET == 0
}

/// Quants as bytes: minus their offset if `signed` is requested and they fit, else unsigned.
#[inline(always)]
pub(crate) fn bytes<Q: QuantAvx512>(v: __m512i, signed: bool) -> __m512i {
    simd!(match (signed && is_signed::<Q>(), Q::SIGNED) {
        (true, true) | (false, false) => v,
        (true, false) => _mm512_sub_epi8(v, _mm512_set1_epi8(Q::OFFSET as i8)),
        (false, true) => _mm512_xor_si512(v, _mm512_set1_epi8(-128)),
    })
}

/// The indices of the 16-bit words that are the first and the second halves (f16) of blocks of `stride` bytes, in
/// windows of 32 words, and the start of each window.
const fn places(stride: usize) -> ([u16; 32], [u32; 9]) {
    let (mut places, mut chunks) = ([0; 32], [0; 9]);
    let mut lane = 0;
    while lane < 32 {
        let word = lane % 16 * stride / 2 + lane / 16;
        places[lane] = (word % 32) as u16;
        chunks[word / 32] |= 1 << lane;
        lane += 1;
    }
    (places, chunks)
}

/// The two f16 at the start of each of `blocks` ≤ 16 blocks; the other lanes are 0.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
pub(crate) unsafe fn leading_halves<Q: QuantAvx512>(w: *const u8, blocks: usize) -> (__m512, __m512) {
    let (places, chunks) = const { &places(if Q::LEADING_HALVES { Q::BLOCK.bytes } else { 0 }) };
    simd!({
        let bytes = blocks * Q::BLOCK.bytes;
        let order = _mm512_loadu_si512(places.as_ptr().cast());
        let mut v = _mm512_setzero_si512();
        for chunk in 0..9 {
            let at = chunk * 64;
            if at >= bytes {
                continue;
            }
            let words = if bytes - at >= 64 {
                load64(w.add(at))
            } else {
                _mm512_maskz_loadu_epi16((1_u32 << ((bytes - at) / 2)) - 1, w.add(at).cast())
            };
            let wanted = if Q::MIN == Min::None { 0xffff } else { u32::MAX };
            v = _mm512_mask_permutexvar_epi16(v, chunks[chunk] & wanted, order, words);
        }
        floats_of_halves(v)
    })
}

/// The scales of each octet; only whole octets are read.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
pub(crate) unsafe fn octets<Q: QuantAvx512>(w: *const u8, blocks: usize) -> [Scales; 2] {
    simd!([
        if blocks >= 8 { Q::scales(w) } else { no_scales() },
        if blocks == 16 { Q::scales(w.add(Q::OCTET_BYTES)) } else { no_scales() },
    ])
}

/// The scales of the first and of the second halves of sixteen blocks, or their mins.
#[inline(always)]
pub(crate) fn of_halves(octets: &[Scales; 2], mins: bool) -> [Avx512; 2] {
    let bytes = |octet: &Scales| if mins { octet.half_min } else { octet.half_sub };
    let order = simd!(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    simd!({
        let low = _mm_shuffle_epi8(bytes(&octets[0]), order);
        let high = _mm_shuffle_epi8(bytes(&octets[1]), order);
        [
            Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(low, high)))),
            Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpackhi_epi64(low, high)))),
        ]
    })
}

/// d and m of sixteen blocks.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
pub(crate) unsafe fn block_scales<Q: QuantAvx512>(
    w: *const u8,
    octets: &[Scales; 2],
    blocks: usize,
) -> (__m512, __m512) {
    simd!({
        if Q::PLANES {
            return (_mm512_setzero_ps(), _mm512_setzero_ps());
        }
        if Q::LEADING_HALVES {
            return leading_halves::<Q>(w, blocks);
        }
        if blocks == 16 {
            return Q::scales_of_two(w, octets);
        }
        if blocks == 8 {
            return (join(octets[0].d, octets[1].d), join(octets[0].m, octets[1].m));
        }
        let (mut d, mut m) = ([0.0_f32; 16], [0.0_f32; 16]);
        for b in 0..blocks {
            (d[b], m[b]) = Q::block_scales::<Avx512>(w.add(b / 8 * Q::OCTET_BYTES), b % 8);
        }
        (_mm512_loadu_ps(d.as_ptr()), _mm512_loadu_ps(m.as_ptr()))
    })
}
