//! Attention of one or a few rows on tensor cores (flash decoding).

use akunu_plan::KvType;
use akunu_plan::ops::{Attention, AttentionParams};

use crate::function::source;
use crate::launch::Shape;
use crate::{Launch, Source};

use super::tensor::{COPIES, FEW_ROWS, TENSOR};
use super::{group_of, heads_bytes, kv_number};

static ATTENTION_FEW: Source = source!("cuda/attention_few.h");

const SIMDS: u32 = 8;
/// Query heads per product; the other 8 of its 16 rows hold the remainders of their f16 split.
const MOST_HEADS: u32 = 8;
/// Positions that a threadgroup handles per iteration, and the fewest that are worth a threadgroup of their own.
const ITERATION: u32 = SIMDS * 16;
const SPAN: u32 = 2 * ITERATION;

impl Shape<'_> {
    /// `None`: this chip, cache type or shape is not supported.
    pub(super) fn attention_few(&self, p: &AttentionParams, op: Attention) -> Option<Launch> {
        let Attention { kv, out, rope, .. } = op;
        let dim = p.head_dim;
        let suits = self.chip.tensor_cores && kv == KvType::F16 && self.rows <= FEW_ROWS;
        if !suits || !matches!(dim, 32 | 64 | 96 | 128) {
            return None;
        }
        let group = group_of(p)?;
        let tiles = group.div_ceil(MOST_HEADS);
        let head_tile = group.div_ceil(tiles);
        // Register use allows one threadgroup per SM.
        let splits = self.stretches(p, [tiles, head_tile], SPAN, self.chip.units);
        let shared = heads_bytes([head_tile, dim, SIMDS], rope.is_some());
        let launch = self
            .heads("attention_few", &[&COPIES, &TENSOR, &ATTENTION_FEW], p, splits, op)
            .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim), ("HEAD_TILE", head_tile)])
            .constants([("TILES", tiles), ("SPLITS", splits), ("SPAN", SPAN)])
            .out(out)
            .shared(shared);
        (shared <= self.chip.shared_bytes)
            .then(|| launch.over([p.kv_heads * tiles * splits, self.rows, 1], SIMDS * 32))
    }
}
