//! The peak multiplication rate: operands in registers and L1, enough independent sums to hide the latency.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::together;
use crate::isa::Isa;

/// Bytes of operands: half of a small L1.
const BYTES: usize = 16 << 10;

/// The duration of one measurement.
const LASTS: Duration = Duration::from_millis(5);

/// Passes over the operands between two readings of the clock.
const PASSES: u64 = 16;

#[repr(align(64))]
struct Operands([u8; BYTES]);

/// The type of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Multiply {
    Int8,
    F32,
}

impl Multiply {
    /// Operations per second of all threads together.
    pub(super) fn rate(self, isa: Isa, threads: usize) -> f64 {
        let done = AtomicU64::new(0);
        let seconds = together(threads, |_| {
            // The bytes are ones as f32 and small numbers as integers.
            let mut operands = Operands([0; BYTES]);
            operands.0.as_chunks_mut().0.fill(1.0f32.to_le_bytes());
            let end = Instant::now() + LASTS;
            let mut operations = 0;
            while Instant::now() < end {
                for _ in 0..PASSES {
                    operations += self.pass(isa, std::hint::black_box(&operands));
                }
            }
            done.fetch_add(operations, Ordering::Relaxed);
        });
        done.into_inner() as f64 / seconds
    }

    /// One pass over the operands; returns the number of operations.
    fn pass(self, isa: Isa, operands: &Operands) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the device uses an instruction set only after checking that the processor has it.
        unsafe {
            match (self, isa) {
                (Multiply::Int8, Isa::Amx | Isa::AmxBf16) => return x86::int8_amx(operands),
                (Multiply::Int8, Isa::Avx512 | Isa::Avx512Bf16) => return x86::int8_avx512(operands),
                (Multiply::Int8, Isa::Avx512Bw) => return x86::int8_avx512_bw(operands),
                (Multiply::Int8, Isa::Avx2) => return x86::int8_avx2(operands),
                (Multiply::F32, Isa::Avx512Bw | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxBf16) => {
                    return x86::f32_avx512(operands);
                }
                (Multiply::F32, Isa::Avx2) => return x86::f32_avx2(operands),
                _ => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        if self == Multiply::Int8 && matches!(isa, Isa::NeonDotProd | Isa::NeonI8mm) {
            // SAFETY: the processor has FEAT_DotProd, which the instruction set includes.
            return unsafe { arm::int8_dotprod(operands) };
        }
        let _ = isa;
        match self {
            Multiply::Int8 => int8_plain(operands),
            Multiply::F32 => f32_plain(operands),
        }
    }
}

/// A plain loop, vectorised by the compiler.
fn int8_plain(operands: &Operands) -> u64 {
    let mut sums = [0i32; 64];
    let w = std::hint::black_box([3i8; 64]);
    for x in operands.0.as_chunks::<64>().0 {
        for ((sum, &x), &w) in sums.iter_mut().zip(x).zip(&w) {
            *sum = sum.wrapping_add(i32::from(x as i8) * i32::from(w));
        }
    }
    std::hint::black_box(sums);
    2 * BYTES as u64
}

fn f32_plain(operands: &Operands) -> u64 {
    let mut sums = [0f32; 32];
    let w = std::hint::black_box([0.5f32; 32]);
    for x in operands.0.as_chunks::<4>().0.as_chunks::<32>().0 {
        for ((sum, &x), &w) in sums.iter_mut().zip(x).zip(&w) {
            let x = f32::from_le_bytes(x);
            // Fused where that is a single instruction, not a library call.
            *sum = if cfg!(target_arch = "aarch64") { w.mul_add(x, *sum) } else { w * x + *sum };
        }
    }
    std::hint::black_box(sums);
    2 * (BYTES / 4) as u64
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::asm;

    use super::{BYTES, Operands};

    /// # Safety
    /// The processor has FEAT_DotProd.
    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn int8_dotprod(operands: &Operands) -> u64 {
        let w = vdupq_n_s8(3);
        let mut sums = [vdupq_n_s32(0); 8];
        for at in (0..BYTES).step_by(8 * 16) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the load is within the operands, whose size is a multiple of the step.
                unsafe {
                    let x = vld1q_s8(operands.0.as_ptr().add(at + i * 16).cast());
                    asm!(
                        "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
                        sum = inout(vreg) *sum,
                        w = in(vreg) w,
                        x = in(vreg) x,
                        options(pure, nomem, nostack),
                    );
                }
            }
        }
        std::hint::black_box(sums);
        2 * BYTES as u64
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use super::{BYTES, Operands};
    use crate::isa::amx::tiles;

