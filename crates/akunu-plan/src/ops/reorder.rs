//! The columns of rows in the order in which a matrix stores its inputs.

use super::extent::{Counts, Extent, f32s, order};
use super::{ElementParams, F32, Op, Order, operands};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reorder;

operands! {
    ReorderOperands of Reorder as op {
        x: read F32,
        /// The column of `x` that is at each place of `out`.
        order: read Order,
        out: write F32,
    }
}

impl Op for Reorder {
    type Params = ElementParams;
    type Operands<T: Copy> = ReorderOperands<T>;

    fn name(self) -> String {
        "reorder".into()
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<ReorderOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(ReorderOperands { x: rows, order: order(p.cols), out: rows })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        bound.write_f32s(o.out, |bound, out| {
            let (x, order) = (bound.f32s(o.x), bound.order(o.order));
            for row in 0..bound.live.rows {
                for (place, &column) in order[..cols].iter().enumerate() {
                    out[row * cols + place] = x[row * cols + (column as usize).min(cols - 1)];
                }
            }
        });
    }
}
