//! `activation(x · Gᵀ) · (x · Uᵀ)`.

use super::extent::{Counts, Extent, forms, input, squares, weight};
use super::matmul::product_name;
use super::norm::OUT;
use super::{F32, Forms, Input, Op, PlaneNames, Weight, operands, params};
use crate::reference::{Bound, activate};
use crate::{Activation, Cost, DType, MatmulForm, OutputForms, Row, activation_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GluMatmul {
    pub weight: DType,
    pub form: MatmulForm,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    pub activation: Activation,
    pub out: OutputForms,
    /// Whether the input's norm is deferred to this product; see [`super::Matmul`].
    pub scaled: bool,
}

params! {
    GluMatmulParams { inputs: u32, outputs: u32 }
}

pub(super) const GATE: PlaneNames = ["gate_weight", "gate_scales", "gate_offsets"];
pub(super) const UP: PlaneNames = ["up_weight", "up_scales", "up_offsets"];

operands! {
    GluMatmulOperands of GluMatmul as op {
        x: read Input(op.q8),
        gate_weight: read Weight(GATE, op.weight),
        up_weight: read Weight(UP, op.weight),
        out: write Forms(op.out, OUT),
        squares: read F32 if op.scaled,
    }
}

impl Op for GluMatmul {
    type Params = GluMatmulParams;
    type Operands<T: Copy> = GluMatmulOperands<T>;

    fn name(self) -> String {
        let activation = activation_name(self.activation);
        let product = product_name(self.weight, self.q8, self.scaled);
        format!("{}_{activation}_glu_{product}{}", self.form.name(), self.out.suffix())
    }

    fn extents(self, p: &GluMatmulParams, counts: &Counts) -> Result<GluMatmulOperands<Extent>, String> {
        let matrix = weight(self.weight, p.inputs, p.outputs)?;
        Ok(GluMatmulOperands {
            x: input(self.q8, counts.rows, p.inputs)?,
            gate_weight: matrix,
            up_weight: matrix,
            out: forms(self.out, counts.rows, p.outputs)?,
            squares: self.scaled.then(|| squares(counts.rows, p.inputs)).transpose()?,
        })
    }

    fn cost(self, p: &GluMatmulParams, rows: &[Row], _: usize) -> Cost {
        Cost::product(self.weight, p.inputs, 2 * u64::from(p.outputs), rows.len(), self.q8)
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<GluMatmulParams>(), bound.operands(self));
        let shape = [p.inputs as usize, p.outputs as usize];
        let gate = bound.products(o.x, (o.gate_weight, self.weight), o.squares, shape);
        let up = bound.products(o.x, (o.up_weight, self.weight), o.squares, shape);
        let glu = |(g, u): (&f64, &f64)| (activate(self.activation, *g) * u) as f32;
        let rows: Vec<Vec<f32>> =
            gate.iter().zip(&up).map(|(gate, up)| gate.iter().zip(up).map(glu).collect()).collect();
        bound.write_forms(o.out, &rows);
    }
}
