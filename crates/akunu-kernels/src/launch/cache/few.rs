//! Attention of a row or a few, on tensor cores.

use akunu_plan::params::AttentionParams;
use akunu_plan::{KvType, NormOut, Rope};

use crate::function::source;
use crate::launch::{COUNTER_BYTES, SCRATCH_BYTES, Shape};
use crate::{Launch, Source};

use super::tensor::{COPIES, FEW_ROWS, TENSOR};
use super::{MOST_PARTS, kv_number};

static ATTENTION_FEW: Source = source!("cuda/attention_few.h");

const SIMDS: u32 = 8;
/// Query heads that are lines of one product; their halves' rests are as many.
const MOST_HEADS: u32 = 8;
/// Positions of a group's turn, and the fewest that are worth a group of their own.
const TURN: u32 = SIMDS * 16;
const SPAN: u32 = 2 * TURN;

impl Shape<'_> {
    /// `None`: not for this chip, cache or shape.
    pub(super) fn attention_few(
        &self,
        p: &AttentionParams,
        kv: KvType,
        out: NormOut,
        rope: Option<Rope>,
    ) -> Option<Launch> {
        let dim = p.head_dim;
        let suits = self.chip.tensor_cores && kv == KvType::F16 && self.rows <= FEW_ROWS;
        if !suits
            || !matches!(dim, 32 | 64 | 96 | 128)
            || p.kv_heads == 0
            || !p.heads.is_multiple_of(p.kv_heads)
        {
            return None;
        }
        let group = p.heads / p.kv_heads;
        let tiles = group.div_ceil(MOST_HEADS).max(1);
        let head_tile = group.div_ceil(tiles);
        let groups = p.kv_heads * tiles * self.rows;
        let room =
            (SCRATCH_BYTES - COUNTER_BYTES) / (u64::from(groups) * u64::from(head_tile * (dim + 2) * 4));
        let counted = u64::from(groups) <= COUNTER_BYTES / 4;
        // Registers are for one group a unit.
        let wanted = self.chip.units / groups;
        let most = MOST_PARTS.min(p.capacity.div_ceil(SPAN)).min(room as u32);
        let splits = if counted { wanted.min(most).max(1) } else { 1 };
        // Heads, a key and a value stay while parts are put together.
        let turned = if rope.is_some() { (head_tile + 2) * dim * 4 } else { 0 };
        let shared = turned + (SIMDS * head_tile * (dim + 2) * 4).max(16 + head_tile * MOST_PARTS * 4);
        let launch = self
            .heads("attention_few", &[&COPIES, &TENSOR, &ATTENTION_FEW], p, splits, rope)
            .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim), ("HEAD_TILE", head_tile)])
            .constants([("TILES", tiles), ("SPLITS", splits), ("SPAN", SPAN)])
            .out(out)
            .shared(shared);
        (shared <= self.chip.shared_bytes)
            .then(|| launch.over([p.kv_heads * tiles * splits, self.rows, 1], SIMDS * 32))
    }
}
