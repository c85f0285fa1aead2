//! Products of float weights with many rows, one row per 32-bit lane of a register.
//!
//! A lane of the canonical arithmetic is a register here: the elements l, l + 16, … of sixteen rows, multiplied by the
//! same elements of an output's weights, which are broadcast. So the sums of lanes are plain additions of registers,
//! and weights and rows of one lane lie together and stay in the first cache while all outputs are multiplied.

use std::arch::x86_64::*;

use super::lanes::Avx512;
use crate::formats::floats::FloatWeight;
use crate::groups::{Group, LANES, SIDE};
use crate::isa::Lanes;
use crate::isa::avx2::panels::load;
use crate::isa::avx2::simd;
use crate::panel::{BF16_OUTPUTS, F16x, MAX_ROUNDS, Panel, TILE_ROWS};
use crate::tile::{Packed, Tile};

/// Products with weights `W`.
pub(crate) struct Floats<W>(W);

/// Groups of rows and outputs that are multiplied together: 24 sums leave registers for three groups and a weight.
const GROUPS: usize = 3;
const OUTPUTS: usize = 8;
/// Outputs whose weights are in the scratch together, if rows are short enough for all of them to stay in L2.
const AT_ONCE: usize = BF16_OUTPUTS;
const SHORT: usize = 1536;
const OF_LONG: usize = 32;
/// Levels of the reduction tree.
const LEVELS: usize = 5;

/// The widest input: weights of [`OF_LONG`] outputs fit in the scratch.
pub(crate) const MAX_INPUTS: usize = 6144;

const _: () = {
    let floats = MAX_ROUNDS * size_of::<Panel>() / size_of::<f32>();
    assert!(OF_LONG * MAX_INPUTS <= floats);
    assert!(AT_ONCE * SHORT <= floats);
    assert!(GROUPS * AT_ONCE * LEVELS * SIDE <= TILE_ROWS * 256);
};

impl<W: FloatWeight> Packed for Floats<W> {
    const OUTPUTS: usize = AT_ONCE;
    const BLOCK_BYTES: usize = 2 * size_of::<[F16x; SIDE]>();
    const MAX_INPUTS: usize = MAX_INPUTS;

    #[inline(always)]
    unsafe fn pack(group: &Group) {
        let rounds = group.inputs / SIDE;
        let to = group.to.cast::<F16x>();
        for round in 0..rounds {
            let mut rows = [F16x([0.0; SIDE]); SIDE];
            // SAFETY: the rows have `inputs` elements; the group has room for as many of sixteen rows.
            unsafe {
                for r in 0..group.rows {
                    let x = group.x.add(r * group.x_stride).cast::<f32>().add(round * SIDE);
                    Avx512::load(x).store(rows[r].0.as_mut_ptr());
                }
                spread(&rows, to, round, rounds);
            }
        }
    }

    #[inline(always)]
    unsafe fn products(t: &Tile) {
        let at_once = if t.inputs <= SHORT { AT_ONCE } else { OF_LONG };
        for first in (0..t.outputs).step_by(at_once) {
            // SAFETY: the same tile, with the same contract; outputs from `first` on are within it.
            unsafe { outputs::<W>(t, first, at_once.min(t.outputs - first)) };
        }
    }
}

/// Stores round `round` of sixteen rows, or of the weights of sixteen outputs, lane by lane in [`LANES`]' order.
///
/// # Safety
/// There is room for sixteen times `rounds` registers at `to`.
#[inline(always)]
unsafe fn spread(from: &[F16x; SIDE], to: *mut F16x, round: usize, rounds: usize) {
    let mut lanes = [F16x([0.0; SIDE]); SIDE];
    Avx512::transpose(from, &mut lanes);
    for (place, lane) in LANES.into_iter().enumerate() {
        // SAFETY: `place` is below sixteen and `round` below `rounds`.
        unsafe { load::<Avx512>(&lanes[lane].0).store(to.add(place * rounds + round).cast()) };
    }
}

