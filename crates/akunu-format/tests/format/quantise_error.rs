//! The quantisation error of each type is bounded by that of ggml's quantisers on the same numbers.
#![allow(clippy::unwrap_used)]

use akunu_format::DType;
use akunu_format::blocks::{Rng, dequantize_row, quantize_row};

const COUNT: usize = 32_768;

/// (dtype, ggml's root mean square error on `normal` and on `heavy`, allowed ratio)
///
/// From `ggml_quantize_chunk` without an importance matrix, rows of 256; ggml of llama-cpp-python 0.3.36, 2026-11-21.
/// IQ1 to IQ3 with one of ones, without which it refuses some of them and makes larger errors in the others; ggml 0.13.1
/// of pywhispercpp 1.5.1, 2026-11-25.
const GGML: [(DType, f64, f64, f64); 20] = [
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
    (DType::IQ1S, 0.009_570_444_39, 0.020_675_926_3, 1.0),
    (DType::IQ1M, 0.008_929_539_55, 0.017_126_745_4, 1.0),
    (DType::IQ2XXS, 0.006_788_843_38, 0.016_571_006_9, 1.0),
    (DType::IQ2XS, 0.005_972_843_86, 0.013_396_987_8, 1.0),
    (DType::IQ2S, 0.004_907_900_24, 0.012_369_531_9, 1.0),
    (DType::IQ3XXS, 0.003_599_198_36, 0.007_553_604_85, 1.0),
    (DType::IQ3S, 0.002_702_123_62, 0.006_135_234_61, 1.0),
    (DType::IQ4NL, 0.001_493_038, 0.003_482_321_6, 1.02),
    (DType::IQ4XS, 0.001_505_374_59, 0.003_524_875_55, 1.02),
    (DType::MXFP4, 0.002_268_089_38, 0.004_763_456_58, 1.02),
];

/// (dtype, ggml's root mean square error on `normal` and on `heavy`, weighted by `importance`)
///
/// From `ggml_quantize_chunk` with `importance` as the importance matrix, rows of 256: oracle/weighted.py with the ggml
/// of llama.cpp v0.5.0 (npm's @node-llama-cpp/linux-x64 3.22.1), for IQ1 to IQ3 of pywhispercpp 1.5.1, 2026-11-25.
const GGML_WEIGHTED: [(DType, f64, f64); 18] = [
    (DType::Q4_0, 0.001_369_007_88, 0.003_896_356_7),
    (DType::Q4_1, 0.001_041_623_02, 0.002_376_711_05),
    (DType::Q5_0, 0.000_676_075_046, 0.002_014_695_71),
    (DType::Q5_1, 0.000_504_853_677, 0.001_147_494_94),
    (DType::Q2K, 0.003_757_743_99, 0.007_882_592_89),
    (DType::Q3K, 0.002_320_047_08, 0.005_353_968_32),
    (DType::Q4K, 0.001_062_955_15, 0.002_520_922_1),
    (DType::Q5K, 0.000_558_976_015, 0.001_315_375_76),
    (DType::Q6K, 0.000_281_826_168, 0.000_771_054_657),
    (DType::IQ1S, 0.007_582_514_49, 0.015_579_294_4),
    (DType::IQ1M, 0.006_369_760_98, 0.012_527_178_7),
    (DType::IQ2XXS, 0.004_875_943_16, 0.012_246_539_3),
    (DType::IQ2XS, 0.004_299_056_28, 0.010_465_077_4),
    (DType::IQ2S, 0.003_937_321_42, 0.009_796_759_17),
    (DType::IQ3XXS, 0.002_437_089_34, 0.005_614_294_38),
    (DType::IQ3S, 0.001_977_548_93, 0.005_082_543_66),
    (DType::IQ4NL, 0.001_207_400_11, 0.002_909_710_04),
    (DType::IQ4XS, 0.001_224_395_25, 0.003_003_256_23),
];

/// The weights of the columns of a row of 256: a few are much larger than the others.
fn importance() -> Vec<f32> {
    let mut rng = Rng::new(13);
    (0..256).map(|_| (0.05 + f64::from(rng.uniform())).powi(-2) as f32).collect()
}

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
    round_trip_with(dtype, values, None)
}

