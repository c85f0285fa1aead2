//! `x / rms(x) · weight (+ bias)`, or layer norm: `(x − mean(x)) / √(variance(x) + ε) · weight (+ bias)`.
//!
//! With `pick` it selects the logit rows from all rows and packs them.

use super::extent::{Counts, Extent, f32s, forms, u32s};
use super::{F32, FormNames, Forms, Op, RowSet, U32, operands, params};
use crate::reference::{Bound, normalise};
use crate::{NormKind, OutputForms, norm_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Norm {
    pub kind: NormKind,
    pub bias: bool,
    pub out: OutputForms,
    pub rows: RowSet,
    /// With [`RowSet::Logits`]: whether `x` has all rows. Otherwise it contains only the packed logit rows.
    pub pick: bool,
}

params! {
    NormParams { cols: u32, epsilon: f32 }
}

/// Names of an op's outputs in the different forms.
pub(super) const OUT: FormNames = ["out", "out_q8", "out_f16", "out_scales"];

operands! {
    NormOperands of Norm as op {
        x: read F32,
        weight: read F32,
        bias: read F32 if op.bias,
        out: write Forms(op.out, OUT),
        logit_rows: read U32 if op.pick,
    }
}

impl Op for Norm {
    type Params = NormParams;
    type Operands<T: Copy> = NormOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        let pick = match (self.rows, self.pick) {
            (_, true) => "_pick",
            (RowSet::Logits, false) => "_picked",
            (RowSet::All, false) => "",
        };
        format!("{}{bias}{pick}{}", norm_name(self.kind), self.out.suffix())
    }

    fn row_set(self) -> Option<RowSet> {
        Some(self.rows)
    }

    fn extents(self, p: &NormParams, counts: &Counts) -> Result<NormOperands<Extent>, String> {
        if self.pick && self.rows != RowSet::Logits {
            return Err("a norm that picks rows gives those that ask for logits".into());
        }
        let inputs = if self.pick { counts.rows } else { counts.of(self.rows) };
        Ok(NormOperands {
            x: f32s(inputs, p.cols),
            weight: f32s(1, p.cols),
            bias: self.bias.then(|| f32s(1, p.cols)),
            out: forms(self.out, counts.of(self.rows), p.cols)?,
            logit_rows: self.pick.then(|| u32s(counts.logit_rows)),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<NormParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let source = |row: usize| match o.logit_rows {
            None => row,
            Some(logit_rows) => bound.u32s(logit_rows)[row] as usize,
        };
        let weight = &bound.f32s(o.weight)[..cols];
        let bias = o.bias.map(|bias| &bound.f32s(bias)[..cols]);
        let rows: Vec<Vec<f32>> = (0..bound.live_rows())
            .map(|row| {
                let x = &bound.f32s(o.x)[source(row) * cols..][..cols];
                let normed = normalise(self.kind, x, (weight, bias), p.epsilon);
                normed.into_iter().map(|v| v as f32).collect()
            })
            .collect();
        bound.write_forms(o.out, &rows);
    }
}
