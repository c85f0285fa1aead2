//! Canonical arithmetic: the same bits on every instruction set, with every number of threads and split of the rows.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::cpu;
use akunu_cpu::{CpuDevice, CpuOptions, Isa, ReadPattern};
use akunu_device_testing::attention::{Seen, attend};
use akunu_device_testing::{
    Case, POISON, Shape, cases, experts, matrices, poison, specs, to_f32s, values, weight_rows,
};
use akunu_plan::ops::{self, AttentionParams, CombineParams, ExpertParams};
use akunu_plan::{Activation, Content, DType, Device, Kernel, KvType, OutputForms, Row, blocks};
use akunu_testing::{fewest_or, some_of};

/// Some of all cases. Those that are left out are not built, which takes longer than to run them.
fn some_cases(step: usize) -> impl Iterator<Item = (String, Case)> {
    type Build = Box<dyn FnOnce() -> (String, Case)>;
    let specs =
        specs().into_iter().map(|spec| -> Build { Box::new(move || (spec.name.clone(), spec.whole())) });
    let cases = cases().into_iter().map(|case| -> Build { Box::new(move || (case.kernel.name(), case)) });
    some_of(specs.chain(cases), step).map(|build| build())
}

/// NaNs may differ in their payload; nothing else may.
fn assert_same(name: &str, case: &Case, expected: &[Vec<u8>], found: &[Vec<u8>]) {
    for ((a, b), (_, content)) in expected.iter().zip(found).zip(&case.written) {
        if a == b {
            continue;
        }
        let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(0) / 4 * 4;
        if *content == Content::F32 {
            let (a, b) = (to_f32s(a), to_f32s(b));
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
            let Some(i) = a.iter().zip(&b).position(differs) else { continue };
            panic!("{name}: element {i} is {} and not {}", b[i], a[i]);
        }
        panic!("{name}: {content:?} differs at byte {at}: {:?} and not {:?}", &b[at..at + 4], &a[at..at + 4]);
    }
}

#[test]
fn every_instruction_set_gives_the_scalar_bits() {
    let mut devices: Vec<_> = Isa::available().into_iter().map(|isa| (isa, cpu(isa, 1))).collect();
    for (name, case) in some_cases(3) {
        let expected = case.run(&mut devices[0].1);
        for (isa, device) in &mut devices[1..] {
            let found = case.run(device);
            assert_same(&format!("{} {name}", isa.name()), &case, &expected, &found);
        }
    }
}

fn read_pattern(isa: Isa, threads: usize, read_pattern: ReadPattern) -> CpuDevice {
    let (threads, isa, read_pattern) = (Some(threads), Some(isa), Some(read_pattern));
    CpuDevice::new(CpuOptions { threads, isa, read_pattern }).unwrap()
}

