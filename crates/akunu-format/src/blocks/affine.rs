//! MLX's affine types, whose rows are stored in three planes.

use half::{bf16, f16};

use super::{RowError, check_planes};
use crate::{Affine, DType, ScaleType};

/// Dequantises a row from its planes: quants, scales, offsets. `scale · quant + offset`, each operation in f32.
pub fn dequantize_planes(affine: Affine, planes: [&[u8]; 3], out: &mut [f32]) -> Result<(), RowError> {
    check_planes(DType::Affine(affine), out.len(), planes.map(<[u8]>::len))?;
    let [quants, scales, offsets] = planes;
    for (g, out) in out.chunks_exact_mut(affine.group()).enumerate() {
        let (scale, offset) = (scale(affine.scales(), scales, g), scale(affine.scales(), offsets, g));
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(quant(affine.bits(), quants, g * affine.group() + i)) + offset;
        }
    }
    Ok(())
}

/// Quant `i` of a row: `bits` bits starting at bit `i · bits`, lowest first.
pub(crate) fn quant(bits: usize, row: &[u8], i: usize) -> u8 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    // A quant that ends in its first byte may be the last of the row.
    let next = if shift + bits > 8 { row[byte + 1] } else { 0 };
    let both = u16::from_le_bytes([row[byte], next]);
    (both >> shift & ((1 << bits) - 1)) as u8
}

/// The inverse of `quant`. The bytes must be zero before.
pub(super) fn put_quant(bits: usize, row: &mut [u8], i: usize, quant: u8) {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let [low, high] = (u16::from(quant) << shift).to_le_bytes();
    row[byte] |= low;
    if shift + bits > 8 {
        row[byte + 1] |= high;
    }
}

/// Scale or offset `i` of a plane.
pub(crate) fn scale(kind: ScaleType, plane: &[u8], i: usize) -> f32 {
    let at = i * kind.bytes();
    match kind {
        ScaleType::F16 => f16::from_le_bytes([plane[at], plane[at + 1]]).to_f32(),
        ScaleType::BF16 => bf16::from_le_bytes([plane[at], plane[at + 1]]).to_f32(),
        ScaleType::F32 => f32::from_le_bytes([plane[at], plane[at + 1], plane[at + 2], plane[at + 3]]),
    }
}

/// Writes a plane of scales or offsets as f32.
pub fn widen_scales(kind: ScaleType, plane: &[u8], out: &mut [u8]) {
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *out = scale(kind, plane, i).to_le_bytes();
    }
}

