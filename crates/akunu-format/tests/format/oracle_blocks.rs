//! Conversion in both directions gives the same bits as PyPI's `gguf`. The hashes come from `oracle/blocks.py`.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_format::DType;
use akunu_format::blocks::{dequantize_row, quantize_row};

const BLOCKS: usize = 8;

/// (dtype, positions of its half-precision numbers, hash of the values)
const DEQUANTISED: [(DType, &[usize], u64); 20] = [
    (DType::Q4_0, &[0], 0xf4bc7167c84717fa),
    (DType::Q4_1, &[0, 2], 0xb6c2f4e818bcdcd0),
    (DType::Q5_0, &[0], 0x487f92d73251d21c),
    (DType::Q5_1, &[0, 2], 0x0115f52ed7e7118c),
    (DType::Q8_0, &[0], 0xf8a25d9ec92bbc1f),
    (DType::Q2K, &[80, 82], 0xe5c1aabeb423a999),
    (DType::Q3K, &[108], 0x1b7424a0d4df694f),
    (DType::Q4K, &[0, 2], 0x6bf0385d54b13ab3),
    (DType::Q5K, &[0, 2], 0x2ff26ff16e5fd696),
    (DType::Q6K, &[208], 0xd374dd7a8a946358),
    (DType::IQ1S, &[0], 0x468daeede2d8c79f),
    (DType::IQ1M, &[], 0x0351a900f0fd9f52),
    (DType::IQ2XXS, &[0], 0x5be13cbd21da98e7),
    (DType::IQ2XS, &[0], 0xb49cb76627f28906),
    (DType::IQ2S, &[0], 0xe766ff988dfc87ce),
    (DType::IQ3XXS, &[0], 0xa1d88274af705e2a),
    (DType::IQ3S, &[0], 0xe58c20753a798f90),
    (DType::IQ4NL, &[0], 0xd7f44404d1413c0d),
    (DType::IQ4XS, &[0], 0x2183ea2276e0ccc7),
    (DType::MXFP4, &[], 0x69d28e50213e44f5),
];

/// MXFP4 exponents: subnormal, ordinary and overflowing scales.
const EXPONENTS: [u8; BLOCKS] = [0, 1, 2, 3, 127, 130, 252, 255];

const QUANTISED: [(DType, u64); 7] = [
    (DType::F16, 0x728956a6f1bd116b),
    (DType::BF16, 0x8615d6e82e0b069d),
    (DType::Q8_0, 0x17be42de8680ee2a),
    (DType::Q4_0, 0x918a2f51506cbf7e),
    (DType::Q4_1, 0x42bb00f2eebe7330),
    (DType::Q5_0, 0x9c21bddc6d8e6447),
    (DType::Q5_1, 0xae858f38a22d5111),
];

fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The generator of the script: the top 24 bits of a linear congruential generator.
fn numbers(count: usize) -> Vec<u64> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 40
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn every_quantised_type_dequantises_as_gguf_py_does() {
    for (dtype, halves, expected) in DEQUANTISED {
        let size = dtype.block_bytes();
        let mut bytes: Vec<u8> = numbers(BLOCKS * size).into_iter().map(|n| n as u8).collect();
        for block in 0..BLOCKS {
            if dtype == DType::IQ1M {
                // The nibble with the sign and the upper bits of its scale.
                let byte = &mut bytes[block * size + 55];
                *byte = *byte & 15 | 0x20;
            }
            if dtype == DType::MXFP4 {
                bytes[block * size] = EXPONENTS[block];
            }
            for (k, at) in halves.iter().enumerate() {
                let factor = if k == 0 { 1.0 } else { -3.0 };
                let half = half::f16::from_f64(0.01 * (block + 1) as f64 * factor);
                bytes[block * size + at..][..2].copy_from_slice(&half.to_le_bytes());
            }
        }
        let mut values = vec![0.0f32; BLOCKS * dtype.block_len()];
        dequantize_row(dtype, &bytes, &mut values).unwrap();
        assert_eq!(fnv(values.iter().flat_map(|v| v.to_le_bytes())), expected, "{dtype}");
    }
}

#[test]
fn quantisers_write_the_bytes_that_gguf_py_writes() {
    let mut values: Vec<f32> =
        numbers(64 * 32).into_iter().map(|n| (n as f64 / f64::from(1 << 23) - 1.0) as f32).collect();
    values[32..64].fill(0.0);
    values[64..96].iter_mut().for_each(|v| *v *= 1e-6);
    values[96..128].iter_mut().for_each(|v| *v *= 1e3);
    for (dtype, expected) in QUANTISED {
        let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
        quantize_row(dtype, &values, None, &mut bytes).unwrap();
        assert_eq!(fnv(bytes), expected, "{dtype}");
    }
}

#[test]
fn quantising_any_numbers_never_panics() {
    let odd =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0, 1e-45];
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1] {
        for first in 0..odd.len() {
            let values: Vec<f32> = (0..32).map(|i| odd[(first + i * i) % odd.len()]).collect();
            let mut bytes = vec![0; dtype.row_bytes(32).unwrap()];
            quantize_row(dtype, &values, None, &mut bytes).unwrap();
        }
    }
}
