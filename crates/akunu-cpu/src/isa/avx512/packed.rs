//! Sixteen outputs by sixteen rows, one row per 32-bit lane: how AVX-512 multiplies many rows.
//!
//! Four activations of each row are multiplied with four weights of one output, which are broadcast to all lanes: so
//! weights need not be transposed, and an output's integer sums of sixteen rows are one register. Weights are made
//! unsigned; what that adds to a sum is subtracted in its initial value ([`Block::starts`]). A lane of the canonical
//! arithmetic is completed at once: its sums stay in registers while its blocks are scaled, and are then added to
//! those of the lanes before it.

use std::arch::x86_64::*;

use akunu_plan::q8;

use super::lanes::Avx512;
use super::panels::unpack;
use super::quants::{QuantAvx512, offset};
use super::registers::lines_of_two;
use crate::formats::{Min, Sub};
use crate::groups::{Block, Group, LANES, LEAST_ROWS, Places, SIDE, blocks_of_lane};
use crate::isa::Lanes;
use crate::isa::avx2::panels::load;
use crate::isa::avx2::simd;
use crate::panel::{F16x, PANEL_BLOCKS, Panel, Scratch};
use crate::tile::{self, Packed, Tile};

/// Products of a quantised type, with integer sums by `S`.
pub(crate) struct Integers<Q, S>(Q, S);

impl<Q: QuantAvx512, S: Sums> Packed for Integers<Q, S> {
    const BLOCK_BYTES: usize = size_of::<Block>();
    const LEAST_ROWS: usize = S::LEAST_ROWS;

    #[inline(always)]
    unsafe fn pack(group: &Group) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { pack::<Q>(group) }
    }

    #[inline(always)]
    unsafe fn products(t: &Tile) {
        // SAFETY: the same contract, passed on unchanged.
        unsafe { products::<Q, S>(t) }
    }
}

/// Groups of rows that are multiplied together if there are enough: weights are read once for both, and that read is
/// what limits a single group.
pub(crate) const GROUPS: usize = 2;

/// How the blocks of a lane are multiplied.
pub(crate) trait Sums: 'static {
    /// Whether it needs AVX-512 VNNI.
    const VNNI: bool = true;
    /// As [`Packed::LEAST_ROWS`].
    const LEAST_ROWS: usize = LEAST_ROWS;
    /// Whether weights are expected signed, minus their offset, if that fits in a byte; else unsigned.
    const SIGNED: bool = false;

    /// Called before a sequence of lanes of a type; [`Sums::end`] is called after it.
    ///
    /// # Safety
    /// The processor has the instruction set of `Self`.
    #[inline(always)]
    unsafe fn begin<Q: QuantAvx512>() {}
    /// # Safety
    /// As for [`Sums::begin`].
    #[inline(always)]
    unsafe fn end() {}

    /// Computes a lane of sixteen outputs by G groups and adds it to the levels of the reduction.
    ///
    /// # Safety
    /// All pointers of the lane are valid for G groups; `begin` has been called, and the processor has the instruction
    /// set.
    unsafe fn lane<Q: QuantAvx512, const G: usize>(lane: &Lane, ahead: &mut Ahead, levels: &mut [Levels; G]);
}

/// A lane of sixteen outputs and some groups of rows.
pub(crate) struct Lane {
    /// Its number, and its position in [`LANES`].
    pub(crate) lane: usize,
    pub(crate) place: usize,
    /// Its blocks, one in each panel.
    pub(crate) panels: *const Panel,
    pub(crate) rounds: usize,
    /// It has no block in the last round, which adds a zero.
    pub(crate) padded: bool,
    /// The same blocks of the first group of rows, and the number of blocks from one group to the next.
    pub(crate) x: *const Block,
    pub(crate) group: usize,
    /// The worker's scratch.
    pub(crate) scratch: *mut Scratch,
}

