//! `x / rms · weight` of a part of each row, where the squares of the whole row are already summed up
//! ([`super::SumSquares`], [`super::AllReduce`]).

use super::extent::{Counts, Extent, f32s, strided};
use super::{F32, Op, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormPart;

params! {
    NormPartParams {
        cols: u32,
        /// Numbers whose squares are in the sum.
        summed: u32,
        epsilon: f32,
        /// Distance between rows of `squares`, in f32 elements.
        sum_stride: u32,
        /// Distance between rows of `out`, in f32 elements.
        out_stride: u32,
    }
}

operands! {
    NormPartOperands of NormPart as op {
        x: read F32,
        /// The sum of each row, at a distance of `sum_stride`.
        squares: read F32,
        weight: read F32,
        /// Rows at a distance of `out_stride`.
        out: write F32,
    }
}

impl Op for NormPart {
    type Params = NormPartParams;
    type Operands<T: Copy> = NormPartOperands<T>;

    fn name(self) -> String {
        "norm_part".into()
    }

    fn extents(self, p: &NormPartParams, counts: &Counts) -> Result<NormPartOperands<Extent>, String> {
        if p.cols == 0 || p.cols > p.summed {
            return Err(format!("{} columns of rows of {}", p.cols, p.summed));
        }
        Ok(NormPartOperands {
            x: f32s(counts.rows, p.cols),
            squares: strided(counts.rows, 1, p.sum_stride)?,
            weight: f32s(1, p.cols),
            out: strided(counts.rows, p.cols, p.out_stride)?,
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<NormPartParams>(), bound.operands(self));
        let (cols, rows) = (p.cols as usize, bound.live.rows);
        bound.write_f32s(o.out, |bound, out| {
            let weight = &bound.f32s(o.weight)[..cols];
            for row in 0..rows {
                let sum = f64::from(bound.f32s(o.squares)[row * p.sum_stride as usize]);
                let rms = (sum / f64::from(p.summed) + f64::from(p.epsilon)).sqrt();
                let x = &bound.f32s(o.x)[row * cols..][..cols];
                let out = &mut out[row * p.out_stride as usize..][..cols];
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = (f64::from(*x) / rms * f64::from(*weight)) as f32;
                }
            }
        });
    }
}
