//! Attention of many rows with simdgroup matrices of 8 × 8.

use akunu_plan::KvType;
use akunu_plan::ops::{Attention, AttentionParams};

use crate::function::source;
use crate::launch::matrix::TILES;
use crate::{Launch, Source};

use super::tensor::{FEW_ROWS, SHARERS};
use super::{KV, RUNS, Shape, group_of, kv_number, seen_and_scaled};

static ATTENTION_TILES: Source = source!("metal/attention_tiles.h");

/// (query lines of a threadgroup, positions per iteration), in order of preference: the first that fits threadgroup
/// memory.
const SIZES: [[u32; 2]; 9] =
    [[32, 32], [32, 16], [32, 8], [16, 32], [16, 16], [16, 8], [8, 32], [8, 16], [8, 8]];

/// Bytes of threadgroup memory, as the kernel lays it out: query lines; keys and values; scores and a diagonal for
/// each SIMD group.
fn shared_bytes([lines, span]: [u32; 2], dim: u32, kv: KvType) -> u32 {
    let position = if kv == KvType::F16 { dim * 2 + 16 } else { dim * 4 + 16 };
    lines * (dim + 4) * 4 + 2 * span * position + lines / 8 * (8 * (span + 4) + 64) * 4
}

impl Shape<'_> {
    /// `None`: this chip or shape is not supported.
    pub(super) fn attention_tiles(&self, p: &AttentionParams, op: Attention) -> Option<Launch> {
        let Attention { kv, out, .. } = op;
        let dim = p.head_dim;
        if !self.chip.tiles || self.rows <= FEW_ROWS || !dim.is_multiple_of(8) {
            return None;
        }
        let group = group_of(p)?;
        let fits = |size: &[u32; 2]| {
            shared_bytes(*size, dim, kv) <= self.chip.shared_bytes && self.in_one_block(size[1], p.block)
        };
        let [lines, span] = SIZES.into_iter().find(fits)?;
        // A q8 block must not be split between threadgroups.
        let whole = |heads: u32| !out.q8() || (heads * dim).is_multiple_of(32);
        let heads_here = (1..=group.min(lines)).rev().find(|heads| whole(*heads)).filter(|_| whole(group))?;
        let (tiles, tile_rows) = (group.div_ceil(heads_here), lines / heads_here);
        let down = self.rows.div_ceil(tile_rows);
        let suffix = format!("_{}_{}x{dim}_tiles", p.heads, p.kv_heads);
        Some(
            self.launch("attention_tiles", vec![&KV, &RUNS, &TILES, &ATTENTION_TILES], &suffix)
                .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim), ("LINES", lines), ("SPAN", span)])
                .variant(seen_and_scaled(op))
                .constants([("HEADS", p.heads), ("POSITIONS", p.positions)])
                .constants([("FEWEST_ROWS", 1), ("MOST_ROWS", tile_rows)])
                .variant([("BLOCK", p.block)])
                .constants([("GROUP", group), ("HEADS_HERE", heads_here), ("TILES", tiles)])
                .constants([("TILE_ROWS", tile_rows), ("SHARERS", SHARERS)])
                .out(out)
                .shared(shared_bytes([lines, span], dim, kv))
                .over([p.kv_heads * tiles, down, SHARERS], lines * 4),
        )
    }
}
