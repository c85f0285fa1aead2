//! What a worker owns: panels of unpacked weights, accumulators, attention's tiles. Made once, with the device.

use std::sync::atomic::AtomicUsize;

use crate::groups::{MAX_INPUTS, MOST_ROWS};
use crate::isa::Lanes;
use crate::quants::{Min, Quant, Sub};

/// Rows that share one unpacked panel.
pub(crate) const TILE_ROWS: usize = 64;
/// Blocks of 32 in a panel: one round of the sixteen lanes.
pub(crate) const PANEL_BLOCKS: usize = 16;
/// Panels of sixteen outputs that are unpacked before packed rows meet them, at most.
pub(crate) const MAX_ROUNDS: usize = MAX_INPUTS.div_ceil(32 * PANEL_BLOCKS);
/// Products that wait for their epilogue.
pub(crate) const TILE_SUMS: usize = MOST_ROWS * BF16_OUTPUTS;
/// Outputs and elements of a panel of float weights.
pub(crate) const FLOAT_OUTPUTS: usize = 8;
pub(crate) const FLOAT_CHUNK: usize = 512;
/// The most inputs of a product: more than twice those of the widest layers that there are.
pub(crate) const MAX_ROW: usize = 1 << 17;
/// Positions of one attention tile: two sixteens.
pub(crate) const KV_TILE: usize = 32;
/// Positions whose partial results are merged in order.
pub(crate) const SEGMENT: usize = 256;
/// Scores of one state, a line apart from the next state's so that they do not fall into the same sets of a cache.
pub(crate) const SCORES: usize = SEGMENT + 16;
/// The largest head that attention takes.
pub(crate) const MAX_HEAD: usize = 512;
/// States, (row, head) pairs that attention works on at once: at most.
pub(crate) const MAX_STATES: usize = 128;
/// Elements of all their heads: at least 32 of the largest.
pub(crate) const STATE_FLOATS: usize = MAX_HEAD * 32;

/// Outputs that meet the same blocks of all rows, which the second cache holds meanwhile, and how many blocks: 32 outputs' weights
/// fill two thirds of the first cache.
pub(crate) const BF16_OUTPUTS: usize = 64;
pub(crate) const BF16_BLOCKS: usize = 16;
/// Blocks by groups of rows whose integer sums AMX keeps.
pub(crate) const TILE_BLOCKS: usize = 8;
/// The integer sums of one, of each half where halves have sub-scales: `[half][output][row]`
pub(crate) type TileSums = [[I32x; 16]; 2];

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct F16x(pub(crate) [f32; 16]);

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct I32x(pub(crate) [i32; 16]);

/// Sixteen weight rows by sixteen blocks of 32, unpacked to a byte a weight.
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// `[block][4 elements][output · 4 + element]`; before packed rows `[block][output][element]`
    pub(crate) quants: [[[i8; 64]; 8]; PANEL_BLOCKS],
    /// `[block][output]`, with the block's sub-scale and min.
    pub(crate) d: [F16x; PANEL_BLOCKS],
    pub(crate) m: [F16x; PANEL_BLOCKS],
    /// Those of types whose half blocks have their own, two for each block.
    pub(crate) sub: [F16x; PANEL_BLOCKS * 2],
    pub(crate) min: [F16x; PANEL_BLOCKS * 2],
    /// At least the four-element steps of a block. Known only when running, so that a loop over them stays a loop:
    /// unrolled, its sums would be reordered until they fit no registers.
    pub(crate) steps: usize,
}

