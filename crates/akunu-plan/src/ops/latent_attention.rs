//! Attention over a latent cache: all heads have the cached rows as their keys, and the beginnings of these rows as their
//! values. Results are sorted by head.

use super::extent::{Counts, Extent, f32s, forms};
use super::latent_kv::cache;
use super::norm::OUT;
use super::route::check_experts;
use super::{Blocks, F32, Forms, Op, RowField, Rows, Values, operands, params};
use crate::reference::{Bound, Cache, kv_load};
use crate::{Cost, KvType, OutputForms, Row, row_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentAttention {
    pub kv: KvType,
    pub out: OutputForms,
    /// Whether the cache is in blocks ([`crate::blocks`]).
    pub paged: bool,
}

params! {
    LatentAttentionParams {
        heads: u32,
        /// Elements of a value, and those of a key after them.
        latent: u32,
        rope_dims: u32,
        /// Number of positions in a layer's cache, and of one of its blocks; 0 if it is not in blocks.
        positions: u32,
        block: u32,
        scale: f32,
    }
}

const READS: &[RowField] = &[RowField::KvLen, RowField::Start];

operands! {
    LatentAttentionOperands of LatentAttention as op {
        /// `[row][head][latent + rope_dims]`
        q: read F32,
        /// `[position][latent + rope_dims]`
        cache: read Values(op.kv),
        rows: read Rows(READS),
        /// `[head][row][latent]`
        out: write Forms(op.out, OUT),
        blocks: read Blocks if op.paged,
    }
}

impl Op for LatentAttention {
    type Params = LatentAttentionParams;
    type Operands<T: Copy> = LatentAttentionOperands<T>;

    fn name(self) -> String {
        let paged = if self.paged { "_paged" } else { "" };
        format!("latent_attention_{}{paged}{}", self.kv.name(), self.out.suffix())
    }

    fn extents(self, p: &LatentAttentionParams, counts: &Counts) -> Result<LatentAttentionOperands<Extent>, String> {
        check_experts(p.heads, p.heads)?;
        let sizes = [p.latent, p.rope_dims];
        let (cache, blocks) = cache(self.kv, sizes, (self.paged, [p.positions, p.block]), counts)?;
        Ok(LatentAttentionOperands {
            q: f32s(counts.rows, u64::from(p.heads) * cache.0.cols),
            cache,
            rows: counts.rows(),
            out: forms(self.out, counts.rows * p.heads as usize, p.latent)?,
            blocks,
        })
    }

    /// Scores and weighted sums for each row; cached rows once for all rows of a sequence.
    fn cost(self, p: &LatentAttentionParams, rows: &[Row], _: usize) -> Cost {
        let pairs: u64 = rows.iter().map(|row| u64::from(row.kv_len)).sum();
        let mut longest: Vec<(u32, u32)> = rows.iter().map(|row| (row.start, row.kv_len)).collect();
        longest.sort_unstable();
        let last = longest.chunk_by(|a, b| a.0 == b.0).filter_map(|sequence| sequence.last());
        let positions: u64 = last.map(|(_, len)| u64::from(*len)).sum();
        Cost {
            kv_bytes: positions * row_bytes(self.kv.dtype(), p.latent + p.rope_dims),
            f32_ops: 2 * u64::from(p.heads) * u64::from(2 * p.latent + p.rope_dims) * pairs,
            ..Cost::default()
        }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<LatentAttentionParams>(), bound.operands(self));
        let (heads, latent, dim) = (p.heads as usize, p.latent as usize, (p.latent + p.rope_dims) as usize);
        let cache =
            Cache::new(self.kv, [1, p.latent + p.rope_dims], p.positions).paged(&bound, o.blocks, p.block);
        let rows = bound.rows(o.rows).to_vec();
        let mut sorted = vec![vec![]; heads * rows.len()];
        for (index, row) in rows.iter().enumerate() {
            let at = |position: u32| {
                kv_load(self.kv, &bound.bytes(o.cache.0)[cache.row(row.start, 0, position as usize)])
            };
            let keys: Vec<Vec<f32>> = (0..row.kv_len).map(at).collect();
            for head in 0..heads {
                let q = &bound.f32s(o.q)[(index * heads + head) * dim..][..dim];
                let score = |key: &Vec<f32>| -> f64 {
                    let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    dot * f64::from(p.scale)
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0f64; latent];
                for (key, weight) in keys.iter().zip(&weights) {
                    sums.iter_mut().zip(key).for_each(|(sum, v)| *sum += weight * f64::from(*v));
                }
                sorted[head * rows.len() + index] = sums.iter().map(|sum| (sum / total) as f32).collect();
            }
        }
        bound.write_forms(o.out, &sorted);
    }
}
