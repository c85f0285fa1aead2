//! Normalizes each head of Q and K and applies RoPE to them, if the layer does, and writes K and V to the cache.

use super::extent::{Counts, Extent, check_paged, check_rotation, f16s, f32s};
use super::{Blocks, F16, F32, InputForm, Keys, Op, RowField, Rows, Values, operands, params};
use crate::reference::{Bound, Cache, kv_store, normalise, rotate};
use crate::table::Binding;
use crate::{KvType, NormKind, Rope, RopeStyle, Row, halves};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeKv {
    /// `None` without RoPE.
    pub style: Option<RopeStyle>,
    pub qk_norm: bool,
    /// The norms follow RoPE, instead of preceding it.
    pub norm_last: bool,
    pub kv: KvType,
    /// f16 only of K and V alone that are not changed.
    pub input: InputForm,
    /// Whether `qkv` contains Q as well. Without, `heads` is 0: attention reads Q where the product wrote it.
    pub queries: bool,
    /// Whether the cache is in blocks ([`crate::blocks`]).
    pub paged: bool,
}

params! {
    RopeKvParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// RoPE is applied to the first `rope_dims` of a head; 0 without RoPE.
        rope_dims: u32,
        /// Number of positions in a layer's cache, and of one of its blocks; 0 if it is not in blocks.
        positions: u32,
        block: u32,
        /// Of the Q/K norm.
        epsilon: f32,
    }
}

operands! {
    RopeKvOperands of RopeKv as op {
        qkv: read F32 if !op.input.f16(),
        x_f16: read F16 if op.input.f16(),
        x_scales: read F32 if op.input.f16(),
        k_bias: read F32 if op.input.bias(),
        v_bias: read F32 if op.input.bias(),
        angles: read F32 if op.style.is_some(),
        rows: read Rows(&[RowField::Position, RowField::Start]),
        q: write F32 if op.queries,
        k_cache: update Keys(op.kv),
        v_cache: update Values(op.kv),
        q_norm: read F32 if op.qk_norm,
        k_norm: read F32 if op.qk_norm,
        blocks: read Blocks if op.paged,
    }
}

impl Op for RopeKv {
    type Params = RopeKvParams;
    type Operands<T: Copy> = RopeKvOperands<T>;

    fn name(self) -> String {
        let rope = Rope { style: self.style, qk_norm: self.qk_norm };
        let queries = if self.queries { "" } else { "_without_q" };
        let paged = if self.paged { "_paged" } else { "" };
        let last = if self.norm_last { "_norm_last" } else { "" };
        format!("{}{last}_kv_write{}_{}{queries}{paged}", rope.name(), self.input.suffix(), self.kv.name())
    }

