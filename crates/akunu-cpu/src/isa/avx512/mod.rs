//! AVX-512 F, BW, VL, DQ and VNNI; `bf16` needs AVX-512 BF16, too.

mod affine;
pub(crate) mod bf16;
mod dots;
pub(crate) mod floats;
pub(crate) mod lanes;
pub(crate) mod packed;
pub(crate) mod panels;
pub(crate) mod quants;
pub(crate) mod registers;
