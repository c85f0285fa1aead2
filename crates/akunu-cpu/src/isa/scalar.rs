//! The scalar implementation: the definition that every other instruction set is tested against, bit for bit.

use std::array::from_fn;

use half::{bf16, f16};

use super::Lanes;
use crate::panel::{Chunk, Panel};
use crate::quants::{Min, Quant, Sub};
use crate::tile::{self, Dot, Panels, Terms, Tile};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar(pub(crate) [f32; 16]);

fn bits16(p: *const u8, i: usize) -> u16 {
    // SAFETY: callers pass indices within the sixteen elements that can be read at `p`.
    unsafe { p.cast::<u16>().add(i).read_unaligned() }
}

impl Lanes for Scalar {
    /// The compiler is not asked to keep several values in registers: one at a time keeps the code small.
    const REGISTERS: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> Scalar {
        Scalar([x; 16])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Scalar {
        // SAFETY: sixteen elements are accessible at `p`, as the caller promises.
        Scalar(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Scalar {
        // SAFETY: only the first `n` elements are read.
        Scalar(from_fn(|l| if l < n { unsafe { p.add(l).read_unaligned() } } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: sixteen elements are accessible at `p`, as the caller promises.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        for (l, x) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: `l` < `n`, and `n` elements can be written at `p`, as the caller promises.
            unsafe { p.add(l).write_unaligned(x) };
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Scalar {
        Scalar(from_fn(|l| f16::from_bits(bits16(p, l)).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Scalar {
        Scalar(from_fn(|l| bf16::from_bits(bits16(p, l)).to_f32()))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        for (l, x) in self.0.into_iter().enumerate() {
            // SAFETY: `l` < 16, and sixteen f16 can be written at `p`, as the caller promises.
            unsafe { p.cast::<u16>().add(l).write_unaligned(f16::from_f32(x).to_bits()) };
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Scalar {
        // SAFETY: `l` < 16, and sixteen bytes can be read at `p`, as the caller promises.
        Scalar(from_fn(|l| f32::from(unsafe { *p.add(l) })))
    }

    #[inline(always)]
    fn f16(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    fn add(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] + b.0[l]))
    }

    #[inline(always)]
    fn sub(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] - b.0[l]))
    }

    #[inline(always)]
    fn mul(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] * b.0[l]))
    }

    #[inline(always)]
    fn div(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] / b.0[l]))
    }

