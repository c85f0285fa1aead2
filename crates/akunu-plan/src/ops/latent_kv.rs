//! Writes a position of a latent cache: the vector that all heads' keys and values are made from, normalized, and after
//! it the rotated key that all heads share.

use super::extent::{CacheExtents, Counts, Extent, check_paged, check_rotation, f32s};
use super::{Blocks, F32, Op, RowField, Rows, Values, operands, params};
use crate::reference::{Bound, Cache, kv_store, normalise, rotate};
use crate::{KvType, NormKind, RopeStyle};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentKv {
    pub style: RopeStyle,
    pub kv: KvType,
    /// Whether the cache is in blocks ([`crate::blocks`]).
    pub paged: bool,
}

params! {
    LatentKvParams {
        /// Elements of the vector, and of the key.
        latent: u32,
        rope_dims: u32,
        /// Number of positions in a layer's cache, and of one of its blocks; 0 if it is not in blocks.
        positions: u32,
        block: u32,
        epsilon: f32,
    }
}

operands! {
    LatentKvOperands of LatentKv as op {
        /// `[row][latent + rope_dims]`
        x: read F32,
        norm: read F32,
        angles: read F32,
        rows: read Rows(&[RowField::Position, RowField::Start]),
        /// `[position][latent + rope_dims]`
        cache: update Values(op.kv),
        blocks: read Blocks if op.paged,
    }
}

/// One layer's cache, and the table of its blocks.
pub(super) fn cache(
    kv: KvType,
    [latent, rope_dims]: [u32; 2],
    (paged, positions): (bool, [u32; 2]),
    counts: &Counts,
) -> Result<(Values<Extent>, Option<Blocks<Extent>>), String> {
    let dim = latent.checked_add(rope_dims).filter(|_| latent > 0);
    let dim = dim.ok_or_else(|| format!("a latent vector of {latent} and a key of {rope_dims}"))?;
    check_paged(paged, positions[1])?;
    let CacheExtents { values, blocks, .. } = counts.cache(kv, 1, dim, positions)?;
    Ok((values, blocks))
}

impl Op for LatentKv {
    type Params = LatentKvParams;
    type Operands<T: Copy> = LatentKvOperands<T>;

    fn name(self) -> String {
        let paged = if self.paged { "_paged" } else { "" };
        format!("rope_{}_latent_kv_write_{}{paged}", self.style.name(), self.kv.name())
    }

    fn extents(self, p: &LatentKvParams, counts: &Counts) -> Result<LatentKvOperands<Extent>, String> {
        check_rotation(p.rope_dims, Some(self.style), p.rope_dims)?;
        let sizes = [p.latent, p.rope_dims];
        let (cache, blocks) = cache(self.kv, sizes, (self.paged, [p.positions, p.block]), counts)?;
        Ok(LatentKvOperands {
            x: f32s(counts.rows, cache.0.cols),
            norm: f32s(1, p.latent),
            angles: f32s(counts.rows, p.rope_dims),
            rows: counts.rows(),
            cache,
            blocks,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<LatentKvParams>(), bound.operands(self));
        let (latent, dims) = (p.latent as usize, p.rope_dims as usize);
        let cache = Cache::new(self.kv, [1, p.latent + p.rope_dims], p.positions).paged(&bound, o.blocks, p.block);
        let rows = bound.rows(o.rows).to_vec();
        bound.write(o.cache.0, |bound, bytes| {
            for (index, row) in rows.iter().enumerate() {
                let x = &bound.f32s(o.x)[index * (latent + dims)..][..latent + dims];
                let normed =
                    normalise(NormKind::Rms, &x[..latent], (&bound.f32s(o.norm)[..latent], None), p.epsilon);
                let mut key = x[latent..].to_vec();
                let angles = &bound.f32s(o.angles)[index * dims..][..dims];
                rotate(&mut key, self.style, dims, |i| {
                    (f64::from(angles[2 * i]), f64::from(angles[2 * i + 1]))
                });
                let all: Vec<f32> = normed.into_iter().map(|v| v as f32).chain(key).collect();
                kv_store(self.kv, &all, &mut bytes[cache.row(row.start, 0, row.position as usize)]);
            }
        });
    }
}
