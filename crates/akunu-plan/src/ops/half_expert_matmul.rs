//! `x · Wᵀ` of f16 rows in the order of lanes ([`crate::halves`]), sorted by expert, and of quantised weights, which are rounded
//! to f16; exact products, f32 sums.

use super::expert_matmul::{ExpertParams, ExpertRows, cost, sizes, write_products};
use super::extent::{Counts, Extent, f16s, f32s, weight};
use super::gather::starts;
use super::half_matmul::check_packed;
use super::matmul::WEIGHT;
use super::{F16, F32, Indices, Op, Routing, Weight, operands};
use crate::reference::Bound;
use crate::table::Binding;
use crate::{Cost, DType, Row, halves, lower_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfExpertMatmul {
    pub weight: DType,
}

operands! {
    HalfExpertMatmulOperands of HalfExpertMatmul as op {
        x: read F16,
        x_scales: read F32,
        starts: read Indices,
        weight: read Weight(WEIGHT, op.weight),
        out: write F32,
    }
}

impl Op for HalfExpertMatmul {
    type Params = ExpertParams;
    type Operands<T: Copy> = HalfExpertMatmulOperands<T>;

    fn name(self) -> String {
        format!("half_experts_{}", lower_name(self.weight))
    }

    fn extents(
        self,
        p: &ExpertParams,
        counts: &Counts,
    ) -> Result<HalfExpertMatmulOperands<Extent>, String> {
        check_packed(self.weight, p.inputs)?;
        let (rows, all) = sizes(p, counts)?;
        Ok(HalfExpertMatmulOperands {
            x: f16s(rows as u64, p.inputs)?,
            x_scales: f32s(rows, 1_u64),
            starts: starts(p.experts),
            weight: weight(self.weight, p.inputs, all)?,
            out: f32s(rows, p.outputs),
        })
    }

    fn cost(self, p: &ExpertParams, rows: &[Row], _: usize) -> Cost {
        cost(p, (self.weight, false), 1, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ExpertParams>(), bound.operands(self));
        let y = products(&bound, &p, (o.x, o.x_scales, o.starts), (o.weight, self.weight));
        write_products(&mut bound, o.out, &y);
    }
}

/// `[row][output]`
pub(super) fn products(
    bound: &Bound<'_>,
    p: &ExpertParams,
    (x, x_scales, starts): (F16<Binding>, F32<Binding>, Indices<Binding>),
    (weight, dtype): (Weight<Binding>, DType),
) -> Vec<Vec<f64>> {
    let inputs = p.inputs as usize;
    let x = |row: usize| -> Vec<f64> {
        let numbers = halves::load(&bound.bytes(x.0)[row * inputs * 2..][..inputs * 2]);
        let scale = f64::from(bound.f32s(x_scales)[row]);
        (0..inputs).map(|element| scale * f64::from(numbers[halves::lane_place(element)])).collect()
    };
    let weight = |row: usize| -> Vec<f64> {
        let mut rounded = vec![0; inputs * 2];
        halves::store(&bound.weight_row(weight, dtype, row, inputs), 1.0, &mut rounded);
        halves::load(&rounded).into_iter().map(f64::from).collect()
    };
    ExpertRows::new(bound, p, Routing::Starts(starts), 1).products(p.outputs as usize, x, weight, |_| 0.0)
}