    #[inline(always)]
    fn fma(self, b: Scalar, c: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l].mul_add(b.0[l], c.0[l])))
    }

    #[inline(always)]
    fn max(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| if self.0[l] > b.0[l] { self.0[l] } else { b.0[l] }))
    }

    #[inline(always)]
    fn min(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| if self.0[l] < b.0[l] { self.0[l] } else { b.0[l] }))
    }

    #[inline(always)]
    fn abs(self) -> Scalar {
        Scalar(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn copysign(self, sign: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l].copysign(sign.0[l])))
    }

    #[inline(always)]
    fn round(self) -> Scalar {
        Scalar(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    fn scale2(self, n: Scalar) -> Scalar {
        let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
        Scalar(from_fn(|l| {
            let n = n.0[l] as i32;
            let half = n >> 1;
            self.0[l] * power(half) * power(n.wrapping_sub(half))
        }))
    }

    #[inline(always)]
    fn select_lt(a: Scalar, b: Scalar, x: Scalar, y: Scalar) -> Scalar {
        Scalar(from_fn(|l| if a.0[l] < b.0[l] { x.0[l] } else { y.0[l] }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let mut v = self.0;
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                v[l] += v[l + width];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn deinterleave(a: Scalar, b: Scalar) -> [Scalar; 2] {
        let both = |i: usize| if i < 16 { a.0[i] } else { b.0[i - 16] };
        [0, 1].map(|odd| Scalar(std::array::from_fn(|i| both(2 * i + odd))))
    }

    #[inline(always)]
    fn interleave(even: Scalar, odd: Scalar) -> [Scalar; 2] {
        let at = |i: usize| if i.is_multiple_of(2) { even.0[i / 2] } else { odd.0[i / 2] };
        [0, 16].map(|start| Scalar(std::array::from_fn(|i| at(start + i))))
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        let mut v = self.0;
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                v[l] = if v[l] > v[l + width] { v[l] } else { v[l + width] };
            }
        }
        v[0]
    }

    #[inline(always)]
    fn eq_mask(self, b: Scalar) -> u32 {
        (0..16).map(|l| u32::from(self.0[l] == b.0[l]) << l).sum()
    }
}

/// The exact integers of one block: Σ quant · x and Σ x, including the sub-scales and mins of halves.
///
/// # Safety
/// Block `b` can be read at `w`, and 32 activations at `x`.
unsafe fn integers<Q: Quant>(w: *const u8, b: usize, x: *const i8) -> (i32, i32) {
    // SAFETY: a whole block of weights and 32 activations, as the caller promises.
    unsafe {
        let quants = Q::quants(w, b);
        let sub = if Q::SUB == Sub::Half { Q::sub(w, b) } else { [1, 1] };
        let min = if Q::MIN == Min::Half { Q::min(w, b) } else { [1, 1] };
        let (mut sum, mut mins) = (0, 0);
        for half in 0..2 {
            let (mut dot, mut xs) = (0, 0);
            for i in half * 16..half * 16 + 16 {
                let x = i32::from(*x.add(i));
                dot += (i32::from(quants[i]) - Q::OFFSET) * x;
                xs += x;
            }
            sum += dot * sub[half];
            mins += xs * min[half];
        }
        (sum, mins)
    }
}

impl<Q: Quant> Dot<Q> for Scalar {
    #[inline(always)]
    unsafe fn terms(w: *const u8, x: *const i8, _sums: *const i32, blocks: usize) -> Terms<Scalar> {
        let mut t = Terms { sum: [0.0; 16], d: [0.0; 16], min_sum: [0.0; 16], m: [0.0; 16] };
        for l in 0..blocks {
            // SAFETY: `l` < `blocks`, and `blocks` blocks of both can be read, as the caller promises.
            unsafe {
                let (w, b) = (w.add(l / 8 * Q::OCTET_BYTES), l % 8);
                let (sum, mins) = integers::<Q>(w, b, x.add(l * 32));
                (t.sum[l], t.min_sum[l]) = (sum as f32, mins as f32);
                (t.d[l], t.m[l]) = Q::block_scales::<Scalar>(w, b);
            }
        }
        Terms { sum: Scalar(t.sum), d: Scalar(t.d), min_sum: Scalar(t.min_sum), m: Scalar(t.m) }
    }

    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same tile, with the same contract.
        unsafe { tile::rows_or_panels::<Self, Q>(t) }
    }
}

impl<Q: Quant> Panels<Q> for Scalar {
    #[inline(always)]
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
        // SAFETY: the panel is valid and not aliased, as the caller promises.
        let panel = unsafe { &mut *panel };
        for (o, &row) in rows.iter().enumerate() {
            for b in 0..blocks {
                // SAFETY: `b` < `blocks`, and `blocks` blocks can be read at each row, as the caller promises.
                unsafe {
                    let w = row.add(b / 8 * Q::OCTET_BYTES);
                    panel.set_scales::<Scalar, Q>(o, b, w);
                    for (i, q) in Q::quants(w, b % 8).into_iter().enumerate() {
                        panel.quants[b][i / 4][o * 4 + i % 4] = q;
                    }
                }
            }
        }
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
            for r in 0..R {
                // SAFETY: `b` < `blocks`; `blocks` blocks of activations can be read and 16 × 16 accumulators written,
                // as the caller promises.
                unsafe { multiply_block::<Q>(panel, b, &x[r], acc[r].add(b * 16)) };
            }
        }
    }
}

/// Adds the products of block `b` to the accumulators of sixteen outputs.
///
/// # Safety
/// Block `b` of the chunk can be read, and sixteen accumulators read and written.
unsafe fn multiply_block<Q: Quant>(panel: &Panel, b: usize, x: &Chunk, acc: *mut f32) {
    // SAFETY: block `b` of the chunk and sixteen accumulators, as the caller promises.
    unsafe {
        let dx = Scalar::splat(*x.scales.add(b));
        let x: [i32; 32] = from_fn(|i| i32::from(*x.quants.add(b * 32 + i)));
        let half = |h: usize, o: usize| -> i32 {
            let i = h * 16..h * 16 + 16;
            i.map(|i| (i32::from(panel.quants[b][i / 4][o * 4 + i % 4]) - Q::OFFSET) * x[i]).sum()
        };
        let sum = Scalar(from_fn(|o| match Q::SUB {
            Sub::None | Sub::Block => (half(0, o) + half(1, o)) as f32,
            Sub::Half => {
                half(0, o) as f32 * panel.sub[b * 2].0[o] + half(1, o) as f32 * panel.sub[b * 2 + 1].0[o]
            }
        }));
        let mut lanes = sum.fma(Scalar(panel.d[b].0).mul(dx), Scalar::load(acc));
        if Q::MIN != Min::None {
            let (x0, x1) = (x[..16].iter().sum::<i32>(), x[16..].iter().sum::<i32>());
            let mins = Scalar(from_fn(|o| match Q::MIN {
                Min::Half => x0 as f32 * panel.min[b * 2].0[o] + x1 as f32 * panel.min[b * 2 + 1].0[o],
                _ => (x0 + x1) as f32,
            }));
            lanes = Scalar(panel.m[b].0).fma(mins.mul(dx), lanes);
        }
        lanes.store(acc);
    }
}
