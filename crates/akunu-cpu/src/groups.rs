//! Activations of sixteen rows side by side, as wide products want them: packed once for a command, read by every output.
//!
//! A group is a sequence of [`Block`]s, one for each block of 32 inputs, in the order in which lanes are added up: lane
//! by lane in [`LANES`]' order, and in a lane from the first block to the last. Rows past the last are zeros.

use akunu_plan::q8;

/// Fewer rows than this are not worth a group: each costs less by itself.
pub(crate) const LEAST_ROWS: usize = 6;
/// Rows that share weights which are unpacked once, and of a pass unless more are asked for.
pub(crate) const MOST_ROWS: usize = 256;
/// Rows of a group.
pub(crate) const SIDE: usize = 16;
/// The widest input: the layers of LLaMA 70B have 28,672.
pub(crate) const MAX_INPUTS: usize = 28_672;

/// Bits turned round, so that lanes side by side are added first: the canonical tree, as a sum that grows.
pub(crate) const LANES: [usize; 16] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// A block of 32 of sixteen rows.
#[repr(C, align(64))]
pub(crate) struct Block {
    /// `[4 elements][row · 4 + element]`
    pub(crate) quants: [[i8; 64]; 8],
    /// What the integer sums of all, or of each half where halves have sub-scales, begin with: −offset · Σ x.
    pub(crate) starts: [[i32; SIDE]; 2],
    /// dx
    pub(crate) scales: [f32; SIDE],
    /// Σ x · dx
    pub(crate) scaled_sums: [f32; SIDE],
    /// Σ x of each half; set only for types whose halves have mins.
    pub(crate) half_sums: [[f32; SIDE]; 2],
}

/// Blocks of a lane, of `blocks` in all.
#[inline(always)]
pub(crate) fn blocks_of_lane(blocks: usize, lane: usize) -> usize {
    blocks.saturating_sub(lane).div_ceil(SIDE)
}

/// Where each block of a group is.
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

/// Of the largest kind of blocks.
const BLOCK_BYTES: usize = 1024;

/// Bytes that hold so many rows of the widest input.
pub(crate) const fn bytes(rows: usize) -> usize {
    rows.div_ceil(SIDE) * (MAX_INPUTS / q8::BLOCK) * BLOCK_BYTES
}

/// Where sixteen rows are, and where they go.
pub(crate) struct Group {
    /// q8 rows.
    pub(crate) x: *const u8,
    pub(crate) x_stride: usize,
    /// 1 ..= 16
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) to: *mut u8,
}
