//! Products of at most sixteen outputs by a few dozen rows, of which every matrix kernel consists.
//!
//! # Canonical arithmetic
//! The bits of a product do not depend on the instruction set, on how many rows are multiplied at once, or on the path
//! taken below. One output of one row is defined as follows.
//!
//! - Float weights: sixteen lanes, lane l takes elements l, l + 16, l + 32, … in order, `lane = fma(w, x, lane)`; the
//!   last round is padded with zeros.
//! - Quantised weights: for each block of 32 the exact integer Σ quant · x (with offsets, and with sub-scales if each
//!   half of a block has its own; always below 2²⁴ and so exact in f32), then `lane = fma(integer, d · dx, lane)`, with
//!   lane = block mod 16. For types with mins, `lane = fma(m, Σ x · dx, lane)` follows at once. A block's integer
//!   sub-scale and min are part of its d and m, exactly: an f16 times at most eight bits. If each half of a block has
//!   its own min, Σ x is Σ min · x. The last round is padded with zeros.
//! - Both end with the same reduction tree: l += l+8, l += l+4, l += l+2, l += l+1.
//!
//! One row (or a few) multiplies weights in their stored layout, with the lanes of one output in one register. More
//! rows unpack sixteen outputs by sixteen blocks to a [`Panel`] and keep each lane of sixteen outputs in one register;
//! AVX-512 has sixteen rows per register instead (`isa/avx512/packed.rs`). Float weights are in `floats.rs`.

use akunu_plan::q8;

use crate::formats::{Min, Quant};
use crate::groups::{self, Group};
use crate::isa::Lanes;
use crate::panel::{Chunk, PANEL_BLOCKS, Panel, Scratch};
use crate::planes::Planes;
use crate::read_pattern::MOST_PLACES;

/// One product, as pointers.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// The first output's weights, and the stride from one output to the next in bytes.
    pub(crate) weights: *const u8,
    pub(crate) stride: usize,
    /// The same outputs' scales and offsets, for types with separate planes.
    pub(crate) planes: Planes,
    /// 1 ..= [`PackedKernel::outputs`] if rows are packed, else 1 ..= 16; for a single row any number.
    pub(crate) outputs: usize,
    /// The first row of activations (q8 for quantised weights, else f32), and the stride in bytes.
    pub(crate) x: *const u8,
    pub(crate) x_stride: usize,
    /// The same rows packed in groups, or null.
    pub(crate) packed: *const u8,
    /// At most [`crate::groups::MOST_ROWS`] if they are packed, else [`crate::panel::TILE_ROWS`].
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) scratch: *mut Scratch,
    /// `[row][out_stride]`. Outputs are written in multiples of sixteen and, if rows are packed, so are rows.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// The prefetch distance for weights in bytes, and the distance from the tile's end to where reading continues,
    /// which is negative (wrapping) if that is an earlier address.
    pub(crate) ahead: usize,
    pub(crate) skip: usize,
}

impl Tile {
    /// The prefetch distance while `output` and a few outputs after it are multiplied.
    #[inline(always)]
    pub(crate) fn ahead(&self, output: usize) -> usize {
        let is_within = output * self.stride + self.ahead < self.outputs * self.stride;
        if is_within { self.ahead } else { self.ahead.wrapping_add(self.skip) }
    }
}

/// The products of a weight type on an instruction set, with rows that are not packed.
#[derive(Clone, Copy)]
pub(crate) struct TileKernel {
    /// With at most sixteen outputs; for one row any number.
    pub(crate) rows: unsafe fn(&Tile),
    /// Products of one row with 4 or [`MOST_PLACES`] tiles that are read alternately; all have the same number of
    /// outputs, an even one if there are 4 tiles.
    pub(crate) streams: unsafe fn(&[Tile]),
}

/// The products of a weight type with many packed rows, where the instruction set has them.
#[derive(Clone, Copy)]
pub(crate) struct PackedKernel {
    pub(crate) pack: unsafe fn(&Group),
    pub(crate) run: unsafe fn(&Tile),
    /// Outputs that are multiplied at once.
    pub(crate) outputs: usize,
    /// Bytes of sixteen packed rows per 32 inputs.
    pub(crate) block_bytes: usize,
    /// The widest input.
    pub(crate) max_inputs: usize,
    /// Below this number of rows packing does not pay.
    pub(crate) least_rows: usize,
}

/// The implementation of a [`PackedKernel`].
pub(crate) trait Packed {
    const OUTPUTS: usize = 16;
    const BLOCK_BYTES: usize;
    const MAX_INPUTS: usize = groups::MAX_INPUTS;
    const LEAST_ROWS: usize = groups::LEAST_ROWS;

