//! Kernels that access the KV cache, and argmax.

use akunu_plan::ops::{
    ArgmaxParams, Attention, AttentionParams, HeadScoresParams, KvCopy, KvMoveParams, KvShift, RopeKv,
    RopeKvParams,
};
use akunu_plan::{KvType, OutputForms, Rope, RopeStyle, RowSet, ScaledBy};

use crate::function::source;
use crate::{Launch, MissingKernel, Source};

use super::{COUNTER_BYTES, LaunchBuilder, SCRATCH_BYTES, Shape};

mod few;
mod tensor;
mod tiles;

use tensor::{FEW_ROWS, MOST_ROWS_OF_SMALL};

pub(super) static KV: Source = source!("kv.h");
pub(super) static ROPE: Source = source!("rope.h");
static ROPE_KV: Source = source!("rope_kv.h");
static KV_WRITE: Source = source!("kv_write.h");
static RANGE_REDUCTION: Source = source!("range_reduction.h");
static KV_SHIFT: Source = source!("kv_shift.h");
static KV_COPY: Source = source!("kv_copy.h");
static RUNS: Source = source!("runs.h");
static HEADS: Source = source!("heads.h");
static ATTENTION: Source = source!("attention.h");
static HEAD_SCORES: Source = source!("head_scores.h");
static CHAIN: Source = source!("chain.h");
static ARGMAX: Source = source!("argmax.h");

/// The most splits or parts that are combined, one per lane.
const MOST_PARTS: u32 = 32;
/// Threads of an attention threadgroup.
const THREADS: u32 = 256;

/// The kernels' KV_TYPE.
pub(super) fn kv_number(kv: KvType) -> u32 {
    match kv {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    }
}

/// What `kv.h` has to know of the positions that rows see, and of their scores.
fn seen_and_scaled(op: Attention) -> [(&'static str, u32); 4] {
    [
        ("FACTORS", u32::from(op.query_factors.is_some())),
        ("BY_LENGTH", u32::from(op.query_factors == Some(ScaledBy::Length))),
        ("CHUNKED", u32::from(op.chunked)),
        ("SINKS", u32::from(op.sinks)),
    ]
}

impl LaunchBuilder {
    /// The constants of `put_rotated`.
    fn rope(self, rope: Rope, dims: u32) -> LaunchBuilder {
        self.variant([("QK_NORM", u32::from(rope.qk_norm))])
            .constants([("ROPE_DIMS", dims)])
            .style(rope.style)
    }

    pub(super) fn style(self, style: Option<RopeStyle>) -> LaunchBuilder {
        self.constants([("STYLE", u32::from(style == Some(RopeStyle::Interleaved)))])
    }
}

/// Query heads that share a KV head.
fn group_of(p: &AttentionParams) -> Option<u32> {
    (p.kv_heads > 0 && p.heads > 0 && p.heads.is_multiple_of(p.kv_heads)).then(|| p.heads / p.kv_heads)
}

/// Bytes of threadgroup memory, as laid out in `heads.h`: the partial results of each SIMD group, later the weights of
/// the splits. With `rotates`, the rotated query heads, the own key and the own value precede them.
fn heads_bytes([tile, dim, simds]: [u32; 3], rotates: bool) -> u32 {
    let rotated = if rotates { (tile + 2) * dim * 4 } else { 0 };
    rotated + (simds * tile * (dim + 2) * 4).max(16 + tile * MOST_PARTS * 4)
}

/// How an attention threadgroup divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttentionShape {
    /// Numbers of a cached row per lane, and lanes per row.
    piece: u32,
    lanes: u32,
    /// Query heads per threadgroup, and threadgroups per KV head.
    head_tile: u32,
    tiles: u32,
    /// The most splits of the positions, the fewest positions worth a split, and the threadgroups to split for.
    splits: u32,
    span: u32,
    wanted: u32,
    shared_bytes: u32,
}

