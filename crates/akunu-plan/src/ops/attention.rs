//! Grouped-query attention over the cached positions of each row's sequence.
//!
//! With `rope` it also does the work of [`super::RopeKv`]. This is possible for one row only: with several, a row might
//! read the key of another before it is written.

use super::extent::{CacheExtents, Counts, Extent, check_paged, check_rotation, f32s, forms, layer_cache};
use super::norm::OUT;
use super::rope_kv::Rotation;
use super::{
    Access, Blocks, Cursor, F32, Forms, Keys, Op, Operand, RopeKvParams, RowField, Rows, Slot, Values, operands, params,
};
use crate::reference::{Bound, Cache, kv_load, soft_cap};
use crate::table::Binding;
use crate::{Cost, KvType, OutputForms, Rope, RopeStyle, Row, ScaledBy, position_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    pub kv: KvType,
    pub out: OutputForms,
    pub rope: Option<Rope>,
    /// Whether a bias depending on the distance between key and query is added to the scores.
    pub position_bias: bool,
    /// By what the factor is found that queries are multiplied by, if there is one.
    pub query_factors: Option<ScaledBy>,
    /// A window is a chunk: the positions of a sequence are in chunks of `window`, and a row attends to its own.
    pub chunked: bool,
    /// Whether each head has a sink: a score without a position, which takes its share of the softmax.
    pub sinks: bool,
    /// Whether the cache is in blocks ([`crate::blocks`]).
    pub paged: bool,
}

params! {
    AttentionParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// Number of positions in a layer's cache, and of one of its blocks; 0 if it is not in blocks.
        positions: u32,
        block: u32,
        scale: f32,
        /// `cap · tanh(score / cap)` after scaling; 0 means none.
        soft_cap: f32,
        /// A row at position p attends to positions p − window + 1 ..= p + ahead, limited by its `kv_len`, or to those of
        /// its chunk up to p; window 0 means all positions.
        window: u32,
        ahead: u32,
        /// If attention applies RoPE: the first `rope_dims` of a head, and `epsilon` of the Q/K norm; otherwise 0.
        rope_dims: u32,
        epsilon: f32,
        /// With `position_bias`: keys at this distance or farther get the bias of distance `reach − 1`; otherwise 0.
        reach: u32,
        /// With `query_factors`: the number of positions that share a factor, and the number of factors; otherwise 0.
        factor_step: u32,
        factors: u32,
        /// The number of positions of an encoder's window, if its states are attended to; else 0. Only the cost depends
        /// on it: the rows say the same.
        across: u32,
    }
}

impl AttentionParams {
    /// Columns of a head's position bias: distances `1 − reach ..= reach − 1`.
    pub fn bias_cols(&self) -> u32 {
        (2 * self.reach).saturating_sub(1)
    }

    /// The column for the distance between a key and its query.
    #[inline(always)]
    pub fn bias_col(&self, query: u32, key: u32) -> u32 {
        (key.saturating_sub(query).min(self.reach - 1) + self.reach - 1) - query.saturating_sub(key).min(self.reach - 1)
    }

    /// Index of the factor of a query at this position.
    #[inline(always)]
    pub fn factor(&self, by: ScaledBy, query: u32) -> u32 {
        let number = match by {
            ScaledBy::Position => query,
            ScaledBy::Length => query.saturating_add(1),
        };
        (number / self.factor_step).min(self.factors - 1)
    }
}

const READS: &[RowField] = &[RowField::Position, RowField::KvLen, RowField::Start];

operands! {
    AttentionOperands of Attention as op {
        q: read Queries(op.rope.is_some()),
        k_cache: (op.cache_access()) Keys(op.kv),
        v_cache: (op.cache_access()) Values(op.kv),
        rows: read Rows(READS),
        out: write Forms(op.out, OUT),
        angles: read F32 if op.style().is_some(),
        q_norm: read F32 if op.norms_heads(),
        k_norm: read F32 if op.norms_heads(),
        position_bias: read F32 if op.position_bias,
        query_factors: read F32 if op.query_factors.is_some(),
        sinks: read F32 if op.sinks,
        blocks: read Blocks if op.paged,
    }
}

/// Q alone, or the `qkv` output of the products if attention applies RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queries<T>(pub F32<T>);

impl<T: Copy> Operand<T> for Queries<T> {
    /// Whether attention applies RoPE.
    type Spec = bool;

    fn slots(_: &'static str, access: Access, rotates: bool, to: &mut Vec<Slot>) {
        <F32<T> as Operand<T>>::slots(if rotates { "qkv" } else { "q" }, access, (), to);
    }

    fn put(&self, to: &mut Vec<T>) {
        self.0.put(to);
    }

