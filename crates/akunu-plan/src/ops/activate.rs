//! `activation(x)`, elementwise.
//!
//! With [`RowSet::Logits`], its rows are the packed logit rows that the previous op wrote.

use super::extent::{Counts, Extent, f32s, forms};
use super::norm::OUT;
use super::{ElementParams, F32, Forms, Op, RowSet, operands};
use crate::reference::{Bound, activate};
use crate::{Activation, OutputForms, activation_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Activate {
    pub activation: Activation,
    pub out: OutputForms,
    pub rows: RowSet,
}

operands! {
    ActivateOperands of Activate as op {
        x: read F32,
        out: write Forms(op.out, OUT),
    }
}

impl Op for Activate {
    type Params = ElementParams;
    type Operands<T: Copy> = ActivateOperands<T>;

    fn name(self) -> String {
        let picked = if self.rows == RowSet::Logits { "_picked" } else { "" };
        format!("{}{picked}{}", activation_name(self.activation), self.out.suffix())
    }

    fn row_set(self) -> Option<RowSet> {
        Some(self.rows)
    }

    fn extents(self, p: &ElementParams, counts: &Counts) -> Result<ActivateOperands<Extent>, String> {
        let rows = counts.of(self.rows);
        Ok(ActivateOperands { x: f32s(rows, p.cols), out: forms(self.out, rows, p.cols)? })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ElementParams>(), bound.operands(self));
        let cols = p.cols as usize;
        let activated = |x: &f32| activate(self.activation, f64::from(*x)) as f32;
        let rows: Vec<Vec<f32>> = (0..bound.live_rows())
            .map(|row| bound.f32s(o.x)[row * cols..][..cols].iter().map(activated).collect())
            .collect();
        bound.write_forms(o.out, &rows);
    }
}
