//! Sums and rows over ranks in many shapes, on emulated GPUs and on CPU devices, compared with the reference.

use std::sync::Arc;

use akunu_device_testing::{f32s, to_f32s, values};
use akunu_emulated::Emulator;
use akunu_fleet::Fleet;
use akunu_plan::ops::{
    AllGather, AllGatherOperands, AllGatherParams, AllReduce, AllReduceOperands, ElementParams, F32, Op,
};
use akunu_plan::{
    BufferId, Device, DeviceBuffer, DispatchCommand, DispatchTable, Entries, Group, Member, Row, RowBounds,
    Submission, TableIo,
};

use crate::common::{cpus, references};

/// A table of one command over `rows` rows. Buffers: the four of the host, then x, the residual, and the result.
fn table(command: DispatchCommand, rows: usize) -> Arc<DispatchTable> {
    Arc::new(DispatchTable {
        name: "exchange",
        commands: vec![command],
        labels: vec!["exchange".into()],
        rows,
        logit_rows: rows,
        steps: 1,
        io: TableIo::new([0, 1, 2, 3].map(BufferId)),
        bounds: RowBounds::one_sequence(8, rows as u32).into(),
    })
}

/// Which numbers each rank has: rank 0 the first ones.
fn part(rank: usize, count: usize) -> Vec<f32> {
    values(rank as u64 + 1, count)
}

/// Runs a command several times on a fleet, over different numbers of rows.
fn run(
    device: &mut dyn Device,
    command: DispatchCommand,
    [most, cols, out_cols]: [usize; 3],
    ranks: usize,
    lives: &[usize],
) -> Vec<Vec<f32>> {
    let table = table(command, most);
    let sizes =
        [most * Row::BYTES, most * 4, most * 8, 4, most * cols * 4, most * cols * 4, most * out_cols * 4];
    let buffers: Vec<DeviceBuffer> =
        sizes.iter().map(|bytes| device.allocate("test", *bytes as u64).unwrap()).collect();
    let replay = device.prepare(&table, &buffers).unwrap();
    // The parts of all ranks one after the other, of which each takes its own.
    let all: Vec<f32> = (0..ranks).flat_map(|rank| part(rank, most * cols)).collect();
    let cut = akunu_plan::Cut { entries: 1, bytes: all.len() * 4, share: most * cols * 4, same: 1, ranks };
    device.upload_cut(buffers[4], &f32s(&all), &cut).unwrap();
    device.upload(buffers[5], 0, &f32s(&values(99, most * cols))).unwrap();
    let results = lives.iter().map(|live| {
        let rows: Vec<Row> = (0..*live).map(|i| Row::causal(1, i as u32, 0)).collect();
        let asked: Vec<u32> = (0..*live as u32).collect();
        let entries = Entries::Rows(&rows);
        device.upload(buffers[6], 0, &vec![0xff; most * out_cols * 4]).unwrap();
        device
            .replay(replay, Submission { entries, logit_rows: &asked, steps: 1, stop: &[], cancel: None })
            .unwrap();
        device.wait().unwrap();
        let mut found = vec![0; live * out_cols * 4];
        device.download(buffers[6], 0, &mut found).unwrap();
        to_f32s(&found)
    });
    results.collect()
}

fn emulated(ranks: usize, gpu: fn() -> Emulator) -> Box<dyn Device> {
    let open = Arc::new(move |member: Member| Ok(Box::new(gpu().in_group(&member)?) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(ranks, 1), open).unwrap())
}

fn fleets(ranks: usize) -> Vec<(&'static str, Box<dyn Device>)> {
    let mut all = vec![("cpu", cpus(ranks, 2))];
    if !akunu_emulated::skipped() {
        all.push(("emulated", emulated(ranks, Emulator::default)));
        all.push(("backwards", emulated(ranks, || Emulator::default().backwards())));
        all.push(("late", emulated(ranks, Emulator::cuda)));
    }
    all
}

fn agree(command: DispatchCommand, shape: [usize; 3], ranks: usize, lives: &[usize]) {
    let expected = run(&mut *references(ranks), command, shape, ranks, lives);
    for (name, mut fleet) in fleets(ranks) {
        let found = run(&mut *fleet, command, shape, ranks, lives);
        for ((found, expected), live) in found.iter().zip(&expected).zip(lives) {
            let close =
                |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
            assert!(
                found.len() == expected.len() && found.iter().zip(expected).all(close),
                "{name}, {shape:?}, {ranks} ranks, {live} rows"
            );
        }
    }
}

fn f32(id: u32) -> F32<akunu_plan::Binding> {
    F32(BufferId(id).into())
}

/// Fewer numbers than a packet has, odd numbers of columns, several chunks of each threadgroup.
#[test]
fn sums_over_ranks_are_those_of_the_reference() {
    for residual in [false, true] {
        let op = AllReduce { residual };
        let operands = AllReduceOperands { x: f32(4), out: f32(6), residual: residual.then_some(f32(5)) };
        for ([rows, cols], lives) in [
            ([1, 64], &[1, 1][..]),
            ([3, 37], &[3, 1]),
            ([1, 5000], &[1]),
            ([40, 1000], &[40, 3, 40, 40, 40, 40]),
        ] {
            let command = op.command(operands, ElementParams { cols: cols as u32 });
            for ranks in [2, 3] {
                agree(command, [rows, cols, cols], ranks, lives);
            }
        }
    }
}

/// More chunks than there are threadgroups, so that places are used again.
#[test]
fn long_sums_use_places_again() {
    let operands = AllReduceOperands { x: f32(4), out: f32(6), residual: None };
    let cols = 4096;
    let command = AllReduce { residual: false }.command(operands, ElementParams { cols });
    agree(command, [600, cols as usize, cols as usize], 2, &[600, 600]);
}

#[test]
fn columns_of_all_ranks_are_put_side_by_side() {
    let operands = AllGatherOperands { x: f32(4), out: f32(6) };
    for (cols, total, ranks) in [(32, 64, 2), (32, 50, 2), (96, 200, 4), (2080, 6001, 3)] {
        let command = AllGather.command(operands, AllGatherParams { cols, total });
        agree(command, [3, cols as usize, total as usize], ranks, &[3, 1]);
    }
}
