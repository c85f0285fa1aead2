//! `activation(gate) · up`, elementwise.

use super::extent::{Counts, Extent, f32s, forms};
use super::norm::OUT;
use super::{F32, Forms, Op, operands, params};
use crate::reference::{Bound, activate};
use crate::{Activation, OutputForms, activation_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Glu {
    pub activation: Activation,
    pub out: OutputForms,
}

params! {
    /// Number of elements in a row of an elementwise kernel.
    ElementParams { cols: u32 }
}

operands! {
    GluOperands of Glu as op {
        gate: read F32,
        up: read F32,
        out: write Forms(op.out, OUT),
    }
}

impl Op for Glu {
    type Params = ElementParams;
    type Operands<T: Copy> = GluOperands<T>;

    fn name(self) -> String {
        format!("{}_glu{}", activation_name(self.activation), self.out.suffix())
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<GluOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(GluOperands { gate: rows, up: rows, out: forms(self.out, counts.rows, p.cols)? })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let glu = |(g, u): (&f32, &f32)| (activate(self.activation, f64::from(*g)) * f64::from(*u)) as f32;
        let rows: Vec<Vec<f32>> = (0..bound.live.rows)
            .map(|row| {
                let of = |x| &bound.f32s(x)[row * cols..][..cols];
                of(o.gate).iter().zip(of(o.up)).map(glu).collect()
            })
            .collect();
        bound.write_forms(o.out, &rows);
    }
}
