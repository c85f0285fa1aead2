//! Activations packed in groups of sixteen rows, one row per lane, for AVX-512 and AMX products: packed once per
//! command, read for every output.
//!
//! A group is a sequence of [`Block`]s, one for each block of 32 inputs, in the order in which canonical arithmetic
//! adds up lanes: lane by lane in [`LANES`]' order, and within a lane from the first block to the last. Rows past the
//! last are zeros.

use akunu_plan::q8;

/// Below this number of rows packing does not pay with most instruction sets.
pub(crate) const LEAST_ROWS: usize = 6;
/// Rows that share one unpacking of the weights; also the rows of a pass for which memory is reserved by default.
pub(crate) const MOST_ROWS: usize = 256;
/// Rows per group.
pub(crate) const SIDE: usize = 16;
/// The widest input: the layers of LLaMA 70B have 28,672.
pub(crate) const MAX_INPUTS: usize = 28_672;

/// Lanes in bit-reversed order: adding them up in this order, merging equal levels, is the canonical reduction tree.
pub(crate) const LANES: [usize; 16] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// A block of 32 inputs of sixteen rows.
#[repr(C, align(64))]
pub(crate) struct Block {
    /// `[4 elements][row · 4 + element]`
    pub(crate) quants: [[i8; 64]; 8],
    /// Initial values of the integer sums, of the whole block or of each half if halves have sub-scales: −offset · Σ
    /// x.
    pub(crate) starts: [[i32; SIDE]; 2],
    /// The scales of the activations (dx).
    pub(crate) scales: [f32; SIDE],
    /// Σ x · dx
    pub(crate) scaled_sums: [f32; SIDE],
    /// Σ x of each half; set only for types with mins per half.
    pub(crate) half_sums: [[f32; SIDE]; 2],
}

/// The number of blocks of a lane, of `blocks` in all.
#[inline(always)]
pub(crate) fn blocks_of_lane(blocks: usize, lane: usize) -> usize {
    blocks.saturating_sub(lane).div_ceil(SIDE)
}

/// The place of each block in a group.
pub(crate) struct Places([usize; SIDE]);

impl Places {
    #[inline(always)]
    pub(crate) fn new(blocks: usize) -> Places {
        let (mut starts, mut start) = ([0; SIDE], 0);
        for lane in LANES {
            starts[lane] = start;
            start += blocks_of_lane(blocks, lane);
        }
        Places(starts)
    }

    #[inline(always)]
    pub(crate) fn of(&self, block: usize) -> usize {
        self.0[block % SIDE] + block / SIDE
    }
}

/// Bytes of the largest block type.
const BLOCK_BYTES: usize = 1024;

/// Bytes for so many rows of the widest input.
pub(crate) const fn bytes(rows: usize) -> usize {
    rows.div_ceil(SIDE) * (MAX_INPUTS / q8::BLOCK) * BLOCK_BYTES
}

/// Up to sixteen rows to pack, and the destination.
pub(crate) struct Group {
    /// q8 rows.
    pub(crate) x: *const u8,
    pub(crate) x_stride: usize,
    /// 1 ..= 16
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) to: *mut u8,
}
