//! `glu(x · Gᵀ, x · Uᵀ)` of rows and weights as of [`super::HalfExpertMatmul`].

use super::expert_glu::GluKind;
use super::expert_matmul::{ExpertParams, cost, sizes, write_products};
use super::extent::{Counts, Extent, f16s, f32s, weight};
use super::gather::starts;
use super::glu_matmul::{GATE, UP};
use super::half_expert_matmul::products;
use super::half_matmul::check_packed;
use super::{F16, F32, Indices, Op, Weight, operands};
use crate::reference::Bound;
use crate::{Cost, DType, Row, lower_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfExpertGlu {
    pub weight: DType,
    pub glu: GluKind,
}

operands! {
    HalfExpertGluOperands of HalfExpertGlu as op {
        x: read F16,
        x_scales: read F32,
        starts: read Indices,
        gate_weight: read Weight(GATE, op.weight),
        up_weight: read Weight(UP, op.weight),
        out: write F32,
    }
}

impl Op for HalfExpertGlu {
    type Params = ExpertParams;
    type Operands<T: Copy> = HalfExpertGluOperands<T>;

    fn name(self) -> String {
        format!("half_experts_{}_glu_{}", self.glu.name(), lower_name(self.weight))
    }

    fn extents(self, p: &ExpertParams, counts: &Counts) -> Result<HalfExpertGluOperands<Extent>, String> {
        check_packed(self.weight, p.inputs)?;
        let (rows, all) = sizes(p, counts)?;
        let matrix = weight(self.weight, p.inputs, all)?;
        Ok(HalfExpertGluOperands {
            x: f16s(rows as u64, p.inputs)?,
            x_scales: f32s(rows, 1_u64),
            starts: starts(p.experts),
            gate_weight: matrix,
            up_weight: matrix,
            out: f32s(rows, p.outputs),
        })
    }

    fn cost(self, p: &ExpertParams, rows: &[Row], _: usize) -> Cost {
        cost(p, (self.weight, false), 2, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ExpertParams>(), bound.operands(self));
        let x = (o.x, o.x_scales, o.starts);
        let mut y = products(&bound, &p, x, (o.gate_weight, self.weight));
        let up = products(&bound, &p, x, (o.up_weight, self.weight));
        for (gate, up) in y.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = self.glu.apply(*gate, *up);
        }
        write_products(&mut bound, o.out, &y);
    }
}
