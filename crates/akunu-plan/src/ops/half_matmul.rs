//! `scale · (x · Wᵀ) (+ bias) (+ residual)` of f16 rows and of weights that are rounded to f16 where they are not; exact
//! products, f32 sums; no soft cap. Rows are in the order of lanes ([`crate::halves`]) unless a library multiplies them: f16
//! weights with all rows.
//!
//! With `f16`, the output is `x · Wᵀ` rounded to f16: it has the scales of `x`, and whoever reads it multiplies by them.

use super::extent::{Counts, Extent, f16s, f32s, strided, weight};
use super::matmul::WEIGHT;
use super::{F16, F32, MatmulParams, Op, RowSet, Weight, operands};
use crate::reference::Bound;
use crate::table::Binding;
use crate::{Cost, DType, Row, halves, lower_name, row_bytes};

/// The form of rows that an op reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputForm {
    F32,
    /// As [`HalfMatmul`] leaves them: with the scales of its input, and without its bias.
    F16 { bias: bool },
}

impl InputForm {
    pub fn f16(self) -> bool {
        self != InputForm::F32
    }

    pub fn bias(self) -> bool {
        self == InputForm::F16 { bias: true }
    }

    /// In names of ops.
    pub fn suffix(self) -> &'static str {
        match self {
            InputForm::F32 => "",
            InputForm::F16 { bias: false } => "_of_f16",
            InputForm::F16 { bias: true } => "_of_f16_bias",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfMatmul {
    pub weight: DType,
    pub bias: bool,
    pub residual: bool,
    /// Writes f16, and then adds nothing.
    pub f16: bool,
    pub rows: RowSet,
}

impl HalfMatmul {
    /// Whether a library multiplies, which takes rows in their own order, and as many as the table has.
    pub fn by_library(self) -> bool {
        self.weight == DType::F16 && self.rows == RowSet::All
    }
}

operands! {
    HalfMatmulOperands of HalfMatmul as op {
        x: read F16,
        x_scales: read F32,
        weight: read Weight(WEIGHT, op.weight),
        out: write F32 if !op.f16,
        out_f16: write F16 if op.f16,
        bias: read F32 if op.bias,
        residual: read F32 if op.residual,
    }
}

impl Op for HalfMatmul {
    type Params = MatmulParams;
    type Operands<T: Copy> = HalfMatmulOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        let residual = if self.residual { "_add" } else { "" };
        let rows = if self.rows == RowSet::Logits { "_picked" } else { "" };
        let f16 = if self.f16 { "_f16" } else { "" };
        format!("half_gemm_{}{rows}{bias}{residual}{f16}", lower_name(self.weight))
    }

    fn row_set(self) -> Option<RowSet> {
        Some(self.rows)
    }

    fn dead_rows(self, p: &MatmulParams, live: usize) -> Option<u64> {
        self.by_library().then(|| live as u64 * u64::from(p.out_stride) * if self.f16 { 2 } else { 4 })
    }

    fn extents(self, p: &MatmulParams, counts: &Counts) -> Result<HalfMatmulOperands<Extent>, String> {
        if p.out_stride < p.outputs || p.inputs == 0 || p.soft_cap != 0.0 {
            return Err(format!("{} by {} in f16, {} apart", p.inputs, p.outputs, p.out_stride));
        }
        if !self.by_library() {
            check_packed(self.weight, p.inputs)?;
        }
        if self.f16 && (self.bias || self.residual) {
            return Err("nothing is added to outputs of f16".into());
        }
        let rows = counts.of(self.rows);
        let out = strided(rows, p.outputs, p.out_stride)?;
        let F32(Extent { bytes, cols }) = out;
        let out_f16 = F16(Extent { bytes: bytes / 2, cols });
        Ok(HalfMatmulOperands {
            x: f16s(rows as u64, p.inputs)?,
            x_scales: f32s(rows, 1_u64),
            weight: weight(self.weight, p.inputs, p.outputs)?,
            out: (!self.f16).then_some(out),
            out_f16: self.f16.then_some(out_f16),
            bias: self.bias.then(|| f32s(1, p.outputs)),
            residual: self.residual.then_some(out),
        })
    }

    fn cost(self, p: &MatmulParams, rows: &[Row], logit_rows: usize) -> Cost {
        let rows = if self.rows == RowSet::All { rows.len() } else { logit_rows };
        let multiplied = cost(DType::F16, p.inputs, p.outputs.into(), rows);
        if self.by_library() {
            return multiplied;
        }
        Cost { weight_bytes: row_bytes(self.weight, p.inputs) * u64::from(p.outputs), ..multiplied }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<MatmulParams>(), bound.operands(self));
        let (inputs, outputs, stride) = (p.inputs as usize, p.outputs as usize, p.out_stride as usize);
        let sums = bound.half_products(o.x, (o.weight, self.weight), [inputs, outputs], !self.by_library());
        if let Some(out_f16) = o.out_f16 {
            bound.write(out_f16.0, |_, out| {
                for (row, sums) in sums.iter().enumerate() {
                    let sums: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
                    halves::store(&sums, 1.0, &mut out[row * stride * 2..][..outputs * 2]);
                }
            });
        }
        let Some(out) = o.out else { return };
        bound.write_f32s(out, |bound, out| {
            for (row, sums) in sums.iter().enumerate() {
                let scale = f64::from(bound.f32s(o.x_scales)[row]);
                for (i, sum) in sums.iter().enumerate() {
                    let mut y = scale * sum;
                    y += o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                    y += o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[row * stride + i]));
                    out[row * stride + i] = y as f32;
                }
            }
        });
    }
}

