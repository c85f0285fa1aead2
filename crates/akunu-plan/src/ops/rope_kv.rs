//! Normalizes each head of Q and K and applies RoPE to them, if the layer does, and writes K and V to the cache.

use super::extent::{Counts, Extent, check_rotation, f32s};
use super::{F32, Keys, Op, RowField, Rows, Values, operands, params};
use crate::reference::{Bound, Cache, kv_store, normalise, rotate};
use crate::table::Binding;
use crate::{KvType, NormKind, Rope, RopeStyle, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeKv {
    /// `None` without RoPE.
    pub style: Option<RopeStyle>,
    pub qk_norm: bool,
    pub kv: KvType,
    /// Whether `qkv` contains Q as well. Without, `heads` is 0: attention reads Q where the product wrote it.
    pub queries: bool,
}

params! {
    RopeKvParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// RoPE is applied to the first `rope_dims` of a head; 0 without RoPE.
        rope_dims: u32,
        /// Number of positions in a layer's cache.
        positions: u32,
        /// Of the Q/K norm.
        epsilon: f32,
    }
}

operands! {
    RopeKvOperands of RopeKv as op {
        qkv: read F32,
        angles: read F32 if op.style.is_some(),
        rows: read Rows(&[RowField::Position, RowField::Start]),
        q: write F32 if op.queries,
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        q_norm: read F32 if op.qk_norm,
        k_norm: read F32 if op.qk_norm,
    }
}

impl Op for RopeKv {
    type Params = RopeKvParams;
    type Operands<T: Copy> = RopeKvOperands<T>;

    fn name(self) -> String {
        let rope = Rope { style: self.style, qk_norm: self.qk_norm };
        let queries = if self.queries { "" } else { "_without_q" };
        format!("{}_kv_write_{}{queries}", rope.name(), self.kv.name())
    }

    fn extents(self, p: &RopeKvParams, counts: &Counts) -> Result<RopeKvOperands<Extent>, String> {
        check_rotation(p.head_dim, self.style, p.rope_dims)?;
        if self.queries != (p.heads > 0) {
            return Err(format!("{} heads of queries", p.heads));
        }
        let dim = u64::from(p.head_dim);
        let (k_cache, v_cache) = counts.cache(self.kv, p.kv_heads, p.head_dim, p.positions)?;
        let norm = self.qk_norm.then(|| f32s(1, dim));
        Ok(RopeKvOperands {
            qkv: f32s(counts.rows, (u64::from(p.heads) + 2 * u64::from(p.kv_heads)) * dim),
            angles: self.style.map(|_| f32s(counts.rows, p.rope_dims)),
            rows: counts.rows(),
            q: self.queries.then(|| f32s(counts.rows, u64::from(p.heads) * dim)),
            k_cache,
            v_cache,
            q_norm: norm,
            k_norm: norm,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<RopeKvParams>(), bound.operands(self));
        let rotation = Rotation {
            rope: self.style.zip(o.angles),
            kv: self.kv,
            p,
            qkv: o.qkv,
            norms: o.q_norm.zip(o.k_norm).map(|(q, k)| [q, k]),
        };
        let rows = bound.rows(o.rows).to_vec();
        if let Some(q) = o.q {
            bound.write_f32s(q, |bound, q| {
                let queries = rotation.queries(bound, rows.len());
                q[..queries.len()].copy_from_slice(&queries);
            });
        }
        rotation.store(&mut bound, &rows, (o.k_cache, o.v_cache));
    }
}

/// The preparation of the heads of `qkv` for attention: by [`RopeKv`], or by attention itself.
pub(super) struct Rotation {
    /// The style of RoPE and the angles of each row; `None` without RoPE.
    pub rope: Option<(RopeStyle, F32<Binding>)>,
    pub kv: KvType,
    pub p: RopeKvParams,
    pub qkv: F32<Binding>,
    /// Norms of Q and K.
    pub norms: Option<[F32<Binding>; 2]>,
}

impl Rotation {
    fn head<'a>(&self, bound: &'a Bound<'_>, row: usize, head: usize) -> &'a [f32] {
        let dim = self.p.head_dim as usize;
        let stride = (self.p.heads + 2 * self.p.kv_heads) as usize * dim;
        &bound.f32s(self.qkv)[row * stride + head * dim..][..dim]
    }

    /// Q (part 0) or K (part 1) of one head, normalized and rotated.
    fn rotated(&self, bound: &Bound<'_>, row: usize, part: usize, head: usize) -> Vec<f32> {
        let x = self.head(bound, row, part * self.p.heads as usize + head);
        let mut x: Vec<f32> = match self.norms {
            Some(norms) => {
                let weight = &bound.f32s(norms[part])[..x.len()];
                let normed = normalise(NormKind::Rms, x, (weight, None), self.p.epsilon);
                normed.into_iter().map(|v| v as f32).collect()
            }
            None => x.to_vec(),
        };
        if let Some((style, angles)) = self.rope {
            let dims = self.p.rope_dims as usize;
            let angles = &bound.f32s(angles)[row * dims..][..dims];
            rotate(&mut x, style, dims, |i| (f64::from(angles[2 * i]), f64::from(angles[2 * i + 1])));
        }
        x
    }

    /// The complete Q, `[row][head]`.
    pub(super) fn queries(&self, bound: &Bound<'_>, rows: usize) -> Vec<f32> {
        let heads = (0..rows).flat_map(|row| (0..self.p.heads as usize).map(move |head| (row, head)));
        heads.flat_map(|(row, head)| self.rotated(bound, row, 0, head)).collect()
    }

    /// Writes K and V to the cache.
    pub(super) fn store(
        &self,
        bound: &mut Bound<'_>,
        rows: &[Row],
        (keys, values): (Keys<Binding>, Values<Binding>),
    ) {
        let p = &self.p;
        let cache = Cache::new(self.kv, p.kv_heads, p.positions, p.head_dim);
        let heads = p.heads as usize;
        let place = |row: &Row, head: usize| cache.row(row.start, head, row.position as usize);
        bound.write(keys.0, |bound, k| {
            for (i, row) in rows.iter().enumerate() {
                for head in 0..cache.kv_heads {
                    kv_store(self.kv, &self.rotated(bound, i, 1, head), &mut k[place(row, head)]);
                }
            }
        });
        bound.write(values.0, |bound, v| {
            for (i, row) in rows.iter().enumerate() {
                for head in 0..cache.kv_heads {
                    let value = self.head(bound, i, heads + cache.kv_heads + head);
                    kv_store(self.kv, value, &mut v[place(row, head)]);
                }
            }
        });
    }
}
