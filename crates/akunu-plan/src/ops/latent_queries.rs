//! The queries of latent attention: for each head what its matrix made of the part without RoPE, and after it the
//! rotated part.

use super::extent::{Counts, Extent, check_rotation, f32s};
use super::route::check_experts;
use super::{F32, Op, operands, params};
use crate::RopeStyle;
use crate::reference::{Bound, rotate};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentQueries {
    pub style: RopeStyle,
}

params! {
    LatentQueriesParams {
        heads: u32,
        latent: u32,
        /// Elements of a head in `q` without RoPE, and with it.
        plain: u32,
        rope_dims: u32,
    }
}

operands! {
    LatentQueriesOperands of LatentQueries as op {
        /// `[head][row][latent]`
        x: read F32,
        /// `[row][head][plain + rope_dims]`
        q: read F32,
        angles: read F32,
        /// `[row][head][latent + rope_dims]`
        out: write F32,
    }
}

impl Op for LatentQueries {
    type Params = LatentQueriesParams;
    type Operands<T: Copy> = LatentQueriesOperands<T>;

    fn name(self) -> String {
        format!("rope_{}_latent_queries", self.style.name())
    }

    fn extents(self, p: &LatentQueriesParams, counts: &Counts) -> Result<LatentQueriesOperands<Extent>, String> {
        check_experts(p.heads, p.heads)?;
        check_rotation(p.rope_dims, Some(self.style), p.rope_dims)?;
        let all = |dim: u32| f32s(counts.rows, u64::from(p.heads) * u64::from(dim));
        let wide = |a: u32, b: u32| a.checked_add(b).ok_or_else(|| format!("heads of {a} and {b}"));
        Ok(LatentQueriesOperands {
            x: all(p.latent),
            q: all(wide(p.plain, p.rope_dims)?),
            angles: f32s(counts.rows, p.rope_dims),
            out: all(wide(p.latent, p.rope_dims)?),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<LatentQueriesParams>(), bound.operands(self));
        let [heads, latent, plain, dims] = [p.heads, p.latent, p.plain, p.rope_dims].map(|n| n as usize);
        let rows = bound.live.rows;
        bound.write_f32s(o.out, |bound, out| {
            for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let mut rotated = bound.f32s(o.q)[(row * heads + head) * (plain + dims) + plain..][..dims].to_vec();
                let angles = &bound.f32s(o.angles)[row * dims..][..dims];
                rotate(&mut rotated, self.style, dims, |i| {
                    (f64::from(angles[2 * i]), f64::from(angles[2 * i + 1]))
                });
                let out = &mut out[(row * heads + head) * (latent + dims)..][..latent + dims];
                out[..latent].copy_from_slice(&bound.f32s(o.x)[(head * rows + row) * latent..][..latent]);
                out[latent..].copy_from_slice(&rotated);
            }
        });
    }
}
