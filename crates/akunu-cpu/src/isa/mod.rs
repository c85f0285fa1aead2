//! Instruction sets, and the sixteen lanes on which all of them compute.
//!
//! One file per instruction set, with the same functions in each. All other code is written once, generic over
//! [`Lanes`], and instantiated for each instruction set behind a `target_feature` wrapper (see `table.rs`).

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_dots;
#[cfg(target_arch = "aarch64")]
mod neon_quants;
pub(crate) mod scalar;
pub(crate) mod table;
#[cfg(target_arch = "x86_64")]
mod x86_affine;
#[cfg(target_arch = "x86_64")]
mod x86_bf16;
#[cfg(target_arch = "x86_64")]
mod x86_dots;
#[cfg(target_arch = "x86_64")]
mod x86_packed;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_quants;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_wide;

use std::str::FromStr;

use akunu_format::ScaleType;
use akunu_plan::{DeviceError, q8};

use crate::panel::F16x;

/// An instruction set for which kernels exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust: the definition of every kernel, and the fallback.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
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
    pub const ALL: [Isa; 9] = [
        Isa::Scalar,
        Isa::Avx2,
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
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                has_avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && amx::is_permitted(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => Isa::Amx.is_available() && amx::has_bf16(),
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
        matches!(self, Isa::Avx512 | Isa::Amx | Isa::Avx512Bf16 | Isa::AmxBf16)
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

/// Sixteen f32 lanes. Every method gives the same bits in every implementation (NaN payloads excepted).
///
/// The safe methods of a SIMD implementation execute instructions of its set, so they must only be reached from
/// functions compiled for that set: values of such a type must not be created elsewhere. [`table`] is the only place
/// that selects an implementation, after the processor has been checked. Values must not be passed through closures: a
/// closure is not compiled with the target features of the enclosing function.
pub(crate) trait Lanes: Copy {
    /// The number of `Self` values that fit in the vector registers.
    const REGISTERS: usize;

    fn splat(x: f32) -> Self;
    /// # Safety
    /// Sixteen elements can be read at `p`, which need not be aligned.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n` ≤ 16 elements; the other lanes are 0.
    ///
    /// # Safety
    /// `n` elements can be read at `p`.
    unsafe fn load_n(p: *const f32, n: usize) -> Self;
    /// # Safety
    /// Sixteen elements can be written at `p`.
    unsafe fn store(self, p: *mut f32);
    /// # Safety
    /// `n` ≤ 16 elements can be written at `p`.
    unsafe fn store_n(self, p: *mut f32, n: usize);
    /// # Safety
    /// Sixteen halves can be read at `p`.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// # Safety
    /// Sixteen bfloat16 can be read at `p`.
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// Rounds to nearest, ties to even.
    /// # Safety
    /// Sixteen halves can be written at `p`.
    unsafe fn store_f16(self, p: *mut u8);
    /// # Safety
    /// Sixteen bytes can be read at `p`.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// Converts one f16, exactly.
    fn f16(bits: u16) -> f32;

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self > b ? self : b`
    fn max(self, b: Self) -> Self;
    /// `self < b ? self : b`
    fn min(self, b: Self) -> Self;
    fn abs(self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    /// Rounds to the nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self · 2^n` for integral n in −250 ..= 250, rounded once, also if the result is subnormal or overflows (two
    /// multiplications by powers of two).
    fn scale2(self, n: Self) -> Self;
    /// `a < b ? x : y`
    fn select_lt(a: Self, b: Self, x: Self, y: Self) -> Self;
    /// The canonical reduction tree: l += l+8, l += l+4, l += l+2, l += l+1.
    fn sum(self) -> f32;
    /// The largest lane, by [`Lanes::max`] in the same tree.
    fn max_lane(self) -> f32;
    /// Bit l is set where lane l equals `b`'s.
    fn eq_mask(self, b: Self) -> u32;

    /// Deinterleaves the 32 numbers of both: the even and the odd ones.
    fn deinterleave(a: Self, b: Self) -> [Self; 2];
    /// The inverse of [`Lanes::deinterleave`].
    fn interleave(even: Self, odd: Self) -> [Self; 2];

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// `sum` of each of eight values.
    ///
    /// # Safety
    /// Eight elements can be written at `out`.
    #[inline(always)]
    unsafe fn sums8(v: [Self; 8], out: *mut f32) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { *out.add(i) = v.sum() };
        }
    }

    /// [`q8::quantise_block`] of the 32 numbers of both: (scale, sum of quants).
    ///
    /// # Safety
    /// 32 bytes can be written at `quants`.
    #[inline(always)]
    unsafe fn quantise_lanes(v: [Self; 2], quants: *mut i8) -> (f32, i32) {
        let mut x = [0.0_f32; q8::BLOCK];
        // SAFETY: `x` has 32 elements; 32 bytes can be written at `quants`, as the caller promises.
        let quants = unsafe {
            v[0].store(x.as_mut_ptr());
            v[1].store(x.as_mut_ptr().add(16));
            std::slice::from_raw_parts_mut(quants, q8::BLOCK)
        };
        q8::quantise_block(&x, quants)
    }

    /// The same for the 32 numbers at `x`.
    ///
    /// # Safety
    /// 32 elements can be read at `x`, 32 bytes written at `quants`.
    #[inline(always)]
    unsafe fn quantise(x: *const f32, quants: *mut i8) -> (f32, i32) {
        // SAFETY: as the caller promises.
        unsafe { Self::quantise_lanes([Self::load(x), Self::load(x.add(16))], quants) }
    }

    /// Loads `count / blocks` numbers as f32 and repeats each in `blocks` (1, 2 or 4, a divisor of `count`)
    /// consecutive lanes; lanes from `count` on are 0.
    ///
    /// # Safety
    /// `count / blocks` numbers can be read at `p`.
    #[inline(always)]
    unsafe fn spread(p: *const u8, kind: ScaleType, blocks: usize, count: usize) -> Self {
        let mut lanes = [0.0_f32; 16];
        for (l, lane) in lanes.iter_mut().enumerate().take(count) {
            let at = p.wrapping_add(l / blocks * kind.bytes());
            // SAFETY: the index is below `count / blocks`.
            *lane = unsafe {
                match kind {
                    ScaleType::F16 => Self::f16(at.cast::<u16>().read_unaligned()),
                    ScaleType::BF16 => f32::from_bits(u32::from(at.cast::<u16>().read_unaligned()) << 16),
                    ScaleType::F32 => at.cast::<f32>().read_unaligned(),
                }
            };
        }
        // SAFETY: `lanes` has sixteen elements.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Transposes rows and columns.
    #[inline(always)]
    fn transpose(from: &[F16x; 16], to: &mut [F16x; 16]) {
        for (i, to) in to.iter_mut().enumerate() {
            for (j, from) in from.iter().enumerate() {
                to.0[j] = from.0[i];
            }
        }
    }

    /// Prefetches the cache line at `p`; any address is allowed.
    fn prefetch(_p: *const u8) {}
}
