//! The sum of what all ranks have computed, and the residual: `residual + Σ x` over ranks, in their order.
//!
//! With `norm` it also begins the deferred norm of the sum, as a product does ([`super::Matmul`]).

use super::extent::{Counts, Extent, f32s, forms, squares};
use super::matmul::{NORMED, defer_norm};
use super::{F32, Forms, NormParams, Op, operands};
use crate::OutputForms;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduce {
    pub residual: bool,
    pub norm: Option<OutputForms>,
}

impl AllReduce {
    /// The most columns with a deferred norm: numbers that are exchanged at once.
    pub const MOST_NORMED: usize = 16 << 10;
}

operands! {
    AllReduceOperands of AllReduce as op {
        x: read F32,
        out: write F32,
        residual: read F32 if op.residual,
        norm_weight: read F32 if op.norm.is_some(),
        normed: write Forms(op.norm.unwrap_or(OutputForms::F32), NORMED) if op.norm.is_some(),
        out_squares: write F32 if op.norm.is_some(),
    }
}

impl Op for AllReduce {
    /// The epsilon is that of the deferred norm; 0 if there is none.
    type Params = NormParams;
    type Operands<T: Copy> = AllReduceOperands<T>;

    fn name(self) -> String {
        let residual = if self.residual { "_add" } else { "" };
        let norm = self.norm.map_or(String::new(), |out| format!("_norm{}", out.suffix()));
        format!("all_reduce{residual}{norm}")
    }

    fn extents(self, p: &NormParams, counts: &Counts) -> Result<AllReduceOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(AllReduceOperands {
            x: rows,
            out: rows,
            residual: self.residual.then_some(rows),
            norm_weight: self.norm.map(|_| f32s(1, p.cols)),
            normed: self.norm.map(|form| forms(form, counts.rows, p.cols)).transpose()?,
            out_squares: self.norm.map(|_| squares(counts.rows, p.cols)).transpose()?,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<NormParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let count = bound.live.rows * cols;
        let parts = bound.exchange(o.x, count);
        let sum = |i: usize| {
            let residual = o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[i]));
            (residual + parts.iter().map(|part| f64::from(part[i])).sum::<f64>()) as f32
        };
        let sums: Vec<f32> = (0..count).map(sum).collect();
        bound.write_f32s(o.out, |_, out| out[..count].copy_from_slice(&sums));
        if let (Some(weight), Some(normed), Some(squares)) = (o.norm_weight, o.normed, o.out_squares) {
            let rows: Vec<Vec<f32>> = sums.chunks(cols).map(<[f32]>::to_vec).collect();
            defer_norm(&mut bound, (weight, normed, squares), &rows, p.epsilon);
        }
    }
}
