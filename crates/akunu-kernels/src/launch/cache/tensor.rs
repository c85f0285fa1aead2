//! Attention of many rows on tensor cores.

use akunu_plan::KvType;
use akunu_plan::ops::{Attention, AttentionParams};

use crate::function::source;
use crate::{Launch, Source};

use super::{KV, RUNS, Shape, group_of, kv_number};

pub(super) static COPIES: Source = source!("cuda/copies.h");
pub(super) static TENSOR: Source = source!("cuda/tensor.h");
static ATTENTION_MMA: Source = source!("cuda/attention_mma.h");

/// Query lines of a threadgroup, as in the kernel.
const LINES: u32 = 64;
const THREADS: u32 = 128;
/// The fewest rows of a table for which tiles are faster.
pub(super) const FEW_ROWS: u32 = 16;
/// Numbers of keys (positions × head dim) that a threadgroup stages at once.
const SPAN_NUMBERS: u32 = 4096;
/// Threadgroups that share the runs of a tile, if it can have more than one.
pub(super) const SHARERS: u32 = 4;

impl Shape<'_> {
    /// Rows of a tile of `attention_mma`. `None`: the heads are not supported.
    pub(super) fn tile_rows(&self, p: &AttentionParams) -> Option<u32> {
        Some(LINES / group_of(p)?.clamp(1, 16))
    }

    /// Runs of fewer than `long_run` rows of one sequence are left out. `None`: this chip, cache type or shape is not
    /// supported.
    pub(super) fn attention_mma(&self, p: &AttentionParams, op: Attention, long_run: u32) -> Option<Launch> {
        let Attention { kv, out, query_factors, sinks, .. } = op;
        let suits = self.chip.tensor_cores && kv == KvType::F16 && self.rows > FEW_ROWS;
        let dim = p.head_dim;
        if !suits || dim > 128 || !dim.is_multiple_of(32) {
            return None;
        }
        let group = group_of(p)?;
        let heads_here = group.clamp(1, 16);
        let (tiles, tile_rows) = (group.div_ceil(heads_here), self.tile_rows(p)?);
        let down = self.rows.div_ceil(tile_rows);
        let span = (SPAN_NUMBERS / dim).min(64) / 16 * 16;
        if !self.in_one_block(span, p.block) {
            return None;
        }
        let stage = 2 * span * (dim * 2 + 16);
        let suffix = format!("_{}_{}x{dim}_{}_mma", p.heads, p.kv_heads, self.rows);
        Some(
            self.launch("attention_mma", vec![&KV, &RUNS, &COPIES, &TENSOR, &ATTENTION_MMA], &suffix)
                .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim), ("SPAN", span)])
                .variant([("SPLIT", u32::from(out.f32() || out.q8()))])
                .variant([
                    ("FACTORS", u32::from(query_factors)),
                    ("SINKS", u32::from(sinks)),
                    ("CAPPED", u32::from(p.soft_cap != 0.0)),
                ])
                .constants([("HEADS", p.heads), ("POSITIONS", p.positions), ("LONG_RUN", long_run)])
                .variant([("BLOCK", p.block)])
                .constants([("GROUP", group), ("HEADS_HERE", heads_here), ("TILES", tiles)])
                .constants([("TILE_ROWS", tile_rows), ("TILES_DOWN", down), ("SHARERS", SHARERS)])
                .out(out)
                .shared((2 * stage).max(LINES * dim * 4))
                .over([p.kv_heads * tiles, down, SHARERS], THREADS),
        )
    }
}
