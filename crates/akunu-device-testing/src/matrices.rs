//! Products: of rows with one weight, with queries', keys' and values' weights, and with gated ones.

use akunu_plan::ops::{self, GluMatmulParams, MatmulParams, QkvParams};
use akunu_plan::{Activation, DType, Kernel, MatmulForm, OutputForms, RowSet};

use crate::case::{Case, Shape, Spec, spec};
use crate::data::{dtypes, f32s, input, outputs, pick, poison, q8_rows, values, weight_rows, weights};
use crate::rows::{ACTIVATIONS, OUTS};

/// (inputs, outputs) that suit a type, odd ones among them.
pub(crate) fn shapes(dtype: DType) -> Vec<(usize, usize)> {
    match dtype.block_len() {
        1 => vec![(1, 1), (7, 5), (64, 33), (100, 16), (576, 35), (1030, 20)],
        64 => vec![(64, 1), (128, 17), (320, 33), (576, 35), (1088, 20)],
        128 => vec![(128, 1), (384, 17), (640, 33), (1152, 20)],
        32 => vec![(32, 1), (64, 17), (288, 40), (512, 16), (576, 35), (832, 5), (1056, 20)],
        _ => vec![(256, 1), (512, 33), (768, 20), (1280, 7)],
    }
}

pub fn matmul(dtype: DType, rows: usize, (inputs, outs): (usize, usize), bias: bool, residual: bool) -> Spec {
    let name = format!("matmul {dtype} {rows}x{inputs}x{outs} bias {bias} residual {residual}");
    spec(name, rows, move |part| {
        let form = MatmulForm::for_rows(part.len());
        let kernel = Kernel::Matmul(ops::Matmul { bias, residual, ..ops::Matmul::plain(dtype, form) });
        let soft_cap = if outs == 33 { 3.0 } else { 0.0 };
        let stride = outs + usize::from(outs == 20) * 3;
        let params = MatmulParams {
            inputs: inputs as u32,
            outputs: outs as u32,
            out_stride: stride as u32,
            soft_cap,
            epsilon: 0.0,
        };
        let mut data = vec![pick(&input(dtype, 1, rows, inputs), rows, &part)];
        data.extend(weights(dtype, 2, outs, inputs));
        data.push(poison(part.len() * stride * 4));
        if bias {
            data.push(f32s(&values(3, outs)));
        }
        if residual {
            data.push(pick(&f32s(&values(4, rows * stride)), rows, &part));
        }
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

pub(crate) fn qkv(dtype: DType, rows: usize, inputs: usize, bias: bool) -> Spec {
    spec(format!("qkv {dtype} {rows}x{inputs} bias {bias}"), rows, move |part| {
        let form = MatmulForm::for_rows(part.len());
        let kernel =
            Kernel::Qkv(ops::Qkv { weight: dtype, form, q8: dtype.is_quantised(), bias, scaled: false });
        let sizes = [48, 20, 12];
        let params = QkvParams { inputs: inputs as u32, q: sizes[0], k: sizes[1], v: sizes[2] };
        let mut data = vec![pick(&input(dtype, 5, rows, inputs), rows, &part)];
        data.extend((0..3).flat_map(|i| weights(dtype, 6 + i, sizes[i as usize] as usize, inputs)));
        data.push(poison(part.len() * 80 * 4));
        if bias {
            data.extend((0..3).map(|i| f32s(&values(9 + i, sizes[i as usize] as usize))));
        }
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

pub fn glu_matmul(
    dtype: DType,
    rows: usize,
    inputs: usize,
    outs: usize,
    activation: Activation,
    out: OutputForms,
) -> Spec {
    spec(format!("glu_matmul {dtype} {rows}x{inputs}x{outs} {activation:?} {out:?}"), rows, move |part| {
        let form = MatmulForm::for_rows(part.len());
        let kernel = Kernel::GluMatmul(ops::GluMatmul {
            weight: dtype,
            form,
            q8: dtype.is_quantised(),
            activation,
            out,
            scaled: false,
        });
        let params = GluMatmulParams { inputs: inputs as u32, outputs: outs as u32 };
        let mut data = vec![pick(&input(dtype, 12, rows, inputs), rows, &part)];
        data.extend((0..2).flat_map(|i| weights(dtype, 13 + i, outs, inputs)));
        data.extend(outputs(out, part.len(), outs));
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

/// With a bias.
fn activated_matmul(
    dtype: DType,
    rows: usize,
    (inputs, outs): (usize, usize),
    activation: Activation,
    out: OutputForms,
) -> Spec {
    let name = format!("activated matmul {dtype} {rows}x{inputs}x{outs} {activation:?} {out:?}");
    spec(name, rows, move |part| {
        let plain = ops::Matmul::plain(dtype, MatmulForm::for_rows(part.len()));
        let activation = Some(activation);
        let kernel = Kernel::Matmul(ops::Matmul { bias: true, activation, out, ..plain });
        let (inputs, outputs) = (inputs as u32, outs as u32);
        let params = MatmulParams { inputs, outputs, out_stride: outputs, soft_cap: 0.0, epsilon: 0.0 };
        let mut data = vec![pick(&input(dtype, 60, rows, inputs as usize), rows, &part)];
        data.extend(weights(dtype, 61, outs, inputs as usize));
        data.extend(crate::data::outputs(out, part.len(), outs));
        data.push(f32s(&values(62, outs)));
        Case::new(kernel, params, Shape::rows(part.len()), data)
    })
}

pub fn matrices() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in dtypes() {
        for (i, shape) in shapes(dtype).into_iter().enumerate() {
            for (j, rows) in [1, 2, 3, 7, 17, 64].into_iter().enumerate() {
                specs.push(matmul(dtype, rows, shape, (i + j) % 2 == 0, (i + j) % 3 == 0));
            }
        }
        let inputs = match dtype.block_len() {
            1 | 32 => 288,
            64 => 320,
            len => 2 * len,
        };
        for rows in [1, 3, 9] {
            specs.push(qkv(dtype, rows, inputs, rows == 3));
            specs.push(glu_matmul(dtype, rows, inputs, 96, ACTIVATIONS[rows % 3], OUTS[rows / 3 % 3]));
            let (activation, out) = (ACTIVATIONS[(rows + 1) % 5], OUTS[(rows / 3 + 1) % 3]);
            specs.push(activated_matmul(dtype, rows, (inputs, 96), activation, out));
        }
        specs.push(glu_matmul(dtype, 5, inputs, 41, Activation::Silu, OutputForms::F32));
        specs.push(activated_matmul(dtype, 5, (inputs, 41), Activation::GeluErf, OutputForms::F32));
    }
    // More of both than any instruction set's panels hold.
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q2K, DType::Q4K, DType::Q6K] {
        specs.push(matmul(dtype, 50, (2816, 20), false, false));
        specs.push(matmul(dtype, 291, (512, 20), true, true));
    }
    specs.push(matmul(DType::Q4_0, 130, (64, 20), true, true));
    specs.push(matmul(DType::F16, 130, (40, 20), true, true));
    // More rows than share one unpacking of the weights.
    specs.push(matmul(DType::Q4_0, 530, (64, 20), true, true));
    specs
}

/// Products of one row with more inputs than fit in registers, and more outputs than all threadgroups compute at once.
pub fn long_rows() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in dtypes() {
        specs.push(matmul(dtype, 1, (8192, 72), true, true));
        specs.push(glu_matmul(dtype, 1, 4096, 352, Activation::Silu, OUTS[1 + specs.len() % 2]));
        let out = OUTS[specs.len() % 3];
        specs.push(activated_matmul(dtype, 1, (4096, 352), Activation::GeluTanh, out));
        specs.push(qkv(dtype, 1, 1024, true));
        // A few iterations of 32 blocks, and a partial one.
        let inputs = if dtype.block_len() == 1 { 1048 } else { 4096 + dtype.block_len().max(64) };
        specs.push(matmul(dtype, 1, (inputs, 20), true, false));
    }
    specs.push(matmul(DType::BF16, 1, (132, 9), false, false));
    for dtype in [DType::Q3K, DType::Q4K, DType::Q6K] {
        specs.extend(
            [(4096, 128), (14336, 32), (2048, 1000)].map(|shape| matmul(dtype, 1, shape, false, true)),
        );
        specs.push(glu_matmul(dtype, 1, 11008, 96, Activation::Silu, OutputForms::F32));
    }
    specs
}

/// Products of many rows and outputs, for kernels that divide both into large tiles.
pub fn large_matrices() -> Vec<Spec> {
    let mut specs = vec![];
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::IQ4NL] {
        specs.push(matmul(dtype, 150, (288, 260), true, true));
    }
    for dtype in [DType::Q2K, DType::Q4K, DType::Q6K] {
        specs.push(matmul(dtype, 150, (256, 260), false, true));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        specs.push(matmul(dtype, 150, (104, 260), true, true));
        specs.push(matmul(dtype, 21, (576, 20), true, false));
        specs.push(qkv(dtype, 70, 64, true));
        specs.push(glu_matmul(dtype, 70, 72, 75, Activation::Silu, OutputForms::F32));
    }
    // With so many rows that tiles of several sizes fill the GPU.
    specs.push(matmul(DType::F32, 640, (40, 260), true, true));
    specs.push(matmul(DType::F32, 70, (40, 33), true, false));
    // With few rows, and enough outputs for the wide tiles of kernels for few rows.
    specs.push(matmul(DType::Q4_0, 5, (288, 600), true, true));
    specs.push(matmul(DType::Q6K, 37, (512, 520), false, true));
    // So many rows of such wide inputs are cut into tiles that stay in a CPU's second cache.
    specs.push(matmul(DType::Q8_0, 259, (1536, 33), true, true));
    for (rows, outs) in [(18, 160), (70, 352), (300, 544)] {
        specs.push(glu_matmul(DType::Q4_0, rows, 96, outs, Activation::Silu, OutputForms::Both));
        specs.push(glu_matmul(DType::Q2K, rows, 256, outs, Activation::GeluTanh, OutputForms::Q8));
        for (dtype, out) in [(DType::Q8_0, OutputForms::Q8), (DType::F16, OutputForms::Both)] {
            specs.push(activated_matmul(dtype, rows, (96, outs), Activation::GeluErf, out));
        }
    }
    for dtype in dtypes().into_iter().filter(|dtype| dtype.is_quantised()) {
        let inputs = if dtype.block_len() == 32 { 160 } else { 256 };
        specs.push(qkv(dtype, 40, inputs, dtype == DType::Q4_0));
        specs.push(glu_matmul(dtype, 33, inputs, 41, Activation::Silu, OutputForms::F32));
    }
    specs
}

/// Of rows that request logits.
pub fn asking() -> Case {
    let plain = ops::Matmul::plain(DType::Q8_0, MatmulForm::Gemv);
    let kernel = Kernel::Matmul(ops::Matmul { rows: RowSet::Logits, ..plain });
    let data = vec![q8_rows(33, 3, 64), weight_rows(DType::Q8_0, 34, 50, 64), poison(3 * 50 * 4)];
    let params = MatmulParams { inputs: 64, outputs: 50, out_stride: 50, soft_cap: 0.5, epsilon: 0.0 };
    Case::new(kernel, params, Shape::rows(7).asking(vec![0, 3, 5]), data)
}
