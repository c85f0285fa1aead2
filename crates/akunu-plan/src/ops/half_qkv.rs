//! Q, K and V of f16 rows and of weights of one dtype, as [`super::HalfMatmul`] in one command, with adjacent outputs.

use super::extent::{Counts, Extent, f16s, f32s, weight};
use super::half_matmul::{cost, check_packed};
use super::qkv::{K, Q, V};
use super::{F16, F32, Op, QkvParams, Weight, operands};
use crate::reference::Bound;
use crate::{Cost, DType, Row, lower_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfQkv {
    pub weight: DType,
}

operands! {
    HalfQkvOperands of HalfQkv as op {
        x: read F16,
        x_scales: read F32,
        q_weight: read Weight(Q, op.weight),
        k_weight: read Weight(K, op.weight),
        v_weight: read Weight(V, op.weight),
        out: write F32,
    }
}

impl Op for HalfQkv {
    type Params = QkvParams;
    type Operands<T: Copy> = HalfQkvOperands<T>;

    fn name(self) -> String {
        format!("half_gemm_qkv_{}", lower_name(self.weight))
    }

    fn extents(self, p: &QkvParams, counts: &Counts) -> Result<HalfQkvOperands<Extent>, String> {
        check_packed(self.weight, p.inputs)?;
        let weight = |outputs: u32| weight(self.weight, p.inputs, outputs);
        let outputs = u64::from(p.q) + u64::from(p.k) + u64::from(p.v);
        Ok(HalfQkvOperands {
            x: f16s(counts.rows as u64, p.inputs)?,
            x_scales: f32s(counts.rows, 1_u64),
            q_weight: weight(p.q)?,
            k_weight: weight(p.k)?,
            v_weight: weight(p.v)?,
            out: f32s(counts.rows, outputs),
        })
    }

    fn cost(self, p: &QkvParams, rows: &[Row], _: usize) -> Cost {
        let outputs = u64::from(p.q) + u64::from(p.k) + u64::from(p.v);
        cost(self.weight, p.inputs, outputs, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<QkvParams>(), bound.operands(self));
        let stride = (p.q + p.k + p.v) as usize;
        let mut first = 0;
        for (weight, outputs) in [(o.q_weight, p.q), (o.k_weight, p.k), (o.v_weight, p.v)] {
            let shape = [p.inputs as usize, outputs as usize];
            let sums = bound.half_products(o.x, (weight, self.weight), shape, true);
            bound.write_f32s(o.out, |bound, out| {
                for (row, sums) in sums.iter().enumerate() {
                    let scale = f64::from(bound.f32s(o.x_scales)[row]);
                    for (i, sum) in sums.iter().enumerate() {
                        out[row * stride + first + i] = (scale * sum) as f32;
                    }
                }
            });
            first += outputs as usize;
        }
    }
}