/// # Safety
/// The rows can be read, and a block written for every 32 inputs; the processor has AVX-512.
#[inline(always)]
unsafe fn pack<Q: QuantAvx512>(group: &Group) {
    let blocks = group.inputs / q8::BLOCK;
    let places = Places::new(blocks);
    simd!({
        for b in (0..blocks).step_by(2) {
            let mut v = [_mm512_setzero_si512(); SIDE];
            for r in 0..group.rows {
                let x = group.x.add(r * group.x_stride + b * q8::BLOCK);
                v[r] = if b + 1 < blocks {
                    _mm512_loadu_si512(x.cast())
                } else {
                    _mm512_zextsi256_si512(_mm256_loadu_si256(x.cast()))
                };
            }
            let lines = lines_of_two(v);
            for i in 0..2 {
                if b + i < blocks {
                    let to = &mut *group.to.cast::<Block>().add(places.of(b + i));
                    for step in 0..8 {
                        _mm512_store_si512(to.quants[step].as_mut_ptr().cast(), lines[i * 8 + step]);
                    }
                    pack_scales::<Q>(group, b + i, to);
                }
            }
        }
    })
}

/// Computes all fields of a block but its quants, which are already stored.
///
/// # Safety
/// Block `block` of the group's rows can be read.
#[inline(always)]
unsafe fn pack_scales<Q: QuantAvx512>(group: &Group, block: usize, to: &mut Block) {
    simd!({
        let mut sums = [_mm512_setzero_si512(); 2];
        for step in 0..8 {
            let x = _mm512_load_si512(to.quants[step].as_ptr().cast());
            let twos = _mm512_maddubs_epi16(_mm512_set1_epi8(1), x);
            let fours = _mm512_madd_epi16(twos, _mm512_set1_epi16(1));
            sums[step / 4] = _mm512_add_epi32(sums[step / 4], fours);
        }
        let all = _mm512_add_epi32(sums[0], sums[1]);
        let starts = if Q::SUB == Sub::Half { sums } else { [all; 2] };
        for half in 0..2 {
            let start = _mm512_mullo_epi32(starts[half], _mm512_set1_epi32(-offset::<Q>()));
            _mm512_store_si512(to.starts[half].as_mut_ptr().cast(), start);
            if Q::MIN == Min::Half {
                _mm512_store_ps(to.half_sums[half].as_mut_ptr(), _mm512_cvtepi32_ps(sums[half]));
            }
        }
        let scales = q8::scales_offset(group.inputs) + block * size_of::<f32>();
        for r in 0..SIDE {
            to.scales[r] =
                if r < group.rows { *group.x.add(r * group.x_stride + scales).cast() } else { 0.0 };
        }
        let scaled = Avx512(_mm512_cvtepi32_ps(all)).mul(load(&to.scales));
        scaled.store(to.scaled_sums.as_mut_ptr());
    })
}

/// # Safety
/// All of the tile's pointers are valid for its extents, `packed` included; the processor has the instruction set of `S`.
#[inline(always)]
unsafe fn products<Q: QuantAvx512, S: Sums>(t: &Tile) {
    let blocks = t.inputs / q8::BLOCK;
    // SAFETY: the scratch is used by this worker only; its panels have room for the widest input, and outputs, rows
    // and blocks stay within the tile.
    unsafe {
        let panels = (&raw mut (*t.scratch).rounds).cast::<Panel>();
        for first in (0..blocks).step_by(PANEL_BLOCKS) {
            let panel = panels.add(first / PANEL_BLOCKS);
            let count = PANEL_BLOCKS.min(blocks - first);
            unpack::<Q>(panel, &tile::panel_rows::<Q>(t, first), count, S::SIGNED);
            if Q::PLANES {
                t.planes.unpack::<Avx512>(panel, t.outputs, first, count);
            }
        }
        let next = SIDE * t.stride;
        let mut ahead = Ahead::new(t.weights.wrapping_add(next), next, t.rows.div_ceil(SIDE) * blocks);
        S::begin::<Q>();
        let mut row = 0;
        while row + SIDE < t.rows {
            groups::<Q, S, GROUPS>(t, panels, row, &mut ahead);
            row += GROUPS * SIDE;
        }
        if row < t.rows {
            groups::<Q, S, 1>(t, panels, row, &mut ahead);
        }
        S::end();
    }
}

