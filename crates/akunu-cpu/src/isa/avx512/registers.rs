//! Halves and quarters of registers, sums, and transposes between registers.

use std::arch::x86_64::*;

use crate::isa::avx2::simd;

#[inline(always)]
pub(crate) fn first_mask(n: usize) -> __mmask16 {
    ((1_u32 << n.min(16)) - 1) as __mmask16
}

/// The two halves of a register, which the first step of the canonical reduction tree adds.
#[inline(always)]
pub(crate) fn halves(v: __m512) -> (__m256, __m256) {
    simd!((_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)))
}

/// The lower and the upper eight integers.
#[inline(always)]
pub(crate) fn integer_halves(v: __m512i) -> (__m256i, __m256i) {
    simd!((_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)))
}

#[inline(always)]
pub(crate) fn join_integers(low: __m256i, high: __m256i) -> __m512i {
    simd!(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))
}

#[inline(always)]
pub(crate) fn join(low: __m256, high: __m256) -> __m512 {
    simd!(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1))
}

#[inline(always)]
pub(crate) fn load64(p: *const u8) -> __m512i {
    simd!(_mm512_loadu_si512(p.cast()))
}

#[inline(always)]
pub(crate) fn and_wide(v: __m512i, mask: i8) -> __m512i {
    simd!(_mm512_and_si512(v, _mm512_set1_epi8(mask)))
}

/// Shifts the bytes of each half right by its own count; the bits shifted in from the byte above must be masked off.
#[inline(always)]
pub(crate) fn shift_halves(v: __m512i, low: usize, high: usize) -> __m512i {
    simd!({
        let counts = join_integers(_mm256_set1_epi16(low as i16), _mm256_set1_epi16(high as i16));
        _mm512_srlv_epi16(v, counts)
    })
}

/// Two times sixteen f16.
#[inline(always)]
pub(crate) fn floats_of_halves(v: __m512i) -> (__m512, __m512) {
    simd!((_mm512_cvtph_ps(_mm512_castsi512_si256(v)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1))))
}

/// The i-th quarters of four registers, concatenated.
#[inline(always)]
pub(crate) fn quarters(v: [__m512i; 4]) -> [__m512i; 4] {
    simd!({
        let low = _mm512_shuffle_i32x4(v[0], v[1], 0b01_00_01_00);
        let high = _mm512_shuffle_i32x4(v[0], v[1], 0b11_10_11_10);
        let other_low = _mm512_shuffle_i32x4(v[2], v[3], 0b01_00_01_00);
        let other_high = _mm512_shuffle_i32x4(v[2], v[3], 0b11_10_11_10);
        [
            _mm512_shuffle_i32x4(low, other_low, 0b10_00_10_00),
            _mm512_shuffle_i32x4(low, other_low, 0b11_01_11_01),
            _mm512_shuffle_i32x4(high, other_high, 0b10_00_10_00),
            _mm512_shuffle_i32x4(high, other_high, 0b11_01_11_01),
        ]
    })
}

/// The sums of each half of eight registers: sixteen blocks in order.
#[inline(always)]
pub(crate) fn reduce16(v: [__m512i; 8]) -> __m512i {
    simd!({
        let mut fours = [_mm512_setzero_si512(); 2];
        for i in 0..2 {
            let at = i * 4;
            let mut twos = [_mm512_setzero_si512(); 2];
            for j in 0..2 {
                let (a, b) = (v[at + j * 2], v[at + j * 2 + 1]);
                twos[j] = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            }
            let (a, b) = (twos[0], twos[1]);
            fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        }
        // Quarters 0 and 1 of each register are even blocks, 2 and 3 odd ones.
        let first = _mm512_shuffle_i32x4(fours[0], fours[1], 0b10_00_10_00);
        let second = _mm512_shuffle_i32x4(fours[0], fours[1], 0b11_01_11_01);
        let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        _mm512_permutexvar_epi32(order, _mm512_add_epi32(first, second))
    })
}

/// Transposes two blocks of sixteen rows to the panel's layout: `[4 elements][output · 4 + element]`, eight per block.
#[inline(always)]
pub(crate) fn lines_of_two(v: [__m512i; 16]) -> [__m512i; 16] {
    simd!({
        let zero = _mm512_setzero_si512();
        // Columns of four rows: quarters 0 and 1 are columns i and i + 4 of the first block, 2 and 3 of the second.
        let mut columns = [[zero; 4]; 4];
        for four in 0..4 {
            let at = four * 4;
            let (a0, a1) = (_mm512_unpacklo_epi32(v[at], v[at + 1]), _mm512_unpackhi_epi32(v[at], v[at + 1]));
            let (b0, b1) =
                (_mm512_unpacklo_epi32(v[at + 2], v[at + 3]), _mm512_unpackhi_epi32(v[at + 2], v[at + 3]));
            columns[0][four] = _mm512_unpacklo_epi64(a0, b0);
            columns[1][four] = _mm512_unpackhi_epi64(a0, b0);
            columns[2][four] = _mm512_unpacklo_epi64(a1, b1);
            columns[3][four] = _mm512_unpackhi_epi64(a1, b1);
        }
        let mut lines = [zero; 16];
        for i in 0..4 {
            let [a, b, c, d] = columns[i];
            let (ab, cd) =
                (_mm512_shuffle_i32x4(a, b, 0b01_00_01_00), _mm512_shuffle_i32x4(c, d, 0b01_00_01_00));
            let (ef, gh) =
                (_mm512_shuffle_i32x4(a, b, 0b11_10_11_10), _mm512_shuffle_i32x4(c, d, 0b11_10_11_10));
            lines[i] = _mm512_shuffle_i32x4(ab, cd, 0b10_00_10_00);
            lines[i + 4] = _mm512_shuffle_i32x4(ab, cd, 0b11_01_11_01);
            lines[i + 8] = _mm512_shuffle_i32x4(ef, gh, 0b10_00_10_00);
            lines[i + 12] = _mm512_shuffle_i32x4(ef, gh, 0b11_01_11_01);
        }
        lines
    })
}
