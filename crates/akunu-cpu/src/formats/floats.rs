//! Types of weights that are multiplied as f32.

use crate::isa::Lanes;
use crate::planes::ScalesOf;

/// A type of weights that are multiplied as f32.
pub(crate) trait FloatWeight: 'static {
    const BYTES: usize;
    const IS_F32: bool = Self::BYTES == 4;
    /// Weights are multiplied by scales from a plane of their own, and the product is rounded.
    const SCALED: bool = false;
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

    /// Sixteen weights of an output from input `i` on, with their scale.
    ///
    /// # Safety
    /// Sixteen weights can be read at `p`; `scales` are those of the output.
    #[inline(always)]
    unsafe fn weights<V: Lanes>(p: *const u8, scales: ScalesOf, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let w = Self::load::<V>(p);
            if Self::SCALED { w.mul(V::splat(scales.at(i))) } else { w }
        }
    }

    /// The same for the first `n` ≤ 16 weights; the other lanes are 0.
    ///
    /// # Safety
    /// As for [`FloatWeight::weights`], with `n` weights at `p`.
    #[inline(always)]
    unsafe fn weights_n<V: Lanes>(p: *const u8, n: usize, scales: ScalesOf, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let w = Self::load_n::<V>(p, n);
            if Self::SCALED { w.mul(V::splat(scales.at(i))) } else { w }
        }
    }
}

/// E4M3 codes. Sixteen inputs from a multiple of sixteen on have one scale.
pub(crate) struct Fp8W;

impl FloatWeight for Fp8W {
    const BYTES: usize = 1;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_e4m3(p) }
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
