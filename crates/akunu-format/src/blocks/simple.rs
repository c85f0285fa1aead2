//! The 32-element types, in both directions.
//!
//! Quantising divides by the scale in f32 and then stores the scale in half precision; rounding adds a half and
//! truncates, for Q8_0 away from zero. This gives the same bytes as other tools. With weights, scales are searched as
//! those of k-quants, except in Q8_0.

use super::{half_at, put_half};
use crate::quantise::search::{Affine, Integers, Offsets, affine, inverse, stored, symmetric};

const LEN: usize = 32;
const HALF: usize = LEN / 2;

/// Codes −8 … 7, times `d`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = (i32::from(byte & 15) - 8) as f32 * d;
        out[i + HALF] = (i32::from(byte >> 4) - 8) as f32 * d;
    }
}

/// Codes 0 … 15, times `d`, plus `m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * d + m;
        out[i + HALF] = f32::from(byte >> 4) * d + m;
    }
}

/// The five-bit code of element `i`: a nibble, and bit `i` of the four bytes before.
fn code5(bits: &[u8; 4], nibbles: &[u8], i: usize) -> u8 {
    let nibble = if i < HALF { nibbles[i] & 15 } else { nibbles[i - HALF] >> 4 };
    let fifth = (u32::from_le_bytes(*bits) >> i) as u8 & 1;
    nibble | fifth << 4
}

/// Codes −16 … 15, times `d`.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    let bits = [block[2], block[3], block[4], block[5]];
    for (i, out) in out.iter_mut().enumerate() {
        *out = (i32::from(code5(&bits, &block[6..], i)) - 16) as f32 * d;
    }
}

/// Codes 0 … 31, times `d`, plus `m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let bits = [block[4], block[5], block[6], block[7]];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f32::from(code5(&bits, &block[8..], i)) * d + m;
    }
}

/// Codes −128 … 127 (quantisers stop at −127), times `d`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = f32::from(byte.cast_signed()) * d;
    }
}

/// The first value of the largest magnitude, with its sign.
fn extreme(values: &[f32; LEN]) -> f32 {
    values.iter().fold(0.0, |most: f32, &v| if v.abs() > most.abs() { v } else { most })
}

fn min_and_max(values: &[f32; LEN]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), &v| (least.min(v), most.max(v)))
}

/// The scale of codes −half … half − 1.
fn scale(values: &[f32; LEN], weights: Option<&[f32; LEN]>, half: f32) -> f32 {
    match weights {
        // The extreme value gets code −half, since the negative side has one code more.
        None => extreme(values) / -half,
        Some(weights) => stored(symmetric(values, weights, Integers { half })),
    }
}

/// The scale and the smallest value of codes 0 … most.
fn scale_and_least(values: &[f32; LEN], weights: Option<&[f32; LEN]>, most: f32) -> (f32, f32) {
    match weights {
        None => {
            let (least, greatest) = min_and_max(values);
            ((greatest - least) / most, least)
        }
        Some(weights) => {
            let Affine { scale, offset } = affine(values, weights, most, Offsets::Any);
            (stored(scale), stored(-offset))
        }
    }
}

pub(super) fn to_q4_0(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 18]) {
    let d = scale(values, weights, 8.0);
    let id = inverse(d);
    put_half(block, 0, d);
    let code = |v: f32| ((v * id + 8.5) as u8).min(15);
    for i in 0..HALF {
        block[2 + i] = code(values[i]) | code(values[i + HALF]) << 4;
    }
}

pub(super) fn to_q4_1(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 20]) {
    let (d, least) = scale_and_least(values, weights, 15.0);
    let id = inverse(d);
    put_half(block, 0, d);
    put_half(block, 2, least);
    let code = |v: f32| (((v - least) * id + 0.5) as u8).min(15);
    for i in 0..HALF {
        block[4 + i] = code(values[i]) | code(values[i + HALF]) << 4;
    }
}

/// Writes five-bit codes: four bytes with the fifth bits, then the nibbles.
fn put_codes5(out: &mut [u8], values: &[f32; LEN], code: impl Fn(f32) -> u8) {
    let mut bits = 0u32;
    for i in 0..HALF {
        let (low, high) = (code(values[i]), code(values[i + HALF]));
        out[4 + i] = low & 15 | high << 4;
        bits |= u32::from(low >> 4) << i | u32::from(high >> 4) << (i + HALF);
    }
    out[..4].copy_from_slice(&bits.to_le_bytes());
}

pub(super) fn to_q5_0(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 22]) {
    let d = scale(values, weights, 16.0);
    let id = inverse(d);
    put_half(block, 0, d);
    put_codes5(&mut block[2..], values, |v| ((v * id + 16.5) as u8).min(31));
}

pub(super) fn to_q5_1(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 24]) {
    let (d, least) = scale_and_least(values, weights, 31.0);
    let id = inverse(d);
    put_half(block, 0, d);
    put_half(block, 2, least);
    put_codes5(&mut block[4..], values, |v| (((v - least) * id + 0.5) as u8).min(31));
}

pub(super) fn to_q8_0(values: &[f32; LEN], _: Option<&[f32; LEN]>, block: &mut [u8; 34]) {
    let d = extreme(values).abs() / 127.0;
    let id = inverse(d);
    put_half(block, 0, d);
    for (v, byte) in values.iter().zip(&mut block[2..]) {
        *byte = ((v * id).round() as i8).cast_unsigned();
    }
}
