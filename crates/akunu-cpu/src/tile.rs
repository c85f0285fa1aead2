//! Products of at most sixteen outputs by a few dozen rows: what every matrix kernel is made of.
//!
//! # Canonical arithmetic
//! The bits of a product do not depend on the instruction set, on how many rows are multiplied at once, or on the
//! path taken below. One output of one row is defined as follows.
//!
//! - Float weights: sixteen lanes, lane l takes elements l, l + 16, l + 32, … in order, `lane = fma(w, x, lane)`; the
//!   last round is padded with zeros.
//! - Quantised weights: for each block of 32 the exact integer Σ quant · x (offsets included, and sub-scales where each
//!   half of a block has its own; always below 2²⁴ and so exact in f32), then `lane = fma(integer, d · dx, lane)`, with
//!   lane = block mod 16. Types with mins follow at once with `lane = fma(m, Σ x · dx, lane)`. A block's integer
//!   sub-scale and min are in its d and m, exactly: a half times at most eight bits. Where each half of a block has its
//!   own min, Σ x is Σ min · x. The last round is padded with zeros.
//! - Both end in the same tree: l += l+8, l += l+4, l += l+2, l += l+1.
//!
//! One row (or a few) takes the weights as they stand, lanes side by side in one register. More rows unpack sixteen
//! outputs by sixteen blocks into a [`Panel`] and keep each lane in a register of its own, outputs side by side; AVX-512 has
//! rows side by side instead (`isa/x86_packed.rs`). Float weights are in `floats.rs`.

use akunu_plan::q8;

use crate::groups::Group;
use crate::isa::Lanes;
use crate::panel::{Chunk, PANEL_BLOCKS, Panel, Scratch};
use crate::planes::Planes;
use crate::quants::{Min, Quant};
use crate::reading::MOST_PLACES;

/// One product, as pointers.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// The first output's weights, and the bytes from one output's to the next.
    pub(crate) weights: *const u8,
    pub(crate) stride: usize,
    /// The same outputs' scales and offsets, where a type has them apart.
    pub(crate) planes: Planes,
    /// 1 ..= [`PackedKernel::outputs`] where rows are packed, else 16; any number of a single row's.
    pub(crate) outputs: usize,
    /// The first row of activations (q8 for quantised weights, else f32), and the bytes from one row to the next.
    pub(crate) x: *const u8,
    pub(crate) x_stride: usize,
    /// The same rows packed in groups, or null.
    pub(crate) packed: *const u8,
    /// At most [`crate::groups::MOST_ROWS`] where they are packed, else [`crate::panel::TILE_ROWS`].
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) scratch: *mut Scratch,
    /// `[row][out_stride]`; a multiple of sixteen of each row are written, and where rows are packed, of rows too.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// How far ahead of their use weights are asked for, in bytes, and how many lie between the tile's end and where reading
    /// goes on: backwards where there is no place for more.
    pub(crate) ahead: usize,
    pub(crate) skip: usize,
}

impl Tile {
    /// What is asked for ahead while an output is multiplied and a few after it, from its weights on.
    #[inline(always)]
    pub(crate) fn ahead(&self, output: usize) -> usize {
        let is_within = output * self.stride + self.ahead < self.outputs * self.stride;
        if is_within { self.ahead } else { self.ahead.wrapping_add(self.skip) }
    }
}

/// The products of a weight type on an instruction set, rows as they stand.
#[derive(Clone, Copy)]
pub(crate) struct TileKernel {
    /// By at most sixteen outputs; of one row any number.
    pub(crate) rows: unsafe fn(&Tile),
    /// Products of one row with 4 or [`MOST_PLACES`] tiles, read in turn: of as many outputs each, an even number where they are 4.
    pub(crate) streams: unsafe fn(&[Tile]),
}

/// The products of a weight type with many rows, packed in groups: faster where there is such a thing.
#[derive(Clone, Copy)]
pub(crate) struct PackedKernel {
    pub(crate) pack: unsafe fn(&Group),
    pub(crate) run: unsafe fn(&Tile),
    /// Outputs that packed rows meet at once.
    pub(crate) outputs: usize,
    /// Bytes of sixteen packed rows for every 32 inputs.
    pub(crate) block_bytes: usize,
}

/// What there is to a [`PackedKernel`].
pub(crate) trait Packed {
    const OUTPUTS: usize = 16;
    const BLOCK_BYTES: usize;

    /// # Safety
    /// The group's rows can be read, and its blocks written; the instruction set is there.
    unsafe fn pack(group: &Group);

    /// # Safety
    /// Everything that the tile points to is there, rows packed; the instruction set is too.
    unsafe fn products(t: &Tile);
}

/// Sixteen blocks' integers and what scales them.
pub(crate) struct Terms<T> {
    pub(crate) sum: T,
    pub(crate) d: T,
    /// Σ x, or Σ min · x where halves have mins of their own.
    pub(crate) min_sum: T,
    pub(crate) m: T,
}

