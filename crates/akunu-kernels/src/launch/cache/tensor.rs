//! Attention of many rows on tensor cores.

use akunu_plan::KvType;
use akunu_plan::ops::{Attention, AttentionParams};

use crate::function::source;
use crate::launch::matrix::WARPGROUP;
use crate::{Launch, Source};

use super::{KV, RUNS, Shape, group_of, kv_number, seen_and_scaled};

pub(super) static COPIES: Source = source!("cuda/copies.h");
pub(super) static TENSOR: Source = source!("cuda/tensor.h");
pub(super) static ATTENTION_NUMBERS: Source = source!("cuda/attention_numbers.h");
static ATTENTION_LINES: Source = source!("cuda/attention_lines.h");
static ATTENTION_MMA: Source = source!("cuda/attention_mma.h");
static ATTENTION_WARPGROUP: Source = source!("cuda/attention_warpgroup.h");

/// The fewest rows of a table for which tiles are faster.
pub(super) const FEW_ROWS: u32 = 16;
/// Tables of more rows have the large tile: most of their rows belong to long prompts.
pub(super) const MOST_ROWS_OF_SMALL: u32 = 512;
/// Threadgroups that share the runs of a tile, if it can have more than one.
pub(super) const SHARERS: u32 = 4;

/// A kernel, and what its threadgroups have.
struct Tile {
    entry: &'static str,
    sources: Vec<&'static Source>,
    /// Query lines: each is a head of a row.
    lines: u32,
    /// Positions of an iteration.
    span: u32,
    shared_bytes: u32,
}

/// The runs of rows of one sequence that a launch is for.
struct Runs {
    /// Consecutive rows whose runs a threadgroup has.
    among: u32,
    /// The fewest rows of a run, and the most.
    fewest: u32,
    most: u32,
    sharers: u32,
}

impl Tile {
    fn of_simd_groups(dim: u32, kv: KvType) -> Tile {
        /// Numbers of keys (positions × head dim) that a threadgroup stages at once.
        const SPAN_NUMBERS: u32 = 4096;
        let lines = 64;
        let span = (SPAN_NUMBERS / dim).min(64) / 16 * 16;
        let numbers = 2 * span * (dim * 2 + 16);
        let staged = match kv {
            // Rows as they are, twice; their codes in bf16, and their scales.
            KvType::Q8_0 => 2 * (2 * span * (dim / 32 * 34) + 16) + numbers + 2 * span * (dim / 32 * 4),
            _ => 2 * numbers,
        };
        Tile {
            entry: "attention_mma",
            sources: vec![&KV, &RUNS, &COPIES, &TENSOR, &ATTENTION_NUMBERS, &ATTENTION_LINES, &ATTENTION_MMA],
            lines,
            span,
            shared_bytes: staged.max(lines * dim * 4),
        }
    }

    fn of_warpgroups(dim: u32) -> Tile {
        let (lines, span) = (128, 64);
        Tile {
            entry: "attention_warpgroup",
            sources: vec![&KV, &RUNS, &COPIES, &TENSOR, &WARPGROUP, &ATTENTION_LINES, &ATTENTION_WARPGROUP],
            lines,
            span,
            // Keys of three spans, and values of four; later outputs.
            shared_bytes: 7 * span * dim * 2,
        }
    }

    /// Query heads of a row in a threadgroup, of `group` that share a KV head.
    fn heads_here(group: u32) -> u32 {
        group.clamp(1, 16)
    }

    /// Rows that fit.
    fn rows(&self, group: u32) -> u32 {
        self.lines / Tile::heads_here(group)
    }
}

