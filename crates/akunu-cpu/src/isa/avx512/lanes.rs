//! Sixteen lanes in one register.

use std::arch::x86_64::*;

use akunu_format::ScaleType;

use super::registers::{first_mask, halves, integer_halves, join};
use crate::isa::Lanes;
use crate::isa::avx2::lanes::{halves_of_e4m3, spread};
use crate::isa::avx2::registers::{
    integer_sum_of_eight, largest_of_eight, max8, sum8, sums_of_eight, transpose16,
};
use crate::isa::avx2::simd;
use crate::panel::F16x;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(pub(crate) __m512);

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Lanes for Avx512 {
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(x: f32) -> Avx512 {
        simd!(Avx512(_mm512_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Avx512 {
        simd!(Avx512(_mm512_loadu_ps(p)))
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Avx512 {
        simd!(Avx512(_mm512_maskz_loadu_ps(first_mask(n), p)))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        simd!(_mm512_storeu_ps(p, self.0));
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        simd!(_mm512_mask_storeu_ps(p, first_mask(n), self.0));
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Avx512 {
        simd!(Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Avx512 {
        simd!({
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)))
        })
    }

    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Avx512 {
        simd!({
            let v = _mm512_cvtph_ps(halves_of_e4m3(p));
            Avx512(_mm512_mul_ps(v, _mm512_set1_ps(256.0)))
        })
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        simd!(_mm256_storeu_si256(p.cast(), _mm512_cvtps_ph(self.0, _MM_FROUND_TO_NEAREST_INT)));
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Avx512 {
        simd!(Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))))
    }

    #[inline(always)]
    fn f16(bits: u16) -> f32 {
        simd!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))))
    }

    #[inline(always)]
    fn add(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_add_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn sub(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_sub_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn mul(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_mul_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn div(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_div_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn fma(self, b: Avx512, c: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn max(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_max_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn min(self, b: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_min_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn abs(self) -> Avx512 {
        simd!(Avx512(_mm512_abs_ps(self.0)))
    }

    #[inline(always)]
    fn copysign(self, sign: Avx512) -> Avx512 {
        simd!({
            let bit = _mm512_set1_ps(-0.0);
            Avx512(_mm512_or_ps(_mm512_andnot_ps(bit, self.0), _mm512_and_ps(bit, sign.0)))
        })
    }

    #[inline(always)]
    fn round(self) -> Avx512 {
        simd!(Avx512(_mm512_roundscale_ps(self.0, ROUND)))
    }

    #[inline(always)]
    fn scale2(self, n: Avx512) -> Avx512 {
        simd!(Avx512(_mm512_scalef_ps(self.0, n.0)))
    }

    #[inline(always)]
    fn select_lt(a: Avx512, b: Avx512, x: Avx512, y: Avx512) -> Avx512 {
        simd!({
            let less = _mm512_cmp_ps_mask(a.0, b.0, _CMP_LT_OQ);
            Avx512(_mm512_mask_blend_ps(less, y.0, x.0))
        })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let (low, high) = halves(self.0);
        sum8(simd!(_mm256_add_ps(low, high)))
    }

    #[inline(always)]
    fn deinterleave(a: Avx512, b: Avx512) -> [Avx512; 2] {
        simd!({
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            [Avx512(_mm512_permutex2var_ps(a.0, even, b.0)), Avx512(_mm512_permutex2var_ps(a.0, odd, b.0))]
        })
    }

    #[inline(always)]
    fn interleave(even: Avx512, odd: Avx512) -> [Avx512; 2] {
        simd!({
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
            [
                Avx512(_mm512_permutex2var_ps(even.0, first, odd.0)),
                Avx512(_mm512_permutex2var_ps(even.0, second, odd.0)),
            ]
        })
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        let (low, high) = halves(self.0);
        max8(simd!(_mm256_max_ps(low, high)))
    }

    #[inline(always)]
    fn eq_mask(self, b: Avx512) -> u32 {
        u32::from(simd!(_mm512_cmp_ps_mask(self.0, b.0, _CMP_EQ_OQ)))
    }

    #[inline(always)]
    unsafe fn sums8(v: [Avx512; 8], out: *mut f32) {
        simd!({
            let mut folded = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                let (low, high) = halves(v[i].0);
                folded[i] = _mm256_add_ps(low, high);
            }
            _mm256_storeu_ps(out, sums_of_eight(folded));
        });
    }

    #[inline(always)]
    unsafe fn quantise_lanes(v: [Avx512; 2], quants: *mut i8) -> (f32, i32) {
        simd!(quantise_32([v[0].0, v[1].0], quants))
    }

    #[inline(always)]
    unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> Avx512 {
        let (low, high) = simd!(spread(p, kind, blocks, count));
        Avx512(join(low, high))
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
fn magnitude(v: __m512) -> __m512i {
    simd!(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff)))
}

/// [`akunu_plan::q8::quantise_block`] of 32 elements.
///
/// # Safety
/// 32 bytes can be written at `quants`.
#[inline(always)]
unsafe fn quantise_32(v: [__m512; 2], quants: *mut i8) -> (f32, i32) {
    // SAFETY: 32 bytes can be written, as the caller promises; the target features are present as in `simd!`.
    unsafe {
        let (low, high) = integer_halves(_mm512_max_epi32(magnitude(v[0]), magnitude(v[1])));
        let largest = largest_of_eight(_mm256_max_epi32(low, high));
        let inverse = 127.0 / largest;
        if !largest.is_finite() || !inverse.is_finite() {
            _mm256_storeu_si256(quants.cast(), _mm256_setzero_si256());
            return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
        }
        let scale = _mm512_set1_ps(inverse);
        let a = _mm512_cvtps_epi32(_mm512_mul_ps(v[0], scale));
        let b = _mm512_cvtps_epi32(_mm512_mul_ps(v[1], scale));
        _mm_storeu_si128(quants.cast(), _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128(quants.add(16).cast(), _mm512_cvtepi32_epi8(b));
        let (low, high) = integer_halves(_mm512_add_epi32(a, b));
        (largest / 127.0, integer_sum_of_eight(_mm256_add_epi32(low, high)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::isa::scalar::lanes::Scalar;
    use crate::math::exp;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn by_avx512(x: &[f32; 16], to: &mut [f32; 16]) {
        // SAFETY: both arrays have sixteen elements, and the processor has AVX-512 (checked by the caller).
        unsafe { exp(Avx512::load(x.as_ptr())).store(to.as_mut_ptr()) };
    }

    #[test]
    fn exp_gives_the_scalar_bits_from_everywhere() {
        if !Isa::Avx512Bw.is_available() {
            eprintln!("skipped: no AVX-512 here");
            return;
        }
        let (mut expected, mut found) = ([0.0; 16], [0.0; 16]);
        let apart = akunu_testing::few_or_many(977, 61);
        for first in (0..u32::MAX).step_by(16 * apart as usize) {
            let x = std::array::from_fn(|l| f32::from_bits(first.wrapping_add(apart * l as u32)));
            // SAFETY: the array has sixteen elements; the features were detected.
            unsafe {
                exp(Scalar(x)).store(expected.as_mut_ptr());
                by_avx512(&x, &mut found);
            }
            assert_eq!(expected.map(f32::to_bits), found.map(f32::to_bits), "{x:?}");
        }
    }
}
