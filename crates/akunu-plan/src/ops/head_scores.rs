//! The scores of one head of attention, before softmax: how much each row attends to each position of a window of an
//! encoder's states.

use super::extent::{Counts, Extent, f32s, layer_cache, strided};
use super::{F32, Keys, Op, RowField, Rows, operands, params};
use crate::cost::row_bytes;
use crate::reference::{Bound, Cache, kv_load};
use crate::{Cost, KvType, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadScores {
    pub kv: KvType,
}

params! {
    HeadScoresParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// Number of positions in a layer's cache.
        positions: u32,
        scale: f32,
        /// Which of the query heads.
        head: u32,
        /// Scores of a row. Positions that the row does not see have 0.
        count: u32,
        /// Distance of rows in the output.
        out_stride: u32,
    }
}

impl HeadScoresParams {
    /// How many positions of its sequence a row sees; none of them is outside the cache.
    #[inline(always)]
    pub fn seen(&self, row: &Row) -> u32 {
        self.count.min(row.kv_len).min(self.positions.saturating_sub(row.start))
    }

    #[inline(always)]
    pub fn kv_head(&self) -> u32 {
        self.head / (self.heads / self.kv_heads)
    }
}

operands! {
    HeadScoresOperands of HeadScores as op {
        q: read F32,
        k_cache: read Keys(op.kv),
        rows: read Rows(&[RowField::KvLen, RowField::Start]),
        /// `[row][position]`
        out: write F32,
    }
}

impl Op for HeadScores {
    type Params = HeadScoresParams;
    type Operands<T: Copy> = HeadScoresOperands<T>;

    fn name(self) -> String {
        format!("head_scores_{}", self.kv.name())
    }

    fn extents(self, p: &HeadScoresParams, counts: &Counts) -> Result<HeadScoresOperands<Extent>, String> {
        if p.kv_heads == 0 || !p.heads.is_multiple_of(p.kv_heads) || p.head >= p.heads {
            return Err(format!("head {} of {} heads over {} kv heads", p.head, p.heads, p.kv_heads));
        }
        if p.count == 0 || p.count > p.positions {
            return Err(format!("scores of {} positions in a cache of {}", p.count, p.positions));
        }
        let cols = u64::from(p.heads) * u64::from(p.head_dim);
        Ok(HeadScoresOperands {
            q: f32s(counts.rows, cols),
            k_cache: layer_cache(self.kv, p.kv_heads, p.head_dim, p.positions)?.0,
            rows: counts.rows(),
            out: strided(counts.rows, p.count, p.out_stride)?,
        })
    }

    /// The keys of the head, once for all rows of a window.
    fn cost(self, p: &HeadScoresParams, rows: &[Row], _: usize) -> Cost {
        let mut windows: Vec<(u32, u32)> = rows.iter().map(|row| (row.start, p.seen(row))).collect();
        windows.sort_unstable();
        windows.dedup();
        let positions = |all: &[(u32, u32)]| all.iter().map(|(_, seen)| u64::from(*seen)).sum::<u64>();
        let pairs: u64 = rows.iter().map(|row| u64::from(p.seen(row))).sum();
        Cost {
            kv_bytes: positions(&windows) * row_bytes(self.kv.dtype(), p.head_dim),
            f32_ops: 2 * u64::from(p.head_dim) * pairs,
            ..Cost::default()
        }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<HeadScoresParams>(), bound.operands(self));
        let (heads, dim, head) = (p.heads as usize, p.head_dim as usize, p.head as usize);
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions);
        bound.write_f32s(o.out, |bound, out| {
            let (q, keys) = (bound.f32s(o.q), bound.bytes(o.k_cache.0));
            for (index, row) in bound.rows(o.rows).iter().enumerate() {
                let q = &q[(index * heads + head) * dim..][..dim];
                let out = &mut out[index * p.out_stride as usize..][..p.count as usize];
                out.fill(0.0);
                for (position, score) in out.iter_mut().enumerate().take(p.seen(row) as usize) {
                    let key = kv_load(self.kv, &keys[cache.row(row.start, p.kv_head() as usize, position)]);
                    let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                    *score = (dot * f64::from(p.scale)) as f32;
                }
            }
        });
    }
}
