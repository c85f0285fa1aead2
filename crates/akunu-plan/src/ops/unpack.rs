//! Converts the weights of a matrix to f16, for [`super::HalfMatmul`].

use super::extent::{Counts, Extent, f16s, weight};
use super::matmul::WEIGHT;
use super::{F16, Op, RowSet, Weight, operands, params};
use crate::reference::Bound;
use crate::{Cost, DType, Row, halves, lower_name, row_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unpack {
    pub weight: DType,
}

params! {
    /// Columns and rows of the matrix.
    UnpackParams { inputs: u32, outputs: u32 }
}

operands! {
    UnpackOperands of Unpack as op {
        weight: read Weight(WEIGHT, op.weight),
        out_f16: write F16,
    }
}

impl Op for Unpack {
    type Params = UnpackParams;
    type Operands<T: Copy> = UnpackOperands<T>;

    fn name(self) -> String {
        format!("unpack_{}", lower_name(self.weight))
    }

    fn row_set(self) -> Option<RowSet> {
        None
    }

    fn extents(self, p: &UnpackParams, _: &Counts) -> Result<UnpackOperands<Extent>, String> {
        Ok(UnpackOperands {
            weight: weight(self.weight, p.inputs, p.outputs)?,
            out_f16: f16s(p.outputs.into(), p.inputs)?,
        })
    }

    fn cost(self, p: &UnpackParams, _: &[Row], _: usize) -> Cost {
        Cost { weight_bytes: row_bytes(self.weight, p.inputs) * u64::from(p.outputs), ..Cost::default() }
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<UnpackParams>(), bound.operands(self));
        let cols = p.inputs as usize;
        bound.write(o.out_f16.0, |bound, to| {
            for (row, to) in to.chunks_exact_mut(cols * 2).take(p.outputs as usize).enumerate() {
                halves::store(&bound.weight_row(o.weight, self.weight, row, cols), 1.0, to);
            }
        });
    }
}
