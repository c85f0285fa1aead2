//! NEON, which every 64-bit ARM processor has; newer extensions add ways to multiply bytes (`bytes`).

mod affine;
pub(crate) mod bytes;
mod dots;
pub(crate) mod lanes;
mod panels;
pub(crate) mod quants;
mod registers;

/// The intrinsics are unsafe where the compiler does not know that the processor has them. A macro gives the reason
/// once; a closure would not have the target features.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: every processor that this is compiled for has NEON. The features of `M` are present because
        // functions generic over `M` are only reached through wrappers that the device selects after checking the
        // processor. Pointers are valid by the `# Safety` section of the enclosing function or of the trait method it
        // implements.
        unsafe { $e }
    };
}
pub(crate) use simd;
