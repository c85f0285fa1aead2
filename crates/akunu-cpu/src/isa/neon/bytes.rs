//! How bytes are multiplied: in pairs, in fours (FEAT_DotProd), or two rows by two outputs at once (FEAT_I8MM).

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::registers::transpose4;
use super::simd;
use crate::formats::Quant;
use crate::panel::{Chunk, Panel};

/// The sums of 4 · G outputs by R rows.
pub(crate) type Sums<const G: usize, const R: usize> = [[int32x4_t; G]; R];

/// # Safety
/// The methods must only be called on a processor with the features of `Self`.
pub(crate) trait Bytes: Copy + 'static {
    /// Whether the accumulators of sixteen outputs by four rows fit in registers.
    const WIDE: bool;

    /// Σ q · x of sixteen bytes, in four partial sums.
    unsafe fn half_block(q: int8x16_t, x: int8x16_t) -> int32x4_t;

    /// The same for 32 bytes.
    #[inline(always)]
    unsafe fn block<Q: Quant>(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { vaddq_s32(Self::half_block(q[0], x[0]), Self::half_block(q[1], x[1])) }
    }

    /// Stores a block of four outputs, from `4 · quarter` on, in the layout that [`Bytes::sums`] reads.
    #[inline(always)]
    unsafe fn place(to: &mut [[i8; 64]; 8], quarter: usize, v: [[int8x16_t; 2]; 4]) {
        for half in 0..2 {
            let mut rows = [simd!(vdupq_n_u32(0)); 4];
            for o in 0..4 {
                rows[o] = simd!(vreinterpretq_u32_s8(v[o][half]));
            }
            for (step, column) in transpose4(rows).into_iter().enumerate() {
                let to = to[half * 4 + step][quarter * 16..quarter * 16 + 16].as_mut_ptr();
                simd!(vst1q_u32(to.cast(), column));
            }
        }
    }

    /// The integer sums of some halves of block `b`, for quarters of the outputs from `first` on.
    ///
    /// # Safety
    /// Block `b` can be read in each chunk.
    unsafe fn sums<Q: Quant, const G: usize, const R: usize>(
        panel: &Panel,
        b: usize,
        halves: Range<usize>,
        first: usize,
        x: &[Chunk; R],
    ) -> Sums<G, R>;
}

#[inline(always)]
fn no_sums<const G: usize, const R: usize>() -> Sums<G, R> {
    [[simd!(vdupq_n_s32(0)); G]; R]
}

/// Baseline NEON.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

/// The number of products of a quant and an activation whose sum fits in 16 bits.
const fn room<Q: Quant>() -> usize {
    match 32767 / (127 * Q::MAX) {
        8.. => 8,
        4.. => 4,
        _ => 2,
    }
}

/// Products of bytes, summed in pairs.
#[inline(always)]
fn pairs(q: int8x16_t, x: int8x16_t) -> int16x8_t {
    simd!(vmlal_high_s8(vmull_s8(vget_low_s8(q), vget_low_s8(x)), q, x))
}

impl Bytes for Plain {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn half_block(q: int8x16_t, x: int8x16_t) -> int32x4_t {
        simd!(vpaddlq_s16(pairs(q, x)))
    }

    #[inline(always)]
    unsafe fn block<Q: Quant>(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        let (first, second) = (pairs(q[0], x[0]), pairs(q[1], x[1]));
        simd!(if room::<Q>() >= 4 {
            vpaddlq_s16(vaddq_s16(first, second))
        } else {
            vpadalq_s16(vpaddlq_s16(first), second)
        })
    }

