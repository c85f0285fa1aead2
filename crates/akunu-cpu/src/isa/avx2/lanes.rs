//! Sixteen lanes in two registers.

use std::arch::x86_64::*;

use akunu_format::ScaleType;

use super::registers::{
    first_lanes, integer_sum_of_eight, largest_of_eight, max8, sum8, sums_of_eight, transpose16,
};
use super::simd;
use crate::isa::Lanes;
use crate::panel::F16x;

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(pub(crate) __m256, pub(crate) __m256);

/// An operation on both registers. A macro, because an intrinsic that is passed as a function
/// would be called instead of inlined.
macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {
        Avx2($op($a.0, $b.0), $op($a.1, $b.1))
    };
}

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Lanes for Avx2 {
    const REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> Avx2 {
        simd!(Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Avx2 {
        simd!(Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))))
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Avx2 {
        let (a, b) = first_lanes(n);
        simd!(Avx2(_mm256_maskload_ps(p, a), _mm256_maskload_ps(p.wrapping_add(8), b)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        simd!({
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        });
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        let (a, b) = first_lanes(n);
        simd!({
            _mm256_maskstore_ps(p, a, self.0);
            _mm256_maskstore_ps(p.wrapping_add(8), b, self.1);
        });
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Avx2 {
        simd!(Avx2(
            _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))
        ))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Avx2 {
        simd!(Avx2(widen_bf16(_mm_loadu_si128(p.cast())), widen_bf16(_mm_loadu_si128(p.add(16).cast()))))
    }

    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Avx2 {
        simd!({
            let halves = halves_of_e4m3(p);
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            let high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
            let scale = _mm256_set1_ps(256.0);
            Avx2(_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale))
        })
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        simd!({
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph(self.0, _MM_FROUND_TO_NEAREST_INT));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph(self.1, _MM_FROUND_TO_NEAREST_INT));
        });
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Avx2 {
        simd!({
            let v = _mm_loadu_si128(p.cast());
            let high = _mm_unpackhi_epi64(v, v);
            Avx2(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)))
        })
    }

    #[inline(always)]
    fn f16(bits: u16) -> f32 {
        simd!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    fn add(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_add_ps, self, b))
    }

    #[inline(always)]
    fn sub(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_sub_ps, self, b))
    }

    #[inline(always)]
    fn mul(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_mul_ps, self, b))
    }

    #[inline(always)]
    fn div(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_div_ps, self, b))
    }

    #[inline(always)]
    fn fma(self, b: Avx2, c: Avx2) -> Avx2 {
        simd!(Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn max(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_max_ps, self, b))
    }

    #[inline(always)]
    fn min(self, b: Avx2) -> Avx2 {
        simd!(both!(_mm256_min_ps, self, b))
    }

    #[inline(always)]
    fn abs(self) -> Avx2 {
        let sign = Avx2::splat(-0.0);
        simd!(both!(_mm256_andnot_ps, sign, self))
    }

    #[inline(always)]
    fn copysign(self, sign: Avx2) -> Avx2 {
        let bit = Avx2::splat(-0.0);
        let magnitude = simd!(both!(_mm256_andnot_ps, bit, self));
        let sign = simd!(both!(_mm256_and_ps, bit, sign));
        simd!(both!(_mm256_or_ps, magnitude, sign))
    }

    #[inline(always)]
    fn round(self) -> Avx2 {
        simd!(Avx2(_mm256_round_ps(self.0, ROUND), _mm256_round_ps(self.1, ROUND)))
    }

    #[inline(always)]
    fn scale2(self, n: Avx2) -> Avx2 {
        Avx2(times_power(self.0, n.0), times_power(self.1, n.1))
    }

    #[inline(always)]
    fn select_lt(a: Avx2, b: Avx2, x: Avx2, y: Avx2) -> Avx2 {
        simd!({
            let (low, high) = (_mm256_cmp_ps(a.0, b.0, _CMP_LT_OQ), _mm256_cmp_ps(a.1, b.1, _CMP_LT_OQ));
            Avx2(_mm256_blendv_ps(y.0, x.0, low), _mm256_blendv_ps(y.1, x.1, high))
        })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        sum8(simd!(_mm256_add_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn deinterleave(a: Avx2, b: Avx2) -> [Avx2; 2] {
        let [even0, odd0] = apart8(a.0, a.1);
        let [even1, odd1] = apart8(b.0, b.1);
        [Avx2(even0, even1), Avx2(odd0, odd1)]
    }

    #[inline(always)]
    fn interleave(even: Avx2, odd: Avx2) -> [Avx2; 2] {
        let [a0, a1] = together8(even.0, odd.0);
        let [b0, b1] = together8(even.1, odd.1);
        [Avx2(a0, a1), Avx2(b0, b1)]
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        max8(simd!(_mm256_max_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn eq_mask(self, b: Avx2) -> u32 {
        simd!({
            let low = _mm256_movemask_ps(_mm256_cmp_ps(self.0, b.0, _CMP_EQ_OQ)) as u32;
            let high = _mm256_movemask_ps(_mm256_cmp_ps(self.1, b.1, _CMP_EQ_OQ)) as u32;
            low | high << 8
        })
    }

    #[inline(always)]
    unsafe fn sums8(v: [Avx2; 8], out: *mut f32) {
        simd!({
            let folded = [
                _mm256_add_ps(v[0].0, v[0].1),
                _mm256_add_ps(v[1].0, v[1].1),
                _mm256_add_ps(v[2].0, v[2].1),
                _mm256_add_ps(v[3].0, v[3].1),
                _mm256_add_ps(v[4].0, v[4].1),
                _mm256_add_ps(v[5].0, v[5].1),
                _mm256_add_ps(v[6].0, v[6].1),
                _mm256_add_ps(v[7].0, v[7].1),
            ];
            _mm256_storeu_ps(out, sums_of_eight(folded));
        });
    }

    #[inline(always)]
    unsafe fn quantise_lanes([a, b]: [Avx2; 2], quants: *mut i8) -> (f32, i32) {
        simd!(quantise_32([a.0, a.1, b.0, b.1], quants))
    }

    #[inline(always)]
    unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> Avx2 {
        let (low, high) = simd!(spread(p, kind, blocks, count));
        Avx2(low, high)
    }

    #[inline(always)]
    fn transpose(from: &[F16x; 16], to: &mut [F16x; 16]) {
        transpose16(from, to);
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        simd!(_mm_prefetch(p.cast(), _MM_HINT_T0));
    }
}

/// Clears the sign bit.
#[inline(always)]
fn magnitude(v: __m256) -> __m256i {
    simd!(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff)))
}

/// [`akunu_plan::q8::quantise_block`] of 32 elements.
///
/// # Safety
/// 32 bytes can be written at `quants`.
#[inline(always)]
unsafe fn quantise_32(v: [__m256; 4], quants: *mut i8) -> (f32, i32) {
    // SAFETY: 32 bytes can be written, as the caller promises; the target features are present as in `simd!`.
    unsafe {
        let m = _mm256_max_epi32(
            _mm256_max_epi32(magnitude(v[0]), magnitude(v[1])),
            _mm256_max_epi32(magnitude(v[2]), magnitude(v[3])),
        );
        let largest = largest_of_eight(m);
        let inverse = 127.0 / largest;
        if !largest.is_finite() || !inverse.is_finite() {
            _mm256_storeu_si256(quants.cast(), _mm256_setzero_si256());
            return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
        }
        let scale = _mm256_set1_ps(inverse);
        let q = [
            _mm256_cvtps_epi32(_mm256_mul_ps(v[0], scale)),
            _mm256_cvtps_epi32(_mm256_mul_ps(v[1], scale)),
            _mm256_cvtps_epi32(_mm256_mul_ps(v[2], scale)),
            _mm256_cvtps_epi32(_mm256_mul_ps(v[3], scale)),
        ];
        let sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(quants.cast(), bytes);
        (largest / 127.0, integer_sum_of_eight(sum))
    }
}

#[inline(always)]
fn widen_bf16(v: __m128i) -> __m256 {
    simd!(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)))
}

/// Sixteen E4M3 codes as f16, divided by 2⁸.
///
/// # Safety
/// Sixteen codes can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn halves_of_e4m3(p: *const u8) -> __m256i {
    simd!({
        let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
        let sign = _mm256_and_si256(_mm256_slli_epi16(codes, 8), _mm256_set1_epi16(i16::MIN));
        let largest = _mm256_set1_epi16(0x3f80);
        let magnitude = _mm256_and_si256(_mm256_slli_epi16(codes, 7), largest);
        let nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, largest), _mm256_set1_epi16(0x7c00));
        _mm256_or_si256(_mm256_or_si256(sign, magnitude), nan)
    })
}

