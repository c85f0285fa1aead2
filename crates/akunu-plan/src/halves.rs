//! Activations rounded to f16, for matrix products of many rows on hardware with fast f16 multiplication.
//!
//! A row of `n` elements (a multiple of 8) is `[f16; n]` with a power of two as scale, stored in a separate buffer: an
//! element is `scale · number`. Let `amax` be the largest magnitude of the row (compared as bit patterns, so NaN is the
//! largest). The scale is 1 if `2⁻⁸ ≤ amax < 2¹⁵`, which is nearly always the case, or if the row is zero; otherwise it
//! brings `amax` into the range `1 … 2`. So nothing overflows, and the error of an element is at most 2⁻¹¹ of itself or
//! 2⁻¹⁷ of the row's largest. A row with a NaN or an infinity gets the scale NaN and zeros, so that the NaN propagates
//! to the logits, where it is reported.
//!
//! Attention over an F16 cache always uses scale 1: it computes weighted means of f16 numbers, which cannot be larger
//! than these.
//!
//! Weights are rounded to f16 without a scale: those of usable models are far below 65504, and a larger one becomes an
//! infinity, which also propagates to the logits.
//!
//! Rows that meet packed weights are in the order of lanes. A tensor instruction multiplies 16 elements at once; of a line of
//! weights, lane t of four passes numbers 2t, 2t + 1, 2t + 8 and 2t + 9. So that each lane can load and decode a block of 32
//! weights of its own, a group of 128 elements is divided into 8 steps of 16 numbers, and in step s lane t has elements 4s … 4s + 3
//! of block t:
//!
//! ```text
//! element block · 32 + step · 4 + e   is at   step · 16 + e % 2 · 8 + block · 2 + e / 2
//! ```
//!
//! `lane_place` in `common.h` of the kernels is the same.

use half::f16;

/// Elements of a group in the order of lanes.
pub const GROUP: usize = 128;

/// Row lengths are multiples of this many elements: 16 bytes.
pub const WHOLE: usize = 8;

/// Biased exponents of f32 magnitudes that need no scale.
const PLAIN: std::ops::Range<u32> = 127 - 8..127 + 15;

/// The bits of the largest magnitude of a row, of which NaN is the largest.
pub(crate) fn largest(row: &[f32]) -> u32 {
    row.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0)
}

/// The scale of a row.
pub fn scale_of(row: &[f32]) -> f32 {
    let amax = largest(row);
    let exponent = amax >> 23;
    match exponent {
        255 => f32::NAN,
        _ if amax == 0 || PLAIN.contains(&exponent) => 1.0,
        // The inverse of the scale must be a normal number.
        _ => f32::from_bits(exponent.clamp(1, 253) << 23),
    }
}

/// Rounds a row after dividing it by its scale. `to` has 2 bytes per element.
pub fn store(row: &[f32], scale: f32, to: &mut [u8]) {
    let inverse = 1.0 / scale;
    for (v, to) in row.iter().zip(to.chunks_exact_mut(2)) {
        let number = if scale.is_nan() { 0.0 } else { v * inverse };
        to.copy_from_slice(&f16::from_f32(number).to_le_bytes());
    }
}

/// The place of an element of a row in the order of lanes.
pub fn lane_place(element: usize) -> usize {
    let (group, block, step, of_four) =
        (element / GROUP, element % GROUP / 32, element % 32 / 4, element % 4);
    group * GROUP + step * 16 + of_four % 2 * 8 + block * 2 + of_four / 2
}

/// A row of whole groups in the order of lanes.
pub(crate) fn in_lanes(row: &[f32]) -> Vec<f32> {
    let mut to = vec![0.0; row.len()];
    row.iter().enumerate().for_each(|(element, value)| to[lane_place(element)] = *value);
    to
}

/// The numbers of rows, without their scales.
pub fn load(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds a row and scales it back.
    fn round(row: &[f32]) -> (f32, Vec<f32>) {
        let (scale, mut bytes) = (scale_of(row), vec![1; row.len() * 2]);
        store(row, scale, &mut bytes);
        (scale, load(&bytes).into_iter().map(|v| v * scale).collect())
    }

    #[test]
    fn the_order_of_lanes_has_each_element_of_a_group_once() {
        let mut places: Vec<usize> = (0..2 * GROUP).map(lane_place).collect();
        assert_eq!(places[..4], [0, 8, 1, 9]);
        assert_eq!((places[32], places[4], places[GROUP]), (2, 16, GROUP));
        places.sort_unstable();
        assert!(places.into_iter().eq(0..2 * GROUP));
    }

    #[test]
    fn ordinary_rows_have_scale_1() {
        for row in [[0.004, -1e-6], [1.0, 2.5], [32767.0, 0.1], [0.0, -0.0]] {
            let (scale, found) = round(&row);
            assert_eq!(scale, 1.0);
            assert_eq!(found, row.map(|v| f16::from_f32(v).to_f32()));
        }
    }

    #[test]
    fn rows_too_large_or_too_small_are_scaled_by_a_power_of_two_and_keep_11_bits() {
        for row in [[32768.0, 1.0], [3e38, -2e37], [1e-6, 3e-8], [1e-30, 4e-31], [3.3e38, 1e38]] {
            let (scale, found) = round(&row);
            assert!(scale != 1.0 && scale.to_bits() & 0x007f_ffff == 0);
            for (v, found) in row.iter().zip(found) {
                assert!((found / v - 1.0).abs() <= 0.5f32.powi(11), "{v} became {found}");
            }
        }
        assert_eq!(round(&[1e-44, 0.0]).0, f32::MIN_POSITIVE);
    }

    #[test]
    fn values_that_are_not_finite_make_the_scale_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(scale_of(&[1.0, bad]).is_nan());
            let mut bytes = [1; 4];
            store(&[1.0, bad], f32::NAN, &mut bytes);
            assert_eq!(bytes, [0; 4]);
        }
    }
}
