//! Products of several rows in bfloat16.

use super::tiles::{self, Config};
use crate::groups::SIDE;
use crate::isa::avx512::bf16::{Multiply, Square};

/// By AMX's tiles, in which sums stay along a chunk.
pub(crate) struct Bf16Tiles;

static TILES: Config = Config::new([64; 8], [SIDE as u8; 8]);

/// Bytes of a tile's row.
const LINE: usize = 64;

impl Multiply for Bf16Tiles {
    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: passed on; `end` releases them.
        unsafe { tiles::configure(&TILES) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: passed on.
        unsafe { tiles::release() };
    }

    /// Sums are in tiles 0 to 3, weights in 4 and 5, activations in 6 and 7.
    #[inline(always)]
    unsafe fn square<const S: usize, const G: usize>(square: &Square) {
        // SAFETY: S sides and G groups have `count` blocks each, and sums.
        unsafe {
            begin::<0>(square, 0, 0);
            if G == 2 {
                begin::<1>(square, 0, 1);
            }
            if S == 2 {
                begin::<2>(square, 1, 0);
            }
            if S == 2 && G == 2 {
                begin::<3>(square, 1, 1);
            }
            for b in 0..square.count {
                tiles::load::<4>(square.w[0].add(b * SIDE).cast(), LINE);
                tiles::load::<6>(square.x[0].add(b).cast(), LINE);
                tiles::add_bf16::<0, 4, 6>();
                if G == 2 {
                    tiles::load::<7>(square.x[1].add(b).cast(), LINE);
                    tiles::add_bf16::<1, 4, 7>();
                }
                if S == 2 {
                    tiles::load::<5>(square.w[1].add(b * SIDE).cast(), LINE);
                    tiles::add_bf16::<2, 5, 6>();
                }
                if S == 2 && G == 2 {
                    tiles::add_bf16::<3, 5, 7>();
                }
            }
            tiles::store::<0>(square.sums(0, 0).cast(), LINE);
            if G == 2 {
                tiles::store::<1>(square.sums(0, 1).cast(), LINE);
            }
            if S == 2 {
                tiles::store::<2>(square.sums(1, 0).cast(), LINE);
            }
            if S == 2 && G == 2 {
                tiles::store::<3>(square.sums(1, 1).cast(), LINE);
            }
        }
    }
}

/// Sums of a group of outputs and a group of rows, from the chunks before.
///
/// # Safety
/// Tile `T` is configured; the square has these groups.
#[inline(always)]
unsafe fn begin<const T: u8>(square: &Square, side: usize, group: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if square.begins {
            tiles::zero::<T>();
        } else {
            tiles::load::<T>(square.sums(side, group).cast(), LINE);
        }
    }
}