    /// # Safety
    /// The group's rows can be read and a block written for every 32 inputs; the processor has the
    /// instruction set.
    unsafe fn pack(group: &Group);

    /// # Safety
    /// All of the tile's pointers are valid for its extents, `packed` included; the processor has the
    /// instruction set.
    unsafe fn products(t: &Tile);
}

/// The integer sums of sixteen blocks and their scales.
pub(crate) struct Terms<T> {
    pub(crate) sum: T,
    pub(crate) d: T,
    /// Σ x, or Σ min · x if halves have their own mins.
    pub(crate) min_sum: T,
    pub(crate) m: T,
}

/// What an instruction set implements for a quantised type.
pub(crate) trait Dot<Q: Quant>: Lanes {
    /// Rearranges one row's activations for [`Dot::terms`], within each group of sixteen blocks.
    ///
    /// # Safety
    /// `blocks` blocks can be read at `x`; `to` has room for them rounded up to a multiple of four.
    #[inline(always)]
    unsafe fn arranged(x: Chunk, _blocks: usize, _to: *mut i8) -> Chunk {
        x
    }

    /// The terms of the first `blocks` ≤ 16 blocks; the other lanes are 0.
    ///
    /// # Safety
    /// `blocks` blocks can be read at `w`, `x` and `sums`.
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Self>;

    /// # Safety
    /// All of the tile's pointers are valid for its extents.
    #[inline(always)]
    unsafe fn rows(t: &Tile) {
        // SAFETY: the same tile, with the same contract.
        unsafe { rows_in_stored_layout::<Self, Q>(t) }
    }
}

/// What an instruction set additionally implements for [`rows_or_panels`].
pub(crate) trait Panels<Q: Quant>: Dot<Q> {
    /// Unpacks `blocks` ≤ 16 blocks of sixteen rows of weights.
    ///
    /// # Safety
    /// `blocks` blocks can be read at each row; `panel` is valid and not aliased.
    unsafe fn unpack(panel: *mut Panel, rows: &[*const u8; 16], blocks: usize);

    /// Adds the products of `blocks` blocks and R rows to the rows' accumulators, `[block][output]`.
    ///
    /// # Safety
    /// `blocks` blocks can be read in each chunk, and 256 accumulators read and written for each row; `panel` is
    /// valid.
    unsafe fn multiply<const R: usize>(panel: *const Panel, blocks: usize, x: [Chunk; R], acc: [*mut f32; R]);
}

/// From this many rows on, weights are unpacked to panels.
const PANEL_ROWS: usize = 4;

/// # Safety
/// All of the tile's pointers are valid for its extents, and the processor has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn rows_or_panels<V: Panels<Q>, Q: Quant>(t: &Tile) {
    // SAFETY: the same tile, with the same contract.
    unsafe {
        if t.rows < PANEL_ROWS {
            rows_in_stored_layout::<V, Q>(t);
        } else {
            panels::<V, Q>(t);
        }
    }
}

/// # Safety
/// As for [`rows_or_panels`], for each tile.
#[inline(always)]
unsafe fn rows_in_stored_layout<V: Dot<Q>, Q: Quant>(t: &Tile) {
    for r in 0..t.rows {
        // SAFETY: row `r` and outputs `o` are within the tile; `lanes` has eight elements, and `out` has room for a
        // multiple of sixteen outputs.
        unsafe {
            let x = arranged_row::<V, Q>(t, r);
            for o in (0..t.outputs).step_by(8) {
                let mut lanes = [V::zero(); 8];
                let ahead = t.ahead(o);
                // The trip count is a runtime value, so that the large body of the loop is compiled once.
                for i in 0..lanes.len().min(t.outputs - o) {
                    lanes[i] = one_row::<V, Q>(t, o + i, &x, ahead);
                }
                V::sums8(lanes, t.out.add(r * t.out_stride + o));
            }
        }
    }
}