/// What an instruction set brings for a quantised type.
pub(crate) trait Dot<Q: Quant>: Lanes {
    /// One row's activations as [`Dot::terms`] wants them, in the same order of sixteen blocks.
    /// # Safety
    /// `blocks` blocks can be read, and written in whole fours.
    #[inline(always)]
    unsafe fn arranged(x: Chunk, _blocks: usize, _to: *mut i8) -> Chunk {
        x
    }

    /// The first `blocks` ≤ 16 blocks; the other lanes are 0.
    /// # Safety
    /// That many blocks can be read at `w`, `x` and `sums`.
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Self>;

    /// # Safety
    /// Everything that the tile points to is there.
    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: passed on.
        unsafe { rows_as_they_stand::<Self, Q>(t) }
    }
}

/// What an instruction set brings beside for [`rows_or_panels`].
pub(crate) trait Panels<Q: Quant>: Dot<Q> {
    /// Unpacks `blocks` ≤ 16 blocks of sixteen rows.
    /// # Safety
    /// `blocks` blocks can be read at each row.
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize);

    /// Adds `blocks` blocks of R rows to their accumulators, `[block][output]`.
    /// # Safety
    /// `blocks` blocks can be read in each chunk, and 256 accumulators written.
    unsafe fn multiply<const R: usize>(panel: *const Panel, blocks: usize, x: [Chunk; R], acc: [*mut f32; R]);
}

/// Fewer rows than this take the weights as they stand.
const PANEL_ROWS: usize = 4;

/// # Safety
/// Everything that the tile points to is there, and the instruction set of `V` is too.
#[inline(always)]
pub(crate) unsafe fn rows_or_panels<V: Panels<Q>, Q: Quant>(t: &Tile) {
    // SAFETY: passed on.
    unsafe {
        if t.rows < PANEL_ROWS {
            rows_as_they_stand::<V, Q>(t);
        } else {
            panels::<V, Q>(t);
        }
    }
}

/// # Safety
/// As for [`rows_or_panels`].
#[inline(always)]
unsafe fn rows_as_they_stand<V: Dot<Q>, Q: Quant>(t: &Tile) {
    for r in 0..t.rows {
        // SAFETY: within the tile.
        unsafe {
            let x = arranged_row::<V, Q>(t, r);
            for o in (0..t.outputs).step_by(8) {
                let mut lanes = [V::zero(); 8];
                let ahead = t.ahead(o);
                // How many is known only when running, so that the loop's large body is compiled once.
                for i in 0..lanes.len().min(t.outputs - o) {
                    lanes[i] = one_row::<V, Q>(t, o + i, &x, ahead);
                }
                V::sums8(lanes, t.out.add(r * t.out_stride + o));
            }
        }
    }
}

/// # Safety
/// As for [`rows_or_panels`].
#[inline(always)]
pub(crate) unsafe fn streams<V: Dot<Q>, Q: Quant>(t: &[Tile]) {
    // SAFETY: within the tiles.
    unsafe {
        let x = arranged_row::<V, Q>(&t[0], 0);
        let (places, blocks) = (t.len().min(MOST_PLACES), t[0].inputs / 32);
        let whole = blocks / 16 * 16;
        let at_once = MOST_PLACES / places;
        for o in (0..t[0].outputs).step_by(at_once) {
            let mut lanes = [V::zero(); MOST_PLACES];
            let ahead = t[0].ahead(o);
            for i in 0..at_once {
                let lanes = &mut lanes[i * places..][..places];
                for first in (0..whole).step_by(16) {
                    for (t, lanes) in t.iter().zip(&mut *lanes) {
                        *lanes = round::<V, Q>(t, (o + i, first, 16), &x, ahead, *lanes);
                    }
                }
                if whole < blocks {
                    for (t, lanes) in t.iter().zip(lanes) {
                        *lanes = round::<V, Q>(t, (o + i, whole, blocks - whole), &x, ahead, *lanes);
                    }
                }
            }
            let mut sums = [0.0; MOST_PLACES];
            V::sums8(lanes, sums.as_mut_ptr());
            for (i, sum) in sums.into_iter().enumerate() {
                *t[i % places].out.add(o + i / places) = sum;
            }
        }
    }
}

#[inline(always)]
unsafe fn arranged_row<V: Dot<Q>, Q: Quant>(t: &Tile, r: usize) -> Chunk {
    // SAFETY: a row of the tile; the scratch is this worker's own and has room for the widest.
    unsafe { V::arranged(chunk(t, r, 0), t.inputs / 32, (&raw mut (*t.scratch).arranged).cast()) }
}

/// The lanes of one output, before the tree.
#[inline(always)]
unsafe fn one_row<V: Dot<Q>, Q: Quant>(t: &Tile, o: usize, x: &Chunk, ahead: usize) -> V {
    let mut acc = V::zero();
    let blocks = t.inputs / 32;
    let mut first = 0;
    // SAFETY: within the tile: `blocks` blocks of both operands.
    unsafe {
        while first + 16 <= blocks {
            acc = round::<V, Q>(t, (o, first, 16), x, ahead, acc);
            first += 16;
        }
        if first < blocks {
            acc = round::<V, Q>(t, (o, first, blocks - first), x, ahead, acc);
        }
    }
    acc
}