/// # Safety
/// As for [`Packed::products`]; `count` outputs from `first` on are within the tile, and at most [`AT_ONCE`], or
/// [`OF_LONG`] if inputs are more than [`SHORT`].
#[inline(always)]
unsafe fn outputs<W: FloatWeight>(t: &Tile, first: usize, count: usize) {
    let rounds = t.inputs / SIDE;
    let sides = count.div_ceil(SIDE);
    // SAFETY: the scratch is used by this worker only and has room for the weights of these outputs; outputs and
    // inputs are within the tile.
    unsafe {
        let weights = (&raw mut (*t.scratch).rounds).cast::<F16x>();
        for side in 0..sides {
            for round in 0..rounds {
                let mut rows = [F16x([0.0; SIDE]); SIDE];
                for (o, row) in rows.iter_mut().enumerate() {
                    // Outputs past the last repeat it; their sums are discarded.
                    let output = first + (side * SIDE + o).min(count - 1);
                    let w = t.weights.add(output * t.stride + round * SIDE * W::BYTES);
                    W::weights::<Avx512>(w, t.planes.of_output(output), round * SIDE)
                        .store(row.0.as_mut_ptr());
                }
                spread(&rows, weights.add(side * SIDE * rounds), round, rounds);
            }
        }
        let groups = t.rows.div_ceil(SIDE);
        let mut group = 0;
        while group < groups {
            let block = Block { t, weights, first, sides, rounds, group };
            // Four groups are twice two: a single one would have too few sums for the latency of fma.
            match groups - group {
                1 => block.products::<1>(),
                2 | 4 => block.products::<2>(),
                _ => block.products::<GROUPS>(),
            }
            group += match groups - group {
                1 => 1,
                2 | 4 => 2,
                _ => GROUPS,
            };
        }
    }
}

/// Some outputs and the groups of rows from `group` on.
struct Block<'a> {
    t: &'a Tile,
    /// `[sixteen outputs][place of lane][round][output]`
    weights: *const F16x,
    first: usize,
    sides: usize,
    rounds: usize,
    group: usize,
}

impl Block<'_> {
    /// # Safety
    /// The tile has G groups of rows from `group` on, and the weights of its outputs are in the scratch.
    #[inline(always)]
    unsafe fn products<const G: usize>(&self) {
        let rounds = self.rounds;
        // SAFETY: groups and outputs are within the tile; the scratch has room for the levels of all of them.
        unsafe {
            let x = self.t.packed.cast::<F16x>().add(self.group * SIDE * rounds);
            let levels = (&raw mut (*self.t.scratch).acc).cast::<F16x>();
            for place in 0..SIDE {
                for side in 0..self.sides {
                    for half in 0..SIDE / OUTPUTS {
                        let w = self.weights.add((side * SIDE + place) * rounds).cast::<f32>();
                        let sums =
                            lane::<G>(w.add(half * OUTPUTS), x.add(place * rounds), SIDE * rounds, rounds);
                        for g in 0..G {
                            let output = (g * self.sides + side) * SIDE + half * OUTPUTS;
                            add_lane(levels.add(output), G * self.sides * SIDE, place, sums[g]);
                        }
                    }
                }
            }
            // The last lane completes the highest level.
            let sums = levels.add((LEVELS - 1) * G * self.sides * SIDE).cast::<[F16x; SIDE]>();
            for g in 0..G {
                for side in 0..self.sides {
                    let mut rows = [F16x([0.0; SIDE]); SIDE];
                    Avx512::transpose(&*sums.add(g * self.sides + side), &mut rows);
                    for (r, row) in rows.iter().enumerate() {
                        let to = (self.group + g) * SIDE + r;
                        let to = self.t.out.add(to * self.t.out_stride + self.first + side * SIDE);
                        load::<Avx512>(&row.0).store(to);
                    }
                }
            }
        }
    }
}

/// One lane of [`OUTPUTS`] outputs by G groups of rows, `apart` registers from one group to the next.
///
/// # Safety
/// `rounds` weights of each output, sixteen apart, can be read at `w`, and as many registers of each group at `x`.
#[inline(always)]
unsafe fn lane<const G: usize>(
    w: *const f32,
    x: *const F16x,
    apart: usize,
    rounds: usize,
) -> [[Avx512; OUTPUTS]; G] {
    let mut acc = [[Avx512::zero(); OUTPUTS]; G];
    simd!({
        for round in 0..rounds {
            let mut rows = [Avx512::zero(); G];
            for g in 0..G {
                rows[g] = Avx512(_mm512_load_ps(x.add(g * apart + round).cast()));
            }
            for o in 0..OUTPUTS {
                let weight = Avx512::splat(*w.add(round * SIDE + o));
                for g in 0..G {
                    acc[g][o] = weight.fma(rows[g], acc[g][o]);
                }
            }
        }
    });
    acc
}

/// Adds the lane at `place` to the levels of the reduction tree, which are `apart` registers from each other: like a
/// carry in a binary counter, two sums of equal level become one of the next.
///
/// # Safety
/// [`OUTPUTS`] registers of each level can be read and written.
#[inline(always)]
unsafe fn add_lane(levels: *mut F16x, apart: usize, place: usize, mut sums: [Avx512; OUTPUTS]) {
    let level = place.trailing_ones() as usize;
    // SAFETY: `level` is at most four.
    unsafe {
        for below in 0..level {
            for o in 0..OUTPUTS {
                sums[o] = load::<Avx512>(&(*levels.add(below * apart + o)).0).add(sums[o]);
            }
        }
        for o in 0..OUTPUTS {
            sums[o].store(levels.add(level * apart + o).cast());
        }
    }
}
