//! The sum of what a row's experts give, each times its share, in the order of the row's picks; then that of the expert
//! that all rows share, if there is one, times the sigmoid of its gate if it has one; then the residual, if there is one.

use super::expert_matmul::order_name;
use super::extent::{Counts, Extent, f32s, indices};
use super::{F32, Indices, Op, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    pub shared: bool,
    pub gated: bool,
    pub residual: bool,
    /// Whether what experts give is in the order of picks.
    pub picked: bool,
}

params! {
    CombineParams { cols: u32, top: u32 }
}

operands! {
    CombineOperands of Combine as op {
        /// Rows sorted by expert, or in the order of picks, `rows · top`.
        y: read F32,
        /// Where each row is among the sorted ones: `[row][top]`.
        places: read Indices if !op.picked,
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
        let order = order_name(self.picked);
        format!("combine{order}{shared}{gated}{}", if self.residual { "_add" } else { "" })
    }

    fn extents(self, p: &CombineParams, counts: &Counts) -> Result<CombineOperands<Extent>, String> {
        if self.gated && !self.shared {
            return Err("a gate without a shared expert".into());
        }
        let rows = f32s(counts.rows, p.cols);
        Ok(CombineOperands {
            y: f32s(counts.rows * p.top as usize, p.cols),
            places: (!self.picked).then(|| indices(counts.rows as u64, p.top)),
            shares: f32s(counts.rows, p.top),
            out: rows,
            shared: self.shared.then_some(rows),
            gate: self.gated.then(|| f32s(counts.rows, 1_u64)),
            residual: self.residual.then_some(rows),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<CombineParams>(), bound.operands(self));
        let (cols, top, rows) = (p.cols as usize, p.top as usize, bound.live.rows);
        let mut out = vec![0.0; rows * cols];
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let of_row = row * top..(row + 1) * top;
            let shares = &bound.f32s(o.shares)[of_row.clone()];
            let places: Vec<usize> = match o.places {
                None => of_row.collect(),
                Some(places) => bound.indices(places)[of_row].iter().map(|place| *place as usize).collect(),
            };
            for (col, out) in out.iter_mut().enumerate() {
                let one = |(place, share): (&usize, &f32)| {
                    let place = (*place).min(rows * top - 1);
                    f64::from(*share) * f64::from(bound.f32s(o.y)[place * cols + col])
                };
                let mut sum: f64 = places.iter().zip(shares).map(one).sum();
                if let Some(shared) = o.shared {
                    let gate = o.gate.map_or(1.0, |gate| 1.0 / (1.0 + f64::from(-bound.f32s(gate)[row]).exp()));
                    sum += gate * f64::from(bound.f32s(shared)[row * cols + col]);
                }
                let residual = o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[row * cols + col]));
                *out = (sum + residual) as f32;
            }
        }
        bound.write_f32s(o.out, |_, to| to[..out.len()].copy_from_slice(&out));
    }
}