    #[inline(always)]
    unsafe fn sums<Q: Quant, const G: usize, const R: usize>(
        panel: &Panel,
        b: usize,
        halves: Range<usize>,
        first: usize,
        x: &[Chunk; R],
    ) -> Sums<G, R> {
        let mut sums = no_sums::<G, R>();
        simd!({
            // Two partial sums per output.
            let mut wide = [[[vdupq_n_s32(0); 2]; G]; R];
            let (mut step, end) = (halves.start * 4, halves.end * 4);
            while step < end {
                let mut narrow = [[[vdupq_n_s16(0); 2]; G]; R];
                let next = end.min(step + room::<Q>());
                while step < next {
                    for g in 0..G {
                        let w = vld1q_s8(panel.quants[b][step].as_ptr().add((first + g) * 16));
                        for r in 0..R {
                            let x = x[r].quants.add(b * 32 + step * 4).cast::<i32>().read_unaligned();
                            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                            narrow[r][g][0] = vmlal_s8(narrow[r][g][0], vget_low_s8(w), vget_low_s8(x));
                            narrow[r][g][1] = vmlal_high_s8(narrow[r][g][1], w, x);
                        }
                    }
                    step += 1;
                }
                for r in 0..R {
                    for g in 0..G {
                        wide[r][g][0] = vpadalq_s16(wide[r][g][0], narrow[r][g][0]);
                        wide[r][g][1] = vpadalq_s16(wide[r][g][1], narrow[r][g][1]);
                    }
                }
            }
            for r in 0..R {
                for g in 0..G {
                    sums[r][g] = vpaddq_s32(wide[r][g][0], wide[r][g][1]);
                }
            }
        });
        sums
    }
}

/// FEAT_DotProd, whose intrinsics are not stable yet.
#[derive(Clone, Copy)]
pub(crate) struct DotProd;

impl Bytes for DotProd {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn half_block(q: int8x16_t, x: int8x16_t) -> int32x4_t {
        simd!(sdot(vdupq_n_s32(0), q, x))
    }

    #[inline(always)]
    unsafe fn block<Q: Quant>(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        simd!(sdot(Self::half_block(q[0], x[0]), q[1], x[1]))
    }

    #[inline(always)]
    unsafe fn sums<Q: Quant, const G: usize, const R: usize>(
        panel: &Panel,
        b: usize,
        halves: Range<usize>,
        first: usize,
        x: &[Chunk; R],
    ) -> Sums<G, R> {
        let mut sums = no_sums::<G, R>();
        for half in halves {
            simd!({
                let mut xs = [vdupq_n_s8(0); R];
                for r in 0..R {
                    xs[r] = vld1q_s8(x[r].quants.add(b * 32 + half * 16));
                }
                let steps = &panel.quants[b][half * 4..half * 4 + 4];
                add_step::<0, G, R>(&mut sums, &steps[0], first, &xs);
                add_step::<1, G, R>(&mut sums, &steps[1], first, &xs);
                add_step::<2, G, R>(&mut sums, &steps[2], first, &xs);
                add_step::<3, G, R>(&mut sums, &steps[3], first, &xs);
            });
        }
        sums
    }
}

/// `sum[i] += Σ a[4 · i ..] · b[4 · i ..]`, of four bytes each.
///
/// # Safety
/// The processor has FEAT_DotProd.
#[inline(always)]
unsafe fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    simd!(asm!(
        "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
        sum = inlateout(vreg) sum,
        a = in(vreg) a,
        b = in(vreg) b,
        options(pure, nomem, nostack, preserves_flags),
    ));
    sum
}

/// `sum[i] += Σ a[4 · i ..] · b[4 · STEP ..]`
///
/// # Safety
/// The processor has FEAT_DotProd.
#[inline(always)]
unsafe fn sdot_step<const STEP: u8>(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    simd!(asm!(
        "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{step}]",
        sum = inlateout(vreg) sum,
        a = in(vreg) a,
        b = in(vreg) b,
        step = const STEP,
        options(pure, nomem, nostack, preserves_flags),
    ));
    sum
}

