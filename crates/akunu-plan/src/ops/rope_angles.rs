//! cos and sin of the angle of every pair, for each row's position: `[row][pair][cos, sin]`.

use super::extent::{Counts, Extent, f32s};
use super::{F32, Op, RowField, Rows, operands, params};
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeAngles;

params! {
    /// `magnitude` multiplies cos and sin (YaRN).
    AnglesParams { pairs: u32, magnitude: f32 }
}

operands! {
    AnglesOperands of RopeAngles as op {
        frequencies: read F32,
        rows: read Rows(&[RowField::Position]),
        angles: write F32,
    }
}

impl Op for RopeAngles {
    type Params = AnglesParams;
    type Operands<T: Copy> = AnglesOperands<T>;

    fn name(self) -> String {
        "rope_angles".into()
    }

    fn extents(self, p: &AnglesParams, counts: &Counts) -> Result<AnglesOperands<Extent>, String> {
        Ok(AnglesOperands {
            frequencies: f32s(1, p.pairs),
            rows: counts.rows(),
            angles: f32s(counts.rows, 2 * u64::from(p.pairs)),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<AnglesParams>(), bound.operands(self));
        let pairs = p.pairs as usize;
        bound.write_f32s(o.angles, |bound, out| {
            let frequencies = &bound.f32s(o.frequencies)[..pairs];
            for (row, out) in bound.rows(o.rows).iter().zip(out.chunks_exact_mut(pairs * 2)) {
                for (frequency, out) in frequencies.iter().zip(out.chunks_exact_mut(2)) {
                    let angle = f64::from(row.position) * f64::from(*frequency);
                    out[0] = (angle.cos() * f64::from(p.magnitude)) as f32;
                    out[1] = (angle.sin() * f64::from(p.magnitude)) as f32;
                }
            }
        });
    }
}
