//! AMX: sixteen outputs by sixteen rows of integer sums in one instruction. Everything else is AVX-512's.
//!
//! A round of the sixteen lanes is one [`Panel`], whose quants already lie as a tile wants them: four elements of
//! sixteen outputs a row. All rounds are unpacked before they are multiplied, so that a lane is done at once and only
//! sixteen rows' lanes are ever in flight: they, and these rows' activations, stay in the first cache.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::{load, mins, simd};
use super::avx512::Avx512;
use super::x86_quants::QuantX86;
use crate::panel::{AMX_ROWS, AMX_SUMS, Chunk, MAX_ROUNDS, PANEL_BLOCKS, Panel, ROUNDS, TILE_ROWS};
use crate::quants::{Min, Sub};
use crate::tile::{self, Dot, Products, Tile};

/// Rows and outputs of a tile.
const SIDE: usize = 16;

/// Asks the system for the tiles' registers: each process has to, once.
pub(crate) fn is_permitted() -> bool {
    static PERMITTED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| has_tiles() && ask());
    *PERMITTED
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
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    columns: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights, `bytes` elements deep.
const fn config(bytes: u16) -> Config {
    let (rows, deep) = (SIDE as u8, (bytes / 4) as u8);
    Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        columns: [64, 64, 64, 64, bytes, bytes, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [rows, rows, rows, rows, rows, rows, deep, deep, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

static WHOLE_BLOCKS: Config = config(32);
static HALF_BLOCKS: Config = config(16);

/// AVX-512's lanes, and tiles for many rows.
pub(crate) struct Amx;

impl<Q: QuantX86> Products<Q> for Amx {
    const ROWS: usize = AMX_ROWS;

    #[inline(always)]
    unsafe fn quantised(t: &Tile) {
        // SAFETY: passed on; tiles are permitted where this is reached.
        unsafe {
            if t.rows < SIDE || t.inputs > MAX_ROUNDS * PANEL_BLOCKS * 32 {
                return in_smaller_tiles::<Q>(t);
            }
            let config = if Q::SUB == Sub::Half { &HALF_BLOCKS } else { &WHOLE_BLOCKS };
            asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly));
            panels::<Q>(t);
            asm!("tilerelease", options(nostack, nomem));
        }
    }
}

/// As AVX-512 does it.
#[inline(always)]
unsafe fn in_smaller_tiles<Q: QuantX86>(t: &Tile) {
    for first in (0..t.rows).step_by(TILE_ROWS) {
        // SAFETY: rows of the tile.
        unsafe {
            tile::quantised::<Avx512, Q>(&Tile {
                x: t.x.add(first * t.x_stride),
                rows: TILE_ROWS.min(t.rows - first),
                out: t.out.add(first * t.out_stride),
                ..*t
            });
        }
    }
}

#[inline(always)]
unsafe fn panels<Q: QuantX86>(t: &Tile) {
    let blocks = t.inputs / 32;
    // SAFETY: the scratch is this worker's own; every chunk stays within its row.
    unsafe {
        let panels = (&raw mut (*t.scratch).rounds).cast::<Panel>();
        let acc = (&raw mut (*t.scratch).acc).cast::<f32>();
        for first in (0..blocks).step_by(PANEL_BLOCKS) {
            let panel = panels.add(first / PANEL_BLOCKS);
            let count = PANEL_BLOCKS.min(blocks - first);
            <Avx512 as Dot<Q>>::unpack(panel, &tile::panel_rows::<Q>(t, first), count);
            if Q::PLANES {
                t.planes.unpack::<Avx512>(panel, t.outputs, first, count);
            }
        }
        let mut r = 0;
        while r + SIDE <= t.rows {
            for lane in 0..PANEL_BLOCKS {
                sixteen_rows::<Q>(t, panels, lane, r, acc.add(lane * 16));
            }
            tile::sum_lanes::<Avx512>(t, acc, r, SIDE);
            r += SIDE;
        }
        let rest = t.rows - r;
        acc.write_bytes(0, rest * 256);
        for first in (0..blocks).step_by(PANEL_BLOCKS) {
            let panel = panels.add(first / PANEL_BLOCKS);
            let count = PANEL_BLOCKS.min(blocks - first);
            for i in 0..rest {
                let x = tile::chunk(t, r + i, first);
                <Avx512 as Dot<Q>>::multiply::<1>(panel, count, [x], [acc.add(i * 256)]);
            }
        }
        tile::sum_lanes::<Avx512>(t, acc, r, rest);
    }
}

/// One lane of sixteen rows: all its blocks, [`ROUNDS`] at a time, to `acc[row][lane]`.
#[inline(always)]
unsafe fn sixteen_rows<Q: QuantX86>(t: &Tile, panels: *const Panel, lane: usize, r: usize, acc: *mut f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let sums = (&raw mut (*t.scratch).amx).cast::<i32>();
        let rounds = (t.inputs / 32).saturating_sub(lane).div_ceil(PANEL_BLOCKS);
        let mut done = 0;
        while done == 0 || done < rounds {
            let n = ROUNDS.min(rounds - done);
            let (panels, x) = (panels.add(done), tile::chunk(t, r, done * PANEL_BLOCKS));
            for round in 0..n {
                let weights = (&raw const (*panels.add(round)).quants[lane]).cast::<i8>();
                let x = x.quants.add((round * PANEL_BLOCKS + lane) * 32);
                multiply::<Q>(round, x, t.x_stride, weights, sums);
            }
            let first = done == 0;
            match n {
                0 => add_rounds::<Q, 0>(t, panels, lane, x, sums, acc, first),
                1 => add_rounds::<Q, 1>(t, panels, lane, x, sums, acc, first),
                2 => add_rounds::<Q, 2>(t, panels, lane, x, sums, acc, first),
                3 => add_rounds::<Q, 3>(t, panels, lane, x, sums, acc, first),
                _ => add_rounds::<Q, 4>(t, panels, lane, x, sums, acc, first),
            }
            done += ROUNDS;
        }
    }
}

