//! The sum of what all ranks have computed, and the residual: `residual + Σ x` over ranks, in their order.

use super::extent::{Counts, Extent, f32s};
use super::{ElementParams, F32, Op, operands};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduce {
    pub residual: bool,
}

operands! {
    AllReduceOperands of AllReduce as op {
        x: read F32,
        out: write F32,
        residual: read F32 if op.residual,
    }
}

impl Op for AllReduce {
    type Params = ElementParams;
    type Operands<T: Copy> = AllReduceOperands<T>;

    fn name(self) -> String {
        if self.residual { "all_reduce_add".into() } else { "all_reduce".into() }
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<AllReduceOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(AllReduceOperands { x: rows, out: rows, residual: self.residual.then_some(rows) })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let count = bound.live.rows * p.cols as usize;
        let parts = bound.exchange(o.x, count);
        bound.write_f32s(o.out, |bound, out| {
            for (i, out) in out.iter_mut().enumerate().take(count) {
                let residual = o.residual.map_or(0.0, |residual| f64::from(bound.f32s(residual)[i]));
                *out = (residual + parts.iter().map(|part| f64::from(part[i])).sum::<f64>()) as f32;
            }
        });
    }
}
