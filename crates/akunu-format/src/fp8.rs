//! FP8: weights of one byte, with scales in a plane of their own.

/// How many weights share a scale. A weight is `scale · code`, where codes are E4M3 numbers (four bits of exponent,
/// three of mantissa, no infinity) and scales are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fp8 {
    /// One scale for each row.
    Row,
    /// One for each 128 weights of a row; the last one of a row may be for fewer.
    G128,
}

impl Fp8 {
    pub const ALL: [Fp8; 2] = [Fp8::Row, Fp8::G128];

    /// Weights that share a scale in rows of `cols`.
    pub const fn group(self, cols: usize) -> usize {
        match self {
            Fp8::Row => cols,
            Fp8::G128 => 128,
        }
    }

    /// Number of scales of a row.
    pub const fn scales(self, cols: usize) -> usize {
        match self {
            Fp8::Row => 1,
            Fp8::G128 => cols.div_ceil(128),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Fp8::Row => "FP8_ROW",
            Fp8::G128 => "FP8_G128",
        }
    }
}

/// The value of an E4M3 code, exactly. 0x7f and 0xff are NaN.
pub const fn e4m3_to_f32(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// The nearest E4M3 code, ties to even; values beyond ±448 become ±448.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(448.0);
    // The distance of codes at this magnitude is 2 to this power; subnormal codes are 2⁻⁹ apart.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    // A power of two from its bits is exact, which `exp2` does not promise.
    let scale = f32::from_bits(((3 - exponent + 127) as u32) << 23);
    let steps = (magnitude * scale).round_ties_even() as u32;
    // Eight steps are one of the next exponent, which the sum carries to.
    sign | (((exponent + 6) as u32) << 3).wrapping_add(steps) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn every_code_is_its_own_nearest() {
        for code in (0..=255_u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(f32_to_e4m3(e4m3_to_f32(code)), code, "{code:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
        let known = [(0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0x7e, 448.0), (0xb9, -1.125)];
        for (code, value) in known {
            assert_eq!(e4m3_to_f32(code), value);
        }
    }

    #[test]
    fn values_between_codes_become_the_nearer_one_and_ties_the_even_one() {
        for code in 0..0x7e_u8 {
            let (low, high) = (e4m3_to_f32(code), e4m3_to_f32(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(f32_to_e4m3(middle), code + code % 2, "{middle}");
            assert_eq!(f32_to_e4m3(f32::from_bits(middle.to_bits() - 1)), code);
            assert_eq!(f32_to_e4m3(f32::from_bits(middle.to_bits() + 1)), code + 1);
        }
        assert_eq!((f32_to_e4m3(1e9), f32_to_e4m3(f32::NEG_INFINITY)), (0x7e, 0xfe));
    }

    #[test]
    fn a_row_is_its_codes_and_its_scales() {
        assert_eq!(DType::Fp8(Fp8::Row).plane_bytes(200), Some([200, 4, 0]));
        assert_eq!(DType::Fp8(Fp8::G128).plane_bytes(200), Some([200, 8, 0]));
        assert_eq!((DType::Fp8(Fp8::G128).row_bytes(256), DType::Fp8(Fp8::G128).planes()), (Some(264), 2));
        assert_eq!(DType::Fp8(Fp8::Row).row_bytes(usize::MAX), None);
    }
}
