//! Activations rounded to FP8, for matrix products of many rows on hardware that multiplies FP8 faster than f16: where
//! weights are FP8 and the file asks for such rows.
//!
//! A row of `n` elements (a multiple of 16) is `[E4M3; n]` with a scale in f32, stored in a separate buffer: an element is
//! `scale · number`. The scale makes the largest magnitude of the row 448, the largest number of E4M3; it is at least 2⁻¹²⁶,
//! so that its inverse is finite. The error of an element is at most 2⁻⁴ of itself, or 2⁻¹⁰ of the scale. A row with a NaN or
//! an infinity gets the scale NaN and zeros, so that the NaN propagates to the logits, where it is reported.
//!
//! Files may state fixed scales for their activations. These are not used: the scale of each row is at least as exact.

use akunu_format::{e4m3_to_f32, f32_to_e4m3};

use crate::halves::largest;

/// Row lengths are multiples of this many elements: 16 bytes.
pub const WHOLE: usize = 16;

/// The largest number.
const MAX: f32 = 448.0;

/// The scale of a row.
pub fn scale_of(row: &[f32]) -> f32 {
    match f32::from_bits(largest(row)) {
        amax if amax.is_finite() => (amax * (1.0 / MAX)).max(f32::MIN_POSITIVE),
        _ => f32::NAN,
    }
}

/// Rounds a row after dividing it by its scale. `to` has a byte per element.
pub fn store(row: &[f32], scale: f32, to: &mut [u8]) {
    let inverse = 1.0 / scale;
    for (v, to) in row.iter().zip(to) {
        *to = if scale.is_nan() { 0 } else { f32_to_e4m3(v * inverse) };
    }
}

/// The numbers of rows, without their scales.
pub fn load(bytes: &[u8]) -> Vec<f32> {
    bytes.iter().map(|code| e4m3_to_f32(*code)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds a row and scales it back.
    fn round(row: &[f32]) -> Vec<f32> {
        let (scale, mut bytes) = (scale_of(row), vec![1; row.len()]);
        store(row, scale, &mut bytes);
        load(&bytes).into_iter().map(|v| v * scale).collect()
    }

    #[test]
    fn the_largest_of_a_row_is_kept_and_others_have_four_bits() {
        for row in [[3.0, -1.0, 0.3, 0.004], [3e38, -2e37, 1e36, 0.0], [1e-30, 4e-31, -1e-32, 1e-33]] {
            let found = round(&row);
            for (v, found) in row.iter().zip(&found) {
                assert!((found - v).abs() <= v.abs() / 16.0 + row[0] / 448.0 / 1024.0, "{v} became {found}");
            }
            assert!((found[0] / row[0] - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn rows_of_zeros_and_of_the_smallest_numbers_are_finite() {
        assert_eq!(round(&[0.0, -0.0]), [0.0, 0.0]);
        let tiny = round(&[1e-44, 0.0]);
        assert!(tiny.iter().all(|v| v.is_finite()));
    }

    #[test]
    fn values_that_are_not_finite_make_the_scale_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(scale_of(&[1.0, bad]).is_nan());
            let mut bytes = [1; 2];
            store(&[1.0, bad], f32::NAN, &mut bytes);
            assert_eq!(bytes, [0; 2]);
        }
    }
}
