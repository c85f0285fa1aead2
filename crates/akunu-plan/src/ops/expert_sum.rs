//! The sum of what the experts of a row give, `x · Wᵀ (+ bias)`, each times its share, and what [`Combine`] adds to it:
//! [`ExpertMatmul`] and [`Combine`] in one, of rows in the order of picks.
//!
//! [`Combine`]: super::Combine
//! [`ExpertMatmul`]: super::ExpertMatmul

use super::combine::{Addends, weighted_sum};
use super::expert_matmul::{ExpertParams, ExpertRows, cost, expert_products, sizes};
use super::extent::{Counts, Extent, f32s, indices, input, weight};
use super::matmul::{WEIGHT, product_name};
use super::{F32, Indices, Input, Op, Routing, Weight, operands};
use crate::reference::Bound;
use crate::{Cost, DType, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertSum {
    pub weight: DType,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    pub bias: bool,
    pub shared: bool,
    pub gated: bool,
    pub residual: bool,
}

operands! {
    ExpertSumOperands of ExpertSum as op {
        /// `rows · top` rows, in the order of picks.
        x: read Input(op.q8),
        /// `[row][top]`
        picks: read Indices,
        /// `[row][top]`
        shares: read F32,
        weight: read Weight(WEIGHT, op.weight),
        out: write F32,
        bias: read F32 if op.bias,
        shared: read F32 if op.shared,
        /// `[row]`
        gate: read F32 if op.gated,
        residual: read F32 if op.residual,
    }
}

impl Op for ExpertSum {
    type Params = ExpertParams;
    type Operands<T: Copy> = ExpertSumOperands<T>;

    fn name(self) -> String {
        let options =
            [(self.bias, "_bias"), (self.shared, "_shared"), (self.gated, "_gated"), (self.residual, "_add")];
        let suffix: String = options.iter().filter(|(set, _)| *set).map(|(_, suffix)| *suffix).collect();
        format!("experts_sum_{}{suffix}", product_name(self.weight, self.q8, false))
    }

    fn extents(self, p: &ExpertParams, counts: &Counts) -> Result<ExpertSumOperands<Extent>, String> {
        if self.gated && !self.shared {
            return Err("a gate without a shared expert".into());
        }
        let (picked, all) = sizes(p, counts)?;
        let rows = f32s(counts.rows, p.outputs);
        Ok(ExpertSumOperands {
            x: input(self.q8, picked, p.inputs)?,
            picks: indices(counts.rows as u64, p.top),
            shares: f32s(counts.rows, p.top),
            weight: weight(self.weight, p.inputs, all)?,
            out: rows,
            bias: self.bias.then(|| f32s(1, all)),
            shared: self.shared.then_some(rows),
            gate: self.gated.then(|| f32s(counts.rows, 1_u64)),
            residual: self.residual.then_some(rows),
        })
    }

    fn cost(self, p: &ExpertParams, rows: &[Row], _: usize) -> Cost {
        cost(p, (self.weight, self.q8), 1, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ExpertParams>(), bound.operands(self));
        let rows = ExpertRows::new(&bound, &p, Routing::Picks(o.picks), 1);
        let y = expert_products(&bound, &p, (o.x, &rows), (o.weight, self.weight), o.bias);
        let addends = Addends { shared: o.shared, gate: o.gate, residual: o.residual };
        let out = weighted_sum(&bound, [p.outputs, p.top], &|pick, col| y[pick][col], o.shares, addends);
        bound.write_f32s(o.out, |_, to| to[..out.len()].copy_from_slice(&out));
    }
}
