//! Rows of f16, with scales and without; weights of f16; their products.

use akunu_plan::ops::{self, ElementParams, InputForm, MatmulParams, QkvParams, RoundParams, UnpackParams};
use akunu_plan::{Activation, DType, Kernel, KvType, OutputForms, RowSet, eights, halves};

use crate::attention::{Seen, attend};
use crate::case::{Case, Shape, Spec, spec};
use crate::data::{dtypes, f32s, outputs, pick, poison, values, weights};
use crate::matrices::shapes;
use crate::{cache, rows};

/// As f16.
const INFINITY: u16 = 0x7c00;

/// f16 rows of ordinary values, with scales of every kind, and the scales.
pub(crate) fn half_rows(seed: u64, rows: usize, cols: usize) -> [Vec<u8>; 2] {
    let mut numbers = vec![0; rows * cols * 2];
    for (row, to) in values(seed, rows * cols).chunks(cols).zip(numbers.chunks_mut(cols * 2)) {
        halves::store(row, 1.0, to);
    }
    let scales: Vec<f32> = (0..rows).map(|row| [1.0, 1.0, 64.0, 0.001_953_125][row % 4]).collect();
    [numbers, f32s(&scales)]
}

fn unpack(weight: DType, inputs: usize, outs: usize) -> Spec {
    spec(format!("unpack {weight} {outs}x{inputs}"), 1, move |_| {
        let mut data = weights(weight, 60, outs, inputs);
        data.push(poison(outs * inputs * 2));
        let params = UnpackParams { inputs: inputs as u32, outputs: outs as u32 };
        Case::new(Kernel::Unpack(ops::Unpack { weight }), params, Shape::rows(1), data)
    })
}

/// An activation of what a product has left in f16.
fn activate_unfinished(activation: Activation, (rows, cols): (usize, usize), bias: bool) -> Spec {
    spec(format!("{activation:?} of f16 {rows}x{cols}, bias {bias}"), rows, move |part| {
        let input = InputForm::F16 { bias };
        let out = [OutputForms::F16, OutputForms::F32AndF16][usize::from(bias)];
        let [mut numbers, scales] = half_rows(65, rows, cols);
        if rows == 7 {
            numbers[cols * 2 - 2..cols * 2].copy_from_slice(&INFINITY.to_le_bytes());
        }
        let mut data = vec![pick(&numbers, rows, &part), pick(&scales, rows, &part)];
        data.extend(bias.then(|| f32s(&values(66, cols))));
        data.extend(outputs(out, part.len(), cols));
        let op = ops::Activate { activation, input, out, rows: RowSet::All };
        Case::new(Kernel::Activate(op), ElementParams { cols: cols as u32 }, Shape::rows(part.len()), data)
    })
}

fn product_params([inputs, outs, stride]: [usize; 3]) -> MatmulParams {
    MatmulParams {
        inputs: inputs as u32,
        outputs: outs as u32,
        out_stride: stride as u32,
        ..MatmulParams::default()
    }
}

/// A product of f16 rows, whose outputs are `padding` apart. With f16, its sums are for a reader that scales them and adds the
/// bias.
fn half_matmul(
    weight: DType,
    [rows, inputs, outs, padding]: [usize; 4],
    [bias, residual, f16]: [bool; 3],
) -> Spec {
    let name =
        format!("half_matmul {weight} {rows}x{inputs}x{outs} bias {bias} residual {residual} f16 {f16}");
    spec(name, rows, move |part| {
        let stride = outs + padding;
        let params = product_params([inputs, outs, stride]);
        let [numbers, scales] = half_rows(61, rows, inputs);
        let mut data = vec![pick(&numbers, rows, &part), pick(&scales, rows, &part)];
        match weight {
            DType::F16 => data.extend(half_rows(62, outs, inputs).into_iter().take(1)),
            _ => data.extend(weights(weight, 62, outs, inputs)),
        }
        data.push(poison(part.len() * stride * if f16 { 2 } else { 4 }));
        if bias {
            data.push(f32s(&values(63, outs)));
        }
        if residual {
            data.push(pick(&f32s(&values(64, rows * stride)), rows, &part));
        }
        let op = ops::HalfMatmul { weight, bias, residual, f16, rows: RowSet::All };
        Case::new(Kernel::HalfMatmul(op), params, Shape::rows(part.len()), data)
    })
}