fn round_trip_with(dtype: DType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    let mut out = vec![0.0; values.len()];
    quantize_row(dtype, values, importance, &mut bytes).unwrap();
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

/// Of rows of 256, quantised with these weights, in the measure of `importance`.
fn weighted_error(dtype: DType, values: &[f32], weights: Option<&[f32]>) -> f64 {
    let (importance, mut squares, mut total) = (importance(), 0.0, 0.0);
    for row in values.chunks_exact(importance.len()) {
        let decoded = round_trip_with(dtype, row, weights);
        for ((x, y), &w) in row.iter().zip(&decoded).zip(&importance) {
            squares += f64::from(w) * f64::from(x - y).powi(2);
            total += f64::from(w);
        }
    }
    f64::sqrt(squares / total)
}

#[test]
fn weighted_errors_are_at_most_those_of_ggml_and_smaller_than_without_weights() {
    let (importance, sets) = (importance(), [("normal", normal()), ("heavy", heavy())]);
    for (dtype, ggml_normal, ggml_heavy) in GGML_WEIGHTED {
        for ((name, values), ggml) in sets.iter().zip([ggml_normal, ggml_heavy]) {
            let found = weighted_error(dtype, values, Some(&importance));
            let without = weighted_error(dtype, values, None);
            let (of_ggml, of_own) = (found / ggml, found / without);
            println!(
                "{dtype:<6} {name:<7} {found:.6e}: {of_ggml:.3} of ggml's, {of_own:.3} of that without weights"
            );
            assert!(found <= 1.02 * ggml, "{dtype} on {name}: {found:e}, ggml's is {ggml:e}");
            assert!(found < 0.97 * without, "{dtype} on {name}: {found:e}, without weights {without:e}");
            assert!(found >= 0.7 * ggml, "{dtype} on {name}: {found:e}, ggml's is {ggml:e}");
        }
    }
}

#[test]
fn equal_weights_change_no_k_quant_and_no_table() {
    let values = normal();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.block_len() == 256 || *dtype == DType::IQ4NL) {
        let row = &values[..256];
        assert_eq!(round_trip(dtype, row), round_trip_with(dtype, row, Some(&[1.0; 256])), "{dtype}");
    }
}

#[test]
fn any_weights_give_finite_numbers() {
    let values = normal();
    let row = &values[..256];
    for dtype in DType::ALL {
        for weights in [[0.0; 256], [1e-30; 256], [1e30; 256], [f32::MAX; 256], [f32::NAN; 256]] {
            assert!(round_trip_with(dtype, row, Some(&weights)).iter().all(|v| v.is_finite()), "{dtype}");
        }
        let mut one = [0.0; 256];
        one[9] = 1.0;
        let decoded = round_trip_with(dtype, row, Some(&one));
        let largest = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(decoded.iter().all(|v| v.is_finite() && v.abs() <= 4.0 * largest), "{dtype}: {decoded:?}");
    }
    let error = quantize_row(DType::Q4_0, row, Some(&[1.0; 32]), &mut [0; 144]).unwrap_err();
    assert_eq!(error.to_string(), "a row of 256 elements has 32 weights");
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
        let bound = match dtype {
            // The level after 3 is 4: half of that step here.
            DType::MXFP4 => 0.0625,
            // The least magnitude of IQ2 is a fifth of the greatest, and the best scale is small.
            _ if dtype.is_lattice() => 0.3,
            _ => 0.05,
        };
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
            let others = others.fold(0.0, f32::max);
            if dtype.is_lattice() {
                // No magnitude is 0, and the best scale makes the sum of all errors small.
                assert!(decoded[at] < -0.4 && others < 0.2, "{dtype}, {at}: {} and {others}", decoded[at]);
                continue;
            }
            assert!((decoded[at] + 1.0).abs() < 0.01, "{dtype}, {at}: {}", decoded[at]);
            assert!(others < 0.01, "{dtype}, {at}");
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