/// The weights after a tile's, which are probably the worker's next: prefetched gradually, because the processor
/// stalls if too many cache lines are in flight.
pub(crate) struct Ahead {
    at: *const u8,
    end: *const u8,
    /// Bytes to prefetch per block that is multiplied.
    step: usize,
}

impl Ahead {
    pub(crate) fn new(at: *const u8, bytes: usize, blocks: usize) -> Ahead {
        Ahead { at, end: at.wrapping_add(bytes), step: bytes.div_ceil(blocks) }
    }

    #[inline(always)]
    pub(crate) fn step(&mut self) {
        let until = self.at.wrapping_add(self.step).min(self.end);
        while self.at < until {
            // To L2.
            simd!(_mm_prefetch::<_MM_HINT_T1>(self.at.cast()));
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// Partial sums of 1, 2, 4 and 8 lanes that wait for their neighbours, and of all lanes: `[level][output][row]`
pub(crate) type Levels = [[F16x; SIDE]; LEVELS];

const LEVELS: usize = 5;

/// Computes G groups of rows, from row `row` on.
///
/// # Safety
/// As for [`products`]; the panels of the tile's outputs have been unpacked, and the groups are within its rows.
#[inline(always)]
unsafe fn groups<Q: QuantAvx512, S: Sums, const G: usize>(
    t: &Tile,
    panels: *const Panel,
    row: usize,
    ahead: &mut Ahead,
) {
    let blocks = t.inputs / q8::BLOCK;
    // Lanes below this have a block in the last round.
    let last = if blocks.is_multiple_of(SIDE) { SIDE } else { blocks % SIDE };
    // SAFETY: the scratch is used by this worker only, and plain numbers are valid for any bits; each level is written
    // before it is read.
    let levels = unsafe { &mut *(&raw mut (*t.scratch).levels).cast::<[Levels; G]>() };
    let mut x = t.packed.cast::<Block>().wrapping_add(row / SIDE * blocks);
    for (place, lane) in LANES.into_iter().enumerate() {
        let rounds = blocks_of_lane(blocks, lane);
        let padded = lane >= last;
        let lane = Lane { lane, place, panels, rounds, padded, x, group: blocks, scratch: t.scratch };
        // SAFETY: there is a panel for each round, and the groups' blocks can be read.
        unsafe { S::lane::<Q, G>(&lane, ahead, levels) };
        x = x.wrapping_add(rounds);
    }
    for (g, levels) in levels.iter().enumerate() {
        let mut rows = [F16x([0.0; SIDE]); SIDE];
        Avx512::transpose(&levels[LEVELS - 1], &mut rows);
        for (r, values) in rows.iter().enumerate() {
            // SAFETY: `out` has room for whole groups of rows by sixteen outputs.
            unsafe {
                load::<Avx512>(&values.0).store(t.out.add((row + g * SIDE + r) * t.out_stride));
            }
        }
    }
}

impl Lane {
    /// Adds a completed lane of outputs from `first` on to those before it, as the canonical reduction tree in
    /// bit-reversed order.
    #[inline(always)]
    pub(crate) fn end<const O: usize>(&self, levels: &mut Levels, first: usize, mut acc: [Avx512; O]) {
        if self.padded {
            // Adding the padding's zero turns −0 into +0.
            for acc in &mut acc {
                *acc = acc.add(Avx512::zero());
            }
        }
        let level = self.place.trailing_ones() as usize;
        for before in &levels[..level] {
            for o in 0..O {
                acc[o] = load::<Avx512>(&before[first + o].0).add(acc[o]);
            }
        }
        for o in 0..O {
            // SAFETY: the destination has sixteen elements.
            unsafe { acc[o].store(levels[level][first + o].0.as_mut_ptr()) };
        }
    }
}

/// Adds a block of output `o` to sixteen rows' lanes: its scaled integer sums, those of each half if these have
/// sub-scales.
///
/// # Safety
/// The processor has AVX-512, and `b` is a block of the panel.
#[inline(always)]
pub(crate) unsafe fn add_scaled<Q: QuantAvx512>(
    panel: &Panel,
    lane: usize,
    o: usize,
    x: &Block,
    sums: [__m512i; 2],
    acc: Avx512,
) -> Avx512 {
    simd!({
        let dx = load::<Avx512>(&x.scales);
        let mut sum = Avx512(_mm512_cvtepi32_ps(sums[0]));
        if Q::SUB == Sub::Half {
            let [sub, sub_high] = of_halves(&panel.sub, lane, o);
            sum = Avx512(_mm512_cvtepi32_ps(sums[1])).fma(sub_high, sum.mul(sub));
        }
        let acc = sum.fma(Avx512::splat(panel.d[lane].0[o]).mul(dx), acc);
        if Q::MIN == Min::None {
            return acc;
        }
        let scaled = if Q::MIN == Min::Half {
            let [min, min_high] = of_halves(&panel.min, lane, o);
            let second = load::<Avx512>(&x.half_sums[1]).mul(min_high);
            load::<Avx512>(&x.half_sums[0]).fma(min, second).mul(dx)
        } else {
            load(&x.scaled_sums)
        };
        Avx512::splat(panel.m[lane].0[o]).fma(scaled, acc)
    })
}

/// Whether halves of a block have their own scales or mins.
#[inline(always)]
fn of_halves(values: &[F16x], block: usize, o: usize) -> [Avx512; 2] {
    [Avx512::splat(values[block * 2].0[o]), Avx512::splat(values[block * 2 + 1].0[o])]
}

/// Sums in registers: with VNNI in 32 bits, else in 16 bits for as many products as fit, and then in 32.
pub(crate) struct InRegisters<const VNNI: bool>;

/// Outputs times groups whose accumulators fit in registers beside a block's activations.
const OUTPUTS: usize = 8;

impl<const VNNI: bool> Sums for InRegisters<VNNI> {
    const VNNI: bool = VNNI;
    /// Without VNNI AVX2's panels, which have no empty rows, are faster up to then.
    const LEAST_ROWS: usize = if VNNI { LEAST_ROWS } else { 12 };

    #[inline(always)]
    unsafe fn lane<Q: QuantAvx512, const G: usize>(lane: &Lane, ahead: &mut Ahead, levels: &mut [Levels; G]) {
        // SAFETY: all blocks are within the lane's panels and groups, which are valid as the caller promises.
        unsafe {
            if G == 1 {
                outputs::<Q, VNNI, G, OUTPUTS>(lane, ahead, levels);
            } else {
                outputs::<Q, VNNI, G, { OUTPUTS / GROUPS }>(lane, ahead, levels);
            }
        }
    }
}

/// The largest unsigned quant.
const fn most<Q: QuantAvx512>() -> i32 {
    if Q::SIGNED { 255 } else { Q::MAX }
}

/// Whether two products of quants by activations may not fit in 16 bits, but those of their nibbles do.
const fn in_nibbles<Q: QuantAvx512>() -> bool {
    2 * 128 * most::<Q>() > i16::MAX as i32
}

/// Steps of two products each whose sum fits in 16 bits, at most those with the same scale.
const fn steps_in_words<Q: QuantAvx512>() -> usize {
    let most = if in_nibbles::<Q>() { 15 } else { most::<Q>() };
    match i16::MAX as i32 / (2 * 128 * most) {
        1 => 1,
        2..=3 => 2,
        4..=7 => 4,
        _ if matches!(Q::SUB, Sub::Half) => 4,
        _ => 8,
    }
}

/// Computes all outputs of a lane, O at a time.
///
/// # Safety
/// As for [`Sums::lane`].
#[inline(always)]
unsafe fn outputs<Q: QuantAvx512, const VNNI: bool, const G: usize, const O: usize>(
    lane: &Lane,
    ahead: &mut Ahead,
    levels: &mut [Levels; G],
) {
    for first in (0..SIDE).step_by(O) {
        let mut acc = [[Avx512::zero(); O]; G];
        for b in 0..lane.rounds {
            // SAFETY: all blocks are within the lane's panels and groups, which are valid as the caller promises.
            unsafe {
                if first == 0 {
                    for _ in 0..G {
                        ahead.step();
                    }
                }
                add_block::<Q, VNNI, G, O>(lane, b, first, &mut acc);
            }
        }
        for g in 0..G {
            lane.end(&mut levels[g], first, acc[g]);
        }
    }
}

/// Adds one block of O outputs by G groups of rows.
///
/// # Safety
/// As for [`Sums::lane`]; the outputs are below sixteen.
#[inline(always)]
unsafe fn add_block<Q: QuantAvx512, const VNNI: bool, const G: usize, const O: usize>(
    lane: &Lane,
    block: usize,
    first: usize,
    acc: &mut [[Avx512; O]; G],
) {
    simd!({
        let panel = &*lane.panels.add(block);
        let quants = (&raw const panel.quants[lane.lane]).cast::<u8>().add(first * q8::BLOCK);
        let mut x = [&*lane.x.add(block); G];
        for g in 1..G {
            x[g] = &*lane.x.add(g * lane.group + block);
        }
        let mut sums = [[[_mm512_setzero_si512(); O]; 2]; G];
        for g in 0..G {
            for half in 0..if Q::SUB == Sub::Half { 2 } else { 1 } {
                sums[g][half] = [_mm512_load_si512(x[g].starts[half].as_ptr().cast()); O];
            }
        }
        // Sums in 16 bits of whole quants, or of their low and of their high nibbles.
        let parts = if in_nibbles::<Q>() { 2 } else { 1 };
        let mut words = [[[_mm512_setzero_si512(); 2]; O]; G];
        for step in 0..8 {
            let half = if Q::SUB == Sub::Half { step / 4 } else { 0 };
            let mut xs = [_mm512_setzero_si512(); G];
            for g in 0..G {
                xs[g] = _mm512_load_si512(x[g].quants[step].as_ptr().cast());
            }
            for i in 0..O {
                let four =
                    _mm512_set1_epi32(quants.add(i * q8::BLOCK + step * 4).cast::<i32>().read_unaligned());
                if VNNI {
                    for g in 0..G {
                        sums[g][half][i] = _mm512_dpbusd_epi32(sums[g][half][i], four, xs[g]);
                    }
                    continue;
                }
                let nibble = _mm512_set1_epi8(15);
                let pieces = match in_nibbles::<Q>() {
                    true => {
                        let high = _mm512_srli_epi16::<4>(four);
                        [_mm512_and_si512(four, nibble), _mm512_and_si512(high, nibble)]
                    }
                    false => [four; 2],
                };
                for g in 0..G {
                    for part in 0..parts {
                        let twos = _mm512_maddubs_epi16(pieces[part], xs[g]);
                        words[g][i][part] = _mm512_add_epi16(words[g][i][part], twos);
                    }
                }
            }
            if !VNNI && (step + 1) % steps_in_words::<Q>() == 0 {
                for g in 0..G {
                    for i in 0..O {
                        for part in 0..parts {
                            let sum = _mm512_madd_epi16(words[g][i][part], _mm512_set1_epi16([1, 16][part]));
                            sums[g][half][i] = _mm512_add_epi32(sums[g][half][i], sum);
                        }
                        words[g][i] = [_mm512_setzero_si512(); 2];
                    }
                }
            }
        }
        for i in 0..O {
            for g in 0..G {
                let sums = [sums[g][0][i], sums[g][1][i]];
                acc[g][i] = add_scaled::<Q>(panel, lane.lane, first + i, x[g], sums, acc[g][i]);
            }
        }
    })
}
