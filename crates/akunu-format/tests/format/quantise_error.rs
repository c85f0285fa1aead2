//! The quantisation error of each type is bounded by that of ggml's quantisers on the same numbers.
#![allow(clippy::unwrap_used)]

use akunu_format::DType;
use akunu_format::blocks::{Rng, dequantize_row, quantize_row};

const COUNT: usize = 32_768;

/// (dtype, ggml's root mean square error on `normal` and on `heavy`, allowed ratio)
///
/// From `ggml_quantize_chunk` without an importance matrix, rows of 256; ggml of llama-cpp-python 0.3.36, 2026-11-21.
const GGML: [(DType, f64, f64, f64); 13] = [
    (DType::Q8_0, 0.000_104_075_116, 0.000_284_372_902, 1.02),
    (DType::Q4_0, 0.001_678_455_61, 0.004_392_750_41, 1.02),
    (DType::Q4_1, 0.001_540_762_61, 0.003_358_024_46, 1.02),
    (DType::Q5_0, 0.000_833_207_285, 0.002_248_433_6, 1.02),
    (DType::Q5_1, 0.000_747_154_524, 0.001_623_500_4, 1.02),
    (DType::Q2K, 0.005_839_511_18, 0.011_783_297_2, 1.05),
    (DType::Q3K, 0.002_963_002_78, 0.006_464_476_75, 1.05),
    (DType::Q4K, 0.001_400_994_34, 0.003_127_802_12, 1.02),
    (DType::Q5K, 0.000_710_014_541, 0.001_565_725_87, 1.02),
    (DType::Q6K, 0.000_348_332_736, 0.000_854_134_713, 1.02),
    (DType::IQ4NL, 0.001_493_038, 0.003_482_321_6, 1.02),
    (DType::IQ4XS, 0.001_505_374_59, 0.003_524_875_55, 1.02),
    (DType::MXFP4, 0.002_268_089_38, 0.004_763_456_58, 1.02),
];

/// Approximately normal, computed only with operations that round identically on every platform.
fn near_normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| f64::from(rng.uniform())).sum::<f64>() - 6.0
}

fn normal() -> Vec<f32> {
    let mut rng = Rng::new(11);
    (0..COUNT).map(|_| (0.02 * near_normal(&mut rng)) as f32).collect()
}

/// Student's t with three degrees of freedom: outliers up to forty times the spread.
fn heavy() -> Vec<f32> {
    let mut rng = Rng::new(12);
    let one = |_| {
        let above = near_normal(&mut rng);
        let squares: f64 = (0..3).map(|_| near_normal(&mut rng).powi(2)).sum();
        (0.02 * above / (squares / 3.0).sqrt()) as f32
    };
    (0..COUNT).map(one).collect()
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    let mut out = vec![0.0; values.len()];
    quantize_row(dtype, values, &mut bytes).unwrap();
    dequantize_row(dtype, &bytes, &mut out).unwrap();
    out
}

fn error(dtype: DType, values: &[f32]) -> f64 {
    let decoded = round_trip(dtype, values);
    let squares: f64 = values.iter().zip(&decoded).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    (squares / values.len() as f64).sqrt()
}

#[test]
fn quantisation_errors_are_at_most_those_of_ggml() {
    let (normal, heavy) = (normal(), heavy());
    for (dtype, ggml_normal, ggml_heavy, allowed) in GGML {
        for (name, values, ggml) in [("normal", &normal, ggml_normal), ("heavy", &heavy, ggml_heavy)] {
            let found = error(dtype, values);
            println!("{dtype:<5} {name:<7} {found:.6e}, ggml {ggml:.6e}: {:.3}", found / ggml);
            assert!(found <= allowed * ggml, "{dtype} on {name}: {found:e}, ggml's is {ggml:e}");
            // An error far below the best known would indicate a mistake in the measurement.
            assert!(found >= 0.7 * ggml, "{dtype} on {name}: {found:e}, ggml's is {ggml:e}");
        }
    }
}

#[test]
fn representable_numbers_are_exact() {
    for dtype in DType::ALL {
        for values in [vec![0.0; 256], vec![0.5; 256], vec![-0.5; 256]] {
            let decoded = round_trip(dtype, &values);
            let off = values.iter().zip(&decoded).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(off < 1e-3, "{dtype}: {off} off {}", values[0]);
        }
        // One non-zero element in each sub-block, of either sign: all others must stay zero.
        let sparse: Vec<f32> =
            (0..256).map(|i| if i % 16 == 3 { (i as f32 - 128.0) / 256.0 } else { 0.0 }).collect();
        let decoded = round_trip(dtype, &sparse);
        // The level after 3 in FP4 is 4: the bound is half of that step here.
        let bound = if dtype == DType::MXFP4 { 0.0625 } else { 0.05 };
        for (i, (x, y)) in sparse.iter().zip(&decoded).enumerate() {
            assert!((x - y).abs() < bound, "{dtype}, element {i}: {x} became {y}");
        }
    }
}

#[test]
fn each_element_keeps_its_place() {
    for dtype in DType::ALL {
        for at in 0..256 {
            let mut values = [0.0; 256];
            values[at] = -1.0;
            let decoded = round_trip(dtype, &values);
            let others = decoded.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, y)| y.abs());
            assert!((decoded[at] + 1.0).abs() < 0.01, "{dtype}, {at}: {}", decoded[at]);
            assert!(others.fold(0.0, f32::max) < 0.01, "{dtype}, {at}");
        }
    }
}

#[test]
fn the_quantisers_never_panic() {
    let awkward = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-38, 1e30, -0.0];
    for dtype in DType::ALL {
        for first in awkward {
            for second in awkward {
                let values: Vec<f32> = (0..256).map(|i| if i % 3 == 0 { first } else { second }).collect();
                round_trip(dtype, &values);
                let alone: Vec<f32> = (0..256).map(|i| if i == 77 { first } else { 0.01 }).collect();
                round_trip(dtype, &alone);
            }
        }
    }
}
