//! The scratch memory of a worker: panels of unpacked weights, accumulators, attention's tiles. Allocated with the
//! device.

use std::sync::atomic::AtomicUsize;

use crate::formats::{Min, Quant, Sub};
use crate::groups::{MAX_INPUTS, MOST_ROWS};
use crate::isa::Lanes;

/// Rows that share one unpacking of a panel.
pub(crate) const TILE_ROWS: usize = 64;
/// Blocks of 32 in a panel: one per lane of the canonical arithmetic.
pub(crate) const PANEL_BLOCKS: usize = 16;
/// The most panels of sixteen outputs that are unpacked before they are multiplied with packed rows.
pub(crate) const MAX_ROUNDS: usize = MAX_INPUTS.div_ceil(32 * PANEL_BLOCKS);
/// Products that are buffered for the epilogue.
pub(crate) const TILE_SUMS: usize = MOST_ROWS * BF16_OUTPUTS;
/// Outputs and inputs of a panel of float weights.
pub(crate) const FLOAT_OUTPUTS: usize = 8;
pub(crate) const FLOAT_CHUNK: usize = 512;
/// The most inputs of a product: more than twice those of the widest known layers.
pub(crate) const MAX_ROW: usize = 1 << 17;
/// Positions of one attention tile: two groups of sixteen.
pub(crate) const KV_TILE: usize = 32;
/// Numbers of the keys or values of a tile of twice as many positions, of short heads: 16 KB.
pub(crate) const KV_TILE_FLOATS: usize = 2 * KV_TILE * 64;
const _: () = assert!(KV_TILE_FLOATS <= KV_TILE * MAX_HEAD);
/// Positions of a block of the cache: whole tiles, so that a tile is in one block.
pub(crate) const BLOCK: usize = 64;
/// Positions per segment; the partial results of segments are merged in order.
pub(crate) const SEGMENT: usize = 256;
/// The stride of a state's scores, padded by a cache line so that states do not map to the same cache sets.
pub(crate) const SCORES: usize = SEGMENT + 16;
/// The largest supported head.
pub(crate) const MAX_HEAD: usize = 512;
/// The longest supported rows of a latent cache, and how many of them latent attention loads at once.
pub(crate) const MAX_LATENT: usize = 2 * MAX_HEAD;
pub(crate) const LATENT_TILE: usize = KV_TILE * MAX_HEAD / MAX_LATENT;
/// The most states, (row, head) pairs, that attention processes at once.
pub(crate) const MAX_STATES: usize = 128;
/// Numbers of the heads of all states: at least 32 of the largest heads.
pub(crate) const STATE_FLOATS: usize = MAX_HEAD * 32;

/// Outputs that are multiplied with the same blocks of all rows, which stay in L2 meanwhile, and the number of blocks:
/// the weights of 32 outputs fill two thirds of L1.
pub(crate) const BF16_OUTPUTS: usize = 64;
pub(crate) const BF16_BLOCKS: usize = 16;
/// (block, group of rows) pairs whose integer sums AMX buffers.
pub(crate) const TILE_BLOCKS: usize = 8;
/// The integer sums of one such pair, of each half if halves have sub-scales: `[half][output][row]`
pub(crate) type TileSums = [[I32x; 16]; 2];

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct F16x(pub(crate) [f32; 16]);

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct I32x(pub(crate) [i32; 16]);

/// Sixteen rows of weights by sixteen blocks of 32, unpacked to one byte per weight.
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// `[block][4 elements][output · 4 + element]`; for packed rows `[block][output][element]`
    pub(crate) quants: [[[i8; 64]; 8]; PANEL_BLOCKS],
    /// `[block][output]`, with the block's sub-scale and min.
    pub(crate) d: [F16x; PANEL_BLOCKS],
    pub(crate) m: [F16x; PANEL_BLOCKS],
    /// The sub-scales or mins of types that have them per half block, two per block.
    pub(crate) sub: [F16x; PANEL_BLOCKS * 2],
    pub(crate) min: [F16x; PANEL_BLOCKS * 2],
    /// At least the number of four-element steps of a block. A runtime value, so that the compiler does not unroll the
    /// loop over them: it would then reorder the sums until they spill.
    pub(crate) steps: usize,
}

impl Panel {
    /// Stores the scales of block `b` of output `o`, whose octet starts at `w`.
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

/// The softmax state of one (row, head): `m` is the maximum score, `l` the sum of exponentials, at least 1 once any
/// position was visible.
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

/// One worker's scratch. All fields are plain numbers; initially zero.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    /// `[row][class of block][output]`, or `[output][row][lane]` for float weights.
    pub(crate) acc: [f32; TILE_ROWS * 256],
    pub(crate) panel: Panel,
    /// Partial sums of the reduction tree over lanes, for packed rows: `[group][level][output][row]`.
    pub(crate) levels: [[[F16x; 16]; 5]; 2],
    /// Integer sums of packed rows, computed by AMX.
    pub(crate) tile_sums: [TileSums; TILE_BLOCKS],
    pub(crate) rounds: [Panel; MAX_ROUNDS],
    /// `[output][element]`
    pub(crate) floats: [f32; FLOAT_OUTPUTS * FLOAT_CHUNK],
    /// One row's activations in the order that `Dot::arranged` gives them, padded to a multiple of four blocks.
    pub(crate) arranged: [i8; MAX_ROW],
    /// Weights of two groups of sixteen outputs in bfloat16, `[block][output]`, and sums
    /// `[group of rows][output][row]`.
    pub(crate) bf16: [[[F16x; 16]; BF16_BLOCKS]; 2],
    pub(crate) bf16_sums: [[F16x; BF16_OUTPUTS]; MOST_ROWS / 16],
    /// Products before the epilogue: `[row][64]`, or a window of outputs of a single row.
    pub(crate) tile: [f32; TILE_SUMS],
    pub(crate) tile_up: [f32; TILE_SUMS],
    /// One head before it is stored in the cache, and in the cache's type.
    pub(crate) head: [f32; MAX_HEAD],
    pub(crate) held: [f32; MAX_HEAD],
    /// `[state][head dim]`
    pub(crate) q: [f32; STATE_FLOATS],
    pub(crate) segment: [f32; STATE_FLOATS],
    pub(crate) total: [f32; STATE_FLOATS],
    /// `[state][position of the segment]`
    pub(crate) scores: [f32; MAX_STATES * SCORES],
    /// The positions of the segment that are visible to a state: start and end.
    pub(crate) seen: [(usize, usize); MAX_STATES],
    pub(crate) segment_softmax: [Softmax; MAX_STATES],
    pub(crate) total_softmax: [Softmax; MAX_STATES],
    /// `[group of sixteen positions][element][position]`
    pub(crate) k: [F16x; KV_TILE / 16 * MAX_HEAD],
    /// `[position][head dim]`
    pub(crate) v: [f32; KV_TILE * MAX_HEAD],
}

/// The most attention jobs that can be split among workers.
pub(crate) const MAX_SPLIT: usize = 4096;
/// Numbers for the partial results of split jobs: enough for one row of a model with 32 heads of 128 at 58 thousand
/// positions.
pub(crate) const PARTIAL_FLOATS: usize = 1 << 20;

/// Memory that all workers share. Initially zero.
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// The number of finished segments per job; 0 between commands.
    pub(crate) done: [AtomicUsize; MAX_SPLIT],
    pub(crate) partials: [f32; PARTIAL_FLOATS],
}