impl Shape<'_> {
    /// `None`: this chip, cache type or shape is not supported.
    fn tile(&self, p: &AttentionParams, op: Attention) -> Option<Tile> {
        let dim = p.head_dim;
        let aligned = match op.kv {
            KvType::F32 => false,
            KvType::F16 => true,
            KvType::Q8_0 => self.has_whole_runs(p),
        };
        let suits = self.chip.tensor_cores && aligned && self.rows > FEW_ROWS;
        if !suits || dim > 128 || !dim.is_multiple_of(32) {
            return None;
        }
        Some(Tile::of_simd_groups(dim, op.kv)).filter(|tile| self.in_one_block(tile.span, p.block))
    }

    /// The tile for long runs. `None`: also where not only f16 is written, or the table has few rows.
    fn large_tile(&self, p: &AttentionParams, op: Attention) -> Option<Tile> {
        let f16_alone = op.out.f16() && !op.out.f32() && !op.out.q8();
        let suits =
            self.chip.warpgroups && op.kv == KvType::F16 && f16_alone && self.rows > MOST_ROWS_OF_SMALL;
        if !suits || !p.head_dim.is_multiple_of(64) {
            return None;
        }
        let tile = Tile::of_warpgroups(p.head_dim);
        (tile.shared_bytes <= self.chip.shared_bytes && self.in_one_block(tile.span, p.block)).then_some(tile)
    }

    /// Rows of the small tile.
    pub(super) fn tile_rows(&self, p: &AttentionParams, op: Attention) -> Option<u32> {
        Some(self.tile(p, op)?.rows(group_of(p)?))
    }

    /// Runs of fewer than `fewest` rows of one sequence are left out. A run that fits into the small tile would leave half
    /// of the large one empty or more, so short and long runs have a launch each, long ones first. `None`: this chip,
    /// cache type or shape is not supported.
    pub(super) fn attention_of_runs(
        &self,
        p: &AttentionParams,
        op: Attention,
        fewest: u32,
    ) -> Option<Vec<Launch>> {
        let (group, small) = (group_of(p)?, self.tile(p, op)?);
        let rows = small.rows(group);
        let launch = |tile, runs| self.attention_tile(p, op, group, tile, runs);
        let Some(large) = self.large_tile(p, op) else {
            let all = Runs { among: rows, fewest, most: rows, sharers: SHARERS };
            return Some(vec![launch(small, all)]);
        };
        let among = large.rows(group);
        // Of each tile there is one at most: it has more than half of the rows.
        let long = Runs { among, fewest: rows + 1, most: among, sharers: 1 };
        let short = Runs { among, fewest, most: rows, sharers: SHARERS };
        Some(vec![launch(large, long), launch(small, short)])
    }

    fn attention_tile(
        &self,
        p: &AttentionParams,
        op: Attention,
        group: u32,
        tile: Tile,
        runs: Runs,
    ) -> Launch {
        let Attention { kv, out, .. } = op;
        let dim = p.head_dim;
        let heads_here = Tile::heads_here(group);
        let (tiles, down) = (group.div_ceil(heads_here), self.rows.div_ceil(runs.among));
        let kind = tile.entry.trim_start_matches("attention_");
        let suffix = format!("_{}_{}x{dim}_{kind}", p.heads, p.kv_heads);
        self.launch(tile.entry, tile.sources, &suffix)
            .variant([("KV_TYPE", kv_number(kv)), ("HEAD_DIM", dim)])
            .variant([("SPAN", tile.span), ("LINES", tile.lines)])
            .variant([("SPLIT", u32::from(out.f32() || out.q8() || kv == KvType::Q8_0))])
            .variant(seen_and_scaled(op))
            .variant([("CAPPED", u32::from(p.soft_cap != 0.0))])
            .constants([("HEADS", p.heads), ("POSITIONS", p.positions)])
            .constants([("FEWEST_ROWS", runs.fewest), ("MOST_ROWS", runs.most)])
            .variant([("BLOCK", p.block)])
            .constants([("GROUP", group), ("HEADS_HERE", heads_here), ("TILES", tiles)])
            .constants([("TILE_ROWS", runs.among), ("SHARERS", runs.sharers)])
            .out(out)
            .shared(tile.shared_bytes)
            .over([p.kv_heads * tiles, down, runs.sharers], 2 * tile.lines)
    }
}
