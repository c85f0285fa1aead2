//! Quantisation to the types whose codes are indices into a table.

use super::search::{LEN, Levels, equal, inverse, squared_error, stored, symmetric, symmetric_block};
use crate::blocks::{FP4, IQ4, exponent_scale, put_half};

#[derive(Clone, Copy, Debug)]
struct Iq4;

impl Levels for Iq4 {
    fn nearest(self, v: f32) -> f32 {
        // Adds a step for each midpoint below `v`, without branches, so that it can be vectorised.
        let mut level = f32::from(IQ4[0]);
        for pair in IQ4.windows(2) {
            let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
            level += if v > (low + high) / 2.0 { high - low } else { 0.0 };
        }
        level
    }

    fn extreme_levels(self) -> impl Iterator<Item = f32> {
        let far = (-8i8..=8).map(|step| -127.0 - 2.0 * f32::from(step));
        let random_near = (-8i8..=8).map(|step| 113.0 + 2.0 * f32::from(step));
        std::iter::once(-127.0).chain(far).chain(random_near)
    }
}

/// Codes of 32 elements: the first sixteen in the low nibbles.
fn put_codes(out: &mut [u8], codes: impl Fn(usize) -> usize) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = (codes(i) | codes(i + 16) << 4) as u8;
    }
}

fn iq4_code(level: i8) -> usize {
    IQ4.partition_point(|&v| v < level)
}

pub(crate) fn to_iq4_nl(values: &[f32; 32], weights: Option<&[f32; 32]>, block: &mut [u8; 18]) {
    let d = stored(symmetric(values, weights.unwrap_or(equal()), Iq4));
    let inverse = inverse(d);
    put_half(block, 0, d);
    put_codes(&mut block[2..], |i| iq4_code(Iq4.nearest(values[i] * inverse) as i8));
}

pub(crate) fn to_iq4_xs(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 136]) {
    let found = symmetric_block::<_, 8, 32>(values, weights.unwrap_or(equal()), Iq4, 31.0);
    put_half(block, 0, found.d);
    let scales = found.scales.map(|scale| (scale + 32).cast_unsigned());
    let upper = (0..8).fold(0, |bits, sub| bits | u16::from(scales[sub] >> 4) << (2 * sub));
    block[2..4].copy_from_slice(&upper.to_le_bytes());
    for (byte, pair) in block[4..8].iter_mut().zip(scales.chunks(2)) {
        *byte = pair[0] & 15 | (pair[1] & 15) << 4;
    }
    for (out, levels) in block[8..].chunks_mut(16).zip(found.levels.chunks(32)) {
        put_codes(out, |i| iq4_code(levels[i]));
    }
}

/// The magnitude in [`FP4`] nearest to the given one, and its code. Ties go to the smaller one.
fn fp4_code(magnitude: f32) -> usize {
    (0..7).filter(|&code| magnitude > f32::from(FP4[code] + FP4[code + 1]) / 2.0).count()
}

/// Of the two exponents that suit the largest value, uses the one with the smaller error: the smaller exponent clips
/// values above 6 (of 8), but has finer steps.
pub(crate) fn to_mxfp4(values: &[f32; 32], weights: Option<&[f32; 32]>, block: &mut [u8; 17]) {
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    // The largest code, 6, is 1.5 · 2²; and 12 · 2^124 is the largest multiple of 12 that is finite.
    let exponent = (largest.to_bits() >> 23).saturating_sub(2).min(251) as u8;
    let error = |exponent: u8| {
        let d = exponent_scale(exponent);
        squared_error(values, weights.unwrap_or(equal()), |v| {
            (f32::from(FP4[fp4_code(v.abs() / d)]) * d).copysign(v)
        })
    };
    let exponent = if error(exponent + 1) < error(exponent) { exponent + 1 } else { exponent };
    let d = exponent_scale(exponent);
    block[0] = exponent;
    put_codes(&mut block[1..], |i| {
        let code = fp4_code(values[i].abs() / d);
        if code > 0 && values[i] < 0.0 { code + 8 } else { code }
    });
}
