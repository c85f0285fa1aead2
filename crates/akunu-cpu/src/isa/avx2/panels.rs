//! Products of several rows, with weights unpacked to panels.

use std::arch::x86_64::*;

use super::dots::pairs;
use super::lanes::Avx2;
use super::quants::QuantAvx2;
use super::registers::{put_columns, transpose8};
use super::simd;
use crate::formats::{Min, Sub};
use crate::isa::Lanes;
use crate::panel::{Chunk, Panel};
use crate::tile::Panels;

impl<Q: QuantAvx2> Panels<Q> for Avx2 {
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

/// [`crate::tile::Dot::unpack`]
///
/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack_panel<Q: QuantAvx2>(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
    simd!({
        let panel = &mut *panel;
        for b in 0..blocks {
            let at = b / 8 * Q::OCTET_BYTES;
            for group in 0..2 {
                let mut v = [_mm256_setzero_si256(); 8];
                for o in 0..8 {
                    let row = rows[group * 8 + o].add(at);
                    v[o] = Q::load(row, b % 8);
                    // Prefetch the same blocks of the next panel, two octets further: about a cache line for every
                    // other block.
                    Avx2::prefetch(row.wrapping_add(2 * Q::OCTET_BYTES + b % 8 * (Q::OCTET_BYTES / 8)));
                }
                for (step, v) in transpose8(v).into_iter().enumerate() {
                    _mm256_store_si256(panel.quants[b][step].as_mut_ptr().add(group * 32).cast(), v);
                }
            }
        }
        panel.steps = 8;
        if !Q::PLANES {
            unpack_scales::<Avx2, Q>(panel, rows, blocks);
        }
    });
}

/// # Safety
/// `blocks` blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack_scales<V: Lanes, Q: QuantAvx2>(
    panel: &mut Panel,
    rows: &[*const u8; 16],
    blocks: usize,
) {
    simd!({
        for octet in 0..blocks / 8 {
            for group in 0..2 {
                octet_scales::<Q>(panel, rows, octet, group);
            }
        }
        // After the last whole octet only its blocks may be read.
        for (o, row) in rows.iter().enumerate() {
            for b in blocks / 8 * 8..blocks {
                panel.set_scales::<V, Q>(o, b, row.add(b / 8 * Q::OCTET_BYTES));
            }
        }
    });
}

/// Stores the scales of a whole octet of eight outputs.
///
/// # Safety
/// The octet can be read at each row.
#[inline(always)]
unsafe fn octet_scales<Q: QuantAvx2>(panel: &mut Panel, rows: &[*const u8; 16], octet: usize, group: usize) {
    simd!({
        let zero = [_mm256_setzero_ps(); 8];
        let (mut d, mut m, mut sub, mut min) = (zero, zero, zero, zero);
        let (mut sub_high, mut min_high) = (zero, zero);
        for o in 0..8 {
            let scales = Q::scales(rows[group * 8 + o].add(octet * Q::OCTET_BYTES));
            (d[o], m[o]) = (scales.d, scales.m);
            if Q::SUB == Sub::Half {
                (sub[o], sub_high[o]) = bytes_of_halves(scales.half_sub);
                (min[o], min_high[o]) = bytes_of_halves(scales.half_min);
            }
        }
        let first = octet * 8;
        put_columns(&mut panel.d[first..first + 8], group, d);
        if Q::MIN != Min::None {
            put_columns(&mut panel.m[first..first + 8], group, m);
        }
        // Two per block.
        let at = first * 2;
        if Q::SUB == Sub::Half {
            put_columns(&mut panel.sub[at..at + 8], group, sub);
            put_columns(&mut panel.sub[at + 8..at + 16], group, sub_high);
        }
        if Q::MIN == Min::Half {
            put_columns(&mut panel.min[at..at + 8], group, min);
            put_columns(&mut panel.min[at + 8..at + 16], group, min_high);
        }
    });
}

/// Sixteen signed bytes as floats.
#[inline(always)]
fn bytes_of_halves(v: __m128i) -> (__m256, __m256) {
    simd!({
        let high = _mm_unpackhi_epi64(v, v);
        (_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)))
    })
}

#[inline(always)]
fn to_float(v: [__m256i; 2]) -> Avx2 {
    simd!(Avx2(_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])))
}

/// The number of four-element steps whose accumulated pair sums fit in i16.
const fn steps<Q: QuantAvx2>() -> usize {
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
unsafe fn integer_steps<Q: QuantAvx2, const R: usize>(
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
unsafe fn multiply_block<Q: QuantAvx2, const R: usize>(
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
pub(crate) unsafe fn mins<V: Lanes, Q: QuantAvx2>(panel: &Panel, b: usize, x: &Chunk) -> V {
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
