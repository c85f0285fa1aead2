//! Random weights of every type, generated directly as blocks: for synthetic models and for tests.

use super::{RowError, check, exponent_scale, put_half};
use crate::DType;

/// A small counter-based generator (SplitMix64): the same seed gives the same weights on every platform.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0 ≤ x < 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
    }

    /// Uniform in `0 .. below`; the bias is negligible for weights.
    fn below(&mut self, below: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(below)) >> 32) as u32
    }

    /// Two independent draws of mean 0 and standard deviation 1.
    fn normal_pair(&mut self) -> (f32, f32) {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = std::f32::consts::TAU * self.uniform();
        (radius * angle.cos(), radius * angle.sin())
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// Fills a row with random blocks whose values have mean 0 and standard deviation about `std`. All codes occur, and no
/// value is infinite or NaN (unless `std` is).
pub fn random_row(dtype: DType, rng: &mut Rng, std: f32, out: &mut [u8]) -> Result<(), RowError> {
    let elements = match dtype {
        DType::Fp8(fp8) => super::fp8::elements(fp8, out.len()),
        _ => out.len() / dtype.block_bytes() * dtype.block_len(),
    };
    check(dtype, elements, out.len())?;
    // Scales vary from block to block, as in real weights; 1.0104 is the root mean square of this factor.
    let varied = |rng: &mut Rng| std * (0.75 + 0.5 * rng.uniform()) / 1.0104;
    if matches!(dtype, DType::Fp8(_)) {
        rng.fill(out);
        super::fp8::set_scales(elements, &mut || varied(rng), out);
        return Ok(());
    }
    if !dtype.is_quantised() {
        return random_floats(dtype, rng, std, out);
    }
    if let DType::Affine(affine) = dtype {
        rng.fill(out);
        super::affine::set_scales(affine, &mut || varied(rng), out);
        return Ok(());
    }
    for block in out.chunks_exact_mut(dtype.block_bytes()) {
        rng.fill(block);
        let std = varied(rng);
        set_scales(dtype, rng, std, block);
    }
    Ok(())
}

fn random_floats(dtype: DType, rng: &mut Rng, std: f32, out: &mut [u8]) -> Result<(), RowError> {
    // Larger numbers would round to infinity.
    let most = if dtype == DType::F16 { f32::from(half::f16::MAX) } else { f32::from(half::bf16::MAX) };
    let size = dtype.block_bytes();
    for pair in out.chunks_mut(2 * size) {
        let (a, b) = rng.normal_pair();
        let values = [(a * std).clamp(-most, most), (b * std).clamp(-most, most)];
        super::quantize_row(dtype, &values[..pair.len() / size], None, pair)?;
    }
    Ok(())
}

/// Limits scales to the finite range of half precision.
fn put_scale(block: &mut [u8], at: usize, value: f32) {
    let most = f32::from(half::f16::MAX);
    put_half(block, at, value.clamp(-most, most));
}

/// Overwrites the scales in a block of random bytes. The divisors are the root mean squares of the codes (and integer
/// scales) with `d` = 1: for codes uniform in −n … n − 1, √((4n² − 1)/12 + ¼).
fn set_scales(dtype: DType, rng: &mut Rng, std: f32, block: &mut [u8]) {
    // Codes that are not symmetric about zero need a random sign to have mean 0.
    let sign = if rng.next_u64() & 1 == 0 { 1.0 } else { -1.0 };
    match dtype {
        DType::Q4_0 => put_scale(block, 0, sign * std / 4.637),
        DType::Q5_0 => put_scale(block, 0, sign * std / 9.247),
        DType::Q4_1 => put_scale_and_offset(block, std / 4.610, -7.5),
        DType::Q5_1 => put_scale_and_offset(block, std / 9.233, -15.5),
        DType::Q8_0 => {
            put_scale(block, 0, sign * std / 73.61);
            // No quantiser writes −128, and integer kernels may rely on that.
            block[2..].iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0x81);
        }
        DType::Q2K => {
            for byte in &mut block[..16] {
                let scale = 1 + rng.below(15) as u8;
                *byte = scale | random_near(rng, scale, 15) << 4;
            }
            put_scale(block, 80, std / 10.24);
            put_scale(block, 82, 1.5 * std / 10.24);
        }
        DType::Q3K => put_scale(block, 108, sign * std / 43.34),
        DType::Q4K | DType::Q5K => {
            let (middle, divisor) = if dtype == DType::Q4K { (7.5, 169.8) } else { (15.5, 340.1) };
            let scales: [u8; 8] = std::array::from_fn(|_| 1 + rng.below(63) as u8);
            let offsets = scales.map(|scale| random_near(rng, scale, 63));
            block[4..16].copy_from_slice(&pack_scales_offsets(&scales, &offsets));
            put_scale(block, 0, std / divisor);
            put_scale(block, 2, middle * std / divisor);
        }
        DType::Q6K => {
            put_scale(block, 208, sign * std / 1360.0);
            block[192..208].iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0x81);
        }
        DType::IQ1S => put_scale(block, 0, sign * std / 7.1995),
        DType::IQ1M => {
            let most = f32::from(half::f16::MAX);
            let bits = half::f16::from_f32((sign * std / 7.1995).clamp(-most, most)).to_bits();
            for (i, byte) in block[49..].iter_mut().step_by(2).enumerate() {
                *byte = *byte & 15 | ((bits >> (4 * i)) as u8 & 15) << 4;
            }
        }
        DType::IQ2XXS => put_scale(block, 0, sign * std / 53.362),
        DType::IQ2XS => put_scale(block, 0, sign * std / 55.9),
        DType::IQ2S => put_scale(block, 0, sign * std / 56.392),
        DType::IQ3XXS => put_scale(block, 0, sign * std / 142.41),
        DType::IQ3S => put_scale(block, 0, sign * std / 140.24),
        DType::IQ4NL => put_scale(block, 0, sign * std / 67.44),
        DType::IQ4XS => put_scale(block, 0, sign * std / 1246.3),
        DType::MXFP4 => block[0] = random_exponent(rng, std / 5.852),
        DType::F32 | DType::F16 | DType::BF16 | DType::Affine(_) | DType::Fp8(_) => {}
    }
}

