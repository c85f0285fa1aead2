//! Rounds rows to f16 ([`crate::halves`]).

use super::extent::{Counts, Extent, f32s, forms};
use super::rms_norm::OUT;
use super::{ElementParams, F32, Forms, Op, operands};
use crate::NormOut;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Halve;

operands! {
    HalveOperands of Halve as op {
        x: read F32,
        out: write Forms(NormOut::F16, OUT),
    }
}

impl Op for Halve {
    type Params = ElementParams;
    type Operands<T: Copy> = HalveOperands<T>;

    fn name(self) -> String {
        "halve".into()
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<HalveOperands<Extent>, String> {
        let out = forms(NormOut::F16, counts.rows, p.cols)?;
        Ok(HalveOperands { x: f32s(counts.rows, p.cols), out })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let row = |row: usize| bound.f32s(o.x)[row * cols..][..cols].to_vec();
        let rows: Vec<Vec<f32>> = (0..bound.live.rows).map(row).collect();
        bound.write_forms(o.out, &rows);
    }
}
