//! Products of several rows in bfloat16, on request: `AKUNU_ISA=amx-bf16` or `avx512-bf16`.
//!
//! Weights and activations are rounded to eight bits of precision and accumulated in f32 along the whole row, in the
//! processor's own order. So the scales of blocks of 32 do not force AMX to read its tiles for every block, and
//! AVX-512 multiplies two numbers per lane instead of one. The result of a row does not depend on the other rows of
//! the batch, but differs from that of a single row, which stays canonical.

use std::arch::x86_64::*;

use akunu_plan::q8;

use super::lanes::Avx512;
use super::packed::Ahead;
use super::quants::{QuantAvx512, block_scales, octets, of_halves};
use crate::formats::floats::FloatWeight;
use crate::formats::{Min, Sub};
use crate::groups::{Group, SIDE};
use crate::isa::Lanes;
use crate::isa::avx2::panels::load;
use crate::isa::avx2::simd;
use crate::panel::{BF16_BLOCKS, BF16_OUTPUTS, F16x};
use crate::tile::{Packed, Tile};

/// A block of 32 inputs of sixteen rows, as pairs: `[two elements][row]`. Blocks of a group are in order.
pub(crate) type Block = [F16x; SIDE];

/// Products with weights `W`, multiplied by `M`.
pub(crate) struct Products<W, M>(W, M);

impl<W: Weights, M: Multiply> Packed for Products<W, M> {
    const OUTPUTS: usize = BF16_OUTPUTS;
    const BLOCK_BYTES: usize = size_of::<Block>();

    #[inline(always)]
    unsafe fn pack(group: &Group) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { pack::<W::Rows>(group) }
    }

    #[inline(always)]
    unsafe fn products(t: &Tile) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { products::<W, M>(t) }
    }
}

/// How a row of activations is loaded.
pub(crate) trait Rows {
    /// # Safety
    /// `row` points to a row of `inputs` elements of this type, and `block` is one of its blocks.
    unsafe fn load(row: *const u8, inputs: usize, block: usize) -> [Avx512; 2];
}

pub(crate) struct Q8Rows;

pub(crate) struct F32Rows;

impl Rows for Q8Rows {
    #[inline(always)]
    unsafe fn load(row: *const u8, inputs: usize, block: usize) -> [Avx512; 2] {
        // SAFETY: within the row or square that the trait method's contract describes.
        unsafe {
            let x = row.add(block * q8::BLOCK).cast::<i8>();
            let dx = Avx512::splat(*row.add(q8::scales_offset(inputs)).cast::<f32>().add(block));
            [Avx512::load_i8(x).mul(dx), Avx512::load_i8(x.add(16)).mul(dx)]
        }
    }
}

impl Rows for F32Rows {
    #[inline(always)]
    unsafe fn load(row: *const u8, _inputs: usize, block: usize) -> [Avx512; 2] {
        // SAFETY: within the row or square that the trait method's contract describes.
        unsafe {
            let x = row.cast::<f32>().add(block * q8::BLOCK);
            [Avx512::load(x), Avx512::load(x.add(16))]
        }
    }
}

/// Rounds 32 elements to bfloat16, in order.
#[inline(always)]
fn rounded(v: [Avx512; 2]) -> __m512i {
    // SAFETY: both types are 64 bytes of plain data.
    simd!(std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[1].0, v[0].0)))
}

#[inline(always)]
unsafe fn pack<R: Rows>(group: &Group) {
    let to = group.to.cast::<Block>();
    for block in 0..group.inputs / q8::BLOCK {
        let mut rows = [F16x([0.0; SIDE]); SIDE];
        for r in 0..group.rows {
            simd!({
                let x = R::load(group.x.add(r * group.x_stride), group.inputs, block);
                _mm512_store_si512(rows[r].0.as_mut_ptr().cast(), rounded(x));
            });
        }
        // SAFETY: `group.to` has room for a block for every 32 inputs, as `Packed::pack` requires.
        Avx512::transpose(&rows, unsafe { &mut *to.add(block) });
    }
}

