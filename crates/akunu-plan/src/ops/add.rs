//! `residual + scale · x`, elementwise.

use super::extent::{Counts, Extent, f32s};
use super::{F32, Op, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Add;

params! {
    AddParams { cols: u32, scale: f32 }
}

operands! {
    AddOperands of Add as op {
        x: read F32,
        residual: read F32,
        out: write F32,
    }
}

impl Op for Add {
    type Params = AddParams;
    type Operands<T: Copy> = AddOperands<T>;

    fn name(self) -> String {
        "add".into()
    }

    fn extents(self, p: &AddParams, counts: &Counts) -> Result<AddOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(AddOperands { x: rows, residual: rows, out: rows })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AddParams>(), bound.operands(self));
        let count = bound.live.rows * p.cols as usize;
        bound.write_f32s(o.out, |bound, out| {
            for ((out, x), r) in out.iter_mut().zip(bound.f32s(o.x)).zip(bound.f32s(o.residual)).take(count) {
                *out = (f64::from(*r) + f64::from(p.scale) * f64::from(*x)) as f32;
            }
        });
    }
}
