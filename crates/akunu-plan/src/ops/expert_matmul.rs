//! `x · Wᵀ (+ bias)` of rows sorted by expert, each with the matrix of its expert. The matrices are adjacent.

use super::extent::{Counts, Extent, f32s, input, weight};
use super::gather::starts;
use super::matmul::{WEIGHT, product_name};
use super::route::check_experts;
use super::{F32, Indices, Input, Op, Routing, Weight, operands, params};
use crate::reference::Bound;
use crate::table::Binding;
use crate::{Cost, DType, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertMatmul {
    pub weight: DType,
    /// Whether the input is in int8 blocks.
    pub q8: bool,
    pub bias: bool,
}

params! {
    ExpertParams {
        inputs: u32,
        /// Of one expert.
        outputs: u32,
        experts: u32,
        top: u32,
    }
}

operands! {
    ExpertMatmulOperands of ExpertMatmul as op {
        /// `rows · top` rows.
        x: read Input(op.q8),
        starts: read Indices,
        weight: read Weight(WEIGHT, op.weight),
        out: write F32,
        bias: read F32 if op.bias,
    }
}

impl Op for ExpertMatmul {
    type Params = ExpertParams;
    type Operands<T: Copy> = ExpertMatmulOperands<T>;

    fn name(self) -> String {
        let bias = if self.bias { "_bias" } else { "" };
        format!("experts_{}{bias}", product_name(self.weight, self.q8, false))
    }

    fn extents(self, p: &ExpertParams, counts: &Counts) -> Result<ExpertMatmulOperands<Extent>, String> {
        let (rows, all) = sizes(p, counts)?;
        Ok(ExpertMatmulOperands {
            x: input(self.q8, rows, p.inputs)?,
            starts: starts(p.experts),
            weight: weight(self.weight, p.inputs, all)?,
            out: f32s(rows, p.outputs),
            bias: self.bias.then(|| f32s(1, all)),
        })
    }

    fn cost(self, p: &ExpertParams, rows: &[Row], _: usize) -> Cost {
        cost(p, (self.weight, self.q8), 1, rows.len())
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<ExpertParams>(), bound.operands(self));
        let rows = ExpertRows::new(&bound, &p, Routing::Starts(o.starts), 1);
        let y = expert_products(&bound, &p, (o.x, &rows), (o.weight, self.weight), o.bias);
        write_products(&mut bound, o.out, &y);
    }
}

/// Writes `[row][output]` as f32.
pub(super) fn write_products(bound: &mut Bound<'_>, out: F32<Binding>, y: &[Vec<f64>]) {
    bound.write_f32s(out, |_, out| {
        for (out, y) in out.iter_mut().zip(y.iter().flatten()) {
            *out = *y as f32;
        }
    });
}

/// The number of rows that have an expert each, and the outputs of all experts.
pub(super) fn sizes(p: &ExpertParams, counts: &Counts) -> Result<(usize, u32), String> {
    check_experts(p.experts, p.top)?;
    let all = p.outputs.checked_mul(p.experts);
    let all = all.ok_or_else(|| format!("{} outputs of each of {} experts", p.outputs, p.experts))?;
    Ok((counts.rows * p.top as usize, all))
}

/// Which experts are read is known only when a pass runs. This counts as many as its rows can be routed to.
pub(super) fn cost(p: &ExpertParams, (weight, q8): (DType, bool), matrices: u64, rows: usize) -> Cost {
    let picked = rows * p.top as usize;
    let experts = picked.min(p.experts as usize) as u64;
    let one = Cost::product(weight, p.inputs, matrices * u64::from(p.outputs), 1, q8);
    Cost {
        weight_bytes: one.weight_bytes * experts,
        int8_ops: one.int8_ops * picked as u64,
        f32_ops: one.f32_ops * picked as u64,
        ..one
    }
}

/// The rows of each expert, and how many of them read each row of the input.
pub(super) struct ExpertRows {
    of: Vec<Vec<usize>>,
    each: usize,
    /// All rows that have an expert.
    count: usize,
}

impl ExpertRows {
    pub fn new(bound: &Bound<'_>, p: &ExpertParams, routing: Routing<Binding>, each: usize) -> ExpertRows {
        let (experts, rows) = (p.experts as usize, bound.live.rows * p.top as usize);
        let of = match routing {
            Routing::Starts(starts) => {
                let starts = bound.indices(starts);
                let limit = |at: usize| (starts[at] as usize).min(rows);
                (0..experts).map(|expert| (limit(expert)..limit(expert + 1)).collect()).collect()
            }
            Routing::Picks(picks) => {
                let mut of = vec![vec![]; experts];
                for (row, pick) in bound.indices(picks)[..rows].iter().enumerate() {
                    of[(*pick as usize).min(experts - 1)].push(row);
                }
                of
            }
        };
        ExpertRows { of, each, count: rows }
    }

    /// `outputs` sums of each row: of its input, and the weights and the bias of its expert.
    pub fn products(
        &self,
        outputs: usize,
        x: impl Fn(usize) -> Vec<f64>,
        weight: impl Fn(usize) -> Vec<f64>,
        bias: impl Fn(usize) -> f64,
    ) -> Vec<Vec<f64>> {
        let mut y = vec![vec![0.0; outputs]; self.count];
        for (expert, of_expert) in self.of.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            let x: Vec<Vec<f64>> = of_expert.iter().map(|row| x(row / self.each)).collect();
            for output in 0..outputs {
                let of_all = expert * outputs + output;
                let (w, bias) = (weight(of_all), bias(of_all));
                for (x, row) in x.iter().zip(of_expert) {
                    let y = &mut y[*row];
                    y[output] = x.iter().zip(&w).map(|(x, w)| x * w).sum::<f64>() + bias;
                }
            }
        }
        y
    }
}

/// The products of the reference device: `[row][output]`.
pub(super) fn expert_products(
    bound: &Bound<'_>,
    p: &ExpertParams,
    (x, rows): (Input<Binding>, &ExpertRows),
    (weight, dtype): (Weight<Binding>, DType),
    bias: Option<F32<Binding>>,
) -> Vec<Vec<f64>> {
    let inputs = p.inputs as usize;
    let x = |row: usize| bound.input_row(x, row, inputs);
    let w = |row: usize| -> Vec<f64> {
        bound.weight_row(weight, dtype, row, inputs).into_iter().map(f64::from).collect()
    };
    let bias = |row: usize| bias.map_or(0.0, |bias| f64::from(bound.f32s(bias)[row]));
    rows.products(p.outputs as usize, x, w, bias)
}
