//! `x · Wᵀ (+ bias) (+ residual)` of rows and weights in FP8 ([`crate::eights`]), both with a scale for each row; products
//! are exact, sums are rounded as tensor cores do.

use super::extent::{Counts, Extent, f8s, f32s, strided, weight};
use super::matmul::WEIGHT;
use super::{F8, F16, F32, MatmulParams, Op, Weight, operands};
use crate::reference::Bound;
use crate::{Cost, DType, Row, eights, row_bytes};
use akunu_format::Fp8;

/// The type of weights that it multiplies.
pub const EIGHTS: DType = DType::Fp8(Fp8::Row);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EightMatmul {
    pub bias: bool,
    pub residual: bool,
}

operands! {
    EightMatmulOperands of EightMatmul as op {
        x: read F8,
        x_scales: read F32,
        weight: read Weight(WEIGHT, EIGHTS),
        out: write F32,
        bias: read F32 if op.bias,
        residual: read F32 if op.residual,
    }
}

impl Op for EightMatmul {
    type Params = MatmulParams;
    type Operands<T: Copy> = EightMatmulOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        let residual = if self.residual { "_add" } else { "" };
        format!("eight_gemm{bias}{residual}")
    }

    fn dead_rows(self, p: &MatmulParams, live: usize) -> Option<u64> {
        Some(live as u64 * u64::from(p.out_stride) * 4)
    }

    fn extents(self, p: &MatmulParams, counts: &Counts) -> Result<EightMatmulOperands<Extent>, String> {
        if p.out_stride < p.outputs || p.inputs == 0 || p.soft_cap != 0.0 {
            return Err(format!("{} by {} in FP8, {} apart", p.inputs, p.outputs, p.out_stride));
        }
        let out = strided(counts.rows, p.outputs, p.out_stride)?;
        let F16(x) = f8s(counts.rows as u64, p.inputs.into())?;
        Ok(EightMatmulOperands {
            x: F8(x),
            x_scales: f32s(counts.rows, 1_u64),
            weight: weight(EIGHTS, p.inputs, p.outputs)?,
            out,
            bias: self.bias.then(|| f32s(1, p.outputs)),
            residual: self.residual.then_some(out),
        })
    }

    fn cost(self, p: &MatmulParams, rows: &[Row], _: usize) -> Cost {
        let outputs = u64::from(p.outputs);
        let f32_ops = 2 * u64::from(p.inputs) * outputs * rows.len() as u64;
        Cost { weight_bytes: row_bytes(EIGHTS, p.inputs) * outputs, f32_ops, ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<MatmulParams>(), bound.operands(self));
        let (inputs, outputs, stride) = (p.inputs as usize, p.outputs as usize, p.out_stride as usize);
        let weights: Vec<Vec<f64>> = (0..outputs)
            .map(|row| bound.weight_row(o.weight, EIGHTS, row, inputs).into_iter().map(f64::from).collect())
            .collect();
        let x: Vec<Vec<f64>> = bound.bytes(o.x.0)[..]
            .chunks_exact(inputs)
            .take(bound.live.rows)
            .map(|row| eights::load(row).into_iter().map(f64::from).collect())
            .collect();
        bound.write_f32s(o.out, |bound, out| {
            for (row, x) in x.iter().enumerate() {
                let scale = f64::from(bound.f32s(o.x_scales)[row]);
                for (i, weights) in weights.iter().enumerate() {
                    let sum: f64 = x.iter().zip(weights).map(|(x, w)| x * w).sum();
                    let mut y = scale * sum;
                    y += o.bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[i]));
                    y += o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[row * stride + i]));
                    out[row * stride + i] = y as f32;
                }
            }
        });
    }
}
