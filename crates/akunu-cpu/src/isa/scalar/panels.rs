//! Products of several rows, with weights unpacked to panels.

use std::array::from_fn;

use super::dots::quants;
use super::lanes::Scalar;
use crate::formats::{Min, Quant, Sub};
use crate::isa::Lanes;
use crate::panel::{Chunk, Panel};
use crate::tile::Panels;

impl<Q: Quant> Panels<Q> for Scalar {
    #[inline(never)]
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize) {
        // SAFETY: the panel is valid and not aliased, as the caller promises.
        let panel = unsafe { &mut *panel };
        for (o, &row) in rows.iter().enumerate() {
            for b in 0..blocks {
                // SAFETY: `b` < `blocks`, and `blocks` blocks can be read at each row, as the caller promises.
                unsafe {
                    let w = row.add(b / 8 * Q::OCTET_BYTES);
                    panel.set_scales::<Scalar, Q>(o, b, w);
                    for (i, q) in quants::<Q>(w, b % 8).into_iter().enumerate() {
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
                unsafe { multiply_block((Q::SUB, Q::MIN, Q::OFFSET), panel, b, &x[r], acc[r].add(b * 16)) };
            }
        }
    }
}

/// Adds the products of block `b` to the accumulators of sixteen outputs. Of the type it has to know whether there are
/// sub-scales and mins, and the offset.
///
/// # Safety
/// Block `b` of the chunk can be read, and sixteen accumulators read and written.
#[inline(never)]
unsafe fn multiply_block(
    (sub, min, offset): (Sub, Min, i32),
    panel: &Panel,
    b: usize,
    x: &Chunk,
    acc: *mut f32,
) {
    // SAFETY: block `b` of the chunk and sixteen accumulators, as the caller promises.
    unsafe {
        let dx = Scalar::splat(*x.scales.add(b));
        let x: [i32; 32] = from_fn(|i| i32::from(*x.quants.add(b * 32 + i)));
        let half = |h: usize, o: usize| -> i32 {
            let i = h * 16..h * 16 + 16;
            i.map(|i| (i32::from(panel.quants[b][i / 4][o * 4 + i % 4]) - offset) * x[i]).sum()
        };
        let sum = Scalar(from_fn(|o| match sub {
            Sub::None | Sub::Block => (half(0, o) + half(1, o)) as f32,
            Sub::Half => {
                half(0, o) as f32 * panel.sub[b * 2].0[o] + half(1, o) as f32 * panel.sub[b * 2 + 1].0[o]
            }
        }));
        let mut lanes = sum.fma(Scalar(panel.d[b].0).mul(dx), Scalar::load(acc));
        if min != Min::None {
            let (x0, x1) = (x[..16].iter().sum::<i32>(), x[16..].iter().sum::<i32>());
            let mins = Scalar(from_fn(|o| match min {
                Min::Half => x0 as f32 * panel.min[b * 2].0[o] + x1 as f32 * panel.min[b * 2 + 1].0[o],
                _ => (x0 + x1) as f32,
            }));
            lanes = Scalar(panel.m[b].0).fma(mins.mul(dx), lanes);
        }
        lanes.store(acc);
    }
}
