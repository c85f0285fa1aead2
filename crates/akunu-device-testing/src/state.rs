//! Layers with a state.

use akunu_plan::ops::{self, StateConvParams, StateScanParams};
use akunu_plan::{Kernel, Row};

use crate::attention::in_blocks;
use crate::case::{Case, Shape};
use crate::data::{f32s, poison, values};

/// Logical positions of a sequence, and of a block.
const CONTEXT: u32 = 96;
const BLOCK: u32 = 16;
const SEQUENCES: u32 = 3;

/// Runs of rows: the sequence, the first position, and the number of rows.
type Runs = &'static [(u32, u32, u32)];

/// One row at the beginning, within a block and at its beginning; runs that end within a block, at its end, and that cross one
/// and several; several sequences.
const KEPT: [Runs; 8] = [
    &[(0, 0, 1)],
    &[(1, 5, 1)],
    &[(2, 16, 1)],
    &[(0, 0, 16), (1, 17, 3)],
    &[(1, 13, 40)],
    &[(0, 14, 5), (2, 33, 1), (1, 0, 20)],
    &[(2, 31, 65)],
    &[(0, 3, 2), (2, 1, 2), (1, 62, 7)],
];
/// Of texts that are processed whole.
const WHOLE: [Runs; 3] = [&[(0, 0, 1)], &[(0, 0, 5), (1, 0, 1), (2, 0, 30)], &[(1, 0, 70)]];

fn shape(runs: Runs) -> Shape {
    let row = |start, position| Row::causal(0, position, start * CONTEXT);
    let rows =
        runs.iter().flat_map(|&(start, first, count)| (first..first + count).map(move |p| row(start, p)));
    Shape::sequences(rows.collect(), CONTEXT, SEQUENCES * CONTEXT, BLOCK)
}

/// The states of all slots, and the table of these, with a number beyond the last one, which no other block has.
fn kept(seed: u64, size: u32) -> (u32, Vec<Vec<u8>>) {
    let (positions, mut table) = in_blocks(SEQUENCES * CONTEXT, BLOCK);
    let slots = positions / BLOCK + 1;
    table[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    (slots, vec![f32s(&values(seed, (slots * size) as usize)), table])
}

pub(crate) fn conv(runs: Runs, [channels, taps]: [u32; 2], bias: bool, is_kept: bool) -> Case {
    let (shape, [first, beside]) = (shape(runs), [channels / 2 + 3, 5]);
    let rows = shape.work.entries().len();
    let (stride, size) = (first + channels + beside, channels * (taps - 1));
    let (slots, state) = if is_kept { kept(143, size) } else { (0, vec![]) };
    let block = if is_kept { BLOCK } else { 0 };
    let params = StateConvParams { channels, taps, stride, first, slots, block };
    let mut data =
        vec![f32s(&values(140, rows * stride as usize)), f32s(&values(141, (channels * taps) as usize))];
    data.extend(bias.then(|| f32s(&values(142, channels as usize))));
    data.extend(state);
    data.push(poison(rows * channels as usize * 4));
    Case::new(Kernel::StateConv(ops::StateConv { bias, kept: is_kept }), params, shape, data)
}

pub(crate) fn scan(runs: Runs, [heads, head_dim, state_size, groups]: [u32; 4], is_kept: bool) -> Case {
    let shape = shape(runs);
    let (rows, inner) = (shape.work.entries().len(), heads * head_dim);
    let (gate, dt) = (3, inner + 7);
    let (stride, size) = (dt + heads + 2, inner * state_size);
    let (slots, state) = if is_kept { kept(149, size) } else { (0, vec![]) };
    let block = if is_kept { BLOCK } else { 0 };
    let params = StateScanParams { heads, head_dim, state_size, groups, stride, gate, dt, slots, block };
    let rates: Vec<f32> = values(146, heads as usize).iter().map(|log| -(log - 1.0).exp()).collect();
    let mut data = vec![
        f32s(&values(144, rows * (inner + 2 * groups * state_size) as usize)),
        f32s(&values(145, rows * stride as usize)),
        f32s(&rates),
        f32s(&values(147, heads as usize)),
        f32s(&values(148, heads as usize)),
    ];
    data.extend(state);
    data.push(poison(rows * inner as usize * 4));
    Case::new(Kernel::StateScan(ops::StateScan { kept: is_kept }), params, shape, data)
}

/// All of them, which depend on the rows of a pass.
pub fn states() -> Vec<Case> {
    let mut cases = vec![];
    for (i, runs) in KEPT.into_iter().enumerate() {
        for (channels, taps) in [(37, 4), (131, 2), (16, 8)] {
            cases.push(conv(runs, [channels, taps], i % 2 == 0, true));
        }
        for sizes in [[3, 7, 5, 1], [4, 64, 16, 2], [2, 40, 128, 1], [1, 80, 33, 1]] {
            cases.push(scan(runs, sizes, true));
        }
    }
    for (i, runs) in WHOLE.into_iter().enumerate() {
        cases.push(conv(runs, [50, 4], i % 2 == 1, false));
        cases.push(scan(runs, [6, 24, 20, 3], false));
    }
    cases
}
