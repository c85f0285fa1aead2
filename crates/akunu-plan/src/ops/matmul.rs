//! `x · Wᵀ (+ bias) (+ residual)`, and an activation of this.
//!
//! With `norm` it also begins the deferred norm of its output `y`: `normed` is `y · norm_weight`, not yet divided by
//! rms(y), and `out_squares` is the sum of `y² + epsilon` over each block of 32 outputs, `[row][outputs / 32]`. A
//! product whose input is such a row is `scaled`: it binds these sums as `squares`, and multiplies `x · Wᵀ` by `1 /
//! √(mean of squares)`; the products for Q, K and V, and gate and up, do the same. Rows are quantised to q8 before this
//! division.

use super::extent::{Counts, Extent, f32s, forms, input, squares, strided, weight};
use super::norm::OUT;
use super::{F32, FormNames, Forms, Input, Op, PlaneNames, RowSet, Weight, operands, params};
use crate::reference::{Bound, activate, soft_cap};
use crate::table::Binding;
use crate::{Activation, Cost, DType, MatmulForm, OutputForms, Row, activation_name, lower_name, q8};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    pub weight: DType,
    pub form: MatmulForm,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    pub bias: bool,
    pub residual: bool,
    pub rows: RowSet,
    pub scaled: bool,
    pub norm: Option<OutputForms>,
    pub activation: Option<Activation>,
    pub out: OutputForms,
}

impl Matmul {
    /// The product of all rows, without options.
    pub fn plain(weight: DType, form: MatmulForm) -> Matmul {
        Matmul {
            weight,
            form,
            q8: weight.is_quantised(),
            bias: false,
            residual: false,
            rows: RowSet::All,
            scaled: false,
            norm: None,
            activation: None,
            out: OutputForms::F32,
        }
    }
}

params! {
    MatmulParams {
        inputs: u32,
        outputs: u32,
        /// Distance between output rows, in f32 elements.
        out_stride: u32,
        /// `cap · tanh(y / cap)`; 0 means none.
        soft_cap: f32,
        /// The epsilon of the deferred norm of its output; 0 if there is none.
        epsilon: f32,
    }
}

pub(super) const WEIGHT: PlaneNames = ["weight", "weight_scales", "weight_offsets"];
pub(super) const NORMED: FormNames = ["normed", "normed_q8", "out_f16", "out_scales"];

operands! {
    MatmulOperands of Matmul as op {
        x: read Input(op.q8),
        weight: read Weight(WEIGHT, op.weight),
        out: write Forms(op.out, OUT),
        bias: read F32 if op.bias,
        residual: read F32 if op.residual,
        squares: read F32 if op.scaled,
        norm_weight: read F32 if op.norm.is_some(),
        normed: write Forms(op.norm.unwrap_or(OutputForms::F32), NORMED) if op.norm.is_some(),
        out_squares: write F32 if op.norm.is_some(),
    }
}

impl Op for Matmul {
    type Params = MatmulParams;
    type Operands<T: Copy> = MatmulOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        let residual = if self.residual { "_add" } else { "" };
        let norm = self.norm.map_or(String::new(), |out| format!("_norm{}", out.suffix()));
        let product = product_name(self.weight, self.q8, self.scaled);
        let activation = self.activation.map_or(String::new(), |of| format!("_{}", activation_name(of)));
        let out = self.out.suffix();
        format!("{}_{product}{bias}{residual}{norm}{activation}{out}", self.form.name())
    }

    fn row_set(self) -> Option<RowSet> {
        Some(self.rows)
    }

    fn extents(self, p: &MatmulParams, counts: &Counts) -> Result<MatmulOperands<Extent>, String> {
        let rows = counts.of(self.rows);
        let written = strided(rows, p.outputs, p.out_stride)?;
        let out = forms(self.out, rows, p.outputs)?;
        let normed = self.norm.map(|form| forms(form, rows, p.outputs)).transpose()?;
        let out_squares = self.norm.map(|_| squares(rows, p.outputs)).transpose()?;
        Ok(MatmulOperands {
            x: input(self.q8, rows, p.inputs)?,
            weight: weight(self.weight, p.inputs, p.outputs)?,
            out: Forms { f32: out.f32.map(|_| written), ..out },
            bias: self.bias.then(|| f32s(1, p.outputs)),
            residual: self.residual.then_some(written),
            squares: self.scaled.then(|| squares(rows, p.inputs)).transpose()?,
            norm_weight: self.norm.map(|_| f32s(1, p.outputs)),
            normed,
            out_squares,
        })
    }

    fn cost(self, p: &MatmulParams, rows: &[Row], logit_rows: usize) -> Cost {
        let rows = if self.rows == RowSet::All { rows.len() } else { logit_rows };
        Cost::product(self.weight, p.inputs, u64::from(p.outputs), rows, self.q8)
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<MatmulParams>(), bound.operands(self));
        let (outputs, stride) = (p.outputs as usize, p.out_stride as usize);
        let mut y = bound.products(o.x, (o.weight, self.weight), o.squares, [p.inputs as usize, outputs]);
        for (row, y) in y.iter_mut().enumerate() {
            for (i, y) in y.iter_mut().enumerate() {
                *y += o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                *y += o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[row * stride + i]));
                *y = soft_cap(*y, p.soft_cap);
                *y = self.activation.map_or(*y, |of| activate(of, *y));
            }
        }
        let y: Vec<Vec<f32>> = y.iter().map(|y| y.iter().map(|y| *y as f32).collect()).collect();
        if let Some(out) = o.out.f32 {
            bound.write_f32s(out, |_, out| {
                for (row, y) in y.iter().enumerate() {
                    out[row * stride..][..outputs].copy_from_slice(y);
                }
            });
        }
        bound.write_forms(Forms { f32: None, ..o.out }, &y);
        if let (Some(weight), Some(normed), Some(squares)) = (o.norm_weight, o.normed, o.out_squares) {
            defer_norm(&mut bound, (weight, normed, squares), &y, p.epsilon);
        }
    }
}

/// `y · weight` in the requested forms, and `y² + epsilon` summed over each block.
pub(super) fn defer_norm(
    bound: &mut Bound<'_>,
    (weight, normed, squares): (F32<Binding>, Forms<Binding>, F32<Binding>),
    y: &[Vec<f32>],
    epsilon: f32,
) {
    let weights = bound.f32s(weight);
    let rows: Vec<Vec<f32>> = y.iter().map(|y| y.iter().zip(weights).map(|(y, w)| y * w).collect()).collect();
    bound.write_forms(normed, &rows);
    let sums = y.iter().flat_map(|y| y.chunks_exact(q8::BLOCK)).map(|block| {
        block.iter().map(|&y| f64::from(y) * f64::from(y) + f64::from(epsilon)).sum::<f64>() as f32
    });
    bound.write_f32s(squares, |_, out| out.iter_mut().zip(sums).for_each(|(o, s)| *o = s));
}

/// `q4_0_scaled`: the part of a product's name for its weights and input.
pub(super) fn product_name(weight: DType, q8: bool, scaled: bool) -> String {
    let input = if weight.is_quantised() && !q8 { "_f32in" } else { "" };
    format!("{}{input}{}", lower_name(weight), if scaled { "_scaled" } else { "" })
}