/// Adds four elements of 4 · G outputs by R rows: elements `4 · STEP ..` of half a block of each row.
///
/// # Safety
/// The processor has FEAT_DotProd; `first + G` is at most four.
#[inline(always)]
unsafe fn add_step<const STEP: u8, const G: usize, const R: usize>(
    sums: &mut Sums<G, R>,
    weights: &[i8; 64],
    first: usize,
    xs: &[int8x16_t; R],
) {
    for g in 0..G {
        let w = simd!(vld1q_s8(weights.as_ptr().add((first + g) * 16)));
        for r in 0..R {
            sums[r][g] = simd!(sdot_step::<STEP>(sums[r][g], w, xs[r]));
        }
    }
}

/// FEAT_I8MM, with FEAT_DotProd; the layout of panels is `[8 elements][output][element]`.
#[derive(Clone, Copy)]
pub(crate) struct I8mm;

/// The lower eight bytes of both, and the upper ones.
#[inline(always)]
fn by_eights(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    simd!({
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        [vreinterpretq_s8_s64(vtrn1q_s64(a, b)), vreinterpretq_s8_s64(vtrn2q_s64(a, b))]
    })
}

/// `sum[2 · i + j] += Σ a[8 · i ..] · b[8 · j ..]`
#[inline(always)]
unsafe fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    simd!(asm!(
        "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
        sum = inlateout(vreg) sum,
        a = in(vreg) a,
        b = in(vreg) b,
        options(pure, nomem, nostack, preserves_flags),
    ));
    sum
}

impl Bytes for I8mm {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn half_block(q: int8x16_t, x: int8x16_t) -> int32x4_t {
        simd!(DotProd::half_block(q, x))
    }

    #[inline(always)]
    unsafe fn block<Q: Quant>(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        simd!(DotProd::block::<Q>(q, x))
    }

    #[inline(always)]
    unsafe fn place(to: &mut [[i8; 64]; 8], quarter: usize, v: [[int8x16_t; 2]; 4]) {
        for pair in 0..2 {
            for half in 0..2 {
                let eights = by_eights(v[pair * 2][half], v[pair * 2 + 1][half]);
                for (i, v) in eights.into_iter().enumerate() {
                    let to = to.as_flattened_mut()[(half * 2 + i) * 128 + (quarter * 2 + pair) * 16..]
                        .as_mut_ptr();
                    simd!(vst1q_s8(to, v));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums<Q: Quant, const G: usize, const R: usize>(
        panel: &Panel,
        b: usize,
        halves: Range<usize>,
        first: usize,
        x: &[Chunk; R],
    ) -> Sums<G, R> {
        const { assert!(R <= 4) };
        let pairs = R.div_ceil(2);
        let mut sums = no_sums::<G, R>();
        simd!({
            // Sums of two rows by two outputs, for two pairs of outputs.
            let mut squares = [[[vdupq_n_s32(0); 2]; G]; 2];
            for half in halves {
                let mut xs = [[vdupq_n_s8(0); 2]; 2];
                for p in 0..pairs {
                    let (upper, lower) = (&x[p * 2], &x[(p * 2 + 1).min(R - 1)]);
                    let at = b * 32 + half * 16;
                    xs[p] = by_eights(vld1q_s8(upper.quants.add(at)), vld1q_s8(lower.quants.add(at)));
                }
                let w = panel.quants[b][half * 4].as_ptr().add(first * 32);
                for i in 0..2 {
                    for g in 0..G {
                        for pair in 0..2 {
                            let w = vld1q_s8(w.add(i * 128 + (g * 2 + pair) * 16));
                            for p in 0..pairs {
                                squares[p][g][pair] = smmla(squares[p][g][pair], xs[p][i], w);
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                for g in 0..G {
                    let [a, b] = squares[r / 2][g];
                    let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
                    let row = if r % 2 == 0 { vtrn1q_s64(a, b) } else { vtrn2q_s64(a, b) };
                    sums[r][g] = vreinterpretq_s32_s64(row);
                }
            }
        });
        sums
    }
}
