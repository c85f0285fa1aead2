//! The only place where generic kernels are compiled for instruction sets: each in a function with the target features,
//! so that everything below it, being `inline(always)`, is compiled with them.

use super::scalar::lanes::Scalar;
use super::{Decoded, Lanes};
use crate::command::{Command, Context};
use crate::floats;
use crate::formats::floats::FloatWeight;
use crate::kernels::OpKernel;
use crate::kernels::attention::product::{self, Operands};
use crate::tile::{self, Dot, Tile};
#[cfg(target_arch = "x86_64")]
use crate::{
    groups::Group,
    tile::{Packed, PackedKernel},
};

/// An instruction set, for which each of these functions is compiled.
///
/// # Safety
/// The functions must only be called on a processor that has the instruction set. Each has the contract of what it
/// calls.
pub(crate) trait Target: Lanes {
    unsafe fn run<K: OpKernel>(command: &Command, context: &Context);
    /// [`product::scores`]
    unsafe fn scores<B: FloatWeight>(operands: Operands, rows: usize, sixteens: usize);
    /// [`product::values`]
    unsafe fn values<B: FloatWeight>(operands: Operands, rows: usize, sixteens: usize);
    unsafe fn float_rows<W: FloatWeight>(t: &Tile);
    unsafe fn float_streams<W: FloatWeight>(t: &[Tile]);
    unsafe fn quantised_rows<Q: Decoded>(t: &Tile);
    unsafe fn quantised_streams<Q: Decoded>(t: &[Tile]);
}

/// Implements [`Target`] for lanes, with other features for products of quantised weights. A macro, because target features are
/// literals in an attribute of each function.
macro_rules! target {
    ($lanes:ty $(, $features:literal, quantised: $quantised:literal)?) => {
        impl Target for $lanes {
            $(#[target_feature(enable = $features)])?
            unsafe fn run<K: OpKernel>(command: &Command, context: &Context) {
                // SAFETY: the caller's promise.
                unsafe { K::run::<Self>(command, context) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn scores<B: FloatWeight>(operands: Operands, rows: usize, sixteens: usize) {
                // SAFETY: the caller's promise.
                unsafe { product::scores::<Self, B>(operands, rows, sixteens) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn values<B: FloatWeight>(operands: Operands, rows: usize, sixteens: usize) {
                // SAFETY: the caller's promise.
                unsafe { product::values::<Self, B>(operands, rows, sixteens) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn float_rows<W: FloatWeight>(t: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { floats::rows::<Self, W>(t) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn float_streams<W: FloatWeight>(t: &[Tile]) {
                // SAFETY: the caller's promise.
                unsafe { floats::streams::<Self, W>(t) }
            }

            $(#[target_feature(enable = $quantised)])?
            unsafe fn quantised_rows<Q: Decoded>(t: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { <Self as Dot<Q>>::rows(t) }
            }

            $(#[target_feature(enable = $quantised)])?
            unsafe fn quantised_streams<Q: Decoded>(t: &[Tile]) {
                // SAFETY: the caller's promise.
                unsafe { tile::streams::<Self, Q>(t) }
            }
        }
    };
}

target!(Scalar);
#[cfg(target_arch = "x86_64")]
target!(super::avx2::lanes::Avx2, "avx2,fma,f16c", quantised: "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
target!(
    super::avx512::lanes::Avx512,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq",
    quantised: "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);
#[cfg(target_arch = "aarch64")]
target!(super::neon::lanes::Neon<super::neon::bytes::Plain>, "neon", quantised: "neon");
#[cfg(target_arch = "aarch64")]
target!(super::neon::lanes::Neon<super::neon::bytes::DotProd>, "neon,dotprod", quantised: "neon,dotprod");
#[cfg(target_arch = "aarch64")]
target!(super::neon::lanes::Neon<super::neon::bytes::I8mm>, "neon,dotprod,i8mm", quantised: "neon,dotprod,i8mm");

/// Products of packed rows with AVX-512. Tiles need no target feature: their instructions are written as assembly.
#[cfg(target_arch = "x86_64")]
macro_rules! packed {
    ($name:ident, $features:literal) => {
        pub(crate) fn $name<P: Packed>() -> PackedKernel {
            #[target_feature(enable = $features)]
            unsafe fn pack<P: Packed>(group: &Group) {
                // SAFETY: the caller's promise.
                unsafe { P::pack(group) }
            }

            #[target_feature(enable = $features)]
            unsafe fn run<P: Packed>(t: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { P::products(t) }
            }

            PackedKernel {
                pack: pack::<P>,
                run: run::<P>,
                outputs: P::OUTPUTS,
                block_bytes: P::BLOCK_BYTES,
                max_inputs: P::MAX_INPUTS,
                least_rows: P::LEAST_ROWS,
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
packed!(packed, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq");
#[cfg(target_arch = "x86_64")]
packed!(packed_vnni, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
#[cfg(target_arch = "x86_64")]
packed!(packed_bf16, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16");
