//! AMX: sixteen outputs by sixteen rows of integer sums in one instruction. Everything else is AVX-512's.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::simd;
use super::avx512::Avx512;
use super::x86_packed::{Ahead, GROUPS, Lane, Levels, Sums, add_scaled};
use super::x86_quants::QuantX86;
use super::x86_wide;
use crate::groups::{Block, SIDE};
use crate::panel::{Panel, TILE_BLOCKS, TileSums};
use crate::quants::Sub;

/// Asks the system for the tiles' registers: each process has to, once.
pub(crate) fn is_permitted() -> bool {
    static PERMITTED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| has_tiles() && ask());
    *PERMITTED
}

/// Whether the processor multiplies bfloat16 with its tiles, and rounds to it.
pub(crate) fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16") && __cpuid_count(7, 0).edx >> 22 & 1 == 1 && is_permitted()
}

/// AMX-TILE and AMX-INT8.
fn has_tiles() -> bool {
    if __cpuid(0).eax < 7 {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    edx >> 24 & 1 == 1 && edx >> 25 & 1 == 1
}

#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that takes two numbers and changes nothing but what this process may use.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// What LDTILECFG reads.
#[repr(C, align(64))]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    columns: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Bytes of a row, and rows, of the eight tiles.
    pub(crate) const fn new(columns: [u16; 8], rows: [u8; 8]) -> Config {
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], columns: [0; 16], rows: [0; 16] };
        let mut tile = 0;
        while tile < 8 {
            (config.columns[tile], config.rows[tile]) = (columns[tile], rows[tile]);
            tile += 1;
        }
        config
    }
}

/// # Safety
/// The process may use tiles, and releases them.
#[inline(always)]
pub(crate) unsafe fn configure(config: &'static Config) {
    // SAFETY: as the caller promises.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
}

/// # Safety
/// As for [`configure`].
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: as the caller promises.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Tiles 0 to 3 are sums, 4 and 5 weights, 6 and 7 activations, `bytes` elements deep.
const fn config(bytes: u16) -> Config {
    let (rows, deep) = (SIDE as u8, (bytes / 4) as u8);
    Config::new([64, 64, 64, 64, bytes, bytes, 64, 64], [rows, rows, rows, rows, rows, rows, deep, deep])
}

static WHOLE_BLOCKS: Config = config(32);
static HALF_BLOCKS: Config = config(16);

/// Blocks that are multiplied before they are scaled: few enough for their sums to stay in the first cache, and enough
/// to be stored before they are read.
const BATCH: usize = TILE_BLOCKS / GROUPS;

/// Sums by AMX's tiles: sixteen outputs by sixteen rows at once.
pub(crate) struct Tiles;

