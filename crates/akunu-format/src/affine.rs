//! MLX's affine types: quants, scales and offsets in three planes, each a separate tensor in the file.

/// The storage type of the scales and offsets of an affine weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleType {
    F16,
    BF16,
    F32,
}

impl ScaleType {
    pub const ALL: [ScaleType; 3] = [ScaleType::F16, ScaleType::BF16, ScaleType::F32];

    pub const fn bytes(self) -> usize {
        match self {
            ScaleType::F16 | ScaleType::BF16 => 2,
            ScaleType::F32 => 4,
        }
    }
}

/// `w = scale · quant + offset`, with one scale and one offset for each group of `group` weights of a row. Quants are
/// unsigned integers of `bits` bits, packed from the lowest bit of the row's first byte. MLX calls the offsets
/// `biases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    bits: u8,
    group: u8,
    scales: ScaleType,
}

impl Affine {
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// `None` for combinations that MLX does not support.
    pub fn new(bits: usize, group: usize, scales: ScaleType) -> Option<Affine> {
        let known = Affine::BITS.contains(&bits) && Affine::GROUPS.contains(&group);
        known.then_some(Affine { bits: bits as u8, group: group as u8, scales })
    }

    /// Every combination.
    pub fn all() -> impl Iterator<Item = Affine> {
        Affine::BITS.into_iter().flat_map(|bits| {
            Affine::GROUPS.into_iter().flat_map(move |group| {
                ScaleType::ALL.into_iter().filter_map(move |scales| Affine::new(bits, group, scales))
            })
        })
    }

    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Number of weights that share a scale and an offset.
    pub const fn group(self) -> usize {
        self.group as usize
    }

    pub const fn scales(self) -> ScaleType {
        self.scales
    }

    /// Bytes of one group in each plane: quants, scale, offset.
    pub const fn group_bytes(self) -> [usize; 3] {
        [self.group() * self.bits() / 8, self.scales.bytes(), self.scales.bytes()]
    }

    pub(crate) const fn name(self) -> &'static str {
        let row: &[[&str; 3]; 3] = match self.bits {
            2 => &NAMES[0],
            3 => &NAMES[1],
            4 => &NAMES[2],
            5 => &NAMES[3],
            6 => &NAMES[4],
            _ => &NAMES[5],
        };
        let group = match self.group {
            32 => 0,
            64 => 1,
            _ => 2,
        };
        row[group][self.scales as usize]
    }
}

macro_rules! names {
    ($($bits:literal)*) => {
        [$([
            [concat!("MLX", $bits, "_G32_F16"), concat!("MLX", $bits, "_G32_BF16"), concat!("MLX", $bits, "_G32_F32")],
            [concat!("MLX", $bits, "_G64_F16"), concat!("MLX", $bits, "_G64_BF16"), concat!("MLX", $bits, "_G64_F32")],
            [concat!("MLX", $bits, "_G128_F16"), concat!("MLX", $bits, "_G128_BF16"), concat!("MLX", $bits, "_G128_F32")],
        ]),*]
    };
}

/// `[bits][group][scales]`
const NAMES: [[[&str; 3]; 3]; 6] = names!(2 3 4 5 6 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn every_combination_has_a_unique_name() {
        let names: std::collections::BTreeSet<&str> = Affine::all().map(Affine::name).collect();
        assert_eq!(names.len(), 54);
        for affine in Affine::all() {
            let expected = format!("MLX{}_G{}_{:?}", affine.bits(), affine.group(), affine.scales());
            assert_eq!(affine.name(), expected);
        }
    }

    #[test]
    fn a_row_is_its_planes() {
        let dtype = DType::Affine(Affine::new(3, 64, ScaleType::BF16).unwrap());
        assert_eq!(dtype.plane_bytes(192), Some([72, 6, 6]));
        assert_eq!(dtype.row_bytes(192), Some(84));
        assert_eq!(dtype.plane_bytes(96), None);
        assert_eq!(DType::Q4_0.plane_bytes(64), Some([36, 0, 0]));
        assert!(Affine::new(7, 64, ScaleType::F16).is_none() && Affine::new(4, 16, ScaleType::F16).is_none());
    }
}
