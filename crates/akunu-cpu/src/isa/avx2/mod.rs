//! AVX2 with FMA and F16C. What AVX-512 and AMX do in the same way, they take from here.

mod affine;
pub(crate) mod dots;
pub(crate) mod lanes;
pub(crate) mod panels;
pub(crate) mod quants;
pub(crate) mod registers;

/// The intrinsics are unsafe where the compiler does not know that the processor has them, which is everywhere below
/// the `target_feature` wrappers. A macro gives the reason once; a closure would not have the features.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: functions that use this macro are only reached through wrappers with the features of the instruction
        // set enabled, which the device selects after checking the processor. Pointers are valid by the `# Safety`
        // section of the enclosing function or of the trait method it implements.
        unsafe { $e }
    };
}
pub(crate) use simd;