/// Packed weights are quantised or have 16 bits, and the rows that meet them are whole groups of lanes.
pub(super) fn check_packed(weight: DType, inputs: u32) -> Result<(), String> {
    let packs = weight.is_quantised() || is_half(weight);
    match packs && inputs.is_multiple_of(halves::GROUP as u32) {
        true => Ok(()),
        false => Err(format!("rows of {inputs} in f16 do not meet packed weights of {weight}")),
    }
}

/// Whether weights of a type have 16 bits each.
pub(crate) fn is_half(weight: DType) -> bool {
    matches!(weight, DType::F16 | DType::BF16)
}

/// Converted weights are counted where they are converted.
pub(super) fn cost(weight: DType, inputs: u32, outputs: u64, rows: usize) -> Cost {
    let weight_bytes = if weight == DType::F16 { 0 } else { row_bytes(weight, inputs) * outputs };
    let f32_ops = 2 * u64::from(inputs) * outputs * rows as u64;
    Cost { weight_bytes, f32_ops, ..Cost::default() }
}

impl Bound<'_> {
    /// `outputs` sums of each row of f16, without its scale: `[row][output]`.
    pub(super) fn half_products(
        &self,
        x: F16<Binding>,
        (weight, dtype): (Weight<Binding>, DType),
        [inputs, outputs]: [usize; 2],
        in_lanes: bool,
    ) -> Vec<Vec<f64>> {
        let numbers = |bytes: &[u8]| -> Vec<f64> { halves::load(bytes).into_iter().map(f64::from).collect() };
        let mut rounded = vec![0; inputs * 2];
        let weights: Vec<Vec<f64>> = (0..outputs)
            .map(|row| {
                halves::store(&self.weight_row(weight, dtype, row, inputs), 1.0, &mut rounded);
                numbers(&rounded)
            })
            .collect();
        let place = |element: usize| if in_lanes { halves::lane_place(element) } else { element };
        let rows = self.bytes(x.0).chunks_exact(inputs * 2).take(self.live_rows());
        let sum = |x: &[f64], w: &[f64]| w.iter().enumerate().map(|(i, w)| x[place(i)] * w).sum();
        rows.map(numbers).map(|x| weights.iter().map(|w| sum(&x, w)).collect()).collect()
    }
}
