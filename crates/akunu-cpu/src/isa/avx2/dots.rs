//! Products of one row: the integer sums of sixteen blocks of an output at a time, weights in their stored layout.

use std::arch::x86_64::*;

use super::lanes::Avx2;
use super::quants::{QuantAvx2, Scales, no_scales};
use super::registers::{first_lanes, reduce8};
use super::simd;
use crate::formats::{Min, Sub};
use crate::tile::{self, Dot, Terms, Tile};

impl<Q: QuantAvx2> Dot<Q> for Avx2 {
    #[inline(always)]
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Avx2> {
        let (low, high) = simd!(terms_16::<Q>(w, x, sums, blocks));
        Terms {
            sum: Avx2(low.sum, high.sum),
            d: Avx2(low.d, high.d),
            min_sum: Avx2(low.min_sum, high.min_sum),
            m: Avx2(low.m, high.m),
        }
    }

    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same tile, with the same contract.
        unsafe { tile::rows_or_panels::<Self, Q>(t) }
    }
}

/// Products of 32 quants and 32 activations, summed in pairs: at most 2 · 127 · 128, which fits in i16.
#[inline(always)]
pub(crate) fn pairs<Q: QuantAvx2>(q: __m256i, x: __m256i) -> __m256i {
    simd!(if Q::SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
    } else {
        _mm256_maddubs_epi16(q, x)
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
pub(crate) unsafe fn terms_16<Q: QuantAvx2>(
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
unsafe fn block_sums<Q: QuantAvx2>(q: __m256i, x: *const i8, sub: __m128i, b: usize) -> __m256i {
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
unsafe fn terms_octet<Q: QuantAvx2>(w: *const u8, x: *const i8, sums: *const i32) -> Terms<__m256> {
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
unsafe fn terms_part<Q: QuantAvx2>(
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
unsafe fn finish_terms<Q: QuantAvx2>(
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