impl AttentionShape {
    /// `rotates`: whether each threadgroup rotates its heads itself.
    fn new(
        p: &AttentionParams,
        (kv, out, rotates): (KvType, OutputForms, bool),
        of: &Shape<'_>,
    ) -> Result<Self, String> {
        let dim = p.head_dim;
        let group = group_of(p).ok_or_else(|| format!("{} heads over {} KV heads", p.heads, p.kv_heads))?;
        let fits = |piece: u32| dim.is_multiple_of(piece) && dim / piece <= 32;
        let pieces: &[u32] = if kv == KvType::Q8_0 { &[8, 16] } else { &[8, 16, 4, 2] };
        let piece = pieces.iter().copied().find(|piece| dim > 0 && fits(*piece));
        let piece = piece.ok_or_else(|| format!("heads of {dim}"))?;
        let shared = |tile: u32| heads_bytes([tile, dim, THREADS / 32], rotates);
        let whole = |tile: u32| !out.q8() || (tile * dim).is_multiple_of(32);
        let most = if piece > 8 { 4 } else { 64 / piece };
        let tiles =
            (1..=group.min(most)).rev().find(|tile| shared(*tile) <= of.chip.shared_bytes && whole(*tile));
        let head_tile = tiles.ok_or_else(|| format!("{group} heads of {dim} for one of keys, rounded"))?;
        let tiles = group.div_ceil(head_tile);
        let lanes = (dim / piece).next_power_of_two();
        // Two iterations of every lane group; with fewer, additional threadgroups only add waiting.
        let span = THREADS / lanes * 8;
        let wanted = 2 * of.chip.units;
        let splits = of.stretches(p, [tiles, head_tile], span, wanted);
        Ok(AttentionShape {
            piece,
            lanes,
            head_tile,
            tiles,
            splits,
            span,
            wanted,
            shared_bytes: shared(head_tile),
        })
    }
}

