//! Multiplies rows by their shares, for experts whose inputs are weighed instead of their outputs. Each row has one expert.
//! What is left of the shares for the sum of the outputs is 1.

use super::extent::{Counts, Extent, f32s};
use super::{ElementParams, F32, Op, operands};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeighInputs;

operands! {
    WeighInputsOperands of WeighInputs as op {
        x: read F32,
        /// `[row]`
        shares: read F32,
        out: write F32,
        /// `[row]`
        left: write F32,
    }
}

impl Op for WeighInputs {
    type Params = ElementParams;
    type Operands<T: Copy> = WeighInputsOperands<T>;

    fn name(self) -> String {
        "weigh_inputs".into()
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<WeighInputsOperands<Extent>, String> {
        let (rows, one) = (f32s(counts.rows, p.cols), f32s(counts.rows, 1_u64));
        Ok(WeighInputsOperands { x: rows, shares: one, out: rows, left: one })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let (rows, cols) = (bound.live.rows, p.cols as usize);
        bound.write_f32s(o.out, |bound, out| {
            let shares = &bound.f32s(o.shares)[..rows];
            let rows = out.chunks_exact_mut(cols).zip(bound.f32s(o.x).chunks_exact(cols)).zip(shares);
            for ((out, x), share) in rows {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = x * share);
            }
        });
        bound.write_f32s(o.left, |_, left| left[..rows].fill(1.0));
    }
}