/// How weights are converted to bfloat16.
pub(crate) trait Weights {
    /// The activations that they are multiplied with.
    type Rows: Rows;

    /// Converts blocks `first .. first + count` of output `o`, each stored [`SIDE`] places after the previous one.
    ///
    /// # Safety
    /// `o` is an output of the tile, the blocks are within its row, there are at most [`BF16_BLOCKS`], and `first` is
    /// a multiple of that.
    unsafe fn unpack(t: &Tile, o: usize, first: usize, count: usize, to: *mut F16x);
}

pub(crate) struct Quantised<Q>(Q);

pub(crate) struct Float<W>(W);

impl<W: FloatWeight> Weights for Float<W> {
    type Rows = F32Rows;

    #[inline(always)]
    unsafe fn unpack(t: &Tile, o: usize, first: usize, count: usize, to: *mut F16x) {
        simd!({
            let w = t.weights.add(o * t.stride + first * q8::BLOCK * W::BYTES);
            let scales = t.planes.of_output(o);
            for b in 0..count {
                let w = w.add(b * q8::BLOCK * W::BYTES);
                Avx512::prefetch(w.wrapping_add(BF16_BLOCKS * q8::BLOCK * W::BYTES));
                let i = (first + b) * q8::BLOCK;
                let v = [
                    W::weights::<Avx512>(w, scales, i),
                    W::weights::<Avx512>(w.add(16 * W::BYTES), scales, i + 16),
                ];
                _mm512_store_si512(to.add(b * SIDE).cast(), rounded(v));
            }
        });
    }
}

impl<Q: QuantAvx512> Weights for Quantised<Q> {
    type Rows = Q8Rows;

    #[inline(always)]
    unsafe fn unpack(t: &Tile, o: usize, first: usize, count: usize, to: *mut F16x) {
        simd!({
            let w = t.weights.add(o * t.stride + first / 8 * Q::OCTET_BYTES);
            let scales = Scales::new::<Q>(t, o, first, count, w);
            for b in (0..count).step_by(2) {
                let w = w.add(b / 8 * Q::OCTET_BYTES);
                Avx512::prefetch(w.wrapping_add(2 * Q::OCTET_BYTES + b % 8 * (Q::OCTET_BYTES / 8)));
                let v = if b + 1 < count {
                    Q::load_two(w, b % 8)
                } else {
                    _mm512_zextsi256_si512(Q::load(w, b % 8))
                };
                let to = to.add(b * SIDE);
                _mm512_store_si512(to.cast(), scales.weights::<Q>(b, _mm512_castsi512_si256(v)));
                if b + 1 < count {
                    let high = _mm512_extracti64x4_epi64(v, 1);
                    let to = to.add(SIDE);
                    _mm512_store_si512(to.cast(), scales.weights::<Q>(b + 1, high));
                }
            }
        });
    }
}

/// The scales that turn quants into weights: `quant · scale + offset`, for each half of sixteen blocks if halves
/// differ.
struct Scales {
    scale: [F16x; 2],
    offset: [F16x; 2],
}

impl Scales {
    #[inline(always)]
    unsafe fn new<Q: QuantAvx512>(t: &Tile, o: usize, first: usize, count: usize, w: *const u8) -> Scales {
        let mut scales = Scales { scale: [F16x([0.0; 16]); 2], offset: [F16x([0.0; 16]); 2] };
        simd!({
            let octets = octets::<Q>(w, count);
            let (d, m): (Avx512, Avx512) = if Q::PLANES {
                t.planes.lanes(o, first, count)
            } else {
                let (d, m) = block_scales::<Q>(w, &octets, count);
                (Avx512(d), Avx512(m))
            };
            let (sub, min) = (of_halves(&octets, false), of_halves(&octets, true));
            for half in 0..if Q::SUB == Sub::Half { 2 } else { 1 } {
                let scale = if Q::SUB == Sub::Half { d.mul(sub[half]) } else { d };
                let m = match Q::MIN {
                    Min::None => Avx512::zero(),
                    Min::Half => m.mul(min[half]),
                    _ => m,
                };
                scale.store(scales.scale[half].0.as_mut_ptr());
                let offset = Avx512::splat(-Q::OFFSET as f32).fma(scale, m);
                offset.store(scales.offset[half].0.as_mut_ptr());
            }
        });
        scales
    }

