//! `scale · (x · Wᵀ) (+ bias) (+ residual)` of f16 rows and f16 weights; exact products, f32 sums; no soft cap.
//!
//! With `f16`, the output is `x · Wᵀ` rounded to f16: it has the scales of `x`, and whoever reads it multiplies by them.

use super::extent::{Counts, Extent, f16s, f32s, strided};
use super::{F16, F32, MatmulParams, Op, operands};
use crate::reference::Bound;
use crate::{Cost, Row, halves};

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
    pub bias: bool,
    pub residual: bool,
    /// Writes f16, and then adds nothing.
    pub f16: bool,
}

operands! {
    HalfMatmulOperands of HalfMatmul as op {
        x: read F16,
        x_scales: read F32,
        weight: read F16,
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
        format!("half_gemm{bias}{residual}{}", if self.f16 { "_f16" } else { "" })
    }

    fn dead_rows(self, p: &MatmulParams, live: usize) -> Option<u64> {
        Some(live as u64 * u64::from(p.out_stride) * if self.f16 { 2 } else { 4 })
    }

    fn extents(self, p: &MatmulParams, counts: &Counts) -> Result<HalfMatmulOperands<Extent>, String> {
        if p.out_stride < p.outputs || p.inputs == 0 || p.soft_cap != 0.0 {
            return Err(format!("{} by {} in f16, {} apart", p.inputs, p.outputs, p.out_stride));
        }
        if self.f16 && (self.bias || self.residual) {
            return Err("nothing is added to outputs of f16".into());
        }
        let out = strided(counts.rows, p.outputs, p.out_stride)?;
        let F32(Extent { bytes, cols }) = out;
        let out_f16 = F16(Extent { bytes: bytes / 2, cols });
        Ok(HalfMatmulOperands {
            x: f16s(counts.rows as u64, p.inputs)?,
            x_scales: f32s(counts.rows, 1_u64),
            weight: f16s(p.outputs.into(), p.inputs)?,
            out: (!self.f16).then_some(out),
            out_f16: self.f16.then_some(out_f16),
            bias: self.bias.then(|| f32s(1, p.outputs)),
            residual: self.residual.then_some(out),
        })
    }

    fn cost(self, p: &MatmulParams, rows: &[Row], _: usize) -> Cost {
        let f32_ops = 2 * u64::from(p.inputs) * u64::from(p.outputs) * rows.len() as u64;
        Cost { f32_ops, ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<MatmulParams>(), bound.operands(self));
        let (inputs, outputs, stride) = (p.inputs as usize, p.outputs as usize, p.out_stride as usize);
        let numbers = |bound: &Bound<'_>, of: F16<_>, row: usize| -> Vec<f64> {
            let bytes = &bound.bytes(of.0)[row * inputs * 2..][..inputs * 2];
            halves::load(bytes).into_iter().map(f64::from).collect()
        };
        let weights: Vec<Vec<f64>> = (0..outputs).map(|i| numbers(&bound, o.weight, i)).collect();
        let rows = bound.live.rows;
        if let Some(out_f16) = o.out_f16 {
            bound.write(out_f16.0, |bound, out| {
                for row in 0..rows {
                    let (x, out) = (numbers(bound, o.x, row), &mut out[row * stride * 2..][..outputs * 2]);
                    let sums: Vec<f32> =
                        weights.iter().map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() as f32).collect();
                    halves::store(&sums, 1.0, out);
                }
            });
        }
        let Some(out) = o.out else { return };
        bound.write_f32s(out, |bound, out| {
            for row in 0..rows {
                let (x, scale) = (numbers(bound, o.x, row), f64::from(bound.f32s(o.x_scales)[row]));
                for (i, w) in weights.iter().enumerate() {
                    let mut y = scale * x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
                    y += o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                    y += o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[row * stride + i]));
                    out[row * stride + i] = y as f32;
                }
            }
        });
    }
}
