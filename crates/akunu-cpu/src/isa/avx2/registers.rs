//! Sums, maxima and transposes within and between registers.

use std::arch::x86_64::*;

use super::simd;
use crate::panel::F16x;

#[inline(always)]
pub(crate) fn first_lanes(n: usize) -> (__m256i, __m256i) {
    static MASK: [i32; 32] = {
        let mut mask = [0; 32];
        let mut i = 0;
        while i < 16 {
            mask[i] = -1;
            i += 1;
        }
        mask
    };
    let from = &MASK[16 - n.min(16)..];
    simd!((_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from[8..].as_ptr().cast())))
}

#[inline(always)]
pub(crate) fn load32(p: *const u8) -> __m256i {
    simd!(_mm256_loadu_si256(p.cast()))
}

#[inline(always)]
pub(crate) fn sum8(v: __m256) -> f32 {
    simd!({
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    })
}

#[inline(always)]
pub(crate) fn max8(v: __m256) -> f32 {
    simd!({
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    })
}

/// Adds the two halves of `a`, and those of `b`.
#[inline(always)]
fn fold(a: __m256, b: __m256) -> __m256 {
    simd!(_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)))
}

/// In each group of four, lanes 0 and 1 plus lanes 2 and 3: `[a a b b | a a b b]`.
#[inline(always)]
fn halve(a: __m256, b: __m256) -> __m256 {
    simd!(_mm256_add_ps(_mm256_shuffle_ps(a, b, 0b01_00_01_00), _mm256_shuffle_ps(a, b, 0b11_10_11_10)))
}

/// `sum8` of eight registers, in their order.
#[inline(always)]
pub(crate) fn sums_of_eight(v: [__m256; 8]) -> __m256 {
    let (a, b) = (halve(fold(v[0], v[1]), fold(v[2], v[3])), halve(fold(v[4], v[5]), fold(v[6], v[7])));
    simd!({
        // [0 2 4 6 | 1 3 5 7]
        let v = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0b10_00_10_00), _mm256_shuffle_ps(a, b, 0b11_01_11_01));
        _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    })
}

/// The largest of eight integers, reinterpreted as f32.
#[inline(always)]
pub(crate) fn largest_of_eight(m: __m256i) -> f32 {
    simd!({
        let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        let m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0b01_00_11_10));
        let m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0b10_11_00_01));
        f32::from_bits(_mm_cvtsi128_si32(m) as u32)
    })
}

#[inline(always)]
pub(crate) fn integer_sum_of_eight(sum: __m256i) -> i32 {
    simd!({
        let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        let sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0b01_00_11_10));
        let sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0b10_11_00_01));
        _mm_cvtsi128_si32(sum)
    })
}

/// The sum of each register, in order.
#[inline(always)]
pub(crate) fn reduce8(v: [__m256i; 8]) -> __m256i {
    simd!({
        let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
        _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31))
    })
}

/// Transposes eight rows of eight 32-bit words.
#[inline(always)]
pub(crate) fn transpose8(v: [__m256i; 8]) -> [__m256i; 8] {
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

/// [`super::Lanes::transpose`]
#[inline(always)]
pub(crate) fn transpose16(from: &[F16x; 16], to: &mut [F16x; 16]) {
    for octet in 0..2 {
        for group in 0..2 {
            let mut rows = [simd!(_mm256_setzero_ps()); 8];
            for o in 0..8 {
                rows[o] = simd!(_mm256_loadu_ps(from[group * 8 + o].0[octet * 8..].as_ptr()));
            }
            put_columns(&mut to[octet * 8..octet * 8 + 8], group, rows);
        }
    }
}