macro_rules! product {
    ($c:literal, $a:literal, $b:literal, $x:expr, $stride:expr, $w:expr, $out:expr) => {
        asm!(
            concat!("tilezero tmm", $c),
            concat!("tileloadd tmm", $a, ", [{x} + {stride}]"),
            concat!("tileloadd tmm", $b, ", [{w} + {line}]"),
            concat!("tdpbssd tmm", $c, ", tmm", $a, ", tmm", $b),
            concat!("tilestored [{out} + {line}], tmm", $c),
            x = in(reg) $x,
            stride = in(reg) $stride,
            w = in(reg) $w,
            out = in(reg) $out,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

/// The integer sums of one block, `[half][round][row][output]`.
#[inline(always)]
unsafe fn multiply<Q: QuantX86>(round: usize, x: *const i8, stride: usize, w: *const i8, sums: *mut i32) {
    // SAFETY: sixteen rows of a block of activations, a block of a panel, and sums for it.
    unsafe {
        let out = sums.add(round * SIDE * SIDE);
        match round % 2 {
            0 => product!("0", "4", "6", x, stride, w, out),
            _ => product!("1", "5", "7", x, stride, w, out),
        }
        if Q::SUB == Sub::Half {
            let (x, w, out) = (x.add(16), w.add(4 * 64), out.add(AMX_SUMS / 2));
            match round % 2 {
                0 => product!("2", "4", "6", x, stride, w, out),
                _ => product!("3", "5", "7", x, stride, w, out),
            }
        }
    }
}

/// Scales the sums of R rounds and adds them to a lane, in order: to nothing if they are the first.
#[inline(always)]
unsafe fn add_rounds<Q: QuantX86, const R: usize>(
    t: &Tile,
    panels: *const Panel,
    lane: usize,
    x: Chunk,
    sums: *const i32,
    acc: *mut f32,
    first: bool,
) {
    simd!({
        let zero = Avx512(_mm512_setzero_ps());
        let (mut d, mut m) = ([zero; R], [zero; R]);
        let (mut sub, mut sub_high) = ([zero; R], [zero; R]);
        for round in 0..R {
            let panel = &*panels.add(round);
            d[round] = load::<Avx512>(&panel.d[lane].0);
            if Q::MIN != Min::None {
                m[round] = load::<Avx512>(&panel.m[lane].0);
            }
            if Q::SUB == Sub::Half {
                sub[round] = load::<Avx512>(&panel.sub[lane * 2].0);
                sub_high[round] = load::<Avx512>(&panel.sub[lane * 2 + 1].0);
            }
        }
        for r in 0..SIDE {
            let at = acc.add(r * 256);
            let mut lanes = if first { zero } else { Avx512::load(at) };
            for round in 0..R {
                let out = sums.add((round * SIDE + r) * SIDE);
                let b = round * PANEL_BLOCKS;
                let row = Chunk {
                    quants: x.quants.add(r * t.x_stride + b * 32),
                    scales: x.scales.byte_add(r * t.x_stride).add(b),
                    sums: x.sums.byte_add(r * t.x_stride).add(b),
                };
                let mut sum = _mm512_load_si512(out.cast());
                if Q::SIGNED && Q::OFFSET != 0 {
                    // Not taken off in the panel, where it would not fit a byte.
                    let offset = _mm512_set1_epi32(Q::OFFSET * *row.sums.add(lane));
                    sum = _mm512_sub_epi32(sum, offset);
                }
                let mut sum = Avx512(_mm512_cvtepi32_ps(sum));
                if Q::SUB == Sub::Half {
                    let high = _mm512_load_si512(out.add(AMX_SUMS / 2).cast());
                    sum = Avx512(_mm512_cvtepi32_ps(high)).fma(sub_high[round], sum.mul(sub[round]));
                }
                let dx = Avx512::splat(*row.scales.add(lane));
                lanes = sum.fma(d[round].mul(dx), lanes);
                if Q::MIN != Min::None {
                    let mins = mins::<Avx512, Q>(&*panels.add(round), lane, &row);
                    lanes = m[round].fma(mins.mul(dx), lanes);
                }
            }
            lanes.store(at);
        }
    })
}

const _: () = assert!(ROUNDS == 4);