    #[inline(always)]
    fn take(_: bool, from: &mut Cursor<'_, T>) -> Self {
        Queries(F32::take((), from))
    }
}

impl Attention {
    /// Attention without options.
    pub fn plain(kv: KvType, out: OutputForms) -> Attention {
        Attention {
            kv,
            out,
            rope: None,
            position_bias: false,
            query_factors: None,
            chunked: false,
            sinks: false,
            paged: false,
        }
    }

    /// The positions of its sequence that a row attends to.
    #[inline(always)]
    pub fn seen(self, p: &AttentionParams, row: &Row) -> std::ops::Range<u32> {
        if p.window == 0 {
            return 0..row.kv_len;
        }
        let end = row.position.saturating_add(p.ahead).saturating_add(1);
        let first = match self.chunked {
            true => row.position - row.position % p.window,
            false => (row.position + 1).saturating_sub(p.window),
        };
        first..row.kv_len.min(end)
    }

    fn cache_access(self) -> Access {
        if self.rope.is_some() { Access::Update } else { Access::Read }
    }

    /// The style of RoPE, if attention applies it.
    fn style(self) -> Option<RopeStyle> {
        self.rope.and_then(|rope| rope.style)
    }

    fn norms_heads(self) -> bool {
        self.rope.is_some_and(|rope| rope.qk_norm)
    }

    /// Returns Q ready for attention: as bound, or computed here, with K and V written to the cache.
    fn queries(
        self,
        bound: &mut Bound<'_>,
        p: &AttentionParams,
        o: &AttentionOperands<Binding>,
        cache: &Cache,
    ) -> Vec<f32> {
        let AttentionParams { heads, kv_heads, head_dim, rope_dims, positions, block, epsilon, .. } = *p;
        if self.rope.is_none() {
            return bound.f32s(o.q.0)[..bound.live.rows * (heads * head_dim) as usize].to_vec();
        }
        let rows = bound.rows(o.rows).to_vec();
        let numbers = rows.len() * ((heads + 2 * kv_heads) * head_dim) as usize;
        let rotation = Rotation {
            rope: self.style().zip(o.angles),
            kv: self.kv,
            p: RopeKvParams { heads, kv_heads, head_dim, rope_dims, positions, block, epsilon },
            qkv: bound.f32s(o.q.0)[..numbers].to_vec(),
            norms: o.q_norm.zip(o.k_norm).map(|(q, k)| [q, k]),
            norm_last: false,
        };
        rotation.store(bound, &rows, (o.k_cache, o.v_cache), cache);
        rotation.queries(bound, rows.len())
    }
}

impl Op for Attention {
    type Params = AttentionParams;
    type Operands<T: Copy> = AttentionOperands<T>;

    fn name(self) -> String {
        let rope = self.rope.map_or(String::new(), |rope| rope.name() + "_");
        let bias = if self.position_bias { "_biased" } else { "" };
        let factors = match self.query_factors {
            Some(ScaledBy::Position) => "_by_position",
            Some(ScaledBy::Length) => "_by_length",
            None => "",
        };
        let chunked = if self.chunked { "_chunked" } else { "" };
        let sinks = if self.sinks { "_sinks" } else { "" };
        let paged = if self.paged { "_paged" } else { "" };
        format!("{rope}attention_{}{bias}{factors}{chunked}{sinks}{paged}{}", self.kv.name(), self.out.suffix())
    }

    fn extents(self, p: &AttentionParams, counts: &Counts) -> Result<AttentionOperands<Extent>, String> {
        check_rotation(p.head_dim, self.style(), p.rope_dims)?;
        if p.kv_heads == 0 || !p.heads.is_multiple_of(p.kv_heads) || p.heads == 0 {
            return Err(format!("{} heads over {} kv heads", p.heads, p.kv_heads));
        }
        let rows = counts.rows;
        if self.rope.is_some() && rows > 1 {
            return Err(format!("attention with RoPE for {rows} rows; it supports only one"));
        }
        if self.position_bias != (p.reach > 0) {
            return Err(format!("a position bias that reaches {} positions", p.reach));
        }
        if self.chunked && (p.window == 0 || p.ahead > 0) {
            return Err(format!("chunks of {} positions, and {} after a row's own", p.window, p.ahead));
        }
        if self.query_factors.is_some() != (p.factor_step > 0 && p.factors > 0) {
            return Err(format!("{} factors of queries, each for {} positions", p.factors, p.factor_step));
        }
        let dim = u64::from(p.head_dim);
        let cols = u64::from(p.heads) * dim;
        let beside = if self.rope.is_some() { 2 * u64::from(p.kv_heads) * dim } else { 0 };
        check_paged(self.paged, p.block)?;
        let cache = match p.across {
            0 => counts.cache(self.kv, p.kv_heads, p.head_dim, [p.positions, p.block])?,
            _ if self.paged => return Err("the cache of an encoder's states is not in blocks".into()),
            _ => {
                let (keys, values) = layer_cache(self.kv, p.kv_heads, p.head_dim, p.positions)?;
                CacheExtents { keys, values, blocks: None }
            }
        };
        let norm = self.norms_heads().then(|| f32s(1, dim));
        Ok(AttentionOperands {
            q: Queries(f32s(rows, cols + beside)),
            k_cache: cache.keys,
            v_cache: cache.values,
            rows: counts.rows(),
            out: forms(self.out, rows, cols)?,
            angles: self.style().map(|_| f32s(rows, p.rope_dims)),
            q_norm: norm,
            k_norm: norm,
            position_bias: self.position_bias.then(|| f32s(p.heads as usize, p.bias_cols())),
            query_factors: self.query_factors.map(|_| f32s(1, p.factors)),
            sinks: self.sinks.then(|| f32s(1, p.heads)),
            blocks: cache.blocks,
        })
    }

