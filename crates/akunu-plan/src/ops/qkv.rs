//! Q, K and V of one dtype in one command, with adjacent outputs.

use super::extent::{Counts, Extent, f32s, input, squares, weight};
use super::matmul::product_name;
use super::{F32, Input, Op, PlaneNames, Weight, operands, params};
use crate::reference::Bound;
use crate::{Cost, DType, MatmulForm, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qkv {
    pub weight: DType,
    pub form: MatmulForm,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    pub bias: bool,
    /// Whether the input's norm is deferred to this product; see [`super::Matmul`].
    pub scaled: bool,
}

params! {
    /// The outputs of a row are adjacent: `[q, k, v]`.
    QkvParams { inputs: u32, q: u32, k: u32, v: u32 }
}

pub(super) const Q: PlaneNames = ["q_weight", "q_scales", "q_offsets"];
pub(super) const K: PlaneNames = ["k_weight", "k_scales", "k_offsets"];
pub(super) const V: PlaneNames = ["v_weight", "v_scales", "v_offsets"];

operands! {
    QkvOperands of Qkv as op {
        x: read Input(op.q8),
        q_weight: read Weight(Q, op.weight),
        k_weight: read Weight(K, op.weight),
        v_weight: read Weight(V, op.weight),
        out: write F32,
        q_bias: read F32 if op.bias,
        k_bias: read F32 if op.bias,
        v_bias: read F32 if op.bias,
        squares: read F32 if op.scaled,
    }
}

impl Op for Qkv {
    type Params = QkvParams;
    type Operands<T: Copy> = QkvOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        format!("{}_qkv_{}{bias}", self.form.name(), product_name(self.weight, self.q8, self.scaled))
    }

    fn extents(self, p: &QkvParams, counts: &Counts) -> Result<QkvOperands<Extent>, String> {
        let weight = |outputs: u32| weight(self.weight, p.inputs, outputs);
        let bias = |outputs: u32| self.bias.then(|| f32s(1, outputs));
        Ok(QkvOperands {
            x: input(self.q8, counts.rows, p.inputs)?,
            q_weight: weight(p.q)?,
            k_weight: weight(p.k)?,
            v_weight: weight(p.v)?,
            out: f32s(counts.rows, u64::from(p.q) + u64::from(p.k) + u64::from(p.v)),
            q_bias: bias(p.q),
            k_bias: bias(p.k),
            v_bias: bias(p.v),
            squares: self.scaled.then(|| squares(counts.rows, p.inputs)).transpose()?,
        })
    }

    fn cost(self, p: &QkvParams, rows: &[Row], _: usize) -> Cost {
        let outputs = u64::from(p.q) + u64::from(p.k) + u64::from(p.v);
        Cost::product(self.weight, p.inputs, outputs, rows.len(), self.q8)
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<QkvParams>(), bound.operands(self));
        let stride = (p.q + p.k + p.v) as usize;
        let parts = [(o.q_weight, o.q_bias, p.q), (o.k_weight, o.k_bias, p.k), (o.v_weight, o.v_bias, p.v)];
        let mut start = 0;
        for (weight, bias, outputs) in parts {
            let shape = [p.inputs as usize, outputs as usize];
            let y = bound.products(o.x, (weight, self.weight), o.squares, shape);
            bound.write_f32s(o.out, |bound, out| {
                for (row, y) in y.iter().enumerate() {
                    for (i, y) in y.iter().enumerate() {
                        let bias = bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                        out[row * stride + start + i] = (y + bias) as f32;
                    }
                }
            });
            start += outputs as usize;
        }
    }
}