#[test]
fn every_way_of_reading_one_rows_weights_gives_the_same_bits() {
    let matrices = matrices::matrices();
    for isa in Isa::available() {
        let mut straight = read_pattern(isa, 2, ReadPattern::STRAIGHT);
        let mut others = [ReadPattern::STRIPS, ReadPattern::MANY_STRIPS].map(|way| read_pattern(isa, 2, way));
        for spec in matrices.iter().filter(|spec| spec.rows == 1) {
            let case = spec.whole();
            let expected = case.run(&mut straight);
            for other in &mut others {
                let found = case.run(other);
                assert_same(&format!("{} {}", isa.name(), spec.name), &case, &expected, &found);
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let isa = *Isa::available().last().unwrap();
    let mut devices: Vec<_> = [1, 2, 3, 5].into_iter().map(|threads| cpu(isa, threads)).collect();
    for (name, case) in some_cases(5) {
        let expected = case.run(&mut devices[0]);
        for device in &mut devices[1..] {
            let found = case.run(device);
            assert_same(&format!("{:?} {name}", device.capabilities().detail), &case, &expected, &found);
        }
    }
}

/// Float weights by rows that fill some, one or several groups of sixteen, with inputs of one lane's few and many
/// elements and more than are packed.
#[test]
fn float_weights_give_the_same_bits_for_any_number_of_rows() {
    let isas = Isa::available();
    let mut devices: Vec<_> = isas.iter().map(|&isa| cpu(isa, 2)).collect();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (rows, shape) in [
            (6, (96, 70)),
            (16, (32, 130)),
            (33, (1568, 20)),
            (50, (288, 45)),
            (70, (2048, 45)),
            (300, (160, 40)),
            (18, (6144, 17)),
            (18, (6176, 17)),
        ] {
            let spec = matrices::matmul(dtype, rows, shape, true, true);
            let case = spec.whole();
            let expected = case.run(&mut devices[0]);
            for (device, isa) in devices[1..].iter_mut().zip(&isas[1..]) {
                let found = case.run(device);
                assert_same(&format!("{} {}", isa.name(), spec.name), &case, &expected, &found);
            }
        }
    }
}

/// A few outputs remain after the strips that one worker reads alternately; their tile is written in multiples of
/// sixteen.
#[test]
fn outputs_left_behind_the_strips_touch_no_others() {
    let spec = matrices::glu_matmul(DType::Q8_0, 1, 32, (1 << 15) - 2, Activation::Silu, OutputForms::F32);
    let case = spec.whole();
    for isa in Isa::available() {
        for way in [ReadPattern::STRIPS, ReadPattern::MANY_STRIPS] {
            let run = |threads| case.run(&mut read_pattern(isa, threads, way));
            assert_same(&format!("{} {}", isa.name(), spec.name), &case, &run(2), &run(1));
        }
    }
}

#[test]
fn rows_together_give_the_bits_of_rows_alone() {
    // Of many rows some, at other distances from the first in each spec, and the last.
    const MOST_ROWS: usize = 24;
    let mut device = cpu(*Isa::available().last().unwrap(), 2);
    for (i, spec) in some_of(specs().iter().filter(|s| s.rows > 1).enumerate(), 5) {
        let whole = spec.whole();
        let together = whole.run(&mut device);
        let step = spec.rows.div_ceil(MOST_ROWS);
        for row in (i % step..spec.rows - 1).step_by(step).chain([spec.rows - 1]) {
            let case = (spec.build)(row..row + 1);
            let alone = case.run(&mut device);
            for (i, ((all, one), (_, content))) in together.iter().zip(&alone).zip(&case.written).enumerate()
            {
                if let Content::Keys(_) | Content::Values(_) = content {
                    // The cache is not divided by rows: what this row wrote must equal what the whole pass left there.
                    let untouched = &case.buffers[case.written[i].0];
                    let same = one.iter().zip(all).zip(untouched).all(|((o, a), u)| o == a || o == u);
                    assert!(same, "{} row {row}", spec.name);
                    continue;
                }
                // Rows have a stride: compare from this row's start to the next one's.
                let stride = all.len() / spec.rows;
                let part = vec![all[row * stride..(row + 1) * stride].to_vec()];
                let name = format!("{} row {row}", spec.name);
                let mut only = case.clone();
                only.written = vec![case.written[i]];
                assert_same(&name, &only, &part, std::slice::from_ref(one));
            }
        }
    }
}

/// An infinite value times a weight of 0 would be NaN.
#[test]
fn rows_are_not_touched_by_values_that_only_later_ones_see() {
    let seen = Seen { rows: 12, first: 250, window: 9, soft_cap: 0.0, factor_step: 0, paged: false };
    let spec = attend((3, 1, 16), KvType::F32, seen, OutputForms::F32);
    // The second sequence has the rows from the eighth on, the first one those from position 250.
    let infinite = |mut case: Case| {
        for (start, position) in [(0, 255), (272, 259)] {
            let at = (start + position) * 64;
            case.buffers[6][at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }
        case
    };
    for isa in Isa::available() {
        let found = infinite(spec.whole()).run(&mut cpu(isa, 2));
        for (row, out) in to_f32s(&found[0]).chunks(48).enumerate() {
            let sees = (5..8).contains(&row) || row >= 9;
            assert_eq!(out.iter().all(|v| v.is_finite()), !sees, "{} row {row}", isa.name());
        }
    }
}

/// Rows of one sequence of 320 positions, which begins at `start`, in a cache of 640. `blocks`: the positions of a block,
/// and the table; without, 0 and no table.
fn sequence_at(kv: KvType, start: u32, blocks: (u32, &[u32])) -> Case {
    let (heads, kv_heads, head_dim, context, positions) = (4, 2, 32, 320, 640);
    let row = kv.row_bytes(head_dim as usize).unwrap();
    let (block, table) = blocks;
    let place = |at: usize| match block as usize {
        0 => at,
        block => blocks::place(table, at, [positions, block as u32]),
    };
    let cache = |seed| {
        let sequence = weight_rows(kv.dtype(), seed, (kv_heads * context) as usize, head_dim as usize);
        let mut all = vec![POISON; (kv_heads * positions) as usize * row];
        for (all, own) in
            all.chunks_mut(positions as usize * row).zip(sequence.chunks(context as usize * row))
        {
            for (position, own) in own.chunks(row).enumerate() {
                all[place(start as usize + position) * row..][..row].copy_from_slice(own);
            }
        }
        all
    };
    let params = AttentionParams {
        heads,
        kv_heads,
        head_dim,
        positions,
        block,
        scale: 0.3,
        window: 290,
        ..AttentionParams::default()
    };
    let cols = (heads * head_dim) as usize;
    let rows: Vec<Row> = [0, 7, 255, 256, 300].map(|position| Row::causal(0, position, start)).to_vec();
    let queries: Vec<u8> = bytemuck::cast_slice(&values(70, rows.len() * cols)).to_vec();
    let mut data = vec![queries, cache(71), cache(72), poison(rows.len() * cols * 4)];
    data.extend((block > 0).then(|| bytemuck::cast_slice(table).to_vec()));
    let op = ops::Attention { paged: block > 0, ..ops::Attention::plain(kv, OutputForms::F32) };
    let shape = Shape::sequences(rows, context, positions, block.max(16));
    Case::new(op.into(), params, shape, data)
}

#[test]
fn where_a_sequence_begins_changes_no_bit() {
    for isa in Isa::available() {
        for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let expected = sequence_at(kv, 0, (0, &[])).run(&mut cpu(isa, 2));
            for start in [16, 208, 320] {
                let case = sequence_at(kv, start, (0, &[]));
                let name = format!("{} {kv:?} from {start} on", isa.name());
                assert_same(&name, &case, &expected, &case.run(&mut cpu(isa, 2)));
            }
        }
    }
}

/// Blocks next to each other, in reverse order, and anywhere; more in a table than the cache has are the last one.
#[test]
fn where_the_blocks_of_a_sequence_are_changes_no_bit() {
    let reversed: Vec<u32> = (0..20).rev().collect();
    for isa in Isa::available() {
        for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let expected = sequence_at(kv, 0, (0, &[])).run(&mut cpu(isa, 2));
            for (start, block, table) in [
                (0, 64, &[0, 1, 2, 3, 4, 0, 0, 0, 0, 0][..]),
                (320, 64, &[0, 0, 0, 0, 0, 7, 8, 2, 3, u32::MAX]),
                (64, 64, &[0, 9, 3, 0, 8, 2, 0, 0, 0, 0]),
                (0, 32, &reversed),
            ] {
                let case = sequence_at(kv, start, (block, table));
                let name = format!("{} {kv:?} in blocks {table:?}", isa.name());
                assert_same(&name, &case, &expected, &case.run(&mut cpu(isa, 2)));
            }
        }
    }
}

/// Random weights have few of MXFP4's 256 scales: subnormal and overflowing ones among them.
#[test]
fn every_scale_of_mxfp4_gives_the_same_bits() {
    for rows in [1, 5] {
        // Whole octets of blocks, and a partial one.
        for (inputs, outputs) in [(256, 32), (32, 256)] {
            let mut case = matrices::matmul(DType::MXFP4, rows, (inputs, outputs), false, false).whole();
            for (block, exponent) in case.buffers[5].chunks_mut(17).zip(0..=255) {
                block[0] = exponent;
            }
            let expected = case.run(&mut cpu(Isa::Scalar, 1));
            for isa in Isa::available() {
                let name = format!("{} {rows}x{inputs}", isa.name());
                assert_same(&name, &case, &expected, &case.run(&mut cpu(isa, 2)));
            }
        }
    }
}

/// How picks are sorted by expert.
struct Sorting {
    /// The picks in the order of their experts.
    picks: Vec<usize>,
    starts: Vec<u8>,
    /// Where each pick is among the sorted ones.
    places: Vec<u8>,
}

impl Sorting {
    fn new(picks: &[u8], experts: u32) -> Sorting {
        let experts_of: Vec<u32> =
            picks.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b).min(experts - 1)).collect();
        let mut picks: Vec<usize> = (0..experts_of.len()).collect();
        picks.sort_by_key(|pick| experts_of[*pick]);
        let before = |expert: u32| experts_of.iter().filter(|of| **of < expert).count() as u32;
        let place = |pick: usize| picks.iter().position(|sorted| *sorted == pick).unwrap() as u32;
        let bytes = |numbers: Vec<u32>| numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        let starts = bytes((0..=experts).map(before).collect());
        let places = bytes((0..picks.len()).map(place).collect());
        Sorting { picks, starts, places }
    }

    /// The rows of picks, of which `each` share one, in the sorted order.
    fn rows(&self, bytes: &[u8], each: usize) -> Vec<u8> {
        let row = bytes.len() * each / self.picks.len();
        self.picks.iter().flat_map(|pick| &bytes[pick / each * row..][..row]).copied().collect()
    }
}

