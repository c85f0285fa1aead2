//! Rows of GPTQ, AWQ and MLX whose weights a GGUF type can hold exactly.
//!
//! Q4_0, Q5_0 and Q8_0 are `d · (code − zero)` in blocks of 32, with a scale in half precision. An affine group is of the
//! same form if its offset is a whole multiple of its scale, as with the zero points of GPTQ and AWQ. Searching for
//! scales, or taking them from the largest weight of a block, would in general find others, and round.

use half::f16;

use crate::blocks::{quant, scale};
use crate::{Affine, DType};

/// Elements of a block.
const BLOCK: usize = 32;

/// The code of zero, and the range of codes.
fn codes(target: DType) -> Option<(i32, std::ops::RangeInclusive<i32>)> {
    match target {
        DType::Q4_0 => Some((8, 0..=15)),
        DType::Q5_0 => Some((16, 0..=31)),
        DType::Q8_0 => Some((0, -127..=127)),
        _ => None,
    }
}

/// Writes a row, given by its planes, in another type. `false`: the type cannot hold it exactly, and `out` is
/// unspecified. The lengths belong to whole rows of the same number of elements.
pub fn convert_exactly(affine: Affine, planes: [&[u8]; 3], target: DType, out: &mut [u8]) -> bool {
    let Some((zero_code, range)) = codes(target) else { return false };
    let [quants, scales, offsets] = planes;
    for (block, out) in out.chunks_exact_mut(target.block_bytes()).enumerate() {
        let group = block * BLOCK / affine.group();
        let (d, offset) = (scale(affine.scales(), scales, group), scale(affine.scales(), offsets, group));
        // Without a scale all weights are the offset.
        let zero = if d == 0.0 { 0.0 } else { -offset / d };
        let exact = f16::from_f32(d).to_f32() == d && zero.fract() == 0.0 && zero * d == -offset;
        if !exact || zero.abs() > 255.0 {
            return false;
        }
        let mut block_codes = [0; BLOCK];
        for (i, code) in block_codes.iter_mut().enumerate() {
            let quant = if d == 0.0 { 0 } else { quant(affine.bits(), quants, block * BLOCK + i) };
            *code = i32::from(quant) - zero as i32 + zero_code;
            if !range.contains(code) {
                return false;
            }
        }
        out.fill(0);
        out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        put(target, &block_codes, &mut out[2..]);
    }
    true
}

/// Stores the codes of a block behind its scale, in zeros.
fn put(target: DType, codes: &[i32; BLOCK], out: &mut [u8]) {
    if target == DType::Q8_0 {
        out.iter_mut().zip(codes).for_each(|(byte, code)| *byte = *code as i8 as u8);
        return;
    }
    let fifths = if target == DType::Q5_0 { 4 } else { 0 };
    let (high, low) = out.split_at_mut(fifths);
    for (i, code) in codes.iter().enumerate() {
        low[i % 16] |= (*code as u8 & 15) << (i / 16 * 4);
        if fifths > 0 {
            high[i / 8] |= (*code as u8 >> 4) << (i % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScaleType;
    use crate::blocks::{dequantize_planes, dequantize_row};

    /// Two groups of 32 with codes 0 to 15 twice: scales and offsets as f32.
    fn row(scales: [f32; 2], offsets: [f32; 2]) -> (Affine, [Vec<u8>; 3]) {
        let quants = (0..32).map(|i: u8| (i * 2 % 16) | (i * 2 % 16 + 1) << 4).collect();
        let plane = |values: [f32; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let affine = Affine::new(4, 32, ScaleType::F32).unwrap();
        (affine, [quants, plane(scales), plane(offsets)])
    }

    #[track_caller]
    fn holds(target: DType, scales: [f32; 2], offsets: [f32; 2], expected: bool) {
        let (affine, planes) = row(scales, offsets);
        let planes = planes.each_ref().map(Vec::as_slice);
        let mut out = vec![0xff; target.row_bytes(64).unwrap()];
        assert_eq!(convert_exactly(affine, planes, target, &mut out), expected, "{target}");
        if expected {
            let (mut before, mut after) = ([0.0; 64], [0.0; 64]);
            dequantize_planes(affine, planes, &mut before).unwrap();
            dequantize_row(target, &out, &mut after).unwrap();
            assert_eq!(before, after, "{target}");
        }
    }

    #[test]
    fn zero_points_are_held_exactly_where_codes_reach_far_enough() {
        let symmetric = ([0.5, 0.25], [-4.0, -2.0]);
        let own = ([0.5, 0.375], [-1.5, -4.5]);
        for target in [DType::Q4_0, DType::Q5_0, DType::Q8_0] {
            holds(target, symmetric.0, symmetric.1, true);
            holds(target, own.0, own.1, target != DType::Q4_0);
            // Negative scales, and groups of zeros.
            holds(target, [-0.5, 0.0], [4.0, 0.0], true);
            // A weight of 0 that is not among the quants; a scale that half precision rounds.
            holds(target, [0.5, 0.5], [-4.0, -3.9], false);
            holds(target, [0.1, 0.5], [-0.8, -4.0], false);
            holds(target, [0.0, 0.5], [1.0, -4.0], false);
        }
        holds(DType::Q4_1, symmetric.0, symmetric.1, false);
    }
}
