//! Quantised products against f64: of the very integers, and of the values that the blocks stand for.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use akunu_cpu::Isa;
use akunu_format::blocks::dequantize_row;
use akunu_plan::{DType, q8};
use common::{cpu, q8_row, specs, to_f32s, values, weights};

const ROWS: usize = 9;
const OUTPUTS: usize = 24;

/// Products in f64 of dequantised weights with `x`, and the sums of their terms' magnitudes.
fn exact(weights: &[f32], x: &[f64]) -> (f64, f64) {
    let terms = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
    terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
}

fn check(dtype: DType, inputs: usize) {
    let spec = specs::matmul(dtype, ROWS, (inputs, OUTPUTS), false, false);
    let found = to_f32s(&spec.whole().run(&mut cpu(*Isa::available().last().unwrap(), 2))[0]);
    let bytes = weights(dtype, 2, OUTPUTS, inputs);
    let x = values(1, ROWS * inputs);
    for (o, row) in bytes.chunks(dtype.row_bytes(inputs).unwrap()).enumerate() {
        let mut w = vec![0.0; inputs];
        dequantize_row(dtype, row, &mut w).unwrap();
        for (r, x) in x.chunks(inputs).enumerate() {
            let found = f64::from(found[r * OUTPUTS + o]);
            let rounded: Vec<f64> =
                q8::dequantise_row(&q8_row(x), inputs).into_iter().map(f64::from).collect();
            // The same integers and scales: only the f32 additions differ.
            let (sum, size) = exact(&w, &rounded);
            assert!((found - sum).abs() <= 1e-6 * size, "{dtype} {inputs}: {found} and not {sum} of {size}");
            // The activations before rounding: half a step of each block's scale.
            let (sum, _) = exact(&w, &x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
            let blocks = x.chunks(32).zip(w.chunks(32));
            let bound: f64 = blocks
                .map(|(x, w)| {
                    let largest = x.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
                    0.501 * largest / 127.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                })
                .sum();
            assert!((found - sum).abs() <= bound + 1e-6 * size, "{dtype} {inputs}: {found} and not {sum}");
        }
    }
}

#[test]
fn products_are_those_of_the_integers_and_near_those_of_the_values() {
    for dtype in DType::ALL.into_iter().filter(|t| t.is_quantised()) {
        for inputs in if dtype.block_len() == 256 { [256, 1024, 2304] } else { [32, 576, 2048] } {
            check(dtype, inputs);
        }
    }
}
