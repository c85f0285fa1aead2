//! The k-quants: 256 elements in sub-blocks of 16 or 32, each sub-block with its own small integer scale.

use super::half_at;

const LEN: usize = 256;

/// Scales and offsets of Q4_K and Q5_K, eight of each, 6 bits wide.
///
/// The first four of each are the low 6 bits of bytes 0–3 (scales) and 4–7 (offsets). The last four have their
/// low 4 bits in bytes 8–11 (scale low, offset high) and their upper 2 bits on top of bytes 0–3 and 4–7.
pub fn unpack_scales_offsets(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut offsets) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        offsets[j] = packed[j + 4] & 63;
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        offsets[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, offsets)
}

/// The sixteen 6-bit scales of Q3_K, less 32.
///
/// Low 4 bits: the low nibbles of bytes 0–7, then their high nibbles. Upper 2 bits: bytes 8–11, byte 8 + j % 4
/// at bit 2·(j / 4).
pub fn unpack_scales_q3(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
        let high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4).cast_signed() - 32
    })
}

/// Twelve bytes at `at`.
fn twelve_bytes(block: &[u8], at: usize) -> [u8; 12] {
    std::array::from_fn(|i| block[at + i])
}

/// x = d·scale·q − m·offset; q 0 … 3. Sub-blocks of 16; a half of 128 elements is 32 bytes, read four times at
/// bits 0, 2, 4 and 6.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; LEN]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, m) = (half_at(block, 80), half_at(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        let (half, pass, l) = (i / 128, i / 32 % 4, i % 32);
        let q = codes[half * 32 + l] >> (2 * pass) & 3;
        let scale = scales[i / 16];
        *out = d * f32::from(scale & 15) * f32::from(q) - m * f32::from(scale >> 4);
    }
}

/// x = d·scale·q; q −4 … 3: two bits as in Q2_K, and a third that is bit i / 32 of byte i % 32; if that bit is clear, 4
/// is subtracted.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; LEN]) {
    let (thirds, codes) = (&block[..32], &block[32..96]);
    let scales = unpack_scales_q3(&twelve_bytes(block, 96));
    let d = half_at(block, 108);
    for (i, out) in out.iter_mut().enumerate() {
        let (half, pass, l) = (i / 128, i / 32 % 4, i % 32);
        let low = codes[half * 32 + l] >> (2 * pass) & 3;
        let high = thirds[l] >> (i / 32) & 1;
        let q = i32::from(low | high << 2) - 4;
        *out = d * f32::from(scales[i / 16]) * q as f32;
    }
}

/// The nibble of element i in Q4_K and Q5_K: 64 elements are 32 bytes, low nibbles first.
fn nibble(nibbles: &[u8], i: usize) -> u8 {
    let byte = nibbles[i / 64 * 32 + i % 32];
    if i % 64 < 32 { byte & 15 } else { byte >> 4 }
}

/// x = d·scale·q − m·offset; q 0 … 15. Sub-blocks of 32.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let (scales, offsets) = unpack_scales_offsets(&twelve_bytes(block, 4));
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(&block[16..], i);
        let sub = i / 32;
        *out = d * f32::from(scales[sub]) * f32::from(q) - m * f32::from(offsets[sub]);
    }
}

/// As Q4_K, q 0 … 31: the fifth bit of element i is bit i / 32 of byte i % 32.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let (scales, offsets) = unpack_scales_offsets(&twelve_bytes(block, 4));
    let fifths = &block[16..48];
    for (i, out) in out.iter_mut().enumerate() {
        let sub = i / 32;
        let q = nibble(&block[48..], i) | (fifths[i % 32] >> sub & 1) << 4;
        *out = d * f32::from(scales[sub]) * f32::from(q) - m * f32::from(offsets[sub]);
    }
}

/// x = d·scale·q; q −32 … 31. Sub-blocks of 16. A half of 128 elements is 64 bytes of nibbles (elements 0–63
/// low, 64–127 high) and 32 bytes of upper bits, elements 0–31 at bits 0–1, 32–63 at 2–3 and so on.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; LEN]) {
    let (lows, highs, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (i, out) in out.iter_mut().enumerate() {
        let (half, r) = (i / 128, i % 128);
        let byte = lows[half * 64 + r % 64];
        let low = if r < 64 { byte & 15 } else { byte >> 4 };
        let high = highs[half * 32 + r % 32] >> (2 * (r / 32)) & 3;
        let q = i32::from(low | high << 4) - 32;
        *out = d * f32::from(scales[i / 16].cast_signed()) * q as f32;
    }
}