    fn extents(self, p: &RopeKvParams, counts: &Counts) -> Result<RopeKvOperands<Extent>, String> {
        check_rotation(p.head_dim, self.style, p.rope_dims)?;
        if self.queries != (p.heads > 0) {
            return Err(format!("{} heads of queries", p.heads));
        }
        if self.norm_last && !self.qk_norm {
            return Err("norms after RoPE, but no norms".into());
        }
        let f16 = self.input.f16();
        if f16 && (self.style.is_some() || self.qk_norm || self.queries) {
            return Err("heads of f16 are neither rotated nor normalized, and without queries".into());
        }
        let dim = u64::from(p.head_dim);
        let cols = (u64::from(p.heads) + 2 * u64::from(p.kv_heads)) * dim;
        let bias = self.input.bias().then(|| f32s(1, u64::from(p.kv_heads) * dim));
        check_paged(self.paged, p.block)?;
        let cache = counts.cache(self.kv, p.kv_heads, p.head_dim, [p.positions, p.block])?;
        let norm = self.qk_norm.then(|| f32s(1, dim));
        Ok(RopeKvOperands {
            qkv: (!f16).then(|| f32s(counts.rows, cols)),
            x_f16: f16.then(|| f16s(counts.rows as u64, cols)).transpose()?,
            x_scales: f16.then(|| f32s(counts.rows, 1_u64)),
            k_bias: bias,
            v_bias: bias,
            angles: self.style.map(|_| f32s(counts.rows, p.rope_dims)),
            rows: counts.rows(),
            q: self.queries.then(|| f32s(counts.rows, u64::from(p.heads) * dim)),
            k_cache: cache.keys,
            v_cache: cache.values,
            q_norm: norm,
            k_norm: norm,
            blocks: cache.blocks,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<RopeKvParams>(), bound.operands(self));
        let rows = bound.rows(o.rows).to_vec();
        let rotation = Rotation {
            rope: self.style.zip(o.angles),
            kv: self.kv,
            p,
            qkv: qkv(&bound, &o, &p, rows.len()),
            norms: o.q_norm.zip(o.k_norm).map(|(q, k)| [q, k]),
            norm_last: self.norm_last,
        };
        if let Some(q) = o.q {
            bound.write_f32s(q, |bound, q| {
                let queries = rotation.queries(bound, rows.len());
                q[..queries.len()].copy_from_slice(&queries);
            });
        }
        let cache = Cache::new(self.kv, [p.kv_heads, p.head_dim], p.positions).paged(&bound, o.blocks, p.block);
        rotation.store(&mut bound, &rows, (o.k_cache, o.v_cache), &cache);
    }
}

/// The heads of all rows as f32.
fn qkv(bound: &Bound<'_>, o: &RopeKvOperands<Binding>, p: &RopeKvParams, rows: usize) -> Vec<f32> {
    let of_part = (p.kv_heads * p.head_dim) as usize;
    let cols = (p.heads * p.head_dim) as usize + 2 * of_part;
    let (Some(x_f16), Some(x_scales)) = (o.x_f16, o.x_scales) else {
        return o.qkv.map_or(vec![], |qkv| bound.f32s(qkv)[..rows * cols].to_vec());
    };
    let mut x = halves::load(&bound.bytes(x_f16.0)[..rows * cols * 2]);
    for (row, x) in x.chunks_exact_mut(cols).enumerate() {
        let scale = f64::from(bound.f32s(x_scales)[row]);
        for (part, x) in [o.k_bias, o.v_bias].into_iter().zip(x.chunks_exact_mut(of_part)) {
            for (i, x) in x.iter_mut().enumerate() {
                let bias = part.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                *x = (scale * f64::from(*x) + bias) as f32;
            }
        }
    }
    x
}

/// The preparation of the heads of `qkv` for attention: by [`RopeKv`], or by attention itself.
pub(super) struct Rotation {
    /// The style of RoPE and the angles of each row; `None` without RoPE.
    pub rope: Option<(RopeStyle, F32<Binding>)>,
    pub kv: KvType,
    pub p: RopeKvParams,
    /// `[row][head][head dim]`
    pub qkv: Vec<f32>,
    /// Norms of Q and K.
    pub norms: Option<[F32<Binding>; 2]>,
    /// They follow RoPE.
    pub norm_last: bool,
}

impl Rotation {
    fn head(&self, row: usize, head: usize) -> &[f32] {
        let dim = self.p.head_dim as usize;
        let stride = (self.p.heads + 2 * self.p.kv_heads) as usize * dim;
        &self.qkv[row * stride + head * dim..][..dim]
    }

    /// Q (part 0) or K (part 1) of one head, normalized and rotated.
    fn rotated(&self, bound: &Bound<'_>, row: usize, part: usize, head: usize) -> Vec<f32> {
        let mut x = self.head(row, part * self.p.heads as usize + head).to_vec();
        let norm = |x: &mut Vec<f32>| {
            if let Some(norms) = self.norms {
                let weight = &bound.f32s(norms[part])[..x.len()];
                let normed = normalise(NormKind::Rms, x, (weight, None), self.p.epsilon);
                *x = normed.into_iter().map(|v| v as f32).collect();
            }
        };
        if !self.norm_last {
            norm(&mut x);
        }
        if let Some((style, angles)) = self.rope {
            let dims = self.p.rope_dims as usize;
            let angles = &bound.f32s(angles)[row * dims..][..dims];
            rotate(&mut x, style, dims, |i| (f64::from(angles[2 * i]), f64::from(angles[2 * i + 1])));
        }
        if self.norm_last {
            norm(&mut x);
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
        cache: &Cache,
    ) {
        let heads = self.p.heads as usize;
        let place = |row: &Row, head: usize| cache.row(row.start, head, row.position as usize);
        bound.write(keys.0, |bound, k| {
            for (i, row) in rows.iter().enumerate() {
                for head in 0..cache.kv_heads {
                    kv_store(self.kv, &self.rotated(bound, i, 1, head), &mut k[place(row, head)]);
                }
            }
        });
        bound.write(values.0, |_, v| {
            for (i, row) in rows.iter().enumerate() {
                for head in 0..cache.kv_heads {
                    let value = self.head(i, heads + cache.kv_heads + head);
                    kv_store(self.kv, value, &mut v[place(row, head)]);
                }
            }
        });
    }
}