    /// A loop over the operands with eight sums: `$step(sum, operand)`, `$bytes` a load.
    macro_rules! pass {
        ($operands:ident, $bytes:literal, $zero:expr, $load:ident, |$sum:ident, $x:ident| $step:expr) => {{
            let mut sums = [$zero; 8];
            let start = $operands.0.as_ptr();
            for at in (0..BYTES).step_by(8 * $bytes) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let $sum = *sum;
                    // SAFETY: the load is within the operands, whose size is a multiple of the step.
                    let $x = unsafe { $load(start.add(at + i * $bytes).cast()) };
                    *sum = $step;
                }
            }
            std::hint::black_box(sums);
        }};
    }

    /// Products summed in 16 bits, as narrow quants allow: the highest rate of AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) fn int8_avx2(operands: &Operands) -> u64 {
        let w = std::hint::black_box(_mm256_set1_epi8(3));
        pass!(operands, 32, _mm256_setzero_si256(), _mm256_load_si256, |sum, x| {
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x))
        });
        2 * BYTES as u64
    }

    /// Summed as by [`int8_avx2`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn int8_avx512_bw(operands: &Operands) -> u64 {
        let w = std::hint::black_box(_mm512_set1_epi8(3));
        pass!(operands, 64, _mm512_setzero_si512(), _mm512_load_si512, |sum, x| {
            _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x))
        });
        2 * BYTES as u64
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn int8_avx512(operands: &Operands) -> u64 {
        let w = std::hint::black_box(_mm512_set1_epi8(3));
        pass!(operands, 64, _mm512_setzero_si512(), _mm512_load_si512, |sum, x| {
            _mm512_dpbusd_epi32(sum, w, x)
        });
        2 * BYTES as u64
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn f32_avx2(operands: &Operands) -> u64 {
        let w = std::hint::black_box(_mm256_set1_ps(0.5));
        pass!(operands, 32, _mm256_setzero_ps(), _mm256_load_ps, |sum, x| _mm256_fmadd_ps(w, x, sum));
        2 * (BYTES / 4) as u64
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn f32_avx512(operands: &Operands) -> u64 {
        let w = std::hint::black_box(_mm512_set1_ps(0.5));
        pass!(operands, 64, _mm512_setzero_ps(), _mm512_load_ps, |sum, x| _mm512_fmadd_ps(w, x, sum));
        2 * (BYTES / 4) as u64
    }

    static TILES: tiles::Config = tiles::Config::new([64; 8], [16; 8]);

    /// Four products of two tiles of each side, all loaded from the operands.
    ///
    /// # Safety
    /// The process has permission to use AMX.
    pub(super) unsafe fn int8_amx(operands: &Operands) -> u64 {
        const GROUP: usize = 4 << 10;
        // Repeated, so that configuring and releasing tiles does not count.
        const TIMES: usize = 16;
        // SAFETY: the process may use AMX (the caller's promise); every group of four tiles lies within the operands;
        // the tiles are configured before and released after.
        unsafe {
            tiles::configure(&TILES);
            for group in (0..BYTES / GROUP).cycle().take(TIMES * (BYTES / GROUP)) {
                asm!(
                    "tileloadd tmm4, [{x} + {stride}]",
                    "tileloadd tmm6, [{x} + {stride} + 2048]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{x} + {stride} + 1024]",
                    "tdpbssd tmm1, tmm5, tmm6",
                    "tileloadd tmm7, [{x} + {stride} + 3072]",
                    "tdpbssd tmm2, tmm4, tmm7",
                    "tdpbssd tmm3, tmm5, tmm7",
                    x = in(reg) operands.0.as_ptr().add(group * GROUP),
                    stride = in(reg) 64_usize,
                    options(nostack, readonly),
                );
            }
            tiles::release();
        }
        (TIMES * (BYTES / GROUP) * 4 * 2 * 16 * 16 * 64) as u64
    }
}