/// # Safety
/// As for [`rows_or_panels`], for each tile.
#[inline(always)]
pub(crate) unsafe fn streams<V: Dot<Q>, Q: Quant>(t: &[Tile]) {
    // SAFETY: all tiles have one row and the same inputs; outputs are below each tile's number of outputs.
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

/// # Safety
/// As for [`rows_or_panels`]; `r` is a row of the tile.
#[inline(always)]
unsafe fn arranged_row<V: Dot<Q>, Q: Quant>(t: &Tile, r: usize) -> Chunk {
    // SAFETY: the row is within the tile; the scratch is used by this worker only and has room for the widest row.
    unsafe { V::arranged(chunk(t, r, 0), t.inputs / 32, (&raw mut (*t.scratch).arranged).cast()) }
}

/// The lanes of one output, before the reduction tree.
///
/// # Safety
/// As for [`rows_or_panels`]; `o` is an output of the tile and `x` one of its rows.
#[inline(always)]
unsafe fn one_row<V: Dot<Q>, Q: Quant>(t: &Tile, o: usize, x: &Chunk, ahead: usize) -> V {
    let mut acc = V::zero();
    let blocks = t.inputs / 32;
    let mut first = 0;
    // SAFETY: output and row have `blocks` blocks each, which `first` and the counts never pass.
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

/// Adds `count` ≤ 16 blocks of output `o`, from `first` (a multiple of 16) on, to its lanes.
///
/// # Safety
/// As for [`rows_or_panels`]; output and blocks are within the tile, and `x` is the start of one of its rows.
#[inline(always)]
unsafe fn round<V: Dot<Q>, Q: Quant>(
    t: &Tile,
    (o, first, count): (usize, usize, usize),
    x: &Chunk,
    ahead: usize,
    lanes: V,
) -> V {
    // SAFETY: the blocks are within the tile's weights, planes and the row, as the caller promises.
    unsafe {
        let w = t.weights.add(o * t.stride + first / 8 * Q::OCTET_BYTES);
        for line in 0..(count * Q::OCTET_BYTES).div_ceil(8 * 64) {
            V::prefetch(w.wrapping_add(ahead).wrapping_add(line * 64));
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

/// The quants, scales and sums of row `r` of the activations, from block `b` on.
///
/// # Safety
/// `t.x` points to q8 rows of `t.inputs` elements, `r` is one of them and `b` one of its blocks.
#[inline(always)]
pub(crate) unsafe fn chunk(t: &Tile, r: usize, b: usize) -> Chunk {
    // SAFETY: all offsets are inside a q8 row of `inputs` elements.
    unsafe {
        let row = t.x.add(r * t.x_stride);
        Chunk {
            quants: row.add(b * 32).cast(),
            scales: row.add(q8::scales_offset(t.inputs)).cast::<f32>().add(b),
            sums: row.add(q8::sums_offset(t.inputs)).cast::<i32>().add(b),
        }
    }
}

/// # Safety
/// As for [`rows_or_panels`]; at most [`TILE_ROWS`](crate::panel::TILE_ROWS) rows.
#[inline(always)]
unsafe fn panels<V: Panels<Q>, Q: Quant>(t: &Tile) {
    let blocks = t.inputs / 32;
    // SAFETY: the scratch is used by this worker only; `acc` has room for 256 accumulators of each row, and blocks
    // stay within each row.
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

/// The addresses of block `first`, which begins an octet, in the weights of sixteen outputs.
///
/// # Safety
/// `t.weights` points to `t.outputs` outputs with that block.
#[inline(always)]
pub(crate) unsafe fn panel_rows<Q: Quant>(t: &Tile, first: usize) -> [*const u8; 16] {
    let mut rows = [t.weights; 16];
    for (o, row) in rows.iter_mut().enumerate() {
        // Outputs past the last repeat it; their sums are discarded. SAFETY: an output of the tile, and a block of its
        // row.
        *row = unsafe { t.weights.add(o.min(t.outputs - 1) * t.stride + first / 8 * Q::OCTET_BYTES) };
    }
    rows
}

/// Reduces the lanes of all rows; `acc` is `[row][lane][output]`.
///
/// # Safety
/// `acc` holds 256 accumulators for each row of the tile, and `t.out` has room for sixteen outputs of each.
#[inline(always)]
unsafe fn sum_lanes<V: Lanes>(t: &Tile, acc: *const f32) {
    for r in 0..t.rows {
        // SAFETY: `r` is a row of both.
        unsafe {
            let out = t.out.add(r * t.out_stride);
            tree_of_lanes::<V>(acc.add(r * 256), t.inputs / 32).store(out);
        }
    }
}

/// The canonical reduction tree, with each lane in its own register.
///
/// # Safety
/// 256 accumulators can be read at `acc`.
#[inline(always)]
unsafe fn tree_of_lanes<V: Lanes>(acc: *const f32, blocks: usize) -> V {
    let padded = if blocks.is_multiple_of(16) { 16 } else { blocks % 16 };
    let mut v = [V::zero(); 16];
    for l in 0..16 {
        // SAFETY: lane `l` < 16 of 256 accumulators.
        v[l] = unsafe { V::load(acc.add(l * 16)) };
        if l >= padded {
            // Padding with zeros would turn −0 into +0; do the same here.
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