/// Logits of `asking` rows out of more.
fn picked_matmul(weight: DType, [asking, inputs, outs]: [usize; 3], bias: bool) -> Case {
    let params = product_params([inputs, outs, outs]);
    let mut data: Vec<Vec<u8>> = half_rows(91, asking, inputs).into();
    data.extend(weights(weight, 92, outs, inputs));
    data.push(poison(asking * outs * 4));
    data.extend(bias.then(|| f32s(&values(93, outs))));
    let op = ops::HalfMatmul { weight, bias, residual: false, f16: false, rows: RowSet::Logits };
    let asked = (0..asking as u32).map(|row| row * 2).collect();
    Case::new(Kernel::HalfMatmul(op), params, Shape::rows(2 * asking).asking(asked), data)
}

/// Logits of a few rows and of many, with every tile.
pub fn picked() -> Vec<Case> {
    let shapes =
        [[1, 128, 33], [40, 384, 200], [70, 1152, 70], [150, 256, 130], [300, 512, 64], [40, 4608, 64]];
    let cases = shapes.into_iter().enumerate();
    cases
        .flat_map(|(turn, shape)| {
            [DType::F16, DType::BF16, DType::Q4_0].map(|dtype| picked_matmul(dtype, shape, turn % 2 == 0))
        })
        .collect()
}

pub fn halves() -> Vec<Spec> {
    let mut specs = vec![];
    for (shape, out) in [
        ((4, 2, 40), OutputForms::F16),
        ((3, 1, 80), OutputForms::F32AndF16),
        ((4, 2, 32), OutputForms::F16Lanes),
        ((2, 1, 64), OutputForms::F32AndF16Lanes),
    ] {
        let seen = Seen { rows: 5, first: 20, window: 0, soft_cap: 0.0, factor_step: 0, paged: true };
        specs.push(attend(shape, KvType::F16, seen, out));
    }
    specs.extend(rows::in_halves());
    for (kv, shape) in [(KvType::F16, (9, 4, 64)), (KvType::F32, (6, 2, 20)), (KvType::F16, (5, 3, 12))] {
        specs.extend([false, true].map(|bias| cache::unfinished(kv, bias, shape)));
    }
    for dtype in dtypes().into_iter().filter(|dtype| *dtype != DType::F32) {
        for (inputs, outs) in shapes(dtype).into_iter().filter(|(inputs, _)| inputs.is_multiple_of(8)) {
            specs.push(unpack(dtype, inputs, outs));
        }
    }
    for (i, (rows, inputs, outs)) in [(17, 64, 33), (40, 96, 20), (19, 8, 5)].into_iter().enumerate() {
        for turn in 0..4 {
            let padding = usize::from(outs == 20) * 3;
            let added = [(turn + i) % 2 == 0, turn >= 2, false];
            specs.push(half_matmul(DType::F16, [rows, inputs, outs, padding], added));
        }
        let outs = outs.next_multiple_of(halves::WHOLE);
        specs.push(half_matmul(DType::F16, [rows, inputs, outs, 0], [false, false, true]));
    }
    for (i, shape) in [(5, 32), (7, 96), (6, 1064), (3, 14344)].into_iter().enumerate() {
        let activation = rows::ACTIVATIONS[(i + 1) % 5];
        specs.extend([false, true].map(|bias| activate_unfinished(activation, shape, bias)));
    }
    specs
}

/// A product of FP8 rows and weights, whose outputs are `padding` apart.
fn eight_matmul([rows, inputs, outs, padding]: [usize; 4], [bias, residual]: [bool; 2]) -> Spec {
    let name = format!("eight_matmul {rows}x{inputs}x{outs} bias {bias} residual {residual}");
    spec(name, rows, move |part| {
        let stride = outs + padding;
        let params = product_params([inputs, outs, stride]);
        let x = values(81, rows * inputs);
        let mut codes = vec![0; rows * inputs];
        let scales: Vec<f32> = x.chunks(inputs).map(eights::scale_of).collect();
        for ((row, scale), to) in x.chunks(inputs).zip(&scales).zip(codes.chunks_mut(inputs)) {
            eights::store(row, *scale, to);
        }
        let mut data = vec![pick(&codes, rows, &part), pick(&f32s(&scales), rows, &part)];
        data.extend(weights(ops::EIGHTS, 82, outs, inputs));
        data.push(poison(part.len() * stride * 4));
        data.extend(bias.then(|| f32s(&values(83, outs))));
        data.extend(residual.then(|| pick(&f32s(&values(84, rows * stride)), rows, &part)));
        let op = ops::EightMatmul { bias, residual };
        Case::new(Kernel::EightMatmul(op), params, Shape::rows(part.len()), data)
    })
}

