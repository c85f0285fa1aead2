//! Quantisation to k-quants: packs the results of [`super::search`] in the layout that `blocks::k` unpacks.

use super::search::{Integers, LEN, affine_block, equal, symmetric_block};
use crate::blocks::{pack_scales_offsets, put_half};

/// Two-bit codes: each half of 128 elements is 32 bytes, its quarters at bits 0, 2, 4 and 6.
fn put_pairs(out: &mut [u8], codes: &[u8; LEN]) {
    for (out, codes) in out.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<128>().0) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = (0..4).fold(0, |byte, pass| byte | (codes[32 * pass + i] & 3) << (2 * pass));
        }
    }
}

/// Nibbles: 64 elements are 32 bytes, the first 32 elements in the low nibbles.
fn put_nibbles(out: &mut [u8], codes: &[u8; LEN]) {
    for (out, codes) in out.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<64>().0) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[i] & 15 | (codes[32 + i] & 15) << 4;
        }
    }
}

/// Bit `bit` of element i's code is stored in bit i / 32 of byte i % 32.
fn put_bits(out: &mut [u8], codes: &[u8; LEN], bit: u32) {
    for (i, out) in out[..32].iter_mut().enumerate() {
        *out = (0..8).fold(0, |byte, pass| byte | (codes[32 * pass + i] >> bit & 1) << pass);
    }
}

pub(crate) fn to_q2_k(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 84]) {
    let found = affine_block::<16, 16>(values, weights.unwrap_or(equal()), 3.0, 15.0);
    for (byte, (scale, offset)) in block.iter_mut().zip(found.scales.iter().zip(found.offsets)) {
        *byte = scale | offset << 4;
    }
    put_pairs(&mut block[16..80], &found.codes);
    put_half(block, 80, found.d);
    put_half(block, 82, found.m);
}

pub(crate) fn to_q3_k(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 110]) {
    let found =
        symmetric_block::<_, 16, 16>(values, weights.unwrap_or(equal()), Integers { half: 4.0 }, 31.0);
    let codes = found.levels.map(|level| (level + 4).cast_unsigned());
    put_bits(block, &codes, 2);
    put_pairs(&mut block[32..96], &codes);
    block[96..108].copy_from_slice(&pack_scales_q3(&found.scales));
    put_half(block, 108, found.d);
}

/// The inverse of [`crate::blocks::unpack_scales_q3`].
fn pack_scales_q3(scales: &[i8; 16]) -> [u8; 12] {
    let code = |j: usize| (scales[j] + 32).cast_unsigned();
    std::array::from_fn(|i| match i {
        0..8 => code(i) & 15 | (code(i + 8) & 15) << 4,
        _ => (0..4).fold(0, |byte, pass| byte | code(i - 8 + 4 * pass) >> 4 << (2 * pass)),
    })
}

pub(crate) fn to_q4_k(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 144]) {
    let found = affine_block::<8, 32>(values, weights.unwrap_or(equal()), 15.0, 63.0);
    put_half(block, 0, found.d);
    put_half(block, 2, found.m);
    block[4..16].copy_from_slice(&pack_scales_offsets(&found.scales, &found.offsets));
    put_nibbles(&mut block[16..], &found.codes);
}

pub(crate) fn to_q5_k(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 176]) {
    let found = affine_block::<8, 32>(values, weights.unwrap_or(equal()), 31.0, 63.0);
    put_half(block, 0, found.d);
    put_half(block, 2, found.m);
    block[4..16].copy_from_slice(&pack_scales_offsets(&found.scales, &found.offsets));
    put_bits(&mut block[16..48], &found.codes, 4);
    put_nibbles(&mut block[48..], &found.codes);
}

pub(crate) fn to_q6_k(values: &[f32; LEN], weights: Option<&[f32; LEN]>, block: &mut [u8; 210]) {
    let found =
        symmetric_block::<_, 16, 16>(values, weights.unwrap_or(equal()), Integers { half: 32.0 }, 127.0);
    let codes = found.levels.map(|level| (level + 32).cast_unsigned());
    for half in 0..2 {
        let codes = &codes[128 * half..][..128];
        for i in 0..64 {
            block[64 * half + i] = codes[i] & 15 | (codes[64 + i] & 15) << 4;
        }
        for i in 0..32 {
            let upper = |pass: usize| codes[32 * pass + i] >> 4 << (2 * pass);
            block[128 + 32 * half + i] = upper(0) | upper(1) | upper(2) | upper(3);
        }
    }
    for (byte, scale) in block[192..208].iter_mut().zip(found.scales) {
        *byte = scale.cast_unsigned();
    }
    put_half(block, 208, found.d);
}