/// Adds `count` ≤ 16 blocks of output `o`, from `first` on, to its lanes.
#[inline(always)]
unsafe fn round<V: Dot<Q>, Q: Quant>(
    t: &Tile,
    (o, first, count): (usize, usize, usize),
    x: &Chunk,
    ahead: usize,
    lanes: V,
) -> V {
    // SAFETY: as the caller promises.
    unsafe {
        let w = t.weights.add(o * t.stride + first / 8 * Q::OCTET_BYTES);
        if count == 16 {
            for line in 0..(2 * Q::OCTET_BYTES).div_ceil(64) {
                V::prefetch(w.wrapping_add(ahead).wrapping_add(line * 64));
            }
        }
        let mut terms = V::terms(w, x.quants.add(first * 32), x.sums.add(first), count);
        if Q::PLANES {
            (terms.d, terms.m) = t.planes.lanes(o, first, count);
        }
        let scales = x.scales.add(first);
        let dx = if count == 16 { V::load(scales) } else { V::load_n(scales, count) };
        add_terms::<V, Q>(terms, dx, lanes)
    }
}

#[inline(always)]
fn add_terms<V: Lanes, Q: Quant>(t: Terms<V>, dx: V, acc: V) -> V {
    let acc = t.sum.fma(t.d.mul(dx), acc);
    if Q::MIN == Min::None { acc } else { t.m.fma(t.min_sum.mul(dx), acc) }
}

/// The planes of row `r` of the activations, from block `b` on.
#[inline(always)]
pub(crate) unsafe fn chunk(t: &Tile, r: usize, b: usize) -> Chunk {
    // SAFETY: a q8 row of `inputs` elements.
    unsafe {
        let row = t.x.add(r * t.x_stride);
        Chunk {
            quants: row.add(b * 32).cast(),
            scales: row.add(q8::scales_offset(t.inputs)).cast::<f32>().add(b),
            sums: row.add(q8::sums_offset(t.inputs)).cast::<i32>().add(b),
        }
    }
}

#[inline(always)]
unsafe fn panels<V: Panels<Q>, Q: Quant>(t: &Tile) {
    let blocks = t.inputs / 32;
    // SAFETY: the scratch is this worker's own; every chunk stays within its row.
    unsafe {
        let panel = &raw mut (*t.scratch).panel;
        let acc = (&raw mut (*t.scratch).acc).cast::<f32>();
        acc.write_bytes(0, t.rows * 256);
        let mut first = 0;
        while first < blocks {
            let count = PANEL_BLOCKS.min(blocks - first);
            let rows = panel_rows::<Q>(t, first);
            V::unpack(panel, &rows, count);
            if Q::PLANES {
                t.planes.unpack::<V>(panel, t.outputs, first, count);
            }
            let mut r = 0;
            while r + 4 <= t.rows {
                let x = [
                    chunk(t, r, first),
                    chunk(t, r + 1, first),
                    chunk(t, r + 2, first),
                    chunk(t, r + 3, first),
                ];
                let acc = acc.add(r * 256);
                V::multiply::<4>(panel, count, x, [acc, acc.add(256), acc.add(512), acc.add(768)]);
                r += 4;
            }
            while r < t.rows {
                V::multiply::<1>(panel, count, [chunk(t, r, first)], [acc.add(r * 256)]);
                r += 1;
            }
            first += count;
        }
        sum_lanes::<V>(t, acc);
    }
}

/// Where the sixteen outputs' weights have block `first`, which begins an octet.
#[inline(always)]
pub(crate) unsafe fn panel_rows<Q: Quant>(t: &Tile, first: usize) -> [*const u8; 16] {
    let mut rows = [t.weights; 16];
    for (o, row) in rows.iter_mut().enumerate() {
        // Outputs past the last repeat it; nobody reads their sums.
        // SAFETY: an output of the tile, and a block of its row.
        *row = unsafe { t.weights.add(o.min(t.outputs - 1) * t.stride + first / 8 * Q::OCTET_BYTES) };
    }
    rows
}

/// Ends all rows: `acc` is `[row][lane][output]`.
#[inline(always)]
unsafe fn sum_lanes<V: Lanes>(t: &Tile, acc: *const f32) {
    for r in 0..t.rows {
        // SAFETY: a row of the accumulators and of the tile.
        unsafe {
            let out = t.out.add(r * t.out_stride);
            tree_of_lanes::<V>(acc.add(r * 256), t.inputs / 32).store(out);
        }
    }
}

/// The fixed tree, each lane in a register of its own.
#[inline(always)]
unsafe fn tree_of_lanes<V: Lanes>(acc: *const f32, blocks: usize) -> V {
    let padded = if blocks.is_multiple_of(16) { 16 } else { blocks % 16 };
    let mut v = [V::zero(); 16];
    for l in 0..16 {
        // SAFETY: sixteen lanes of sixteen outputs.
        v[l] = unsafe { V::load(acc.add(l * 16)) };
        if l >= padded {
            // What padding with zeros does to a lane: it turns −0 into +0.
            v[l] = v[l].add(V::zero());
        }
    }
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            v[l] = v[l].add(v[l + width]);
        }
    }
    v[0]
}
