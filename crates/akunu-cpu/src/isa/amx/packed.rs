//! Products of many packed rows: integer sums by tiles.

use std::arch::x86_64::*;

use akunu_plan::q8;

use super::tiles::{self, Config};
use crate::formats::Sub;
use crate::groups::{Block, SIDE};
use crate::isa::Lanes;
use crate::isa::avx2::simd;
use crate::isa::avx512::lanes::Avx512;
use crate::isa::avx512::packed::{Ahead, GROUPS, Lane, Levels, Sums, add_scaled};
use crate::isa::avx512::quants::{QuantAvx512, is_signed};
use crate::panel::{Panel, TILE_BLOCKS, TileSums};

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
    unsafe fn begin<Q: QuantAvx512>() {
        let config = if Q::SUB == Sub::Half { &HALF_BLOCKS } else { &WHOLE_BLOCKS };
        // SAFETY: passed on; `end` releases them.
        unsafe { tiles::configure(config) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: passed on.
        unsafe { tiles::release() };
    }

    #[inline(always)]
    unsafe fn lane<Q: QuantAvx512, const G: usize>(lane: &Lane, ahead: &mut Ahead, levels: &mut [Levels; G]) {
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
                    if is_signed::<Q>() {
                        multiply::<Q, G, true>(lane, first + b, sums.add(b * 2));
                    } else {
                        multiply::<Q, G, false>(lane, first + b, sums.add(b * 2));
                    }
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
unsafe fn scale<Q: QuantAvx512>(
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

/// The integer sums of block `b` of a lane, of each group.
///
/// # Safety
/// The panel and each group have block `b`, there is room for the sums of each group, and the tiles are configured.
#[inline(always)]
unsafe fn multiply<Q: QuantAvx512, const G: usize, const SIGNED: bool>(
    lane: &Lane,
    b: usize,
    sums: *mut TileSums,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let w = (&raw const (*lane.panels.add(b)).quants[lane.lane]).cast::<u8>();
        let x = (&raw const (*lane.x.add(b)).quants).cast::<u8>();
        let other = (&raw const (*lane.x.add(b + (G - 1) * lane.group)).quants).cast::<u8>();
        let (out, other_out) = (sums.cast::<u8>(), sums.add(G - 1).cast::<u8>());
        product::<G, SIGNED, 0, 1, 4>(w, [x, other], [out, other_out]);
        if Q::SUB == Sub::Half {
            // The second half of each output's 32 weights, of the rows' activations, and of the sums.
            let (half, sums) = (4 * LINE, SIDE * LINE);
            product::<G, SIGNED, 2, 3, 5>(
                w.add(16),
                [x.add(half), other.add(half)],
                [out.add(sums), other_out.add(sums)],
            );
        }
    }
}

/// Bytes of a row of packed activations, and of a row of sums.
const LINE: usize = 64;

/// The sums of a block, or of half a block, of sixteen outputs and G groups of rows: tiles `FIRST` and `SECOND`, with
/// weights in tile `W`.
///
/// # Safety
/// The tiles are configured; their rows can be read at `w` and `x` and written at `out`.
#[inline(always)]
unsafe fn product<const G: usize, const SIGNED: bool, const FIRST: u8, const SECOND: u8, const W: u8>(
    w: *const u8,
    x: [*const u8; 2],
    out: [*mut u8; 2],
) {
    // SAFETY: as the caller promises.
    unsafe {
        tiles::zero::<FIRST>();
        if G == 2 {
            tiles::zero::<SECOND>();
        }
        tiles::load::<W>(w, q8::BLOCK);
        tiles::load::<6>(x[0], LINE);
        tiles::add_int8::<SIGNED, FIRST, W, 6>();
        if G == 2 {
            tiles::load::<7>(x[1], LINE);
            tiles::add_int8::<SIGNED, SECOND, W, 7>();
        }
        tiles::store::<FIRST>(out[0], LINE);
        if G == 2 {
            tiles::store::<SECOND>(out[1], LINE);
        }
    }
}
