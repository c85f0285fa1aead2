//! `glu(x · Gᵀ, x · Uᵀ)` of rows that have an expert each, with the matrices of that expert. Rows are sorted by expert, or
//! in the order of picks.

use super::expert_matmul::{ExpertParams, ExpertRows, cost, expert_products, sizes};
use super::gather::starts;
use super::extent::{Counts, Extent, f32s, forms, indices, input, weight};
use super::glu_matmul::{GATE, UP};
use super::matmul::product_name;
use super::norm::OUT;
use super::{F32, Forms, Input, Op, Routing, Weight, operands};
use crate::reference::{Bound, activate};
use crate::{Activation, Cost, DType, OutputForms, Row, activation_name};

/// How an output of the gate matrix and one of the up matrix become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GluKind {
    /// `activation(gate) · up`
    Plain(Activation),
    /// `g · σ(SLOPE · g) · (u + 1)`, where g is the gate but at most [`GluKind::LIMIT`], and u is up, limited to
    /// `−LIMIT ..= LIMIT`.
    Clamped,
}

impl GluKind {
    pub const LIMIT: f32 = 7.0;
    pub const SLOPE: f32 = 1.702;

    pub(super) fn name(self) -> &'static str {
        match self {
            GluKind::Plain(activation) => activation_name(activation),
            GluKind::Clamped => "clamped",
        }
    }

    /// NaN stays NaN.
    pub(super) fn apply(self, gate: f64, up: f64) -> f64 {
        match self {
            GluKind::Plain(activation) => activate(activation, gate) * up,
            GluKind::Clamped => {
                let limit = f64::from(GluKind::LIMIT);
                let gate = if gate > limit { limit } else { gate };
                let slope = f64::from(GluKind::SLOPE);
                gate / (1.0 + (-slope * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGlu {
    pub weight: DType,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    /// Of both matrices.
    pub bias: bool,
    pub glu: GluKind,
    pub out: OutputForms,
    /// Whether the rows of the output are in the order of picks, and those of the input are the rows of the pass.
    pub picked: bool,
}

operands! {
    ExpertGluOperands of ExpertGlu as op {
        /// `rows · top` rows if they are sorted, otherwise `rows`.
        x: read Input(op.q8),
        routing: read Routing(op.picked),
        gate_weight: read Weight(GATE, op.weight),
        up_weight: read Weight(UP, op.weight),
        out: write Forms(op.out, OUT),
        gate_bias: read F32 if op.bias,
        up_bias: read F32 if op.bias,
    }
}

impl Op for ExpertGlu {
    type Params = ExpertParams;
    type Operands<T: Copy> = ExpertGluOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        let product = product_name(self.weight, self.q8, false);
        let order = if self.picked { "_picked" } else { "" };
        format!("experts_{}_glu_{product}{bias}{order}{}", self.glu.name(), self.out.suffix())
    }

    fn extents(self, p: &ExpertParams, counts: &Counts) -> Result<ExpertGluOperands<Extent>, String> {
        let (rows, all) = sizes(p, counts)?;
        let matrix = weight(self.weight, p.inputs, all)?;
        let bias = self.bias.then(|| f32s(1, all));
        Ok(ExpertGluOperands {
            x: input(self.q8, if self.picked { counts.rows } else { rows }, p.inputs)?,
            routing: match self.picked {
                true => Routing::Picks(indices(counts.rows as u64, p.top)),
                false => Routing::Starts(starts(p.experts)),
            },
            gate_weight: matrix,
            up_weight: matrix,
            out: forms(self.out, rows, p.outputs)?,
            gate_bias: bias,
            up_bias: bias,
        })
    }

    fn cost(self, p: &ExpertParams, rows: &[Row], _: usize) -> Cost {
        cost(p, (self.weight, self.q8), 2, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ExpertParams>(), bound.operands(self));
        let each = if self.picked { p.top as usize } else { 1 };
        let rows = ExpertRows::new(&bound, &p, o.routing, each);
        let x = (o.x, &rows);
        let gate = expert_products(&bound, &p, x, (o.gate_weight, self.weight), o.gate_bias);
        let up = expert_products(&bound, &p, x, (o.up_weight, self.weight), o.up_bias);
        let glu = |(gate, up): (&f64, &f64)| self.glu.apply(*gate, *up) as f32;
        let rows: Vec<Vec<f32>> =
            gate.iter().zip(&up).map(|(gate, up)| gate.iter().zip(up).map(glu).collect()).collect();
        bound.write_forms(o.out, &rows);
    }
}