/// One of the two powers of two next to `scale`, chosen so that the root mean square is `scale`.
fn random_exponent(rng: &mut Rng, scale: f32) -> u8 {
    // The exponent field of the power below is that exponent + 128; the largest code is 12, and the product must be
    // finite.
    let below = (scale.log2().floor() + 128.0).clamp(0.0, 251.0) as u8;
    let above = (scale / exponent_scale(below)).powi(2);
    below + u8::from(3.0 * rng.uniform() < above - 1.0)
}

fn put_scale_and_offset(block: &mut [u8], d: f32, middle: f32) {
    put_scale(block, 0, d);
    put_scale(block, 2, middle * d);
}

/// One of the three numbers next to `scale`: an offset that roughly centres the codes but differs from the scale.
fn random_near(rng: &mut Rng, scale: u8, most: u8) -> u8 {
    (scale + rng.below(3) as u8 - 1).min(most)
}

/// The inverse of [`super::unpack_scales_offsets`].
pub(crate) fn pack_scales_offsets(scales: &[u8; 8], offsets: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = offsets[j] | offsets[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | offsets[j + 4] << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{dequantize_row, unpack_scales_offsets};

    #[test]
    fn random_rows_have_the_requested_deviation_and_mean_0() {
        for dtype in DType::ALL {
            for std in [0.02f32, 1.0] {
                let cols = 256;
                let rows = 400;
                let mut bytes = vec![0; dtype.row_bytes(cols).unwrap()];
                let mut values = vec![0.0f32; cols];
                let mut rng = Rng::new(7);
                let (mut sum, mut squares) = (0.0f64, 0.0f64);
                for _ in 0..rows {
                    random_row(dtype, &mut rng, std, &mut bytes).unwrap();
                    dequantize_row(dtype, &bytes, &mut values).unwrap();
                    assert!(values.iter().all(|v| v.is_finite()));
                    sum += values.iter().map(|&v| f64::from(v)).sum::<f64>();
                    squares += values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                }
                let n = (rows * cols) as f64;
                let measured = (squares / n).sqrt() / f64::from(std);
                let mean = sum / n / f64::from(std);
                assert!((0.95..1.05).contains(&measured), "{dtype} at {std}: {measured}");
                assert!(mean.abs() < 0.03, "{dtype} at {std}: mean {mean}");
            }
        }
    }

    #[test]
    fn huge_deviations_stay_finite() {
        for dtype in DType::ALL {
            let mut bytes = vec![0; dtype.row_bytes(256).unwrap()];
            let mut values = vec![0.0; 256];
            random_row(dtype, &mut Rng::new(1), f32::MAX, &mut bytes).unwrap();
            dequantize_row(dtype, &bytes, &mut values).unwrap();
            assert!(values.iter().all(|v| v.is_finite()), "{dtype}");
        }
    }

    #[test]
    fn scales_and_offsets_unpack_to_what_was_packed() {
        let mut rng = Rng::new(5);
        for _ in 0..1000 {
            let scales: [u8; 8] = std::array::from_fn(|_| rng.below(64) as u8);
            let offsets: [u8; 8] = std::array::from_fn(|_| rng.below(64) as u8);
            assert_eq!(unpack_scales_offsets(&pack_scales_offsets(&scales, &offsets)), (scales, offsets));
        }
    }

    #[test]
    fn all_codes_occur() {
        for (dtype, distinct) in [(DType::Q4_0, 16), (DType::Q5_0, 32), (DType::Q8_0, 255)] {
            let mut seen = std::collections::HashSet::new();
            let mut rng = Rng::new(2);
            let mut bytes = vec![0; dtype.block_bytes()];
            let mut values = vec![0.0; 32];
            for _ in 0..500 {
                random_row(dtype, &mut rng, 1.0, &mut bytes).unwrap();
                bytes[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                dequantize_row(dtype, &bytes, &mut values).unwrap();
                seen.extend(values.iter().map(|v| *v as i32));
            }
            assert_eq!(seen.len(), distinct, "{dtype}");
        }
    }
}