/// 2^e
#[inline(always)]
fn power(e: __m256i) -> __m256 {
    simd!(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23)))
}

#[inline(always)]
fn times_power(x: __m256, n: __m256) -> __m256 {
    simd!({
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32(n, 1);
        _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(n, half)))
    })
}

/// The even and the odd ones of sixteen numbers.
#[inline(always)]
fn apart8(a: __m256, b: __m256) -> [__m256; 2] {
    simd!({
        // Reorder the halves, so that the shuffles below give elements in order.
        let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        [_mm256_shuffle_ps::<0b10_00_10_00>(low, high), _mm256_shuffle_ps::<0b11_01_11_01>(low, high)]
    })
}

#[inline(always)]
fn together8(even: __m256, odd: __m256) -> [__m256; 2] {
    simd!({
        let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
    })
}

/// Eight numbers as f32.
///
/// # Safety
/// Eight numbers of the type can be read at `p`.
#[inline(always)]
unsafe fn eight(p: *const u8, kind: ScaleType) -> __m256 {
    simd!(match kind {
        ScaleType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
        ScaleType::BF16 => {
            let v = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(v, 16))
        }
        ScaleType::F32 => _mm256_loadu_ps(p.cast()),
    })
}

/// Four numbers as f32; the upper lanes are unspecified.
///
/// # Safety
/// Four numbers of the type can be read at `p`.
#[inline(always)]
unsafe fn four(p: *const u8, kind: ScaleType) -> __m256 {
    simd!(_mm256_castps128_ps256(match kind {
        ScaleType::F16 => _mm_cvtph_ps(_mm_loadl_epi64(p.cast())),
        ScaleType::BF16 => {
            let v = _mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast()));
            _mm_castsi128_ps(_mm_slli_epi32(v, 16))
        }
        ScaleType::F32 => _mm_loadu_ps(p.cast()),
    }))
}

/// [`super::Lanes::spread`] in two halves.
///
/// # Safety
/// `count / blocks` numbers can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> (__m256, __m256) {
    let mut room = [0_u8; 64];
    simd!({
        let p = if count == 16 {
            p
        } else {
            p.copy_to_nonoverlapping(room.as_mut_ptr(), count / blocks * kind.bytes());
            room.as_ptr()
        };
        match blocks {
            1 => (eight(p, kind), eight(p.add(8 * kind.bytes()), kind)),
            2 => {
                let v = eight(p, kind);
                let low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                let high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
                (_mm256_permutevar8x32_ps(v, low), _mm256_permutevar8x32_ps(v, high))
            }
            _ => {
                let v = four(p, kind);
                let low = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                let high = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
                (_mm256_permutevar8x32_ps(v, low), _mm256_permutevar8x32_ps(v, high))
            }
        }
    })
}
