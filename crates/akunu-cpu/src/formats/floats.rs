//! Types of weights that are not quantised.

use crate::isa::Lanes;

/// A type of weights that are not quantised.
pub(crate) trait FloatWeight: 'static {
    const BYTES: usize;
    const IS_F32: bool = Self::BYTES == 4;
    /// # Safety
    /// Sixteen weights can be read at `p`.
    unsafe fn load<V: Lanes>(p: *const u8) -> V;

    /// The first `n` ≤ 16 weights; the other lanes are 0.
    ///
    /// # Safety
    /// `n` weights can be read at `p`.
    #[inline(always)]
    unsafe fn load_n<V: Lanes>(p: *const u8, n: usize) -> V {
        let mut bytes = [0_u8; 64];
        // SAFETY: `n` weights can be read at `p` (the caller's promise), and 16 weights of at most 4 bytes fit in
        // `bytes`.
        unsafe {
            p.copy_to_nonoverlapping(bytes.as_mut_ptr(), n * Self::BYTES);
            Self::load(bytes.as_ptr())
        }
    }
}

pub(crate) struct F32W;

impl FloatWeight for F32W {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(p.cast()) }
    }
}

pub(crate) struct F16W;

impl FloatWeight for F16W {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_f16(p) }
    }
}

pub(crate) struct BF16W;

impl FloatWeight for BF16W {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_bf16(p) }
    }
}
