//! The interface of sixteen lanes.

use akunu_format::ScaleType;
use akunu_plan::q8;

use crate::panel::F16x;

/// Sixteen f32 lanes. Every method gives the same bits in every implementation (NaN payloads excepted).
///
/// The safe methods of a SIMD implementation execute instructions of its set, so they must only be reached from
/// functions compiled for that set: values of such a type must not be created elsewhere. [`table`](super::table) is the
/// only place that selects an implementation, after the processor has been checked. Values must not be passed through
/// closures: a closure is not compiled with the target features of the enclosing function.
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
    /// With the exponent and mantissa of E4M3 in their places, an f16 is the number divided by 2⁸.
    /// # Safety
    /// Sixteen E4M3 codes can be read at `p`.
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self {
        let mut halves = [0_u16; 16];
        for (i, half) in halves.iter_mut().enumerate() {
            // SAFETY: `i` is below sixteen.
            let code = u16::from(unsafe { *p.add(i) });
            let magnitude = (code & 0x7f) << 7;
            let nan = if magnitude == 0x3f80 { 0x7c00 } else { 0 };
            *half = (code & 0x80) << 8 | magnitude | nan;
        }
        // SAFETY: there are sixteen halves.
        unsafe { Self::load_f16(halves.as_ptr().cast()) }.mul(Self::splat(256.0))
    }
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
