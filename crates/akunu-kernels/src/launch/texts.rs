//! Positions, token types, pooling, and what models of audio do to rows.

use akunu_plan::RowSet;
use akunu_plan::ops::{
    AddPositions, AddPositionsParams, ElementParams, POOL_PART, Pool, PoolKind, TokenTypes, UnfoldParams,
};

use super::{Launch, Shape};
use crate::Source;
use crate::function::source;

static TEXTS: Source = source!("texts.h");

/// Threads of a threadgroup.
const WIDE: u32 = 256;

impl Shape<'_> {
    pub(super) fn add_positions(&self, op: AddPositions) -> Launch {
        let cols = self.command.params::<AddPositionsParams>().cols;
        let table = match op.types {
            TokenTypes::None => 0,
            TokenTypes::First => 1,
            TokenTypes::PerRow => 2,
        };
        self.launch("add_positions", vec![&TEXTS], &format!("_{cols}"))
            .variant([("POSITIONS", u32::from(op.positions)), ("KIND_TABLE", table)])
            .constants([("COLS", cols)])
            .over([cols.div_ceil(WIDE), self.rows, 1], WIDE)
    }

    pub(super) fn unfold(&self) -> Launch {
        let UnfoldParams { cols, frames, middle } = self.command.params();
        self.launch("unfold", vec![&TEXTS], &format!("_{cols}"))
            .constants([("COLS", cols), ("FRAMES", frames), ("MIDDLE", middle)])
            .over([(3 * cols).div_ceil(WIDE), self.rows, 1], WIDE)
    }

    pub(super) fn across_rows(&self) -> Launch {
        self.launch("across_rows", vec![&TEXTS], "")
            .constants([("ACROSS", 1)])
            .over([self.rows.div_ceil(WIDE), 1, 1], WIDE)
    }

    pub(super) fn pool(&self, op: Pool) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        self.launch("pool", vec![&TEXTS], &format!("_{cols}"))
            .variant([("MEAN", u32::from(op.kind == PoolKind::Mean))])
            .constants([("COLS", cols), ("POOL_PART", POOL_PART as u32)])
            .over([cols.div_ceil(WIDE), self.count(RowSet::Logits), 1], WIDE)
    }
}