/// Rows of FP8, and their products with FP8 weights.
pub fn eights() -> Vec<Spec> {
    let mut specs = rows::in_eights();
    for (i, shape) in [[17, 64, 33, 0], [40, 96, 20, 3], [19, 16, 5, 0]].into_iter().enumerate() {
        specs.extend([0, 1].map(|turn| eight_matmul(shape, [(turn + i) % 2 == 0, turn > 0])));
    }
    specs.push(eight_matmul([9, 32, 16, 0], [false, false]));
    for (rows, cols) in [(5, 32), (6, 1072)] {
        specs.push(spec(format!("round f16 {rows}x{cols} to FP8"), rows, move |part| {
            let op = ops::Round { input: InputForm::F16 { bias: false }, out: OutputForms::F8 };
            let mut data: Vec<_> =
                half_rows(85, rows, cols).iter().map(|all| pick(all, rows, &part)).collect();
            data.extend(outputs(OutputForms::F8, part.len(), cols));
            let params = RoundParams { cols: cols as u32, times: 1 };
            Case::new(Kernel::Round(op), params, Shape::rows(part.len()), data)
        }));
    }
    specs
}

/// With f16 if nothing is added.
fn packed_matmul(weight: DType, [rows, inputs, outs]: [usize; 3], [bias, residual]: [bool; 2]) -> Spec {
    let padding = 8 * usize::from(residual);
    half_matmul(weight, [rows, inputs, outs, padding], [bias, residual, !bias && !residual])
}

fn packed_qkv(weight: DType, [rows, inputs]: [usize; 2]) -> Spec {
    spec(format!("packed_qkv {weight} {rows}x{inputs}"), rows, move |part| {
        let sizes = [72, 24, 40];
        let params = QkvParams { inputs: inputs as u32, q: sizes[0], k: sizes[1], v: sizes[2] };
        let [numbers, scales] = half_rows(71, rows, inputs);
        let mut data = vec![pick(&numbers, rows, &part), pick(&scales, rows, &part)];
        data.extend((0..3).flat_map(|i| weights(weight, 72 + i, sizes[i as usize] as usize, inputs)));
        data.push(poison(part.len() * 136 * 4));
        Case::new(Kernel::HalfQkv(ops::HalfQkv { weight }), params, Shape::rows(part.len()), data)
    })
}

/// Products of f16 rows with packed weights, with every tile, and attention that leaves such rows.
pub fn packed() -> Vec<Spec> {
    let mut specs = vec![];
    for (rows, shape, out) in [
        (70, (4, 2, 64), OutputForms::F16Lanes),
        (40, (2, 1, 128), OutputForms::F16Lanes),
        (20, (4, 4, 32), OutputForms::F32AndF16Lanes),
        (3, (2, 1, 128), OutputForms::F16Lanes),
    ] {
        let seen = Seen { rows, first: 20, window: 0, soft_cap: 0.0, factor_step: 0, paged: true };
        specs.push(attend(shape, KvType::F16, seen, out));
    }
    for (turn, dtype) in dtypes().into_iter().filter(|dtype| dtype.is_quantised()).enumerate() {
        let inputs = |least: usize| least.next_multiple_of(dtype.block_len().max(halves::GROUP));
        let [bias, residual] = [turn % 2 == 0, turn % 3 == 0];
        for (rows, least, outs) in [(17, 128, 33), (40, 544, 200), (70, 1056, 70)] {
            specs.push(packed_matmul(dtype, [rows, inputs(least), outs], [bias, residual]));
        }
        specs.push(packed_qkv(dtype, [33, inputs(96)]));
    }
    for (turn, rows) in [33, 64, 100, 128, 200, 300].into_iter().enumerate() {
        for outs in [64, 200] {
            specs.push(packed_matmul(DType::Q4_0, [rows, 384 + 128 * turn, outs], [turn % 2 == 0, true]));
        }
    }
    // Few outputs of many inputs, which two threadgroups split, or four: also with tiles one below the other, and within the
    // blocks of 256 weights of a type.
    let split = [[40, 4608, 64], [64, 4096, 70], [130, 5120, 60], [100, 4096, 64]];
    for (turn, [rows, inputs, outs]) in split.into_iter().enumerate() {
        specs.push(packed_matmul(DType::Q4_0, [rows, inputs, outs], [turn == 0, turn == 1]));
        specs.push(packed_matmul(DType::Q6K, [rows, inputs, outs], [turn == 1, turn == 2]));
    }
    specs
}