fn put_scale(kind: ScaleType, plane: &mut [u8], i: usize, value: f32) {
    let at = i * kind.bytes();
    match kind {
        ScaleType::F16 => plane[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        ScaleType::BF16 => plane[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        ScaleType::F32 => plane[at..at + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

/// Splits a row in contiguous form, as [`super::dequantize_row`] takes it, into its planes. The length was checked.
pub(super) fn split(affine: Affine, row: &[u8]) -> [&[u8]; 3] {
    let [quants, scale, offset] = affine.group_bytes();
    let groups = row.len() / (quants + scale + offset);
    let (quants, rest) = row.split_at(groups * quants);
    let (scales, offsets) = rest.split_at(groups * scale);
    [quants, scales, offsets]
}

/// Quantises a row to contiguous form: the range of each group is divided into equal steps, with the smallest value as
/// offset.
pub(super) fn quantize(affine: Affine, values: &[f32], out: &mut [u8]) {
    let (bits, group) = (affine.bits(), affine.group());
    let groups = values.len() / group;
    let [quants, scales, _] = affine.group_bytes().map(|bytes| bytes * groups);
    let (quants, rest) = out.split_at_mut(quants);
    let (scales, offsets) = rest.split_at_mut(scales);
    quants.fill(0);
    let most = ((1 << bits) - 1) as f32;
    for (g, values) in values.chunks_exact(group).enumerate() {
        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        put_scale(affine.scales(), scales, g, (high - low) / most);
        put_scale(affine.scales(), offsets, g, low);
        // Quants are computed with the scale and offset as stored.
        let (d, m) = (scale(affine.scales(), scales, g), scale(affine.scales(), offsets, g));
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        for (i, value) in values.iter().enumerate() {
            let quant = ((value - m) * inverse).round_ties_even().clamp(0.0, most);
            put_quant(bits, quants, g * group + i, quant as u8);
        }
    }
}

/// Sets scales and offsets in a row of random quants, so that values have mean 0 and standard deviation `std`.
pub(super) fn set_scales(affine: Affine, stds: &mut dyn FnMut() -> f32, row: &mut [u8]) {
    let quants = split(affine, row)[0].len();
    let (_, rest) = row.split_at_mut(quants);
    let half = rest.len() / 2;
    let (scales, offsets) = rest.split_at_mut(half);
    // The standard deviation, in steps, of codes that are uniform in 0 ..= n.
    let most = ((1_u32 << affine.bits()) - 1) as f32;
    let steps = ((most + 1.0).powi(2) - 1.0).sqrt() / 12_f32.sqrt();
    for g in 0..half / affine.scales().bytes() {
        let d = (stds() / steps).min(f32::from(f16::MAX) / most);
        put_scale(affine.scales(), scales, g, d);
        put_scale(affine.scales(), offsets, g, -d * most / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{Rng, dequantize_row, quantize_row, random_row};

    #[test]
    fn quants_are_one_stream_of_bits() {
        for bits in Affine::BITS {
            let mut row = vec![0; 32 * bits / 8];
            let codes: Vec<u8> = (0..32).map(|i| (i * 37 + 5) as u8 & ((1_u16 << bits) - 1) as u8).collect();
            for (i, code) in codes.iter().enumerate() {
                put_quant(bits, &mut row, i, *code);
            }
            // Read back bit by bit, independently of byte boundaries.
            let bit = |at: usize| row[at / 8] >> (at % 8) & 1;
            for (i, code) in codes.iter().enumerate() {
                let read = (0..bits).map(|b| bit(i * bits + b) << b).sum::<u8>();
                assert_eq!((read, quant(bits, &row, i)), (*code, *code), "{bits} bits, {i}");
            }
        }
    }

    #[test]
    fn rounding_is_off_by_half_a_step_at_most() {
        for affine in Affine::all() {
            let dtype = DType::Affine(affine);
            let mut rng = Rng::new(4);
            let values: Vec<f32> = (0..256).map(|_| rng.uniform() - 0.5).collect();
            let mut row = vec![0; dtype.row_bytes(256).unwrap()];
            quantize_row(dtype, &values, None, &mut row).unwrap();
            let mut back = vec![0.0; 256];
            dequantize_row(dtype, &row, &mut back).unwrap();
            // A stored scale has a relative rounding error of up to 2⁻⁹, and so has the end of the range.
            let step = 1.0 / ((1 << affine.bits()) - 1) as f32;
            for (a, b) in values.iter().zip(&back) {
                assert!((a - b).abs() <= 0.51 * step + 0.006, "{dtype}: {a} became {b}");
            }
        }
    }

    #[test]
    fn random_rows_have_the_requested_deviation_and_mean_0() {
        for affine in Affine::all() {
            let dtype = DType::Affine(affine);
            let mut row = vec![0; dtype.row_bytes(256).unwrap()];
            let (mut values, mut rng) = (vec![0.0f32; 256], Rng::new(9));
            let (mut sum, mut squares) = (0.0f64, 0.0f64);
            for _ in 0..200 {
                random_row(dtype, &mut rng, 0.02, &mut row).unwrap();
                dequantize_row(dtype, &row, &mut values).unwrap();
                sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
                squares += values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            }
            let n = 200.0 * 256.0;
            let (mean, measured) = (sum / n / 0.02, (squares / n).sqrt() / 0.02);
            assert!((0.95..1.05).contains(&measured) && mean.abs() < 0.03, "{dtype}: {measured}, {mean}");
        }
    }

    #[test]
    fn planes_of_other_lengths_are_refused() {
        let affine = Affine::new(4, 32, ScaleType::F16).unwrap();
        let mut out = [0.0; 64];
        assert!(dequantize_planes(affine, [&[0; 32], &[0; 4], &[0; 4]], &mut out).is_ok());
        for planes in [[31, 4, 4], [32, 2, 4], [32, 4, 8]] {
            let planes = planes.map(|n| vec![0_u8; n]);
            let error = dequantize_planes(affine, [&planes[0], &planes[1], &planes[2]], &mut out);
            assert!(error.is_err());
        }
        assert!(dequantize_planes(affine, [&[0; 16], &[0; 4], &[0; 4]], &mut out[..33]).is_err());
    }
}
