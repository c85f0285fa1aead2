//! Mixtures of experts: routing, rows sorted by expert, products with the matrices of each row's expert, and their sum.

use akunu_plan::ops::{
    self, CombineParams, ElementParams, ExpertParams, GatherParams, GluKind, RoundParams, RouteParams,
};
use akunu_plan::{Activation, DType, GroupRank, Kernel, OutputForms, Scores, halves};

use crate::case::{Case, Shape, Spec, spec};
use crate::data::{dtypes, f32s, input, outputs, pick, poison, q8_rows, values, weights};
use crate::halves::half_rows;
use crate::rows::{ACTIVATIONS, OUTS};

const SILU: GluKind = GluKind::Plain(Activation::Silu);

fn u32s(values: &[u32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The experts of each row: those of the first rows differ, and the rest go to few.
fn picks(rows: usize, experts: usize, top: usize) -> Vec<u32> {
    let few = experts.min(top + 1);
    let of = |row: usize, k: usize| if row < experts { (row * 3 + k) % experts } else { (row + k) % few };
    (0..rows).flat_map(|row| (0..top).map(move |k| of(row, k) as u32)).collect()
}

fn starts(picks: &[u32], experts: usize) -> Vec<u32> {
    (0..=experts as u32).map(|expert| picks.iter().filter(|pick| **pick < expert).count() as u32).collect()
}

/// Router logits: with equal ones, zeros of both signs, infinities, and a row with a NaN.
fn route(op: ops::Route, (rows, experts, top): Routed, groups: [usize; 2]) -> Spec {
    let name = format!("{} {rows}x{experts} top {top} groups {groups:?}", Kernel::Route(op).name());
    spec(name, rows, move |part| {
        let mut logits = values(81, rows * experts);
        logits.iter_mut().for_each(|logit| *logit *= 4.0);
        for (row, logits) in logits.chunks_mut(experts).enumerate() {
            match row % 5 {
                1 => logits.iter_mut().for_each(|logit| *logit = logit.round()),
                2 => logits.fill(if row % 2 == 0 { 0.0 } else { -0.0 }),
                3 => logits[experts / 2] = f32::NAN,
                4 => logits[experts - 1] = f32::NEG_INFINITY,
                _ => {}
            }
        }
        let params = RouteParams {
            experts: experts as u32,
            top: top as u32,
            groups: groups[0] as u32,
            groups_used: groups[1] as u32,
            scale: 1.25,
            epsilon: if op.normalised && op.corrected { 1e-3 } else { 0.0 },
            tolerance: if op.scores == Scores::SparseMixer { 0.25 } else { 0.0 },
        };
        let chosen = || poison(part.len() * top * 4);
        let mut data = vec![pick(&f32s(&logits), rows, &part)];
        data.extend(op.corrected.then(|| f32s(&values(80, experts))));
        data.extend([chosen(), chosen()]);
        Case::new(Kernel::Route(op), params, Shape::rows(part.len()), data)
    })
}

pub(crate) fn gather(rows: usize, cols: usize, (experts, top): (usize, usize), form: OutputForms) -> Case {
    let params = GatherParams { cols: cols as u32, experts: experts as u32, top: top as u32 };
    let mut data = vec![u32s(&picks(rows, experts, top))];
    if form.f32() {
        data.push(f32s(&values(82, rows * cols)));
    }
    if form.q8() {
        data.push(q8_rows(83, rows, cols));
    }
    if form.f16() {
        data.extend(half_rows(100, rows, cols));
    }
    data.extend(outputs(form, rows * top, cols));
    data.push(poison((experts + 1) * 4));
    data.push(poison(rows * top * 4));
    Case::new(Kernel::Gather(ops::Gather { form }), params, Shape::rows(rows), data)
}

/// Rows, experts and experts of a row.
pub(crate) type Routed = (usize, usize, usize);

pub(crate) fn expert_matmul(
    dtype: DType,
    (rows, experts, top): Routed,
    [inputs, outs]: [usize; 2],
    bias: bool,
) -> Case {
    let op = ops::ExpertMatmul { weight: dtype, q8: dtype.is_quantised(), bias };
    let sorted = rows * top;
    let mut data = vec![input(dtype, 84, sorted, inputs), routing((rows, experts, top), false)];
    data.extend(weights(dtype, 85, experts * outs, inputs));
    data.push(poison(sorted * outs * 4));
    data.extend(bias.then(|| f32s(&values(86, experts * outs))));
    Case::new(op.into(), params([inputs, outs], experts, top), Shape::rows(rows), data)
}

pub(crate) fn expert_glu(
    dtype: DType,
    (rows, experts, top): Routed,
    [inputs, outs]: [usize; 2],
    (glu, out): (GluKind, OutputForms),
    (bias, picked): (bool, bool),
) -> Case {
    let op = ops::ExpertGlu { weight: dtype, q8: dtype.is_quantised(), bias, glu, out, picked };
    let sorted = rows * top;
    let read = if picked { rows } else { sorted };
    let mut data = vec![input(dtype, 87, read, inputs), routing((rows, experts, top), picked)];
    data.extend((0..2).flat_map(|i| weights(dtype, 88 + i, experts * outs, inputs)));
    data.extend(outputs(out, sorted, outs));
    if bias {
        // Some beyond the limits of a clamped kind.
        let scale = if glu == GluKind::Clamped { 8.0 } else { 1.0 };
        let biases =
            |seed: u64| values(seed, experts * outs).iter().map(|value| scale * value).collect::<Vec<_>>();
        data.extend((90..92).map(|seed| f32s(&biases(seed))));
    }
    Case::new(op.into(), params([inputs, outs], experts, top), Shape::rows(rows), data)
}

/// Products of f16 rows in the order of lanes: down, and gate and up.
fn packed_expert_matmul(weight: DType, routed: Routed, [inputs, outs]: [usize; 2]) -> Case {
    let (rows, experts, top) = routed;
    let mut data: Vec<Vec<u8>> = half_rows(101, rows * top, inputs).into();
    data.push(routing(routed, false));
    data.extend(weights(weight, 102, experts * outs, inputs));
    data.push(poison(rows * top * outs * 4));
    let op = ops::HalfExpertMatmul { weight };
    Case::new(op.into(), params([inputs, outs], experts, top), Shape::rows(rows), data)
}

fn packed_expert_glu(weight: DType, routed: Routed, [inputs, outs]: [usize; 2], glu: GluKind) -> Case {
    let (rows, experts, top) = routed;
    let [numbers, mut scales] = half_rows(103, rows * top, inputs);
    if glu == GluKind::Clamped {
        // Limits hide how large the sums are that an error belongs to.
        scales = f32s(&vec![1.0; rows * top]);
    }
    let mut data = vec![numbers, scales];
    data.push(routing(routed, false));
    data.extend((104..106).flat_map(|seed| weights(weight, seed, experts * outs, inputs)));
    data.push(poison(rows * top * outs * 4));
    let op = ops::HalfExpertGlu { weight, glu };
    Case::new(op.into(), params([inputs, outs], experts, top), Shape::rows(rows), data)
}

/// Rounds `times` rows for each row of the pass.
pub(crate) fn round_times(out: OutputForms, [rows, times, cols]: [usize; 3]) -> Case {
    let mut data = vec![f32s(&values(107, rows * times * cols))];
    data.extend(outputs(out, rows * times, cols));
    let op = ops::Round { input: ops::InputForm::F32, out };
    let params = RoundParams { cols: cols as u32, times: times as u32 };
    Case::new(op.into(), params, Shape::rows(rows), data)
}

/// Packed experts, and what writes their rows.
pub fn packed_experts() -> Vec<Case> {
    let mut cases = vec![
        gather(9, 128, (5, 3), OutputForms::F16Lanes),
        gather(300, 256, (3, 2), OutputForms::F16Lanes),
        round_times(OutputForms::F16Lanes, [5, 3, 256]),
    ];
    // Experts without rows, with one tile, with several, and one expert for all.
    let routed = [(20, 6, 2), (70, 3, 2), (150, 2, 1), (130, 1, 1), (300, 3, 2)];
    let of_types = dtypes().into_iter().filter(|dtype| dtype.is_quantised()).enumerate();
    for (turn, dtype) in
        of_types.chain([(1, DType::Q4_0), (2, DType::Q4_0), (3, DType::Q4_0), (4, DType::Q4_0)])
    {
        let inputs = (128 + 128 * (turn % 3)).next_multiple_of(dtype.block_len().max(halves::GROUP));
        let (routed, outs) = (routed[turn % 5], [64, 70, 132][turn % 3]);
        cases.push(packed_expert_matmul(dtype, routed, [inputs, outs]));
        let kinds = [SILU, GluKind::Plain(ACTIVATIONS[turn % 5]), GluKind::Clamped];
        cases.push(packed_expert_glu(dtype, routed, [inputs, outs], kinds[turn % 3]));
    }
    cases
}

/// Where the rows of each expert begin, or the experts of all rows, of which one does not exist if there are several.
fn routing((rows, experts, top): Routed, picked: bool) -> Vec<u8> {
    let mut picks = picks(rows, experts, top);
    if !picked {
        return u32s(&starts(&picks, experts));
    }
    if let [_, .., last] = &mut picks[..] {
        *last = u32::MAX;
    }
    u32s(&picks)
}

fn params([inputs, outs]: [usize; 2], experts: usize, top: usize) -> ExpertParams {
    ExpertParams { inputs: inputs as u32, outputs: outs as u32, experts: experts as u32, top: top as u32 }
}

/// `options`: a shared expert, its gate, a residual.
pub(crate) fn expert_sum(
    dtype: DType,
    (rows, experts, top): Routed,
    [inputs, outs]: [usize; 2],
    (bias, options): (bool, [bool; 3]),
) -> Case {
    let [shared, gated, residual] = options;
    let op = ops::ExpertSum { weight: dtype, q8: dtype.is_quantised(), bias, shared, gated, residual };
    let picked = rows * top;
    let mut data = vec![input(dtype, 84, picked, inputs), routing((rows, experts, top), true)];
    data.push(f32s(&values(93, picked)));
    data.extend(weights(dtype, 85, experts * outs, inputs));
    data.push(poison(rows * outs * 4));
    data.extend(bias.then(|| f32s(&values(86, experts * outs))));
    data.extend(added(rows, outs, options));
    Case::new(op.into(), params([inputs, outs], experts, top), Shape::rows(rows), data)
}

/// What is added to the sum of a row's experts.
fn added(rows: usize, cols: usize, [shared, gated, residual]: [bool; 3]) -> impl Iterator<Item = Vec<u8>> {
    let shared = shared.then(|| f32s(&values(94, rows * cols)));
    let gate = gated.then(|| f32s(&values(95, rows)));
    let residual = residual.then(|| f32s(&values(96, rows * cols)));
    shared.into_iter().chain(gate).chain(residual)
}

pub(crate) fn combine(rows: usize, cols: usize, top: usize, options: [bool; 3]) -> Case {
    let [shared, gated, residual] = options;
    let params = CombineParams { cols: cols as u32, top: top as u32 };
    let all = rows * top;
    let places: Vec<u32> = (0..all).map(|pick| ((pick * 5 + 2) % all) as u32).collect();
    let mut data = vec![f32s(&values(92, all * cols)), u32s(&places), f32s(&values(93, all))];
    data.push(poison(rows * cols * 4));
    data.extend(added(rows, cols, options));
    Case::new(Kernel::Combine(ops::Combine { shared, gated, residual }), params, Shape::rows(rows), data)
}

pub(crate) fn weigh_inputs(rows: usize, cols: usize) -> Case {
    let data = vec![
        f32s(&values(97, rows * cols)),
        f32s(&values(98, rows)),
        poison(rows * cols * 4),
        poison(rows * 4),
    ];
    let params = ElementParams { cols: cols as u32 };
    Case::new(Kernel::WeighInputs(ops::WeighInputs), params, Shape::rows(rows), data)
}

/// Each row on its own.
pub fn routes() -> Vec<Spec> {
    let plain = ops::Route { scores: Scores::Softmax, normalised: false, corrected: false, groups: None };
    let mut cases = vec![];
    for routed in [(1, 8, 2), (7, 8, 1), (6, 5, 5), (40, 128, 8), (5, 60, 4), (5, 1024, 3), (1, 1, 1)] {
        for normalised in [true, false] {
            for scores in [Scores::Softmax, Scores::Sigmoid] {
                let op = ops::Route { scores, normalised, ..plain };
                cases.push(route(op, routed, [1, 1]));
                cases.push(route(ops::Route { corrected: true, ..op }, routed, [1, 1]));
            }
        }
        cases.push(route(ops::Route { scores: Scores::SparseMixer, ..plain }, routed, [1, 1]));
    }
    let grouped = [
        ((6, 8, 3), [4, 2]),
        ((7, 6, 4), [3, 2]),
        ((5, 256, 8), [8, 4]),
        ((5, 160, 6), [8, 3]),
        ((6, 1024, 5), [512, 7]),
        ((5, 9, 2), [3, 1]),
    ];
    for (i, (routed, groups)) in grouped.into_iter().enumerate() {
        for rank in [GroupRank::Best, GroupRank::TwoBest] {
            for (j, scores) in [Scores::Softmax, Scores::Sigmoid].into_iter().enumerate() {
                let op =
                    ops::Route { scores, normalised: (i + j) % 2 == 0, corrected: false, groups: Some(rank) };
                cases.push(route(op, routed, groups));
                cases.push(route(ops::Route { corrected: true, ..op }, routed, groups));
            }
        }
    }
    // Groups of one.
    cases.push(route(ops::Route { groups: Some(GroupRank::Best), ..plain }, (5, 7, 3), [7, 4]));
    cases
}

/// What depends on all rows of a pass.
pub fn experts() -> Vec<Case> {
    let mut cases = vec![];
    // One row; as many rows as experts; experts without rows; one expert for all; more rows than share an unpacking of
    // the weights.
    let routed = [(1, 6, 2), (6, 6, 6), (5, 40, 3), (9, 1, 1), (70, 4, 2), (300, 3, 2)];
    for (i, (rows, experts, top)) in routed.into_iter().enumerate() {
        for form in [OutputForms::F32, OutputForms::Q8, OutputForms::Both] {
            cases.push(gather(rows, 96, (experts, top), form));
        }
        cases.push(round_times(OutputForms::Q8, [rows, top, 96]));
        cases.push(weigh_inputs(rows, 300));
        cases.push(weigh_inputs(rows, 37));
        cases.push(gather(rows, 37, (experts, top), OutputForms::F32));
        cases.push(combine(rows, 300, top, [i % 2 == 0, i % 4 == 0, i % 3 == 0]));
        cases.push(combine(rows, 37, top, [i % 2 == 1, false, i % 3 == 1]));
    }
    for (i, dtype) in dtypes().into_iter().enumerate() {
        let inputs = match dtype.block_len() {
            1 => 100,
            len => 2 * len.max(48),
        };
        for (j, routed) in routed.into_iter().take(5).enumerate() {
            let bias = (i + j) % 2 == 0;
            // Many rows are always sorted.
            let picked = [false, true].into_iter().filter(|picked| !picked || routed.0 <= 6);
            let matrix = [inputs, [33, 20, 64][j % 3]];
            cases.push(expert_matmul(dtype, routed, matrix, bias));
            if routed.0 <= 6 {
                let options = [(i + j) % 2 == 0, (i + j) % 4 == 0, (i + j) % 3 != 0];
                cases.push(expert_sum(dtype, routed, matrix, (j % 2 == 0, options)));
            }
            let activation = GluKind::Plain(ACTIVATIONS[(i + j) % 5]);
            let glu = if (i + j) % 4 == 3 { GluKind::Clamped } else { activation };
            let (form, matrix) = ((glu, OUTS[(i + j) % 3]), [inputs, [64, 96][j % 2]]);
            cases.extend(picked.map(|picked| expert_glu(dtype, routed, matrix, form, (!bias, picked))));
        }
        cases.push(expert_glu(dtype, (3, 4, 2), [inputs, 41], (SILU, OutputForms::F32), (false, i % 2 == 0)));
    }
    for dtype in [DType::Q4_0, DType::Q4K, DType::F16] {
        cases.push(expert_matmul(dtype, (300, 3, 2), [512, 48], false));
        // More outputs than a worker takes at once.
        cases.push(expert_sum(dtype, (1, 9, 4), [512, 1056], (false, [false, false, true])));
        // More outputs than a worker takes at once.
        for picked in [false, true] {
            let form = (SILU, OutputForms::Both);
            cases.push(expert_glu(dtype, (1, 9, 4), [512, 1056], form, (false, picked)));
        }
    }
    cases
}
