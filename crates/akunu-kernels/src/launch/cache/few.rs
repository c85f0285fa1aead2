//! Attention of one or a few rows on tensor cores (flash decoding).

use akunu_plan::KvType;
use akunu_plan::ops::{Attention, AttentionParams};

use crate::function::{RESIDENT, source};
use crate::launch::Shape;
use crate::{Launch, Source};

use super::tensor::{ATTENTION_NUMBERS, COPIES, TENSOR};
use super::{group_of, heads_bytes, kv_number};

static ATTENTION_FEW: Source = source!("cuda/attention_few.h");

/// The most SIMD groups of a threadgroup, and the fewest. Of F16, an SM has registers for as many as the most at once; of Q8_0, for
/// twice as many.
const SIMDS: u32 = 8;
const FEWEST_SIMDS: u32 = 2;
/// Query heads per product; the other 8 of its 16 rows hold the remainders of their f16 split.
const MOST_HEADS: u32 = 8;
/// Positions that a SIMD group handles per iteration.
const RUN: u32 = 16;
/// Runs of a SIMD group in threadgroup memory, where they are copied before they are used, as in the kernel.
const STAGES: u32 = 3;

impl Shape<'_> {
    /// `long_run`: the number of rows of one sequence in a row that another kernel handles, and the rows of its tiles.
    /// `None`: this chip, cache type or shape is not supported.
    pub(super) fn attention_few(
        &self,
        p: &AttentionParams,
        op: Attention,
        long_run: Option<[u32; 2]>,
    ) -> Option<Launch> {
        let Attention { kv, out, rope, .. } = op;
        let dim = p.head_dim;
        let suits = match kv {
            KvType::F32 => false,
            KvType::F16 => matches!(dim, 32 | 64 | 96 | 128),
            // Runs are copied in chunks of 16 bytes, and their rows begin at whole words. A row that the kernel itself rotates has no
            // codes to multiply.
            KvType::Q8_0 => self.has_whole_runs(p) && rope.is_none() && matches!(dim, 64 | 128),
        };
        if !self.chip.tensor_cores || !suits || !self.in_one_block(RUN, p.block) {
            return None;
        }
        let group = group_of(p)?;
        let tiles = group.div_ceil(MOST_HEADS);
        let head_tile = group.div_ceil(tiles);
        // The fewer SIMD groups share the positions of a row, the fewer of them have none in the last iteration, and the fewer
        // partial results are merged. But all that fit on the SMs should have some.
        let resident = if kv == KvType::Q8_0 { 2 * SIMDS } else { SIMDS };
        let each = (resident * self.chip.units / (p.kv_heads * tiles * self.rows)).max(1);
        let simds = (1 << each.ilog2()).clamp(FEWEST_SIMDS, SIMDS);
        let wanted = self.chip.units * SIMDS / simds;
        // Two iterations of all SIMD groups.
        let span = 2 * simds * RUN;
        let splits = self.stretches(p, [tiles, head_tile], span, wanted);
        let [long_run, tile_rows] = long_run.unwrap_or([0, 1]);
        let copied = if kv == KvType::Q8_0 { simds * STAGES * 2 * RUN * (dim / 32 * 34) } else { 0 };
        let shared = heads_bytes([head_tile, dim, simds], rope.is_some()).max(copied);
        let launch = self
            .heads(
                "attention_few",
                &[&COPIES, &TENSOR, &ATTENTION_NUMBERS, &ATTENTION_FEW],
                p,
                [splits, wanted],
                op,
            )
            .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim), ("HEAD_TILE", head_tile)])
            .variant([("LONG_RUN", long_run), ("ALIGN", RUN)])
            .constants([("TILES", tiles), ("SPAN", span), ("TILE_ROWS", tile_rows)])
            .out(out)
            .shared(shared);
        let launch =
            if kv == KvType::Q8_0 { launch.constants([(RESIDENT, resident / simds)]) } else { launch };
        (shared <= self.chip.shared_bytes)
            .then(|| launch.over([self.groups(p.kv_heads * tiles, [splits, wanted]), 1, 1], simds * 32))
    }
}
