//! `residual + x / rms(x) · weight`.

use super::extent::{Counts, Extent, f32s};
use super::{F32, NormParams, Op, operands};
use crate::NormKind;
use crate::reference::{Bound, normalise};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormAdd;

operands! {
    NormAddOperands of NormAdd as op {
        x: read F32,
        weight: read F32,
        residual: read F32,
        out: write F32,
    }
}

impl Op for NormAdd {
    type Params = NormParams;
    type Operands<T: Copy> = NormAddOperands<T>;

    fn name(self) -> String {
        "norm_add".into()
    }

    fn extents(self, p: &NormParams, counts: &Counts) -> Result<NormAddOperands<Extent>, String> {
        let rows = f32s(counts.rows, p.cols);
        Ok(NormAddOperands { x: rows, weight: f32s(1, p.cols), residual: rows, out: rows })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<NormParams>(), bound.operands(self));
        let (cols, rows) = (p.cols as usize, bound.live.rows);
        bound.write_f32s(o.out, |bound, out| {
            let weight = &bound.f32s(o.weight)[..cols];
            for (row, out) in out.chunks_exact_mut(cols).take(rows).enumerate() {
                let x = &bound.f32s(o.x)[row * cols..][..cols];
                let normed = normalise(NormKind::Rms, x, (weight, None), p.epsilon);
                let residual = &bound.f32s(o.residual)[row * cols..][..cols];
                for ((out, n), r) in out.iter_mut().zip(normed).zip(residual) {
                    *out = (f64::from(*r) + n) as f32;
                }
            }
        });
    }
}
