//! Normalizes each head of a row separately, with separate weights. A single head may be the whole of Q or K.

use super::extent::{Counts, Extent, f32s, strided};
use super::{F32, Op, operands, params};
use crate::{NormKind, norm_name};
use crate::reference::{Bound, normalise};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadNorm {
    pub kind: NormKind,
    pub bias: bool,
}

params! {
    HeadNormParams {
        heads: u32,
        head_dim: u32,
        epsilon: f32,
        /// Distance between rows of `x`, in f32 elements; rows of Q are parts of rows of Q, K and V.
        in_stride: u32,
        /// Distance between rows of `out`, in f32 elements.
        out_stride: u32,
    }
}

operands! {
    HeadNormOperands of HeadNorm as op {
        /// `[row][head][head_dim]`, with rows at a distance of `in_stride`.
        x: read F32,
        /// `[head][head_dim]`
        weight: read F32,
        /// `[head][head_dim]`
        bias: read F32 if op.bias,
        /// `[row][head][head_dim]`, with rows at a distance of `out_stride`.
        out: write F32,
    }
}

impl Op for HeadNorm {
    type Params = HeadNormParams;
    type Operands<T: Copy> = HeadNormOperands<T>;

    fn name(self) -> String {
        format!("head_{}{}", norm_name(self.kind), if self.bias { "_bias" } else { "" })
    }

    fn extents(self, p: &HeadNormParams, counts: &Counts) -> Result<HeadNormOperands<Extent>, String> {
        let cols = p.heads.checked_mul(p.head_dim).filter(|cols| *cols > 0);
        let cols = cols.ok_or_else(|| format!("{} heads of {}", p.heads, p.head_dim))?;
        let weight = f32s(1, cols);
        Ok(HeadNormOperands {
            x: strided(counts.rows, cols, p.in_stride)?,
            weight,
            bias: self.bias.then_some(weight),
            out: strided(counts.rows, cols, p.out_stride)?,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<HeadNormParams>(), bound.operands(self));
        let (heads, dim) = (p.heads as usize, p.head_dim as usize);
        let (from, to) = (p.in_stride as usize, p.out_stride as usize);
        let rows = bound.live.rows;
        bound.write_f32s(o.out, |bound, out| {
            for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let of = |operand| &bound.f32s(operand)[head * dim..][..dim];
                let x = &bound.f32s(o.x)[row * from + head * dim..][..dim];
                let normed = normalise(self.kind, x, (of(o.weight), o.bias.map(of)), p.epsilon);
                let out = &mut out[row * to + head * dim..][..dim];
                out.iter_mut().zip(normed).for_each(|(out, v)| *out = v as f32);
            }
        });
    }
}
