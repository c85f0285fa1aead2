//! Rounds rows to int8 blocks ([`crate::q8`]).

use super::extent::{Counts, Extent, f32s, forms};
use super::rms_norm::OUT;
use super::{ElementParams, F32, Forms, Op, operands};
use crate::NormOut;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantise;

operands! {
    QuantiseOperands of Quantise as op {
        x: read F32,
        out: write Forms(NormOut::Q8, OUT),
    }
}

impl Op for Quantise {
    type Params = ElementParams;
    type Operands<T: Copy> = QuantiseOperands<T>;

    fn name(self) -> String {
        "quantise_q8".into()
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<QuantiseOperands<Extent>, String> {
        let out = forms(NormOut::Q8, counts.rows, p.cols)?;
        Ok(QuantiseOperands { x: f32s(counts.rows, p.cols), out })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let row = |row: usize| bound.f32s(o.x)[row * cols..][..cols].to_vec();
        let rows: Vec<Vec<f32>> = (0..bound.live.rows).map(row).collect();
        bound.write_forms(o.out, &rows);
    }
}
