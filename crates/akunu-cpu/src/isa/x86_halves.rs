//! Halves to floats, rows to columns: how attention wants its keys.

use std::arch::x86_64::*;

use super::avx2::simd;
use crate::panel::F16x;

/// [`super::Lanes::transpose_halves`]
///
/// # Safety
/// Sixteen halves can be read at each row.
#[inline(always)]
pub(crate) unsafe fn transpose_halves(rows: &[*const u8; 16], to: &mut [F16x; 16]) {
    for half in 0..2 {
        let mut v = [simd!(_mm256_setzero_si256()); 8];
        for i in 0..8 {
            v[i] = simd!(_mm256_loadu_si256(rows[half * 8 + i].cast()));
        }
        for (i, v) in columns(v).into_iter().enumerate() {
            simd!({
                let (low, high) = (_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
                _mm256_store_ps(to[i].0.as_mut_ptr().add(half * 8), _mm256_cvtph_ps(low));
                _mm256_store_ps(to[i + 8].0.as_mut_ptr().add(half * 8), _mm256_cvtph_ps(high));
            });
        }
    }
}

/// Transposes eight rows of sixteen halves: columns i and i + 8 come to lie side by side in register i. A wider register has those of
/// another eight rows after them.
macro_rules! columns {
    ($name:ident, $register:ty, $low16:ident, $high16:ident, $low32:ident, $high32:ident, $low64:ident, $high64:ident) => {
        #[inline(always)]
        fn $name(v: [$register; 8]) -> [$register; 8] {
            simd!({
                let (mut pairs, mut fours, mut all) = (v, v, v);
                for i in 0..4 {
                    pairs[2 * i] = $low16(v[2 * i], v[2 * i + 1]);
                    pairs[2 * i + 1] = $high16(v[2 * i], v[2 * i + 1]);
                }
                for i in [0, 4] {
                    for j in 0..2 {
                        fours[i + 2 * j] = $low32(pairs[i + j], pairs[i + j + 2]);
                        fours[i + 2 * j + 1] = $high32(pairs[i + j], pairs[i + j + 2]);
                    }
                }
                for i in 0..4 {
                    all[2 * i] = $low64(fours[i], fours[i + 4]);
                    all[2 * i + 1] = $high64(fours[i], fours[i + 4]);
                }
                all
            })
        }
    };
}

columns!(
    columns,
    __m256i,
    _mm256_unpacklo_epi16,
    _mm256_unpackhi_epi16,
    _mm256_unpacklo_epi32,
    _mm256_unpackhi_epi32,
    _mm256_unpacklo_epi64,
    _mm256_unpackhi_epi64
);
columns!(
    columns_wide,
    __m512i,
    _mm512_unpacklo_epi16,
    _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi32,
    _mm512_unpackhi_epi32,
    _mm512_unpacklo_epi64,
    _mm512_unpackhi_epi64
);

/// The same with rows i and i + 8 in one register.
///
/// # Safety
/// As for [`transpose_halves`]; reached with AVX-512.
#[inline(always)]
pub(crate) unsafe fn transpose_halves_wide(rows: &[*const u8; 16], to: &mut [F16x; 16]) {
    let mut v = [simd!(_mm512_setzero_si512()); 8];
    for i in 0..8 {
        v[i] = simd!({
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(rows[i].cast()));
            _mm512_inserti64x4(low, _mm256_loadu_si256(rows[i + 8].cast()), 1)
        });
    }
    for (at, v) in columns_wide(v).into_iter().enumerate() {
        simd!({
            // Column `at` of all rows, then column `at + 8`.
            let v = _mm512_shuffle_i32x4(v, v, 0b11_01_10_00);
            let (low, high) = (_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
            _mm512_store_ps(to[at].0.as_mut_ptr(), _mm512_cvtph_ps(low));
            _mm512_store_ps(to[at + 8].0.as_mut_ptr(), _mm512_cvtph_ps(high));
        });
    }
}
