//! How NEON multiplies quantised weights: bytes in pairs, in fours (FEAT_DotProd), or two rows by two outputs at once
//! (FEAT_I8MM).

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::neon::{Neon, simd, transpose4};
use super::neon_quants::{QuantNeon, terms_octet, terms_part, unpack_panel};
use crate::panel::{Chunk, Panel};
use crate::quants::{Min, Quant, Sub};
use crate::tile::{self, Dot, Panels, Terms, Tile};

/// The sums of 4 · G outputs by R rows.
type Sums<const G: usize, const R: usize> = [[int32x4_t; G]; R];

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

macro_rules! sdot {
    ($sum:expr, $a:expr, $b:expr, $form:literal) => {
        asm!(
            concat!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.", $form),
            sum = inlateout(vreg) $sum,
            a = in(vreg) $a,
            b = in(vreg) $b,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
}

impl Bytes for DotProd {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn half_block(q: int8x16_t, x: int8x16_t) -> int32x4_t {
        simd!({
            let mut sum = vdupq_n_s32(0);
            sdot!(sum, q, x, "16b");
            sum
        })
    }

    #[inline(always)]
    unsafe fn block<Q: Quant>(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        simd!({
            let mut sum = Self::half_block(q[0], x[0]);
            sdot!(sum, q[1], x[1], "16b");
            sum
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
        for half in halves {
            simd!({
                let mut xs = [vdupq_n_s8(0); R];
                for r in 0..R {
                    xs[r] = vld1q_s8(x[r].quants.add(b * 32 + half * 16));
                }
                macro_rules! step {
                    ($step:literal, $form:literal) => {
                        for g in 0..G {
                            let w = panel.quants[b][half * 4 + $step].as_ptr();
                            let w = vld1q_s8(w.add((first + g) * 16));
                            for r in 0..R {
                                sdot!(sums[r][g], w, xs[r], $form);
                            }
                        }
                    };
                }
                step!(0, "4b[0]");
                step!(1, "4b[1]");
                step!(2, "4b[2]");
                step!(3, "4b[3]");
            });
        }
        sums
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

impl<M: Bytes, Q: QuantNeon> Dot<Q> for Neon<M> {
    #[inline(always)]
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Self> {
        simd!({
            let (high_w, high_x) = (w.wrapping_add(Q::OCTET_BYTES), x.wrapping_add(256));
            let high_sums = sums.wrapping_add(8);
            let low = if blocks >= 8 {
                terms_octet::<M, Q>(w, x, sums)
            } else {
                terms_part::<M, Q>(w, x, sums, blocks)
            };
            let high = if blocks == 16 {
                terms_octet::<M, Q>(high_w, high_x, high_sums)
            } else {
                terms_part::<M, Q>(high_w, high_x, high_sums, blocks.saturating_sub(8))
            };
            Terms {
                sum: join(low.sum, high.sum),
                d: join(low.d, high.d),
                min_sum: join(low.min_sum, high.min_sum),
                m: join(low.m, high.m),
            }
        })
    }

    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { tile::rows_or_panels::<Self, Q>(t) }
    }
}

impl<M: Bytes, Q: QuantNeon> Panels<Q> for Neon<M> {
    #[inline(always)]
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
        simd!(unpack_panel::<M, Q>(panel, rows, blocks));
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
            simd!(if M::WIDE && Q::SUB != Sub::Half {
                multiply_block::<M, Q, 4, R>(panel, b, &x, &acc);
            } else {
                multiply_block::<M, Q, 2, R>(panel, b, &x, &acc);
            });
        }
    }
}

#[inline(always)]
fn join<M>(low: [float32x4_t; 2], high: [float32x4_t; 2]) -> Neon<M> {
    Neon::of([low[0], low[1], high[0], high[1]])
}

/// Adds the products of block `b`, G quarters of the outputs at a time.
///
/// # Safety
/// Block `b` can be read in each chunk, and its sixteen accumulators read and written in each of `acc`.
#[inline(always)]
unsafe fn multiply_block<M: Bytes, Q: QuantNeon, const G: usize, const R: usize>(
    panel: &Panel,
    b: usize,
    x: &[Chunk; R],
    acc: &[*mut f32; R],
) {
    simd!({
        let mut mins = [[0.0; 2]; R];
        if Q::MIN != Min::None {
            for r in 0..R {
                mins[r] = sums_of_halves::<Q>(&x[r], b);
            }
        }
        for first in (0..4).step_by(G) {
            let sums = scaled_sums::<M, Q, G, R>(panel, b, first, x);
            for r in 0..R {
                let dx = *x[r].scales.add(b);
                for g in 0..G {
                    let o = (first + g) * 4;
                    let at = acc[r].add(b * 16 + o);
                    let d = vmulq_n_f32(vld1q_f32(panel.d[b].0[o..].as_ptr()), dx);
                    let mut lanes = vfmaq_f32(vld1q_f32(at), sums[r][g], d);
                    if Q::MIN == Min::Half {
                        let low = vmulq_n_f32(vld1q_f32(panel.min[b * 2].0[o..].as_ptr()), mins[r][0]);
                        let high = vld1q_f32(panel.min[b * 2 + 1].0[o..].as_ptr());
                        let min = vmulq_n_f32(vfmaq_n_f32(low, high, mins[r][1]), dx);
                        lanes = vfmaq_f32(lanes, vld1q_f32(panel.m[b].0[o..].as_ptr()), min);
                    } else if Q::MIN != Min::None {
                        lanes = vfmaq_n_f32(lanes, vld1q_f32(panel.m[b].0[o..].as_ptr()), mins[r][0] * dx);
                    }
                    vst1q_f32(at, lanes);
                }
            }
        }
    });
}

/// Σ x of block `b`, or of its halves if they have their own mins.
///
/// # Safety
/// Block `b` of the chunk can be read.
#[inline(always)]
unsafe fn sums_of_halves<Q: Quant>(x: &Chunk, b: usize) -> [f32; 2] {
    simd!({
        let sum = *x.sums.add(b);
        if Q::MIN != Min::Half {
            return [sum as f32, 0.0];
        }
        let first = i32::from(vaddlvq_s8(vld1q_s8(x.quants.add(b * 32))));
        [first as f32, (sum - first) as f32]
    })
}

/// Σ quant · x of block `b`, exactly, including the sub-scales of halves.
///
/// # Safety
/// Block `b` can be read in each chunk.
#[inline(always)]
unsafe fn scaled_sums<M: Bytes, Q: QuantNeon, const G: usize, const R: usize>(
    panel: &Panel,
    b: usize,
    first: usize,
    x: &[Chunk; R],
) -> [[float32x4_t; G]; R] {
    simd!({
        let mut scaled = [[vdupq_n_f32(0.0); G]; R];
        if Q::SUB == Sub::Half {
            let low = M::sums::<Q, G, R>(panel, b, 0..1, first, x);
            let high = M::sums::<Q, G, R>(panel, b, 1..2, first, x);
            for g in 0..G {
                let o = (first + g) * 4;
                let sub = vld1q_f32(panel.sub[b * 2].0[o..].as_ptr());
                let sub_high = vld1q_f32(panel.sub[b * 2 + 1].0[o..].as_ptr());
                for r in 0..R {
                    let low = vmulq_f32(vcvtq_f32_s32(low[r][g]), sub);
                    scaled[r][g] = vfmaq_f32(low, vcvtq_f32_s32(high[r][g]), sub_high);
                }
            }
            return scaled;
        }
        let sums = M::sums::<Q, G, R>(panel, b, 0..2, first, x);
        for r in 0..R {
            for g in 0..G {
                let mut sum = sums[r][g];
                if Q::SIGNED && Q::OFFSET != 0 {
                    // The offset was not subtracted in the panel, as the result would not fit in a byte.
                    sum = vsubq_s32(sum, vdupq_n_s32(Q::OFFSET * *x[r].sums.add(b)));
                }
                scaled[r][g] = vcvtq_f32_s32(sum);
            }
        }
        scaled
    })
}
