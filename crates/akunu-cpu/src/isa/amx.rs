//! AMX: sixteen outputs by sixteen rows of integer sums in one instruction. Everything else is AVX-512's.
//!
//! A round of the sixteen lanes is one [`Panel`], whose quants already lie as a tile wants them: four elements of
//! sixteen outputs a row. All rounds of 32 outputs are unpacked before they are multiplied, so that a lane is done at
//! once: its sums for sixteen rows and outputs stay in registers while its blocks are scaled, and are added to those of
//! the lanes before when it is over. Activations come as [`groups`] of sixteen rows, each read for both halves of the outputs.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::{load, simd};
use super::avx512::Avx512;
use super::x86_quants::QuantX86;
use super::x86_wide;
use crate::groups::{self, Block, Group, LANES, SIDE};
use crate::panel::{AMX_OUTPUTS, AMX_ROWS, AMX_SUMS, MAX_ROUNDS, PANEL_BLOCKS, Panel, TILE_ROWS};
use crate::quants::{Min, Sub};
use crate::tile::{self, Products, STREAMS, Tile};

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
    const OUTPUTS: usize = AMX_OUTPUTS;
    const PACKS: bool = true;

    #[inline(always)]
    unsafe fn pack(group: &Group) {
        let halves = Q::MIN == Min::Half || Q::SIGNED && Q::OFFSET != 0;
        // SAFETY: passed on.
        unsafe { groups::pack(&Group { halves, ..*group }) }
    }

    #[inline(always)]
    unsafe fn quantised(t: &Tile) {
        // SAFETY: passed on; tiles are permitted where this is reached.
        unsafe {
            if t.packed.is_null() {
                return in_smaller_tiles::<Q>(t);
            }
            let config = if Q::SUB == Sub::Half { &HALF_BLOCKS } else { &WHOLE_BLOCKS };
            asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly));
            if t.outputs > SIDE {
                outputs::<Q, 2>(t);
            } else {
                outputs::<Q, 1>(t);
            }
            asm!("tilerelease", options(nostack, nomem));
        }
    }

    #[inline(always)]
    unsafe fn streams(t: &[Tile; STREAMS]) {
        // SAFETY: passed on.
        unsafe { tile::quantised_streams::<Avx512, Q>(t) }
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

/// P times sixteen outputs.
#[inline(always)]
unsafe fn outputs<Q: QuantX86, const P: usize>(t: &Tile) {
    let blocks = t.inputs / 32;
    // SAFETY: the scratch is this worker's own; panels and groups have room for the widest input.
    unsafe {
        let panels = (&raw mut (*t.scratch).rounds).cast::<Panel>();
        for half in 0..P {
            let part = Tile {
                weights: t.weights.add(half * SIDE * t.stride),
                planes: t.planes.at(t.planes.scales, t.planes.offsets, half * SIDE),
                outputs: (t.outputs - half * SIDE).min(SIDE),
                ..*t
            };
            for first in (0..blocks).step_by(PANEL_BLOCKS) {
                let panel = panels.add(half * MAX_ROUNDS + first / PANEL_BLOCKS);
                let count = PANEL_BLOCKS.min(blocks - first);
                x86_wide::unpack::<Q>(panel, &tile::panel_rows::<Q>(&part, first), count);
                if Q::PLANES {
                    part.planes.unpack::<Avx512>(panel, part.outputs, first, count);
                }
            }
        }
        let next = P * SIDE * t.stride;
        let mut ahead = Ahead::new(t.weights.wrapping_add(next), next, t.rows.div_ceil(SIDE) * blocks);
        for row in (0..t.rows).step_by(SIDE) {
            let x = t.packed.add(row / SIDE * blocks);
            sixteen_rows::<Q, P>(t, panels, x, t.out.add(row * t.out_stride), &mut ahead);
        }
    }
}

/// The weights after a tile's, which are likely to be this worker's next: asked for little by little, for the processor
/// waits where too many lines are under way.
struct Ahead {
    at: *const u8,
    end: *const u8,
    /// Bytes for each block that is multiplied.
    step: usize,
}

impl Ahead {
    fn new(at: *const u8, bytes: usize, blocks: usize) -> Ahead {
        Ahead { at, end: at.wrapping_add(bytes), step: bytes.div_ceil(blocks) }
    }

    #[inline(always)]
    fn step(&mut self) {
        let until = self.at.wrapping_add(self.step).min(self.end);
        while self.at < until {
            prefetch_far(self.at);
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// To the second cache.
#[inline(always)]
fn prefetch_far(p: *const u8) {
    simd!(_mm_prefetch::<_MM_HINT_T1>(p.cast()));
}

/// Blocks that are multiplied before they are scaled: few enough for their sums to stay in the first cache, and enough
/// to be stored before they are read.
const fn batch<Q: QuantX86>() -> usize {
    if matches!(Q::SUB, Sub::Half) { 2 } else { 4 }
}

#[inline(always)]
unsafe fn sixteen_rows<Q: QuantX86, const P: usize>(
    t: &Tile,
    panels: *const Panel,
    mut x: *const Block,
    out: *mut f32,
    ahead: &mut Ahead,
) {
    let blocks = t.inputs / 32;
    // Lanes below have a block in the last round; the others are padded with zeros there.
    let last = if blocks.is_multiple_of(SIDE) { SIDE } else { blocks % SIDE };
    // SAFETY: as the caller promises.
    unsafe {
        let sums = (&raw mut (*t.scratch).amx).cast::<i32>();
        let lanes = (&raw mut (*t.scratch).acc).cast::<f32>();
        for (i, lane) in LANES.into_iter().enumerate() {
            let rounds = groups::blocks_of_lane(blocks, lane);
            let mut done = 0;
            loop {
                let n = batch::<Q>().min(rounds - done);
                for b in 0..n {
                    ahead.step();
                    multiply::<Q, P>(x.add(b), panels.add(done + b), lane, sums.add(b * AMX_SUMS));
                }
                for half in 0..P {
                    let piece = Piece {
                        panels: panels.add(half * MAX_ROUNDS + done),
                        lane,
                        count: n,
                        x,
                        sums: sums.add(half * AMX_SUMS / 2),
                        lanes: lanes.add(half * LEVELS * 256),
                        resumed: done > 0,
                        ended: (done + n == rounds).then_some(i),
                        padded: lane >= last,
                    };
                    scale::<Q>(&piece, out.add(half * SIDE), t.out_stride);
                }
                x = x.add(n);
                done += n;
                if done == rounds {
                    break;
                }
            }
        }
    }
}

macro_rules! product {
    ($a:literal, $b:literal, $first:literal, $second:literal, $x:expr, $w:expr, $other:expr, $out:expr, $other_out:expr) => {
        asm!(
            concat!("tilezero tmm", $first),
            concat!("tilezero tmm", $second),
            concat!("tileloadd tmm", $a, ", [{x} + {row}]"),
            concat!("tileloadd tmm6, [{w} + {line}]"),
            concat!("tdpbssd tmm", $first, ", tmm", $a, ", tmm6"),
            concat!("tileloadd tmm7, [{other} + {line}]"),
            concat!("tdpbssd tmm", $second, ", tmm", $a, ", tmm7"),
            concat!("tilestored [{out} + {line}], tmm", $first),
            concat!("tilestored [{other_out} + {line}], tmm", $second),
            x = in(reg) $x,
            w = in(reg) $w,
            other = in(reg) $other,
            out = in(reg) $out,
            other_out = in(reg) $other_out,
            row = in(reg) 32_usize,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
    ($a:literal, $first:literal, $x:expr, $w:expr, $out:expr) => {
        asm!(
            concat!("tilezero tmm", $first),
            concat!("tileloadd tmm", $a, ", [{x} + {row}]"),
            concat!("tileloadd tmm6, [{w} + {line}]"),
            concat!("tdpbssd tmm", $first, ", tmm", $a, ", tmm6"),
            concat!("tilestored [{out} + {line}], tmm", $first),
            x = in(reg) $x,
            w = in(reg) $w,
            out = in(reg) $out,
            row = in(reg) 32_usize,
            line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

/// The integer sums of one block, `[half of the outputs][half of the block][row][output]`.
#[inline(always)]
unsafe fn multiply<Q: QuantX86, const P: usize>(
    x: *const Block,
    panel: *const Panel,
    lane: usize,
    sums: *mut i32,
) {
    // SAFETY: a block of activations, P panels that have it, and sums for all of them.
    unsafe {
        let x = (&raw const (*x).quants).cast::<i8>();
        let w = (&raw const (*panel).quants[lane]).cast::<i8>();
        let other = (&raw const (*panel.add(if P == 2 { MAX_ROUNDS } else { 0 })).quants[lane]).cast::<i8>();
        let other_sums = sums.add(AMX_SUMS / 2);
        if P == 2 {
            product!("4", "6", "0", "1", x, w, other, sums, other_sums);
        } else {
            product!("4", "0", x, w, sums);
        }
        if Q::SUB == Sub::Half {
            let (x, w, other) = (x.add(16), w.add(4 * 64), other.add(4 * 64));
            let (sums, other_sums) = (sums.add(256), other_sums.add(256));
            if P == 2 {
                product!("5", "6", "2", "3", x, w, other, sums, other_sums);
            } else {
                product!("5", "2", x, w, sums);
            }
        }
    }
}

/// Sums of lanes that wait for their neighbours, of 1, 2, 4 and 8 lanes, and of a lane that is not over.
const LEVELS: usize = 5;

/// Some blocks of a lane, of sixteen outputs.
struct Piece {
    panels: *const Panel,
    lane: usize,
    count: usize,
    x: *const Block,
    /// [`AMX_SUMS`] apart.
    sums: *const i32,
    /// `[level][row][output]`
    lanes: *mut f32,
    /// Not the lane's first blocks.
    resumed: bool,
    /// The lane's place in [`LANES`], if these are its last blocks.
    ended: Option<usize>,
    /// The lane has no block in the last round, which adds a zero.
    padded: bool,
}

/// Scales a piece's sums and adds them to their lane; adds a lane that is over to those before it. The last one goes to `out`.
#[inline(always)]
unsafe fn scale<Q: QuantX86>(p: &Piece, out: *mut f32, out_stride: usize) {
    simd!({
        let zero = Avx512(_mm512_setzero_ps());
        let mut acc = [zero; SIDE];
        let unfinished = p.lanes.add((LEVELS - 1) * 256);
        if p.resumed {
            for r in 0..SIDE {
                acc[r] = Avx512::load(unfinished.add(r * SIDE));
            }
        }
        for b in 0..p.count {
            add_block::<Q>(&*p.panels.add(b), p.lane, &*p.x.add(b), p.sums.add(b * AMX_SUMS), &mut acc);
        }
        let (mut to, mut stride) = (unfinished, SIDE);
        if let Some(place) = p.ended {
            if p.padded {
                // It turns −0 into +0.
                for r in 0..SIDE {
                    acc[r] = acc[r].add(zero);
                }
            }
            let level = place.trailing_ones() as usize;
            for level in 0..level {
                let before = p.lanes.add(level * 256);
                for r in 0..SIDE {
                    acc[r] = Avx512::load(before.add(r * SIDE)).add(acc[r]);
                }
            }
            (to, stride) =
                if place == SIDE - 1 { (out, out_stride) } else { (p.lanes.add(level * 256), SIDE) };
        }
        for r in 0..SIDE {
            acc[r].store(to.add(r * stride));
        }
    })
}

/// One block of sixteen outputs by sixteen rows.
#[inline(always)]
unsafe fn add_block<Q: QuantX86>(
    panel: &Panel,
    lane: usize,
    x: &Block,
    sums: *const i32,
    acc: &mut [Avx512; SIDE],
) {
    simd!({
        let d = load::<Avx512>(&panel.d[lane].0);
        let m = load::<Avx512>(&panel.m[lane].0);
        let (sub, sub_high) =
            (load::<Avx512>(&panel.sub[lane * 2].0), load::<Avx512>(&panel.sub[lane * 2 + 1].0));
        let (min, min_high) =
            (load::<Avx512>(&panel.min[lane * 2].0), load::<Avx512>(&panel.min[lane * 2 + 1].0));
        for r in 0..SIDE {
            let mut sum = Avx512(_mm512_cvtepi32_ps(_mm512_load_si512(sums.add(r * SIDE).cast())));
            if Q::SIGNED && Q::OFFSET != 0 {
                // Not taken off in the panel, where it would not fit a byte.
                sum = sum.sub(Avx512::splat(Q::OFFSET as f32 * x.sums[r]));
            }
            if Q::SUB == Sub::Half {
                let high = Avx512(_mm512_cvtepi32_ps(_mm512_load_si512(sums.add(256 + r * SIDE).cast())));
                sum = high.fma(sub_high, sum.mul(sub));
            }
            acc[r] = sum.fma(d.mul(Avx512::splat(x.scales[r])), acc[r]);
            if Q::MIN == Min::Half {
                let second = Avx512::splat(x.sums[r] - x.first_sums[r]).mul(min_high);
                let min_sum = Avx512::splat(x.first_sums[r]).fma(min, second);
                acc[r] = m.fma(min_sum.mul(Avx512::splat(x.scales[r])), acc[r]);
            } else if Q::MIN != Min::None {
                acc[r] = m.fma(Avx512::splat(x.scaled_sums[r]), acc[r]);
            }
        }
    })
}
