//! The sum of the squares of each row, for a norm of rows of which every rank has a part ([`super::NormPart`]).

use super::extent::{Counts, Extent, f32s, strided};
use super::{F32, Op, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumSquares;

params! {
    SumSquaresParams {
        cols: u32,
        /// Distance between rows of `out`, in f32 elements.
        out_stride: u32,
    }
}

operands! {
    SumSquaresOperands of SumSquares as op {
        x: read F32,
        /// A number for each row, at a distance of `out_stride`.
        out: write F32,
    }
}

impl Op for SumSquares {
    type Params = SumSquaresParams;
    type Operands<T: Copy> = SumSquaresOperands<T>;

    fn name(self) -> String {
        "sum_squares".into()
    }

    fn extents(self, p: &SumSquaresParams, counts: &Counts) -> Result<SumSquaresOperands<Extent>, String> {
        Ok(SumSquaresOperands { x: f32s(counts.rows, p.cols), out: strided(counts.rows, 1, p.out_stride)? })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<SumSquaresParams>(), bound.operands(self));
        let (cols, rows) = (p.cols as usize, bound.live.rows);
        bound.write_f32s(o.out, |bound, out| {
            for row in 0..rows {
                let x = &bound.f32s(o.x)[row * cols..][..cols];
                let squares = x.iter().map(|&v| f64::from(v) * f64::from(v));
                out[row * p.out_stride as usize] = squares.sum::<f64>() as f32;
            }
        });
    }
}
