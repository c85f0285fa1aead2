//! Rounds rows to another form: int8 blocks ([`crate::q8`]), f16 ([`crate::halves`]) or FP8 ([`crate::eights`]).

use super::extent::{Counts, Extent, f16s, f32s, forms};
use super::norm::OUT;
use super::{F16, F32, Forms, InputForm, Op, operands, params};
use crate::{OutputForms, halves};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// Rows of f16 are rounded to FP8 only.
    pub input: InputForm,
    /// The output form, one of q8, f16 and f8.
    pub out: OutputForms,
}

params! {
    RoundParams {
        cols: u32,
        /// Rows that are rounded for each row of the pass.
        times: u32,
    }
}

operands! {
    RoundOperands of Round as op {
        x: read F32 if !op.input.f16(),
        x_f16: read F16 if op.input.f16(),
        x_scales: read F32 if op.input.f16(),
        out: write Forms(op.out, OUT),
    }
}

impl Op for Round {
    type Params = RoundParams;
    type Operands<T: Copy> = RoundOperands<T>;

    fn name(self) -> String {
        match self.out {
            OutputForms::F16Lanes => "halve_lanes".into(),
            out if out.eights() => format!("round_f8{}", self.input.suffix()),
            out if out.f16() => "halve".into(),
            _ => "quantise_q8".into(),
        }
    }

    fn extents(self, p: &RoundParams, counts: &Counts) -> Result<RoundOperands<Extent>, String> {
        let f16 = self.input.f16();
        if self.input.bias() || f16 && !self.out.eights() {
            return Err(format!("{:?} rounded to {:?}", self.input, self.out));
        }
        let rows = counts.rows * p.times as usize;
        Ok(RoundOperands {
            x: (!f16).then(|| f32s(rows, p.cols)),
            x_f16: f16.then(|| f16s(rows as u64, p.cols)).transpose()?,
            x_scales: f16.then(|| f32s(rows, 1_u64)),
            out: forms(self.out, rows, p.cols)?,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<RoundParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let row = |row: usize| -> Vec<f32> {
            let (Some(x_f16), Some(x_scales)) = (o.x_f16, o.x_scales) else {
                return o.x.map_or(vec![], |x| bound.f32s(x)[row * cols..][..cols].to_vec());
            };
            let scale = bound.f32s(x_scales)[row];
            let numbers = halves::load(&bound.bytes(x_f16.0)[row * cols * 2..][..cols * 2]);
            numbers.into_iter().map(|x| scale * x).collect()
        };
        let rows: Vec<Vec<f32>> = (0..bound.live.rows * p.times as usize).map(row).collect();
        bound.write_forms(o.out, &rows);
    }
}
