//! Activations of sixteen rows side by side, as AMX's tiles want them: packed once for a command, read by every output.
//!
//! A group is a sequence of [`Block`]s, one for each block of 32 inputs, in the order in which lanes are added up: lane
//! by lane in [`LANES`]' order, and in a lane from the first block to the last. Rows past the last are zeros.

use akunu_plan::q8;

/// Rows of a group.
pub(crate) const SIDE: usize = 16;
/// The widest input: the layers of LLaMA 70B have 28,672.
pub(crate) const MAX_INPUTS: usize = 28_672;

/// Bits turned round, so that lanes side by side are added first: the canonical tree, as a sum that grows.
pub(crate) const LANES: [usize; 16] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// A block of 32 of sixteen rows.
#[repr(C, align(64))]
pub(crate) struct Block {
    pub(crate) quants: [[i8; 32]; SIDE],
    /// dx
    pub(crate) scales: [f32; SIDE],
    /// Σ x · dx
    pub(crate) scaled_sums: [f32; SIDE],
    /// Σ x of the first half and of all; set only where [`Group::halves`] says so.
    pub(crate) first_sums: [f32; SIDE],
    pub(crate) sums: [f32; SIDE],
}

/// Blocks of a lane, of `blocks` in all.
#[inline(always)]
pub(crate) fn blocks_of_lane(blocks: usize, lane: usize) -> usize {
    blocks.saturating_sub(lane).div_ceil(SIDE)
}

/// Bytes that hold `rows` rows of the widest input.
pub(crate) const fn bytes(rows: usize) -> usize {
    rows.div_ceil(SIDE) * (MAX_INPUTS / q8::BLOCK) * size_of::<Block>()
}

/// Where sixteen rows are, and where they go.
pub(crate) struct Group {
    /// q8 rows.
    pub(crate) x: *const u8,
    pub(crate) x_stride: usize,
    /// 1 ..= 16
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) to: *mut Block,
    /// Whether the plain sums are wanted.
    pub(crate) halves: bool,
}

/// # Safety
/// The rows can be read, and a block written for every 32 inputs.
#[inline(always)]
pub(crate) unsafe fn pack(group: &Group) {
    let blocks = group.inputs / q8::BLOCK;
    let mut to = group.to;
    for lane in LANES {
        for round in 0..blocks_of_lane(blocks, lane) {
            // SAFETY: as the caller promises: these are all blocks, each once.
            unsafe {
                pack_block(group, round * SIDE + lane, &mut *to);
                to = to.add(1);
            }
        }
    }
}

#[inline(always)]
unsafe fn pack_block(group: &Group, block: usize, to: &mut Block) {
    for r in 0..group.rows {
        // SAFETY: a row of the group, and a block of it.
        unsafe {
            let row = group.x.add(r * group.x_stride);
            to.quants[r] = row.cast::<[i8; q8::BLOCK]>().add(block).read_unaligned();
            let scale = *row.add(q8::scales_offset(group.inputs)).cast::<f32>().add(block);
            let sum = *row.add(q8::sums_offset(group.inputs)).cast::<i32>().add(block) as f32;
            to.scales[r] = scale;
            to.scaled_sums[r] = sum * scale;
            if group.halves {
                to.first_sums[r] = to.quants[r][..16].iter().map(|&x| i32::from(x)).sum::<i32>() as f32;
                to.sums[r] = sum;
            }
        }
    }
    for r in group.rows..SIDE {
        to.quants[r] = [0; 32];
        (to.scales[r], to.scaled_sums[r], to.first_sums[r], to.sums[r]) = (0.0, 0.0, 0.0, 0.0);
    }
}