    /// The weights of block `b`.
    #[inline(always)]
    fn weights<Q: QuantAvx512>(&self, b: usize, quants: __m256i) -> __m512i {
        let quarters = simd!([_mm256_castsi256_si128(quants), _mm256_extracti128_si256(quants, 1)]);
        let mut v = [Avx512::zero(); 2];
        for half in 0..2 {
            let from = if Q::SUB == Sub::Half { half } else { 0 };
            let (scale, offset) = (self.scale[from].0[b], self.offset[from].0[b]);
            let q = simd!(_mm512_cvtepi32_ps(if Q::SIGNED {
                _mm512_cvtepi8_epi32(quarters[half])
            } else {
                _mm512_cvtepu8_epi32(quarters[half])
            }));
            v[half] = if Q::OFFSET == 0 && Q::MIN == Min::None {
                Avx512(q).mul(Avx512::splat(scale))
            } else {
                Avx512(q).fma(Avx512::splat(scale), Avx512::splat(offset))
            };
        }
        rounded(v)
    }
}

/// # Safety
/// All of the tile's pointers are valid for its extents, `packed` included; the processor has AVX-512 BF16 and what
/// `M` needs.
#[inline(always)]
unsafe fn products<W: Weights, M: Multiply>(t: &Tile) {
    let blocks = t.inputs / q8::BLOCK;
    let (sides, groups) = (t.outputs.div_ceil(SIDE), t.rows.div_ceil(SIDE));
    // SAFETY: the scratch is used by this worker only and has room for the largest number of outputs, rows and blocks
    // of a chunk; outputs, rows and blocks stay within the tile.
    unsafe {
        let panel = (&raw mut (*t.scratch).bf16).cast::<F16x>();
        let sums = (&raw mut (*t.scratch).bf16_sums).cast::<F16x>();
        let next = t.outputs * t.stride;
        let iterations = blocks.div_ceil(BF16_BLOCKS) * groups.div_ceil(2) * sides.div_ceil(2);
        let mut ahead = Ahead::new(t.weights.wrapping_add(next), next, iterations);
        M::begin();
        for first in (0..blocks).step_by(BF16_BLOCKS) {
            let count = BF16_BLOCKS.min(blocks - first);
            for s in (0..sides).step_by(2) {
                for o in s * SIDE..(s + 2).min(sides) * SIDE {
                    // Outputs past the last repeat it; their sums are discarded.
                    let to = panel.add(o / SIDE % 2 * BF16_BLOCKS * SIDE + o % SIDE);
                    W::unpack(t, o.min(t.outputs - 1), first, count, to);
                }
                for g in (0..groups).step_by(2) {
                    ahead.step();
                    let x = t.packed.cast::<Block>().add(g * blocks + first);
                    let square = Square {
                        w: [panel, panel.add(BF16_BLOCKS * SIDE)],
                        x: [x, x.wrapping_add(blocks)],
                        sums: sums.add(g * BF16_OUTPUTS + s * SIDE),
                        count,
                        begins: first == 0,
                    };
                    match (s + 1 < sides, g + 1 < groups) {
                        (true, true) => M::square::<2, 2>(&square),
                        (true, false) => M::square::<2, 1>(&square),
                        (false, true) => M::square::<1, 2>(&square),
                        (false, false) => M::square::<1, 1>(&square),
                    }
                }
            }
        }
        M::end();
        for g in 0..groups {
            for s in 0..sides {
                let from = &*sums.add(g * BF16_OUTPUTS + s * SIDE).cast::<Block>();
                let mut rows = [F16x([0.0; SIDE]); SIDE];
                Avx512::transpose(from, &mut rows);
                for (r, row) in rows.iter().enumerate() {
                    let to = t.out.add((g * SIDE + r) * t.out_stride + s * SIDE);
                    load::<Avx512>(&row.0).store(to);
                }
            }
        }
    }
}