impl Panel {
    /// The scales of block `b` of output `o`, whose octet starts at `w`.
    ///
    /// # Safety
    /// Block `b % 8` can be read at `w`.
    #[inline(always)]
    pub(crate) unsafe fn set_scales<V: Lanes, Q: Quant>(&mut self, o: usize, b: usize, w: *const u8) {
        if Q::PLANES {
            return;
        }
        // SAFETY: as the caller promises.
        unsafe {
            (self.d[b].0[o], self.m[b].0[o]) = Q::block_scales::<V>(w, b % 8);
            if Q::SUB == Sub::Half {
                let [first, second] = Q::sub(w, b % 8);
                (self.sub[b * 2].0[o], self.sub[b * 2 + 1].0[o]) = (first as f32, second as f32);
            }
            if Q::MIN == Min::Half {
                let [first, second] = Q::min(w, b % 8);
                (self.min[b * 2].0[o], self.min[b * 2 + 1].0[o]) = (first as f32, second as f32);
            }
        }
    }
}

/// Sixteen blocks of one row's activations.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) quants: *const i8,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const i32,
}

/// Softmax of one (row, head): `m` the largest score, `l` the sum of exponentials, at least 1 once any position was
/// seen.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    pub(crate) m: f32,
    pub(crate) l: f32,
}

impl Softmax {
    pub(crate) fn is_used(self) -> bool {
        self.l != 0.0
    }
}

/// One worker's memory. All of it is plain numbers; zeroed to begin with.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    /// `[row][class of block][output]`, or `[output][row][lane]` for float weights.
    pub(crate) acc: [f32; TILE_ROWS * 256],
    pub(crate) panel: Panel,
    /// Packed rows' lanes as they are added up: `[group][level][output][row]`.
    pub(crate) levels: [[[F16x; 16]; 5]; 2],
    /// Integer sums of packed rows, where AMX makes them.
    pub(crate) tile_sums: [TileSums; TILE_BLOCKS],
    pub(crate) rounds: [Panel; MAX_ROUNDS],
    /// `[output][element]`
    pub(crate) floats: [f32; FLOAT_OUTPUTS * FLOAT_CHUNK],
    /// One row's activations, in whole fours of blocks.
    pub(crate) arranged: [i8; MAX_ROW],
    /// Two sixteens of outputs' weights in bfloat16, `[block][output]`, and sums `[group of rows][output][row]`.
    pub(crate) bf16: [[[F16x; 16]; BF16_BLOCKS]; 2],
    pub(crate) bf16_sums: [[F16x; BF16_OUTPUTS]; MOST_ROWS / 16],
    /// Products before their epilogue: `[row][64]`, or a window of one row's outputs.
    pub(crate) tile: [f32; TILE_SUMS],
    pub(crate) tile_up: [f32; TILE_SUMS],
    /// One head on its way to the cache, and as that holds it.
    pub(crate) head: [f32; MAX_HEAD],
    pub(crate) held: [f32; MAX_HEAD],
    /// `[state][head dim]`
    pub(crate) q: [f32; STATE_FLOATS],
    pub(crate) segment: [f32; STATE_FLOATS],
    pub(crate) total: [f32; STATE_FLOATS],
    /// `[state][position of the segment]`
    pub(crate) scores: [f32; MAX_STATES * SCORES],
    /// The positions of the segment that a state sees: start and end.
    pub(crate) seen: [(usize, usize); MAX_STATES],
    pub(crate) segment_softmax: [Softmax; MAX_STATES],
    pub(crate) total_softmax: [Softmax; MAX_STATES],
    /// `[sixteen of positions][element][16]`
    pub(crate) k: [F16x; KV_TILE / 16 * MAX_HEAD],
    /// `[position][head dim]`
    pub(crate) v: [f32; KV_TILE * MAX_HEAD],
}

/// Jobs of attention that may be split among workers.
pub(crate) const MAX_SPLIT: usize = 4096;
/// Partial results of theirs: a row of a model with 32 heads of 128 has room for 58 thousand positions.
pub(crate) const PARTIAL_FLOATS: usize = 1 << 20;

/// What all workers share. Zeroed to begin with.
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// Segments that are done, by job; 0 between commands.
    pub(crate) done: [AtomicUsize; MAX_SPLIT],
    pub(crate) partials: [f32; PARTIAL_FLOATS],
}
