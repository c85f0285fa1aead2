//! `activation(x)` or `activation(scale · x + bias)`, elementwise.
//!
//! With [`RowSet::Logits`], its rows are the packed logit rows that the previous op wrote.

use super::extent::{Counts, Extent, f16s, f32s, forms};
use super::norm::OUT;
use super::{ElementParams, F16, F32, Forms, InputForm, Op, RowSet, operands};
use crate::reference::{Bound, activate};
use crate::{Activation, OutputForms, activation_name, halves};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Activate {
    pub activation: Activation,
    pub input: InputForm,
    pub out: OutputForms,
    pub rows: RowSet,
}

operands! {
    ActivateOperands of Activate as op {
        x: read F32 if !op.input.f16(),
        x_f16: read F16 if op.input.f16(),
        x_scales: read F32 if op.input.f16(),
        bias: read F32 if op.input.bias(),
        out: write Forms(op.out, OUT),
    }
}

impl Op for Activate {
    type Params = ElementParams;
    type Operands<T: Copy> = ActivateOperands<T>;

    fn name(self) -> String {
        let picked = if self.rows == RowSet::Logits { "_picked" } else { "" };
        let (name, input) = (activation_name(self.activation), self.input.suffix());
        format!("{name}{input}{picked}{}", self.out.suffix())
    }

    fn row_set(self) -> Option<RowSet> {
        Some(self.rows)
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<ActivateOperands<Extent>, String> {
        let rows = counts.of(self.rows);
        let f16 = self.input.f16();
        Ok(ActivateOperands {
            x: (!f16).then(|| f32s(rows, p.cols)),
            x_f16: f16.then(|| f16s(rows as u64, p.cols)).transpose()?,
            x_scales: f16.then(|| f32s(rows, 1_u64)),
            bias: self.input.bias().then(|| f32s(1, p.cols)),
            out: forms(self.out, rows, p.cols)?,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let activated = |x: f64| activate(self.activation, x) as f32;
        let row = |row: usize| -> Vec<f32> {
            let (Some(x_f16), Some(x_scales)) = (o.x_f16, o.x_scales) else {
                let x = o.x.map_or(&[][..], |x| &bound.f32s(x)[row * cols..][..cols]);
                return x.iter().map(|x| activated(f64::from(*x))).collect();
            };
            let numbers = halves::load(&bound.bytes(x_f16.0)[row * cols * 2..][..cols * 2]);
            let scale = f64::from(bound.f32s(x_scales)[row]);
            let bias = |i: usize| o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
            numbers.iter().enumerate().map(|(i, x)| activated(scale * f64::from(*x) + bias(i))).collect()
        };
        let rows: Vec<Vec<f32>> = (0..bound.live_rows()).map(row).collect();
        bound.write_forms(o.out, &rows);
    }
}
