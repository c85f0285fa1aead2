//! The element types of weights, and the sizes of their blocks.

use crate::{Affine, Fp8};

/// The storage type of a weight. Quantised types are stored in blocks; a row always consists of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    IQ1S,
    IQ1M,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ3XXS,
    IQ3S,
    IQ4NL,
    IQ4XS,
    MXFP4,
    /// MLX's types, and what GPTQ and AWQ are read as; never in a GGUF file.
    Affine(Affine),
    /// Never in a GGUF file either.
    Fp8(Fp8),
}

impl DType {
    /// The types of GGUF files.
    pub const ALL: [DType; 23] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::IQ1S,
        DType::IQ1M,
        DType::IQ2XXS,
        DType::IQ2XS,
        DType::IQ2S,
        DType::IQ3XXS,
        DType::IQ3S,
        DType::IQ4NL,
        DType::IQ4XS,
        DType::MXFP4,
    ];

    /// (GGUF type id, name, elements per block, bytes per block)
    const fn facts(self) -> (Option<u32>, &'static str, usize, usize) {
        match self {
            DType::F32 => (Some(0), "F32", 1, 4),
            DType::F16 => (Some(1), "F16", 1, 2),
            DType::BF16 => (Some(30), "BF16", 1, 2),
            DType::Q4_0 => (Some(2), "Q4_0", 32, 18),
            DType::Q4_1 => (Some(3), "Q4_1", 32, 20),
            DType::Q5_0 => (Some(6), "Q5_0", 32, 22),
            DType::Q5_1 => (Some(7), "Q5_1", 32, 24),
            DType::Q8_0 => (Some(8), "Q8_0", 32, 34),
            DType::Q2K => (Some(10), "Q2_K", 256, 84),
            DType::Q3K => (Some(11), "Q3_K", 256, 110),
            DType::Q4K => (Some(12), "Q4_K", 256, 144),
            DType::Q5K => (Some(13), "Q5_K", 256, 176),
            DType::Q6K => (Some(14), "Q6_K", 256, 210),
            DType::IQ1S => (Some(19), "IQ1_S", 256, 50),
            DType::IQ1M => (Some(29), "IQ1_M", 256, 56),
            DType::IQ2XXS => (Some(16), "IQ2_XXS", 256, 66),
            DType::IQ2XS => (Some(17), "IQ2_XS", 256, 74),
            DType::IQ2S => (Some(22), "IQ2_S", 256, 82),
            DType::IQ3XXS => (Some(18), "IQ3_XXS", 256, 98),
            DType::IQ3S => (Some(21), "IQ3_S", 256, 110),
            DType::IQ4NL => (Some(20), "IQ4_NL", 32, 18),
            DType::IQ4XS => (Some(23), "IQ4_XS", 256, 136),
            DType::MXFP4 => (Some(39), "MXFP4", 32, 17),
            DType::Affine(affine) => {
                let [quants, scale, offset] = affine.group_bytes();
                (None, affine.name(), affine.group(), quants + scale + offset)
            }
            // Scales are counted in `row_bytes`.
            DType::Fp8(fp8) => (None, fp8.name(), 1, 1),
        }
    }

    /// `None`: GGUF has no such type.
    pub const fn gguf_id(self) -> Option<u32> {
        self.facts().0
    }

    /// The name that users write: `Q4_K`, `BF16`.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Whether weights are blocks of integers with scales, which are multiplied by activations rounded to int8.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// The IQ1 to IQ3 types, whose codes are points of a lattice.
    pub const fn is_lattice(self) -> bool {
        use DType::{IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS};
        matches!(self, IQ1S | IQ1M | IQ2XXS | IQ2XS | IQ2S | IQ3XXS | IQ3S)
    }

    /// Whether [`crate::blocks::quantize_row`] searches scales, so that weights of the error matter.
    pub const fn is_searched(self) -> bool {
        self.is_quantised() && !matches!(self, DType::Q8_0 | DType::Affine(_))
    }

    pub fn from_gguf_id(id: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.gguf_id() == Some(id))
    }

    /// Parses a name, ignoring case: `q4_k`, `Q8_0`.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Number of separate planes of a tensor: one for blocks; two for codes and scales; three with offsets.
    pub const fn planes(self) -> usize {
        match self {
            DType::Affine(_) => 3,
            DType::Fp8(_) => 2,
            _ => 1,
        }
    }

    /// Bytes of a row of `cols` elements in each plane; 0 for planes that the type does not have.
    pub const fn plane_bytes(self, cols: usize) -> Option<[usize; 3]> {
        let Some(all) = self.row_bytes(cols) else { return None };
        match self {
            DType::Affine(affine) => {
                let (groups, [quants, scale, offset]) = (cols / affine.group(), affine.group_bytes());
                Some([groups * quants, groups * scale, groups * offset])
            }
            DType::Fp8(_) => Some([cols, all - cols, 0]),
            _ => Some([all, 0, 0]),
        }
    }

    /// Bytes of a row of `cols` elements in all planes; `None` if the row is not whole blocks or the product overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if let DType::Fp8(fp8) = self {
            return cols.checked_add(4 * fp8.scales(cols));
        }
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
