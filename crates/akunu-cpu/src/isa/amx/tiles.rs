//! The tiles: permission to use them, their configuration, and the instructions on them, which have no stable
//! intrinsics. Tiles are named by number; each holds up to sixteen rows of up to 64 bytes.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

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
    // Miri does not have the instruction.
    if cfg!(miri) || __cpuid(0).eax < 7 {
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

/// Sets tile `T` to zero.
///
/// # Safety
/// Tile `T` is configured.
#[inline(always)]
pub(crate) unsafe fn zero<const T: u8>() {
    // SAFETY: as the caller promises.
    unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem)) };
}

/// Loads tile `T` from rows that are `stride` bytes apart.
///
/// # Safety
/// Tile `T` is configured, and its rows can be read at `from`.
#[inline(always)]
pub(crate) unsafe fn load<const T: u8>(from: *const u8, stride: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "tileloadd tmm{t}, [{from} + {stride}]",
            t = const T,
            from = in(reg) from,
            stride = in(reg) stride,
            options(nostack, readonly),
        );
    }
}

/// Stores tile `T` to rows that are `stride` bytes apart.
///
/// # Safety
/// Tile `T` is configured, and its rows can be written at `to`.
#[inline(always)]
pub(crate) unsafe fn store<const T: u8>(to: *mut u8, stride: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "tilestored [{to} + {stride}], tmm{t}",
            t = const T,
            to = in(reg) to,
            stride = in(reg) stride,
            options(nostack),
        );
    }
}

/// `SUM += A · B`: signed bytes if `SIGNED`, else unsigned ones of `A` and signed ones of `B`.
///
/// # Safety
/// The tiles are configured with sizes that fit.
#[inline(always)]
pub(crate) unsafe fn add_int8<const SIGNED: bool, const SUM: u8, const A: u8, const B: u8>() {
    // SAFETY: as the caller promises.
    unsafe {
        if SIGNED {
            asm!("tdpbssd tmm{s}, tmm{a}, tmm{b}", s = const SUM, a = const A, b = const B, options(nostack, nomem));
        } else {
            asm!("tdpbusd tmm{s}, tmm{a}, tmm{b}", s = const SUM, a = const A, b = const B, options(nostack, nomem));
        }
    }
}

/// `SUM += A · B`, pairs of bfloat16.
///
/// # Safety
/// The tiles are configured with sizes that fit.
#[inline(always)]
pub(crate) unsafe fn add_bf16<const SUM: u8, const A: u8, const B: u8>() {
    // SAFETY: as the caller promises.
    unsafe {
        asm!("tdpbf16ps tmm{s}, tmm{a}, tmm{b}", s = const SUM, a = const A, b = const B, options(nostack, nomem));
    }
}