    /// Scores and weighted sums for each row; keys and values once for all rows of a sequence.
    fn cost(self, p: &AttentionParams, rows: &[Row], _: usize) -> Cost {
        if p.across > 0 {
            let (count, rows) = (u64::from(p.across), rows.len() as u64);
            return Cost {
                kv_bytes: rows * count * position_bytes(self.kv, p.kv_heads, p.head_dim),
                f32_ops: 4 * u64::from(p.heads) * u64::from(p.head_dim) * rows * count,
                ..Cost::default()
            };
        }
        let pairs: u64 = rows.iter().map(|row| self.seen(p, row).len() as u64).sum();
        // (start, first position, end): no end is before its first position, so after sorting it is enough to join
        // neighbours.
        let seen = |row: &Row| (row.start, self.seen(p, row).start, self.seen(p, row).end);
        let mut spans: Vec<(u32, u32, u32)> = rows.iter().map(seen).collect();
        spans.sort_unstable();
        let (mut positions, mut reached) = (0, (u32::MAX, 0));
        for (start, first, end) in spans {
            let from = if reached.0 == start { first.max(reached.1) } else { first };
            positions += u64::from(end.saturating_sub(from));
            reached = (start, if reached.0 == start { end.max(reached.1) } else { end });
        }
        Cost {
            kv_bytes: positions * position_bytes(self.kv, p.kv_heads, p.head_dim),
            f32_ops: 4 * u64::from(p.heads) * u64::from(p.head_dim) * pairs,
            ..Cost::default()
        }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AttentionParams>(), bound.operands(self));
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions).paged(&bound, o.blocks, p.block);
        let queries = self.queries(&mut bound, &p, &o, &cache);
        let (heads, kv_heads, dim) = (p.heads as usize, p.kv_heads as usize, p.head_dim as usize);
        let mut rows = Vec::with_capacity(bound.live.rows);
        for (index, row) in bound.rows(o.rows).iter().enumerate() {
            let mut output = vec![0.0f32; heads * dim];
            let factor = self.query_factors.zip(o.query_factors).map_or(1.0, |(by, factors)| {
                bound.f32s(factors)[p.factor(by, row.position) as usize]
            });
            let scale = f64::from(p.scale) * f64::from(factor);
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let q = &queries[(index * heads + head) * dim..][..dim];
                let at = |bytes: &[u8], position: usize| {
                    kv_load(self.kv, &bytes[cache.row(row.start, kv_head, position)])
                };
                let (keys, values) = (bound.bytes(o.k_cache.0), bound.bytes(o.v_cache.0));
                let seen = self.seen(&p, row);
                let positions = seen.start as usize..seen.end as usize;
                let score = |position: usize| -> f64 {
                    let key = at(keys, position);
                    let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                    let bias = o.position_bias.map_or(0.0, |bias| {
                        let col = p.bias_col(row.position, position as u32);
                        bound.f32s(bias)[head * p.bias_cols() as usize + col as usize]
                    });
                    soft_cap(dot * scale, p.soft_cap) + f64::from(bias)
                };
                let scores: Vec<f64> = positions.clone().map(score).collect();
                let sink = o.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(bound.f32s(sinks)[head]));
                let most = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
                let mut sum = vec![0.0f64; dim];
                for (position, weight) in positions.zip(&weights) {
                    for (sum, v) in sum.iter_mut().zip(at(values, position)) {
                        *sum += weight * f64::from(v);
                    }
                }
                for (out, sum) in output[head * dim..][..dim].iter_mut().zip(&sum) {
                    *out = (sum / total) as f32;
                }
            }
            rows.push(output);
        }
        bound.write_forms_scaled(o.out, &rows, |_| 1.0);
    }
}
