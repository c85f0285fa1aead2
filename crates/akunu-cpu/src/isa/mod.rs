//! Instruction sets, and the sixteen lanes on which all of them compute.
//!
//! A folder per instruction set, with the same file names for the same content in each:
//!
//! - `lanes`: sixteen lanes ([`Lanes`]), and `registers`: sums and transposes within and between registers;
//! - `quants` (`affine` for MLX's types): how the blocks of [`crate::formats`] are decoded;
//! - `dots`: products of one row ([`crate::tile::Dot`]);
//! - `panels`: products of several rows ([`crate::tile::Panels`]);
//! - `packed`: products of many rows ([`crate::tile::Packed`]), and `bf16`: the same in bfloat16, on request.
//!
//! AVX-512 takes from AVX2, and AMX from both, what they have in common. All other code is written once, generic over
//! [`Lanes`], and compiled for each instruction set by [`target`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod lanes;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;
pub(crate) mod table;
pub(crate) mod target;

use std::str::FromStr;

use akunu_plan::DeviceError;

pub(crate) use lanes::Lanes;

// `Decoded`: a quantised type that all instruction sets of this architecture decode.

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::quants::QuantAvx512 as Decoded;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::quants::QuantNeon as Decoded;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use crate::formats::Quant as Decoded;

/// An instruction set for which kernels exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust: the definition of every kernel, and the fallback.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ. Products of a few rows of quantised weights are AVX2's.
    Avx512Bw,
    /// The same with VNNI.
    Avx512,
    /// AVX-512, with integer matrix products of many rows on AMX tiles.
    Amx,
    /// AVX-512 with products of several rows and of float weights in bfloat16. Its results are not those of the
    /// canonical arithmetic, so it is used on request only.
    Avx512Bf16,
    /// AMX with products of several rows in bfloat16; on request only, likewise.
    AmxBf16,
    /// NEON, which every 64-bit ARM processor has.
    Neon,
    /// NEON with FEAT_DotProd.
    NeonDotProd,
    /// NEON with FEAT_DotProd and FEAT_I8MM.
    NeonI8mm,
}

/// Why an instruction set is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    #[error("{0} is not an instruction set; AKUNU_ISA takes one of {names}", names = names())]
    Unknown(String),
    #[error("this processor does not have {}; the best it has is {}", .asked.name(), .best.name())]
    Unavailable { asked: Isa, best: Isa },
}

impl Isa {
    /// In ascending order of preference, among those that one processor can have.
    pub const ALL: [Isa; 10] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::Avx512Bw,
        Isa::Avx512,
        Isa::Amx,
        Isa::Avx512Bf16,
        Isa::AmxBf16,
        Isa::Neon,
        Isa::NeonDotProd,
        Isa::NeonI8mm,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Bw => "avx512-bw",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::AmxBf16 => "amx-bf16",
            Isa::Neon => "neon",
            Isa::NeonDotProd => "neon-dotprod",
            Isa::NeonI8mm => "neon-i8mm",
        }
    }

    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        if cfg!(fuzzing) {
            return self == Isa::Scalar; // `table::Kernels::of` has no others.
        }
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bw => {
                has_avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Isa::Avx512Bw.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && amx::tiles::is_permitted(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => Isa::Amx.is_available() && amx::tiles::has_bf16(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotProd => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                Isa::NeonDotProd.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            // Instruction sets of other architectures.
            _ => false,
        }
    }

    /// Whether its arithmetic is the canonical one, with the same bits as every other canonical instruction set.
    pub fn is_canonical(self) -> bool {
        !matches!(self, Isa::Avx512Bf16 | Isa::AmxBf16)
    }

    /// Whether products of several rows use packed activations ([`crate::groups`]).
    pub(crate) fn packs_activations(self) -> bool {
        matches!(self, Isa::Avx512Bw | Isa::Avx512 | Isa::Amx | Isa::Avx512Bf16 | Isa::AmxBf16)
    }

    /// The canonical ones that this processor has, in ascending order of preference.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available() && isa.is_canonical()).collect()
    }

    /// The best canonical one that this processor has.
    pub fn best() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Scalar)
    }

    /// Itself, if this processor has it.
    pub fn checked(self) -> Result<Isa, IsaError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(IsaError::Unavailable { asked: self, best: Isa::best() })
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        Isa::from_name(name).ok_or_else(|| IsaError::Unknown(name.to_string()))
    }
}

impl From<IsaError> for DeviceError {
    fn from(error: IsaError) -> DeviceError {
        DeviceError::Failed { device: crate::device::NAME, message: error.to_string() }
    }
}

fn names() -> String {
    Isa::ALL.map(Isa::name).join(", ")
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