impl Shape<'_> {
    /// The most splits, of at least `span` positions each, that give about `wanted` threadgroups in all with the fewest
    /// rows that this number of rows is chosen for. With more rows the kernel splits less.
    fn stretches(&self, p: &AttentionParams, [tiles, head_tile]: [u32; 2], span: u32, wanted: u32) -> u32 {
        let heads = u64::from(p.kv_heads * tiles);
        let groups = heads * u64::from(self.rows);
        if groups > COUNTER_BYTES / 4 {
            return 1;
        }
        let room = (SCRATCH_BYTES - COUNTER_BYTES) / (groups * u64::from(head_tile * (p.head_dim + 2) * 4));
        let longest = if p.across > 0 { p.across } else { self.context };
        let most = MOST_PARTS.min(longest.div_ceil(span));
        let fewest_rows = if self.rows > 16 { self.rows / 2 } else { self.rows.min(2) };
        let each = u64::from(wanted) / (heads * u64::from(fewest_rows)).max(1);
        each.min(room).min(u64::from(most)).max(1) as u32
    }

    /// The threadgroups that are enough for any number of live rows, which determines the splits: `most_splits` in
    /// `heads.h`.
    fn groups(&self, heads: u32, [splits, wanted]: [u32; 2]) -> u32 {
        let groups = heads * self.rows;
        groups.max(wanted.min(groups.saturating_mul(splits)))
    }

    /// One launch, or several for different runs of rows of the same sequence: rows alone, short runs and long ones.
    pub(super) fn attention(&self, op: Attention) -> Result<Vec<Launch>, MissingKernel> {
        let Attention { kv, out, rope, position_bias, .. } = op;
        let p: AttentionParams = self.command.params();
        if rope.is_some() && self.rows > 1 {
            return Err(self.missing("of several rows, one might see another's key too early".into()));
        }
        // Only the generic kernel supports position biases.
        if !position_bias {
            let special = self.attention_special(&p, op);
            if !special.is_empty() {
                return Ok(special);
            }
        }
        let shape = AttentionShape::new(&p, (kv, out, rope.is_some()), self);
        let shape = shape.map_err(|why| self.missing(why))?;
        let launch = self
            .heads("attention", &[&ATTENTION], &p, [shape.splits, shape.wanted], op)
            .variant([("BIASED", u32::from(position_bias)), ("LONG_RUN", 0)])
            .variant([("KV_TYPE", kv_number(kv)), ("PIECE", shape.piece), ("LANES", shape.lanes)])
            .variant([("HEAD_TILE", shape.head_tile)])
            .constants([("HEAD_DIM", p.head_dim), ("TILES", shape.tiles)])
            .constants([("SPAN", shape.span)])
            .variant([("ALIGN", 1)])
            .out(out)
            .shared(shape.shared_bytes);
        let groups = self.groups(p.kv_heads * shape.tiles, [shape.splits, shape.wanted]);
        Ok(vec![launch.over([groups, 1, 1], THREADS)])
    }

    /// Empty: the generic kernel is used.
    fn attention_special(&self, p: &AttentionParams, op: Attention) -> Vec<Launch> {
        // From this number of rows on, runs of rows read their keys and values together.
        const LONG_RUN: u32 = 4;
        // With more rows, most are of prompts. Of q8, tiles are slow for rows alone. Both kernels tell rows alone apart by the rows of
        // the small tile, so that there must be no large one.
        let most_mixed = if op.kv == KvType::Q8_0 { u32::MAX } else { MOST_ROWS_OF_SMALL };
        let alone = |long_run| self.attention_few(p, op, long_run);
        if self.rows <= FEW_ROWS {
            return alone(None).into_iter().collect();
        }
        let of_runs = |long_run| self.attention_of_runs(p, op, long_run);
        let mixed = || {
            let tile_rows = self.tile_rows(p, op)?;
            let (alone, runs) = (alone(Some([LONG_RUN, tile_rows]))?, of_runs(LONG_RUN)?);
            (runs.len() == 1).then(|| [vec![alone], runs].concat())
        };
        let mixed = if self.rows <= most_mixed { mixed() } else { None };
        let tiles = || self.attention_tiles(p, op).into_iter().collect();
        mixed.or_else(|| of_runs(1)).unwrap_or_else(tiles)
    }

    /// The constants of `heads.h` and the kernels that use it.
    fn heads(
        &self,
        entry: &'static str,
        bodies: &[&'static Source],
        p: &AttentionParams,
        [splits, wanted]: [u32; 2],
        op: Attention,
    ) -> LaunchBuilder {
        let rope = op.rope;
        let rope_source = rope.map(|_| &ROPE);
        let sources = std::iter::once(&KV).chain(rope_source).chain([&HEADS]).chain(bodies.iter().copied());
        let suffix = format!("_{}_{}x{}_{splits}", p.heads, p.kv_heads, p.head_dim);
        let mut builder = self.launch(entry, sources.collect(), &suffix);
        if let Some(rope) = rope {
            builder = builder.rope(rope, p.rope_dims);
        }
        builder
            .variant([("ROPE", u32::from(rope.is_some())), ("CAPPED", u32::from(p.soft_cap != 0.0))])
            .variant(seen_and_scaled(op))
            .constants([("HEADS", p.heads), ("KV_HEADS", p.kv_heads), ("GROUP", p.heads / p.kv_heads)])
            .constants([("POSITIONS", p.positions), ("SPLITS", splits), ("GROUPS_WANTED", wanted)])
            .variant([("BLOCK", p.block)])
    }

    /// Whether a cache is in blocks of whole runs of 16 rows. In Q8_0 such a run is whole chunks of 16 bytes, and one row is not.
    fn has_whole_runs(&self, p: &AttentionParams) -> bool {
        p.block != 0 && p.block.is_multiple_of(16)
    }

    /// Whether `span` positions from a multiple of `span` on are in one block.
    fn in_one_block(&self, span: u32, block: u32) -> bool {
        block == 0 || block.is_multiple_of(span) || self.context <= block
    }

    pub(super) fn head_scores(&self, kv: KvType) -> Launch {
        let p: HeadScoresParams = self.command.params();
        self.launch("head_scores", vec![&KV, &HEAD_SCORES], &format!("_{}x{}", p.kv_heads, p.head_dim))
            .variant([("KV_TYPE", kv_number(kv))])
            .constants([("HEAD_DIM", p.head_dim), ("POSITIONS", p.positions)])
            .variant([("BLOCK", 0)])
            .over([p.count.div_ceil(THREADS), self.rows, 1], THREADS)
    }

    pub(super) fn rope_kv(&self, op: RopeKv) -> Result<Launch, MissingKernel> {
        const SIMDS: u32 = 4;
        let p: RopeKvParams = self.command.params();
        let (rope, kv) = (Rope { style: op.style, qk_norm: op.qk_norm && !op.norm_last }, op.kv);
        let as_is = rope.style.is_none() && !op.qk_norm && kv != KvType::Q8_0 && p.head_dim.is_multiple_of(4);
        if as_is {
            return Ok(self.kv_write(&p, op));
        }
        if op.input.f16() {
            return Err(self.missing("it reads f32 where it changes heads or writes int8".into()));
        }
        Ok(self
            .launch(
                "rope_kv",
                vec![&KV, &ROPE, &ROPE_KV],
                &format!("_{}_{}x{}", p.heads, p.kv_heads, p.head_dim),
            )
            .variant([("KV_TYPE", kv_number(kv))])
            .constants([("HEADS", p.heads), ("KV_HEADS", p.kv_heads), ("HEAD_DIM", p.head_dim)])
            .constants([("POSITIONS", p.positions), ("NORM_LAST", u32::from(op.norm_last))])
            .variant([("BLOCK", p.block)])
            .rope(rope, p.rope_dims)
            .shared(SIMDS * p.head_dim * 4)
            .over([(p.heads + 2 * p.kv_heads).div_ceil(SIMDS), self.rows, 1], SIMDS * 32))
    }

    fn kv_write(&self, p: &RopeKvParams, RopeKv { kv, input, .. }: RopeKv) -> Launch {
        const ROWS_EACH: u32 = 4;
        let fours = (p.heads + 2 * p.kv_heads) * p.head_dim / 4;
        let suffix = format!("_{}_{}x{}", p.heads, p.kv_heads, p.head_dim);
        self.launch("kv_write", vec![&KV, &KV_WRITE], &suffix)
            .variant([("KV_TYPE", kv_number(kv)), ("ROWS_EACH", ROWS_EACH)])
            .variant([("X_F16", u32::from(input.f16())), ("BIAS", u32::from(input.bias()))])
            .constants([("HEADS", p.heads), ("KV_HEADS", p.kv_heads), ("HEAD_DIM", p.head_dim)])
            .constants([("POSITIONS", p.positions)])
            .variant([("BLOCK", p.block)])
            .over([fours.div_ceil(THREADS), self.rows.div_ceil(ROWS_EACH), 1], THREADS)
    }

    fn kv_move(&self, entry: &'static str, sources: Vec<&'static Source>, kv: KvType) -> LaunchBuilder {
        let p: KvMoveParams = self.command.params();
        self.launch(entry, sources, &format!("_{}x{}", p.kv_heads, p.head_dim))
            .variant([("KV_TYPE", kv_number(kv))])
            .constants([("HEAD_DIM", p.head_dim), ("POSITIONS", p.positions), ("ROPE_DIMS", p.rope_dims)])
            .variant([("BLOCK", p.block)])
    }

    pub(super) fn kv_shift(&self, KvShift { style, kv, latent, .. }: KvShift) -> Launch {
        const SIMDS: u32 = 8;
        let p: KvMoveParams = self.command.params();
        self.kv_move("kv_shift", vec![&RANGE_REDUCTION, &KV, &ROPE, &KV_SHIFT], kv)
            .style(Some(style))
            .constants([("LATENT_ROWS", u32::from(latent))])
            .shared(SIMDS * p.head_dim * 4)
            .over([p.kv_heads, if latent { 1 } else { 2 }, 1], SIMDS * 32)
    }

    pub(super) fn kv_copy(&self, KvCopy { kv, latent }: KvCopy) -> Launch {
        const PARTS: u32 = 16;
        let p: KvMoveParams = self.command.params();
        self.kv_move("kv_copy", vec![&KV, &KV_COPY], kv)
            .constants([("PARTS", PARTS), ("LATENT_ROWS", u32::from(latent))])
            .over([p.kv_heads, if latent { 1 } else { 2 }, PARTS], 256)
    }

    pub(super) fn argmax(&self) -> Launch {
        let p: ArgmaxParams = self.command.params();
        let parts = (p.vocab / 4096).clamp(1, MOST_PARTS);
        self.launch("argmax", vec![&CHAIN, &ARGMAX], &format!("_{}_{}", p.vocab, self.logit_rows))
            .constants([("VOCAB", p.vocab), ("PARTS", parts), ("LOGIT_CAPACITY", self.logit_rows)])
            .shared(16 + 8 * 8)
            .over([parts, self.count(RowSet::Logits), 1], 256)
    }
}
