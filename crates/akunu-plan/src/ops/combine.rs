//! The sum of what a row's experts give, each times its share, in the order of the row's picks; then that of the expert
//! that all rows share, if there is one, times the sigmoid of its gate if it has one; then the residual, if there is one.

use super::extent::{Counts, Extent, f32s, indices};
use super::{F32, Indices, Op, operands, params};
use crate::reference::Bound;
use crate::table::Binding;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    pub shared: bool,
    pub gated: bool,
    pub residual: bool,
}

params! {
    CombineParams { cols: u32, top: u32 }
}

operands! {
    CombineOperands of Combine as op {
        /// Rows sorted by expert, `rows · top`.
        y: read F32,
        /// Where each row is among the sorted ones: `[row][top]`.
        places: read Indices,
        /// `[row][top]`
        shares: read F32,
        out: write F32,
        shared: read F32 if op.shared,
        /// `[row]`
        gate: read F32 if op.gated,
        residual: read F32 if op.residual,
    }
}

impl Op for Combine {
    type Params = CombineParams;
    type Operands<T: Copy> = CombineOperands<T>;

    fn name(self) -> String {
        let shared = if self.shared { "_shared" } else { "" };
        let gated = if self.gated { "_gated" } else { "" };
        format!("combine{shared}{gated}{}", if self.residual { "_add" } else { "" })
    }

    fn extents(self, p: &CombineParams, counts: &Counts) -> Result<CombineOperands<Extent>, String> {
        if self.gated && !self.shared {
            return Err("a gate without a shared expert".into());
        }
        let rows = f32s(counts.rows, p.cols);
        Ok(CombineOperands {
            y: f32s(counts.rows * p.top as usize, p.cols),
            places: indices(counts.rows as u64, p.top),
            shares: f32s(counts.rows, p.top),
            out: rows,
            shared: self.shared.then_some(rows),
            gate: self.gated.then(|| f32s(counts.rows, 1_u64)),
            residual: self.residual.then_some(rows),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<CombineParams>(), bound.operands(self));
        let (cols, last) = (p.cols as usize, (bound.live.rows * p.top as usize).saturating_sub(1));
        let y = |pick: usize, col: usize| {
            let place = (bound.indices(o.places)[pick] as usize).min(last);
            f64::from(bound.f32s(o.y)[place * cols + col])
        };
        let addends = Addends { shared: o.shared, gate: o.gate, residual: o.residual };
        let out = weighted_sum(&bound, [p.cols, p.top], &y, o.shares, addends);
        bound.write_f32s(o.out, |_, to| to[..out.len()].copy_from_slice(&out));
    }
}

/// What is added to the weighted sum of a row's experts.
pub(super) struct Addends {
    pub shared: Option<F32<Binding>>,
    pub gate: Option<F32<Binding>>,
    pub residual: Option<F32<Binding>>,
}

/// The sums of all rows, from what the expert of a pick gives for a column.
pub(super) fn weighted_sum(
    bound: &Bound<'_>,
    [cols, top]: [u32; 2],
    y: &dyn Fn(usize, usize) -> f64,
    shares: F32<Binding>,
    addends: Addends,
) -> Vec<f32> {
    let (cols, top) = (cols as usize, top as usize);
    let mut out = vec![0.0; bound.live.rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        let picks = row * top..(row + 1) * top;
        for (col, out) in out.iter_mut().enumerate() {
            let one = |pick: usize| f64::from(bound.f32s(shares)[pick]) * y(pick, col);
            let mut sum: f64 = picks.clone().map(one).sum();
            if let Some(shared) = addends.shared {
                let gate = addends.gate.map_or(1.0, |gate| 1.0 / (1.0 + f64::from(-bound.f32s(gate)[row]).exp()));
                sum += gate * f64::from(bound.f32s(shared)[row * cols + col]);
            }
            let residual = addends.residual.map_or(0.0, |added| f64::from(bound.f32s(added)[row * cols + col]));
            *out = (sum + residual) as f32;
        }
    }
    out
}
