//! The types whose four-bit codes are indices into a table of values.

use super::half_at;

/// Values of the IQ4_NL and IQ4_XS codes: denser random_near zero, where most weights are.
pub const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the MXFP4 codes: floats with a sign, two exponent bits and one fraction bit.
pub const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of 2^(exponent − 127), since [`FP4`] is doubled: 2⁻¹²⁸ (subnormal) to 2¹²⁷.
pub fn exponent_scale(exponent: u8) -> f32 {
    let e = u32::from(exponent);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

/// The values of 32 codes: element i is the low nibble of byte i, element i + 16 the high one.
fn lookup_codes(table: &[i8; 16], nibbles: &[u8], scale: f32, out: &mut [f32]) {
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = scale * f32::from(table[usize::from(byte & 15)]);
        out[i + 16] = scale * f32::from(table[usize::from(byte >> 4)]);
    }
}

pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    lookup_codes(&IQ4, &block[2..], half_at(block, 0), out);
}

pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    lookup_codes(&FP4, &block[1..], exponent_scale(block[0]), out);
}

/// x = d·scale·IQ4\[code\]. Sub-blocks of 32, each as in IQ4_NL; scales have 6 bits and are stored plus 32.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    for (sub, (nibbles, out)) in block[8..].chunks(16).zip(out.chunks_mut(32)).enumerate() {
        let lower = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = i32::from(lower) + 16 * i32::from(upper >> (2 * sub) & 3) - 32;
        lookup_codes(&IQ4, nibbles, d * scale as f32, out);
    }
}
