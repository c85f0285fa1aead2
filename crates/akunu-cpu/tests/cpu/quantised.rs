//! Quantised products compared with f64: of the same integers, and of the values that the blocks represent.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::cpu;
use akunu_cpu::Isa;
use akunu_device_testing::{Case, Shape, matrices, poison, q8_row, to_f32s, values, weight_rows};
use akunu_format::blocks::dequantize_row;
use akunu_format::{Affine, ScaleType};
use akunu_plan::ops::{self, MatmulParams};
use akunu_plan::{DType, Kernel, MatmulForm, q8};

const ROWS: usize = 9;
const OUTPUTS: usize = 24;

/// Products in f64 of dequantised weights with `x`, and the sums of their terms' magnitudes.
fn exact(weights: &[f32], x: &[f64]) -> (f64, f64) {
    let terms = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
    terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
}

/// One row of activations, with what its comparison with any row of weights needs.
struct Activations {
    exact: Vec<f64>,
    /// After quantisation.
    rounded: Vec<f64>,
    /// Half of the step of each block's scale, and a little more.
    half_steps: Vec<f64>,
}

impl Activations {
    fn new(x: &[f32]) -> Activations {
        let largest = |block: &[f32]| block.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
        Activations {
            exact: x.iter().map(|v| f64::from(*v)).collect(),
            rounded: q8::dequantise_row(&q8_row(x), x.len()).into_iter().map(f64::from).collect(),
            half_steps: x.chunks(32).map(|block| 0.501 * largest(block) / 127.0).collect(),
        }
    }
}

fn check(dtype: DType, inputs: usize) {
    let spec = matrices::matmul(dtype, ROWS, (inputs, OUTPUTS), false, false);
    let found = to_f32s(&spec.whole().run(&mut cpu(*Isa::available().last().unwrap(), 2))[0]);
    let bytes = weight_rows(dtype, 2, OUTPUTS, inputs);
    let rows: Vec<Activations> = values(1, ROWS * inputs).chunks(inputs).map(Activations::new).collect();
    for (o, row) in bytes.chunks(dtype.row_bytes(inputs).unwrap()).enumerate() {
        let mut w = vec![0.0; inputs];
        dequantize_row(dtype, row, &mut w).unwrap();
        let magnitudes: Vec<f64> =
            w.chunks(32).map(|w| w.iter().map(|w| f64::from(w.abs())).sum::<f64>()).collect();
        for (r, x) in rows.iter().enumerate() {
            let found = f64::from(found[r * OUTPUTS + o]);
            // The same integers and scales: only the rounding of f32 additions differs.
            let (sum, size) = exact(&w, &x.rounded);
            assert!((found - sum).abs() <= 1e-6 * size, "{dtype} {inputs}: {found} and not {sum} of {size}");
            // The activations before quantisation: the error is up to half a step of each block's scale.
            let (sum, _) = exact(&w, &x.exact);
            let bound: f64 = x.half_steps.iter().zip(&magnitudes).map(|(step, w)| step * w).sum();
            assert!((found - sum).abs() <= bound + 1e-6 * size, "{dtype} {inputs}: {found} and not {sum}");
        }
    }
}

#[test]
fn products_are_those_of_the_integers_and_near_those_of_the_values() {
    let affine = Affine::all().map(DType::Affine);
    for dtype in DType::ALL.into_iter().chain(affine).filter(|t| t.is_quantised()) {
        let inputs = match dtype.block_len() {
            32 => [32, 576, 2048],
            64 => [64, 576, 2048],
            128 => [128, 640, 2048],
            _ => [256, 1024, 2304],
        };
        for inputs in inputs {
            check(dtype, inputs);
        }
    }
}

/// Two rows of every affine type, quantised by MLX, compared with float64 products of MLX's dequantised values.
#[test]
fn products_of_mlx_weights_are_those_that_mlx_gives() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mlx");
    let file = std::fs::read(folder.join("blocks.safetensors")).unwrap();
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("blocks.json")).unwrap()).unwrap();
    let header_end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..header_end]).unwrap();
    let plane = |name: &str| {
        let at = |i: usize| header_end + header[name]["data_offsets"][i].as_u64().unwrap() as usize;
        file[at(0)..at(1)].to_vec()
    };
    let x = to_f32s(&plane("x"));
    for expected in golden.as_array().unwrap() {
        let scales = expected["scales"].as_str().unwrap();
        let size = |key: &str| expected[key].as_u64().unwrap() as usize;
        let kind = ScaleType::ALL.into_iter().find(|t| format!("{t:?}") == scales).unwrap();
        let dtype = DType::Affine(Affine::new(size("bits"), size("group"), kind).unwrap());
        let key = format!("{}.{}.{scales}", size("bits"), size("group"));
        let planes = ["weight", "scales", "biases"].map(|part| plane(&format!("{key}.{part}")));
        // One row uses blocks in their stored layout, six use a panel.
        for rows in [1, 6] {
            let params = MatmulParams { inputs: 384, outputs: 2, out_stride: 2, soft_cap: 0.0, epsilon: 0.0 };
            let kernel = Kernel::Matmul(ops::Matmul::plain(dtype, MatmulForm::for_rows(rows)));
            let data = [vec![q8_row(&x).repeat(rows)], planes.to_vec(), vec![poison(rows * 8)]].concat();
            let case = Case::new(kernel, params, Shape::rows(rows), data);
            for isa in Isa::available() {
                for found in to_f32s(&case.run(&mut cpu(isa, 1))[0]).chunks_exact(2) {
                    for (row, found) in found.iter().enumerate() {
                        let golden = expected["products"][row].as_f64().unwrap();
                        // Quantised activations are off by up to half a step of a block's largest, about 1 % of a
                        // normal value; over 384 of them and weights of about 0.1 the total is far below this.
                        assert!(
                            (f64::from(*found) - golden).abs() < 0.06,
                            "{key} {}: {found} and not {golden}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
