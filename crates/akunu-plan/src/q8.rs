//! Activations rounded to int8, for products with quantised weights.
//!
//! A row of `n` elements (a multiple of 32) consists of three contiguous planes: `[i8; n]` quants, `[f32; n/32]`
//! scales, `[i32; n/32]` sums of each block's quants.
//!
//! Per block of 32: `amax` is the largest magnitude (compared as bit patterns, so NaN is the largest), `scale = amax /
//! 127`, `quant = round_ties_even(x · (127 / amax))`; a zero block has scale 0 and quants 0. A block with a NaN or an
//! infinity has scale NaN and quants 0, so that the NaN propagates to the logits, where it is reported.

pub const BLOCK: usize = 32;

/// Bytes of one row of `n` elements.
pub const fn row_bytes(n: usize) -> usize {
    n + n / BLOCK * 8
}

/// Byte offset of the scales within a row.
pub const fn scales_offset(n: usize) -> usize {
    n
}

/// Byte offset of the block sums within a row.
pub const fn sums_offset(n: usize) -> usize {
    n + n / BLOCK * 4
}

/// The definition for one block. Returns (scale, sum of quants).
pub fn quantise_block(x: &[f32], quants: &mut [i8]) -> (f32, i32) {
    let amax = f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
    if !amax.is_finite() {
        quants.fill(0);
        return (f32::NAN, 0);
    }
    if amax == 0.0 {
        quants.fill(0);
        return (0.0, 0);
    }
    let inverse = 127.0 / amax;
    if !inverse.is_finite() {
        // The scale would be subnormal: the whole block is below 1e-36.
        quants.fill(0);
        return (0.0, 0);
    }
    let mut sum = 0;
    for (q, &v) in quants.iter_mut().zip(x) {
        *q = (v * inverse).round_ties_even() as i8;
        sum += i32::from(*q);
    }
    (amax / 127.0, sum)
}

/// The scale of the block that contains element `i`, in a row of `n` elements.
pub fn scale(row: &[u8], n: usize, i: usize) -> f32 {
    let b = &row[scales_offset(n) + i / BLOCK * 4..];
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// The dequantised values of one row of `n` elements.
pub fn dequantise_row(row: &[u8], n: usize) -> Vec<f32> {
    (0..n).map(|i| scale(row, n, i) * f32::from(row[i] as i8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(x: &[f32]) -> (Vec<i8>, f32, i32) {
        let mut quants = vec![1; x.len()];
        let (scale, sum) = quantise_block(x, &mut quants);
        (quants, scale, sum)
    }

    #[test]
    fn the_largest_magnitude_becomes_127_and_ties_go_to_even() {
        let (quants, scale, sum) = block(&[127.0, 0.5, 1.5, -2.5]);
        assert_eq!((quants, scale, sum), (vec![127, 0, 2, -2], 1.0, 127));
    }

    #[test]
    fn zero_and_vanishing_blocks_are_zero() {
        assert_eq!(block(&[0.0, -0.0]), (vec![0, 0], 0.0, 0));
        assert_eq!(block(&[1e-44, 0.0]), (vec![0, 0], 0.0, 0));
    }

    #[test]
    fn values_that_are_not_finite_make_the_scale_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (quants, scale, _) = block(&[1.0, bad]);
            assert!(scale.is_nan());
            assert_eq!(quants, [0, 0]);
        }
    }
}
