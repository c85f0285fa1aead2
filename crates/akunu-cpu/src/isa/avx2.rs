//! AVX2 with FMA and F16C: sixteen lanes in two registers.

use std::arch::x86_64::*;

use akunu_format::ScaleType;

use super::Lanes;
use super::x86_affine::{spread, transpose16};
use super::x86_quants::{QuantX86, terms_16, unpack_panel};
use crate::panel::{Chunk, F16x, Panel};
use crate::quants::{Min, Sub};
use crate::tile::{self, Dot, Panels, Terms, Tile};

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(pub(crate) __m256, pub(crate) __m256);

macro_rules! simd {
    ($e:expr) => {
        // SAFETY: functions that use this macro are only reached through wrappers with AVX2, FMA and F16C enabled,
        // which the device selects after checking the processor. Pointers are valid by the `# Safety` section of the
        // enclosing function or of the trait method it implements.
        unsafe { $e }
    };
}
pub(crate) use simd;

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

/// Clears the sign bit.
#[inline(always)]
fn magnitude(v: __m256) -> __m256i {
    simd!(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff)))
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

macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {
        simd!(Avx2($op($a.0, $b.0), $op($a.1, $b.1)))
    };
}

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

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
        both!(_mm256_add_ps, self, b)
    }

    #[inline(always)]
    fn sub(self, b: Avx2) -> Avx2 {
        both!(_mm256_sub_ps, self, b)
    }

    #[inline(always)]
    fn mul(self, b: Avx2) -> Avx2 {
        both!(_mm256_mul_ps, self, b)
    }

    #[inline(always)]
    fn div(self, b: Avx2) -> Avx2 {
        both!(_mm256_div_ps, self, b)
    }

    #[inline(always)]
    fn fma(self, b: Avx2, c: Avx2) -> Avx2 {
        simd!(Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn max(self, b: Avx2) -> Avx2 {
        both!(_mm256_max_ps, self, b)
    }

    #[inline(always)]
    fn min(self, b: Avx2) -> Avx2 {
        both!(_mm256_min_ps, self, b)
    }

    #[inline(always)]
    fn abs(self) -> Avx2 {
        let sign = Avx2::splat(-0.0);
        both!(_mm256_andnot_ps, sign, self)
    }

    #[inline(always)]
    fn copysign(self, sign: Avx2) -> Avx2 {
        let bit = Avx2::splat(-0.0);
        let (magnitude, sign) = (both!(_mm256_andnot_ps, bit, self), both!(_mm256_and_ps, bit, sign));
        both!(_mm256_or_ps, magnitude, sign)
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

/// Products of 32 quants and 32 activations, summed in pairs: at most 2 · 127 · 128, which fits in i16.
#[inline(always)]
pub(crate) fn pairs<Q: QuantX86>(q: __m256i, x: __m256i) -> __m256i {
    simd!(if Q::SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
    } else {
        _mm256_maddubs_epi16(q, x)
    })
}

impl<Q: QuantX86> Dot<Q> for Avx2 {
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

impl<Q: QuantX86> Panels<Q> for Avx2 {
    #[inline(always)]
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
        simd!(unpack_panel::<Q>(panel, rows, blocks));
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize>(
        panel: *const Panel,
        blocks: usize,
        x: [Chunk; R],
        acc: [*mut f32; R],
    ) {
        // SAFETY: a valid, unpacked panel, as the caller promises.
        let panel = unsafe { &*panel };
        for b in 0..blocks {
            simd!(multiply_block::<Q, R>(panel, b, &x, &acc));
        }
    }
}

#[inline(always)]
fn to_float(v: [__m256i; 2]) -> Avx2 {
    simd!(Avx2(_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])))
}

/// The number of four-element steps whose accumulated pair sums fit in i16.
const fn steps<Q: QuantX86>() -> usize {
    let room = 32767 / (2 * 127 * Q::MAX);
    let most = if matches!(Q::SUB, Sub::Half) { 4 } else { 8 };
    if room >= 8 && most == 8 {
        8
    } else if room >= 4 {
        4
    } else {
        1
    }
}

/// Integer sums of steps `from..to` for sixteen outputs by R rows.
///
/// # Safety
/// Block `b` can be read in each chunk.
#[inline(always)]
unsafe fn integer_steps<Q: QuantX86, const R: usize>(
    panel: &Panel,
    b: usize,
    x: &[Chunk; R],
    from: usize,
    to: usize,
) -> [[__m256i; 2]; R] {
    simd!({
        let ones = _mm256_set1_epi16(1);
        let mut wide = [[_mm256_setzero_si256(); 2]; R];
        let mut step = from;
        while step < to {
            let mut narrow = [[_mm256_setzero_si256(); 2]; R];
            for i in 0..steps::<Q>().min(panel.steps) {
                let w = panel.quants[b][step + i].as_ptr();
                let w = [_mm256_load_si256(w.cast()), _mm256_load_si256(w.add(32).cast())];
                for r in 0..R {
                    let x = x[r].quants.add(b * 32 + (step + i) * 4).cast::<i32>().read_unaligned();
                    let x = _mm256_set1_epi32(x);
                    for h in 0..2 {
                        narrow[r][h] = _mm256_add_epi16(narrow[r][h], pairs::<Q>(w[h], x));
                    }
                }
            }
            for r in 0..R {
                for h in 0..2 {
                    wide[r][h] = _mm256_add_epi32(wide[r][h], _mm256_madd_epi16(narrow[r][h], ones));
                }
            }
            step += steps::<Q>();
        }
        wide
    })
}

/// Adds the products of block `b` and R rows to the rows' accumulators.
///
/// # Safety
/// Block `b` can be read in each chunk, and its sixteen accumulators read and written in each of `acc`.
#[inline(always)]
unsafe fn multiply_block<Q: QuantX86, const R: usize>(
    panel: &Panel,
    b: usize,
    x: &[Chunk; R],
    acc: &[*mut f32; R],
) {
    simd!({
        let mut sums = [Avx2::zero(); R];
        if Q::SUB == Sub::Half {
            let first = integer_steps::<Q, R>(panel, b, x, 0, 4);
            let second = integer_steps::<Q, R>(panel, b, x, 4, 8);
            let sub = [load(&panel.sub[b * 2].0), load(&panel.sub[b * 2 + 1].0)];
            for r in 0..R {
                sums[r] = to_float(second[r]).fma(sub[1], to_float(first[r]).mul(sub[0]));
            }
        } else {
            let all = integer_steps::<Q, R>(panel, b, x, 0, 8);
            for r in 0..R {
                let mut v = all[r];
                if Q::OFFSET != 0 {
                    let offset = _mm256_set1_epi32(Q::OFFSET * *x[r].sums.add(b));
                    v = [_mm256_sub_epi32(v[0], offset), _mm256_sub_epi32(v[1], offset)];
                }
                sums[r] = to_float(v);
            }
        }
        for r in 0..R {
            let dx = Avx2::splat(*x[r].scales.add(b));
            let at = acc[r].add(b * 16);
            let mut lanes = sums[r].fma(load::<Avx2>(&panel.d[b].0).mul(dx), Avx2::load(at));
            if Q::MIN != Min::None {
                let mins = mins::<Avx2, Q>(panel, b, &x[r]);
                lanes = load::<Avx2>(&panel.m[b].0).fma(mins.mul(dx), lanes);
            }
            lanes.store(at);
        }
    })
}

#[inline(always)]
pub(crate) fn load<V: Lanes>(v: &[f32; 16]) -> V {
    // SAFETY: `v` has sixteen elements.
    unsafe { V::load(v.as_ptr()) }
}

/// Σ x of block `b`, or Σ min · x if halves have their own mins, exactly, for sixteen outputs.
///
/// # Safety
/// Block `b` of the chunk can be read; the processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn mins<V: Lanes, Q: QuantX86>(panel: &Panel, b: usize, x: &Chunk) -> V {
    // SAFETY: block `b` of the chunk can be read, as the caller promises.
    unsafe {
        let sum = *x.sums.add(b);
        match Q::MIN {
            Min::Float | Min::Block | Min::None => V::splat(sum as f32),
            Min::Half => {
                let first = sum16(x.quants.add(b * 32));
                let second = V::splat((sum - first) as f32).mul(load(&panel.min[b * 2 + 1].0));
                V::splat(first as f32).fma(load(&panel.min[b * 2].0), second)
            }
        }
    }
}

/// The sum of sixteen activations.
///
/// # Safety
/// Sixteen bytes can be read at `x`.
#[inline(always)]
unsafe fn sum16(x: *const i8) -> i32 {
    simd!({
        let v = _mm256_cvtepi8_epi16(_mm_loadu_si128(x.cast()));
        let v = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0b01_00_11_10));
        _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0b10_11_00_01)))
    })
}
