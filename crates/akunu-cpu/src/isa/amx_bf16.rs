//! Bfloat16 products on AMX's tiles.

use std::arch::asm;

use super::amx;
use super::x86_bf16::{Multiply, Square};
use crate::groups::SIDE;

/// By AMX's tiles, in which sums stay along a chunk.
pub(crate) struct Bf16Tiles;

static TILES: amx::Config = amx::Config::new([64; 8], [SIDE as u8; 8]);

/// An instruction on tiles; with an address, sixteen lines from there on are loaded.
macro_rules! tile {
    ($($instruction:literal),+) => {
        asm!(concat!($($instruction),+), options(nostack, nomem))
    };
    ($tile:literal = $at:expr) => {
        asm!(
            concat!("tileloadd ", $tile, ", [{at} + {line}]"),
            at = in(reg) $at,
            line = in(reg) 64_usize,
            options(nostack, readonly),
        )
    };
    ($tile:literal => $at:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}], ", $tile),
            at = in(reg) $at,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

impl Multiply for Bf16Tiles {
    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: passed on; `end` releases them.
        unsafe { amx::configure(&TILES) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: passed on.
        unsafe { amx::release() };
    }

    #[inline(always)]
    unsafe fn square<const S: usize, const G: usize>(square: &Square) {
        // SAFETY: S sides and G groups have `count` blocks each, and sums.
        unsafe {
            macro_rules! sums {
                ($s:literal, $g:literal, $tile:literal) => {
                    if $s < S && $g < G {
                        if square.begins {
                            tile!("tilezero ", $tile);
                        } else {
                            tile!($tile = square.sums($s, $g));
                        }
                    }
                };
                (store $s:literal, $g:literal, $tile:literal) => {
                    if $s < S && $g < G {
                        tile!($tile => square.sums($s, $g));
                    }
                };
            }
            sums!(0, 0, "tmm0");
            sums!(0, 1, "tmm1");
            sums!(1, 0, "tmm2");
            sums!(1, 1, "tmm3");
            for b in 0..square.count {
                tile!("tmm4" = square.w[0].add(b * SIDE));
                tile!("tmm6" = square.x[0].add(b));
                tile!("tdpbf16ps tmm0, tmm4, tmm6");
                if G == 2 {
                    tile!("tmm7" = square.x[1].add(b));
                    tile!("tdpbf16ps tmm1, tmm4, tmm7");
                }
                if S == 2 {
                    tile!("tmm5" = square.w[1].add(b * SIDE));
                    tile!("tdpbf16ps tmm2, tmm5, tmm6");
                    if G == 2 {
                        tile!("tdpbf16ps tmm3, tmm5, tmm7");
                    }
                }
            }
            sums!(store 0, 0, "tmm0");
            sums!(store 0, 1, "tmm1");
            sums!(store 1, 0, "tmm2");
            sums!(store 1, 1, "tmm3");
        }
    }
}