/// Up to two times sixteen outputs by up to two groups of rows, over a chunk of their blocks.
pub(crate) struct Square {
    /// `[block][output]`, of each group of sixteen outputs.
    pub(crate) w: [*const F16x; 2],
    /// The rows of each group.
    pub(crate) x: [*const Block; 2],
    /// `[group][output][row]`
    sums: *mut F16x,
    pub(crate) count: usize,
    /// The accumulators start at zero.
    pub(crate) begins: bool,
}

impl Square {
    /// The sums of sixteen outputs and one group of rows.
    #[inline(always)]
    pub(crate) fn sums(&self, side: usize, group: usize) -> *mut F16x {
        self.sums.wrapping_add(group * BF16_OUTPUTS + side * SIDE)
    }
}

/// How squares are multiplied.
pub(crate) trait Multiply {
    /// Called before a sequence of squares; [`Multiply::end`] is called after it.
    ///
    /// # Safety
    /// The processor has the instruction set of `Self`.
    #[inline(always)]
    unsafe fn begin() {}
    /// # Safety
    /// As for [`Multiply::begin`].
    #[inline(always)]
    unsafe fn end() {}

    /// Adds the products of S groups of outputs and G groups of rows to their sums.
    ///
    /// # Safety
    /// All pointers of the square are valid for S groups of outputs and G groups of rows; `begin` has been called.
    unsafe fn square<const S: usize, const G: usize>(square: &Square);
}

/// With AVX-512's bfloat16 dot products of pairs.
pub(crate) struct Pairs;

/// Outputs whose sums with two groups of rows fit in registers.
const OUTPUTS: usize = 8;

impl Multiply for Pairs {
    #[inline(always)]
    unsafe fn square<const S: usize, const G: usize>(square: &Square) {
        for side in 0..S {
            for first in (0..SIDE).step_by(OUTPUTS) {
                // SAFETY: within the row or square that the trait method's contract describes.
                unsafe { pairs::<G>(square, side, first) };
            }
        }
    }
}

#[inline(always)]
unsafe fn pairs<const G: usize>(square: &Square, side: usize, first: usize) {
    simd!({
        let mut acc = [[_mm512_setzero_ps(); OUTPUTS]; G];
        if !square.begins {
            for g in 0..G {
                for o in 0..OUTPUTS {
                    acc[g][o] = _mm512_load_ps(square.sums(side, g).add(first + o).cast());
                }
            }
        }
        for block in 0..square.count {
            let w = square.w[side].add(block * SIDE + first).cast::<i32>();
            for pair in 0..SIDE {
                let mut x = [_mm512_setzero_si512(); G];
                for g in 0..G {
                    x[g] = _mm512_load_si512(square.x[g].add(block).cast::<F16x>().add(pair).cast());
                }
                for o in 0..OUTPUTS {
                    let two = _mm512_set1_epi32(*w.add(o * SIDE + pair));
                    for g in 0..G {
                        acc[g][o] = dot(acc[g][o], two, x[g]);
                    }
                }
            }
        }
        for g in 0..G {
            for o in 0..OUTPUTS {
                _mm512_store_ps(square.sums(side, g).add(first + o).cast(), acc[g][o]);
            }
        }
    })
}

#[inline(always)]
fn dot(acc: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: both types are 64 bytes of plain data.
    simd!({
        let (a, b) =
            (std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b));
        _mm512_dpbf16_ps(acc, a, b)
    })
}
