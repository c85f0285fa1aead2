//! Sixteen lanes as an array.
//!
//! What takes many instructions is not inlined: kernels of these lanes are for comparison and for old processors, and
//! every inlined sum of products is sixteen calls where the target has no such instruction. That made them a third of
//! the device's code.

use std::array::from_fn;

use half::{bf16, f16};

use crate::isa::Lanes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar(pub(crate) [f32; 16]);

fn bits16(p: *const u8, i: usize) -> u16 {
    // SAFETY: callers pass indices within the sixteen elements that can be read at `p`.
    unsafe { p.cast::<u16>().add(i).read_unaligned() }
}

impl Lanes for Scalar {
    /// The compiler is not asked to keep several values in registers: one at a time keeps the code small.
    const REGISTERS: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> Scalar {
        Scalar([x; 16])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Scalar {
        // SAFETY: sixteen elements are accessible at `p`, as the caller promises.
        Scalar(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(never)]
    unsafe fn load_n(p: *const f32, n: usize) -> Scalar {
        // SAFETY: only the first `n` elements are read.
        Scalar(from_fn(|l| if l < n { unsafe { p.add(l).read_unaligned() } } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: sixteen elements are accessible at `p`, as the caller promises.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) };
    }

    #[inline(never)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        for (l, x) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: `l` < `n`, and `n` elements can be written at `p`, as the caller promises.
            unsafe { p.add(l).write_unaligned(x) };
        }
    }

    #[inline(never)]
    unsafe fn load_f16(p: *const u8) -> Scalar {
        Scalar(from_fn(|l| f16::from_bits(bits16(p, l)).to_f32()))
    }

    #[inline(never)]
    unsafe fn load_bf16(p: *const u8) -> Scalar {
        Scalar(from_fn(|l| bf16::from_bits(bits16(p, l)).to_f32()))
    }

    #[inline(never)]
    unsafe fn store_f16(self, p: *mut u8) {
        for (l, x) in self.0.into_iter().enumerate() {
            // SAFETY: `l` < 16, and sixteen f16 can be written at `p`, as the caller promises.
            unsafe { p.cast::<u16>().add(l).write_unaligned(f16::from_f32(x).to_bits()) };
        }
    }

    #[inline(never)]
    unsafe fn load_i8(p: *const i8) -> Scalar {
        // SAFETY: `l` < 16, and sixteen bytes can be read at `p`, as the caller promises.
        Scalar(from_fn(|l| f32::from(unsafe { *p.add(l) })))
    }

    #[inline(always)]
    fn f16(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    fn add(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] + b.0[l]))
    }

    #[inline(always)]
    fn sub(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] - b.0[l]))
    }

    #[inline(always)]
    fn mul(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] * b.0[l]))
    }

    #[inline(never)]
    fn div(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l] / b.0[l]))
    }

    #[inline(never)]
    fn fma(self, b: Scalar, c: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l].mul_add(b.0[l], c.0[l])))
    }

    #[inline(always)]
    fn max(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| if self.0[l] > b.0[l] { self.0[l] } else { b.0[l] }))
    }

    #[inline(always)]
    fn min(self, b: Scalar) -> Scalar {
        Scalar(from_fn(|l| if self.0[l] < b.0[l] { self.0[l] } else { b.0[l] }))
    }

    #[inline(always)]
    fn abs(self) -> Scalar {
        Scalar(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn copysign(self, sign: Scalar) -> Scalar {
        Scalar(from_fn(|l| self.0[l].copysign(sign.0[l])))
    }

    #[inline(never)]
    fn round(self) -> Scalar {
        Scalar(self.0.map(f32::round_ties_even))
    }

    #[inline(never)]
    fn scale2(self, n: Scalar) -> Scalar {
        let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
        Scalar(from_fn(|l| {
            let n = n.0[l] as i32;
            let half = n >> 1;
            self.0[l] * power(half) * power(n.wrapping_sub(half))
        }))
    }

    #[inline(always)]
    fn select_lt(a: Scalar, b: Scalar, x: Scalar, y: Scalar) -> Scalar {
        Scalar(from_fn(|l| if a.0[l] < b.0[l] { x.0[l] } else { y.0[l] }))
    }

    #[inline(never)]
    fn sum(self) -> f32 {
        let mut v = self.0;
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                v[l] += v[l + width];
            }
        }
        v[0]
    }

    #[inline(never)]
    fn deinterleave(a: Scalar, b: Scalar) -> [Scalar; 2] {
        let both = |i: usize| if i < 16 { a.0[i] } else { b.0[i - 16] };
        [0, 1].map(|odd| Scalar(std::array::from_fn(|i| both(2 * i + odd))))
    }

    #[inline(never)]
    fn interleave(even: Scalar, odd: Scalar) -> [Scalar; 2] {
        let at = |i: usize| if i.is_multiple_of(2) { even.0[i / 2] } else { odd.0[i / 2] };
        [0, 16].map(|start| Scalar(std::array::from_fn(|i| at(start + i))))
    }

    #[inline(never)]
    fn max_lane(self) -> f32 {
        let mut v = self.0;
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                v[l] = if v[l] > v[l + width] { v[l] } else { v[l + width] };
            }
        }
        v[0]
    }

    #[inline(never)]
    fn eq_mask(self, b: Scalar) -> u32 {
        (0..16).map(|l| u32::from(self.0[l] == b.0[l]) << l).sum()
    }
}