impl Sums for Tiles {
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn begin<Q: QuantX86>() {
        let config = if Q::SUB == Sub::Half { &HALF_BLOCKS } else { &WHOLE_BLOCKS };
        // SAFETY: passed on; `end` releases them.
        unsafe { configure(config) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: passed on.
        unsafe { release() };
    }

    #[inline(always)]
    unsafe fn lane<Q: QuantX86, const G: usize>(lane: &Lane, ahead: &mut Ahead, levels: &mut [Levels; G]) {
        let mut acc = [[Avx512::zero(); SIDE]; G];
        // SAFETY: as the caller promises; the scratch is this worker's own.
        unsafe {
            let sums = (&raw mut (*lane.scratch).tile_sums).cast::<TileSums>();
            for first in (0..lane.rounds).step_by(BATCH) {
                let n = BATCH.min(lane.rounds - first);
                for b in 0..n {
                    for _ in 0..G {
                        ahead.step();
                    }
                    multiply::<Q, G>(lane, first + b, sums.add(b * 2));
                }
                for g in 0..G {
                    let x = lane.x.add(g * lane.group + first);
                    for b in 0..n {
                        scale::<Q>(
                            &*lane.panels.add(first + b),
                            lane.lane,
                            &*x.add(b),
                            &*sums.add(b * 2 + g),
                            &mut acc[g],
                        );
                    }
                }
            }
        }
        for g in 0..G {
            lane.end(&mut levels[g], 0, acc[g]);
        }
    }
}

#[inline(always)]
unsafe fn scale<Q: QuantX86>(
    panel: &Panel,
    lane: usize,
    x: &Block,
    sums: &TileSums,
    acc: &mut [Avx512; SIDE],
) {
    simd!({
        for o in 0..SIDE {
            let sums = [
                _mm512_load_si512(sums[0][o].0.as_ptr().cast()),
                _mm512_load_si512(sums[1][o].0.as_ptr().cast()),
            ];
            acc[o] = add_scaled::<Q>(panel, lane, o, x, sums, acc[o]);
        }
    })
}

macro_rules! product {
    ($op:literal, $a:literal, $first:literal, $second:literal, $w:expr, $x:expr, $other:expr, $out:expr, $other_out:expr) => {
        asm!(
            concat!("tilezero tmm", $first),
            concat!("tilezero tmm", $second),
            concat!("tileloadd tmm", $a, ", [{w} + {row}]"),
            "tileloadd tmm6, [{x} + {line}]",
            concat!($op, " tmm", $first, ", tmm", $a, ", tmm6"),
            "tileloadd tmm7, [{other} + {line}]",
            concat!($op, " tmm", $second, ", tmm", $a, ", tmm7"),
            concat!("tilestored [{out} + {line}], tmm", $first),
            concat!("tilestored [{other_out} + {line}], tmm", $second),
            w = in(reg) $w,
            x = in(reg) $x,
            other = in(reg) $other,
            out = in(reg) $out,
            other_out = in(reg) $other_out,
            row = in(reg) 32_usize,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
    ($op:literal, $a:literal, $first:literal, $w:expr, $x:expr, $out:expr) => {
        asm!(
            concat!("tilezero tmm", $first),
            concat!("tileloadd tmm", $a, ", [{w} + {row}]"),
            "tileloadd tmm6, [{x} + {line}]",
            concat!($op, " tmm", $first, ", tmm", $a, ", tmm6"),
            concat!("tilestored [{out} + {line}], tmm", $first),
            w = in(reg) $w,
            x = in(reg) $x,
            out = in(reg) $out,
            row = in(reg) 32_usize,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

/// The integer sums of block `b` of a lane, of each group.
#[inline(always)]
unsafe fn multiply<Q: QuantX86, const G: usize>(lane: &Lane, b: usize, sums: *mut TileSums) {
    // SAFETY: a panel and a block of each group that have it, and sums for all of them.
    unsafe {
        let w = (&raw const (*lane.panels.add(b)).quants[lane.lane]).cast::<u8>();
        let x = (&raw const (*lane.x.add(b)).quants).cast::<i8>();
        let other = (&raw const (*lane.x.add(b + (G - 1) * lane.group)).quants).cast::<i8>();
        let (out, other_out) = (sums.cast::<i32>(), sums.add(G - 1).cast::<i32>());
        macro_rules! tiles {
            ($op:literal) => {{
                if G == 2 {
                    product!($op, "4", "0", "1", w, x, other, out, other_out);
                } else {
                    product!($op, "4", "0", w, x, out);
                }
                if Q::SUB == Sub::Half {
                    let (w, x, other) = (w.add(16), x.add(4 * 64), other.add(4 * 64));
                    let (out, other_out) = (out.add(256), other_out.add(256));
                    if G == 2 {
                        product!($op, "5", "2", "3", w, x, other, out, other_out);
                    } else {
                        product!($op, "5", "2", w, x, out);
                    }
                }
            }};
        }
        if x86_wide::is_signed::<Q>() {
            tiles!("tdpbssd");
        } else {
            tiles!("tdpbusd");
        }
    }
}
