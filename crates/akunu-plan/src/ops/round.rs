//! Rounds rows to another form: int8 blocks ([`crate::q8`]), f16 ([`crate::halves`]) or FP8 ([`crate::eights`]).

use super::extent::{Counts, Extent, f32s, forms};
use super::norm::OUT;
use super::{ElementParams, F32, Forms, Op, operands};
use crate::OutputForms;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// The output form, one of q8, f16 and f8.
    pub out: OutputForms,
}

operands! {
    RoundOperands of Round as op {
        x: read F32,
        out: write Forms(op.out, OUT),
    }
}

impl Op for Round {
    type Params = ElementParams;
    type Operands<T: Copy> = RoundOperands<T>;

    fn name(self) -> String {
        match self.out {
            OutputForms::F16Lanes => "halve_lanes".into(),
            out if out.eights() => "round_f8".into(),
            out if out.f16() => "halve".into(),
            _ => "quantise_q8".into(),
        }
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<RoundOperands<Extent>, String> {
        let out = forms(self.out, counts.rows, p.cols)?;
        Ok(RoundOperands { x: f32s(counts.rows, p.cols), out })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let row = |row: usize| bound.f32s(o.x)[row * cols..][..cols].to_vec();
        let rows: Vec<Vec<f32>> = (0..bound.live.rows).map(row).collect();
        bound.write_forms(o.out, &rows);
    }
}