#[test]
fn rows_by_picks_give_the_bits_of_rows_sorted_by_expert() {
    let mut checked = [0, 0];
    let cases = experts::experts();
    let step = fewest_or(3, 1, 1);
    for isa in Isa::available() {
        let mut device = cpu(isa, 2);
        for case in cases.iter().step_by(step) {
            let data = &case.buffers[4..];
            let command = case.table.commands[0];
            let shape = || Shape::rows(case.table.rows);
            let name = format!("{} {}", isa.name(), case.kernel.name());
            match case.kernel {
                Kernel::ExpertGlu(op) if op.picked => {
                    let p: ExpertParams = command.params();
                    let sorting = Sorting::new(&data[1], p.experts);
                    let mut sorted = data.to_vec();
                    sorted[0] = sorting.rows(&data[0], p.top as usize);
                    sorted[1] = sorting.starts.clone();
                    let op = ops::ExpertGlu { picked: false, ..op };
                    let expected = Case::new(op.into(), p, shape(), sorted).run(&mut device);
                    let found: Vec<Vec<u8>> =
                        case.run(&mut device).iter().map(|rows| sorting.rows(rows, 1)).collect();
                    assert_same(&name, case, &expected, &found);
                    checked[0] += 1;
                }
                Kernel::ExpertSum(op) => {
                    let p: ExpertParams = command.params();
                    let [x, picks, shares, rest @ ..] = data else { panic!("{name}") };
                    let (weight, [out, rest @ ..]) = rest.split_at(op.weight.planes()) else {
                        panic!("{name}")
                    };
                    let (bias, added) = rest.split_at(usize::from(op.bias));
                    let sorting = Sorting::new(picks, p.experts);
                    let product = ops::ExpertMatmul { weight: op.weight, q8: op.q8, bias: op.bias };
                    let mut sorted = vec![sorting.rows(x, 1), sorting.starts.clone()];
                    sorted.extend(weight.iter().cloned());
                    sorted.push(poison(out.len() * p.top as usize));
                    sorted.extend(bias.iter().cloned());
                    let y = Case::new(product.into(), p, shape(), sorted).run(&mut device).remove(0);
                    let combine = ops::Combine { shared: op.shared, gated: op.gated, residual: op.residual };
                    let mut parts = vec![y, sorting.places.clone(), shares.clone(), out.clone()];
                    parts.extend(added.iter().cloned());
                    let params = CombineParams { cols: p.outputs, top: p.top };
                    let expected = Case::new(combine.into(), params, shape(), parts).run(&mut device);
                    assert_same(&name, case, &expected, &case.run(&mut device));
                    checked[1] += 1;
                }
                _ => {}
            }
        }
    }
    assert!(checked.iter().all(|count| *count > 20 / step), "{checked:?}");
}
