//! Sums and rows over ranks in many shapes, on emulated GPUs and on CPU devices, compared with the reference.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use akunu_device_testing::{f32s, q8_row, to_f32s, values, weights};
use akunu_emulated::Emulator;
use akunu_fleet::Fleet;
use akunu_plan::ops::{
    AllGather, AllGatherOperands, AllGatherParams, AllReduce, AllReduceOperands, F32, Forms, Matmul,
    MatmulParams, NormParams, Op, Q8, Rounding,
};
use akunu_plan::{
    BufferId, DType, Device, DeviceBuffer, DispatchCommand, DispatchTable, Entries, Group, Kernel,
    MatmulForm, Member, OutputForms, Row, RowBounds, Submission, TableIo,
};
use akunu_testing::fewest_or;

use crate::common::{cpus, references};

/// A table over `rows` rows. Buffers: the four of the host, then those of the commands.
fn table(commands: Vec<DispatchCommand>, rows: usize) -> Arc<DispatchTable> {
    Arc::new(DispatchTable {
        name: "exchange",
        labels: vec!["exchange".into(); commands.len()],
        commands,
        rows,
        logit_rows: rows,
        steps: 1,
        io: TableIo::new([0, 1, 2, 3].map(BufferId)),
        bounds: RowBounds::one_sequence(8, rows as u32).into(),
        streams: akunu_plan::Streams::default(),
    })
}

/// Which numbers each rank has: rank 0 the first ones.
fn part(rank: usize, count: usize) -> Vec<f32> {
    values(rank as u64 + 1, count)
}

/// Runs a command several times on a fleet, over different numbers of rows. Its buffers: x, the residual, and the result.
fn run(
    device: &mut dyn Device,
    command: DispatchCommand,
    [most, cols, out_cols]: [usize; 3],
    ranks: usize,
    lives: &[usize],
) -> Vec<Vec<f32>> {
    let table = table(vec![command], most);
    let wide = most * cols * 4;
    // The last four: the weights of a norm, what it begins, and the sums of squares.
    let sizes = [
        most * Row::BYTES,
        most * 4,
        most * 8,
        4,
        wide,
        wide,
        most * out_cols * 4,
        wide,
        wide,
        wide * 2,
        wide,
    ];
    let buffers: Vec<DeviceBuffer> =
        sizes.iter().map(|bytes| device.allocate("test", *bytes as u64).unwrap()).collect();
    let replay = device.prepare(&table, &buffers).unwrap();
    // The parts of all ranks one after the other, of which each takes its own.
    let all: Vec<f32> = (0..ranks).flat_map(|rank| part(rank, most * cols)).collect();
    let cut = akunu_plan::Cut { entries: 1, bytes: all.len() * 4, share: most * cols * 4, same: 1, ranks };
    device.upload_cut(buffers[4], &f32s(&all), &cut).unwrap();
    device.upload(buffers[5], 0, &f32s(&values(99, most * cols))).unwrap();
    device.upload(buffers[7], 0, &f32s(&values(77, cols))).unwrap();
    let results = lives.iter().map(|live| {
        let rows: Vec<Row> = (0..*live).map(|i| Row::causal(1, i as u32, 0)).collect();
        let asked: Vec<u32> = (0..*live as u32).collect();
        let entries = Entries::Rows(&rows);
        device.upload(buffers[6], 0, &vec![0xff; most * out_cols * 4]).unwrap();
        device
            .replay(replay, Submission { entries, logit_rows: &asked, steps: 1, stop: &[], cancel: None })
            .unwrap();
        device.wait().unwrap();
        let mut read = |buffer: usize, bytes: usize| {
            let mut found = vec![0; bytes];
            device.download(buffers[buffer], 0, &mut found).unwrap();
            found
        };
        let mut found = to_f32s(&read(6, live * out_cols * 4));
        if begins_norm(command) {
            found.extend(to_f32s(&read(8, live * cols * 4)));
            found.extend(to_f32s(&read(10, live * cols / 8)));
            for row in read(9, live * akunu_plan::q8::row_bytes(cols)).chunks(akunu_plan::q8::row_bytes(cols))
            {
                found.extend(akunu_plan::q8::dequantise_row(row, cols));
            }
        }
        found
    });
    results.collect()
}

fn begins_norm(command: DispatchCommand) -> bool {
    matches!(command.kernel, Kernel::AllReduce(AllReduce { norm: Some(_), .. }))
}

fn emulated(ranks: usize, gpu: fn() -> Emulator) -> Box<dyn Device> {
    let open = Arc::new(move |member: Member| Ok(Box::new(gpu().in_group(&member)?) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(ranks, 1), open).unwrap())
}

/// Ranks whose numbers a library gathers.
fn gathering(ranks: usize, gpu: fn() -> Emulator) -> Box<dyn Device> {
    let open = Arc::new(move |member: Member| Ok(Box::new(gpu().gathering(&member)?) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(ranks, 1), open).unwrap())
}

fn fleets(ranks: usize) -> Vec<(&'static str, Box<dyn Device>)> {
    let mut all = vec![("cpu", cpus(ranks, 2))];
    if !akunu_emulated::skipped() {
        all.push(("emulated", emulated(ranks, Emulator::default)));
        all.push(("backwards", emulated(ranks, || Emulator::default().backwards())));
        all.push(("late", emulated(ranks, Emulator::cuda)));
        all.push(("gathering", gathering(ranks, Emulator::cuda)));
    }
    all
}

fn agree(command: DispatchCommand, shape: [usize; 3], ranks: usize, lives: &[usize]) {
    let expected = run(&mut *references(ranks), command, shape, ranks, lives);
    for (name, mut fleet) in fleets(ranks) {
        // The CPU divides at once.
        if name == "cpu" && begins_norm(command) {
            continue;
        }
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

fn plain() -> AllReduceOperands<akunu_plan::Binding> {
    AllReduceOperands {
        x: f32(4),
        out: f32(6),
        residual: None,
        norm_weight: None,
        normed: None,
        out_squares: None,
    }
}

/// One chunk of a threadgroup and several, in each form.
#[test]
fn sums_begin_the_norm_that_follows() {
    let (f32s, q8) = (Some(f32(8)), Some(Q8(BufferId(9).into())));
    for (form, normed_f32, normed_q8) in
        [(OutputForms::Both, f32s, q8), (OutputForms::F32, f32s, None), (OutputForms::Q8, None, q8)]
    {
        let op = AllReduce { residual: true, norm: Some(form) };
        let operands = AllReduceOperands {
            residual: f32s.map(|_| f32(5)),
            norm_weight: Some(f32(7)),
            normed: Some(Forms { f32: normed_f32, q8: normed_q8, f16: None, rounding: Rounding::F16 }),
            out_squares: Some(f32(10)),
            ..plain()
        };
        for ([rows, cols], lives) in
            [([1, 64], &[1, 1][..]), ([1, 8192], &[1]), ([1, 16384], &[1]), ([5, 544], &[5, 2])]
        {
            let command = op.command(operands, NormParams { cols: cols as u32, epsilon: 1e-5 });
            agree(command, [rows, cols, cols], 2, lives);
        }
    }
}

/// Fewer numbers than a packet has, odd numbers of columns, several chunks of each threadgroup.
#[test]
fn sums_over_ranks_are_those_of_the_reference() {
    for residual in [false, true] {
        let op = AllReduce { residual, norm: None };
        let operands = AllReduceOperands { residual: residual.then_some(f32(5)), ..plain() };
        for ([rows, cols], lives) in [
            ([1, 64], &[1, 1][..]),
            ([3, 37], &[3, 1]),
            ([1, 5000], &[1]),
            ([40, 1000], &[40, 3, 40, 40, 40, 40]),
        ] {
            let command = op.command(operands, NormParams { cols: cols as u32, epsilon: 0.0 });
            for ranks in [2, 3] {
                agree(command, [rows, cols, cols], ranks, lives);
            }
        }
    }
}

/// A rank whose kernels never run: the other one ends its chain, and says so, instead of waiting for ever.
#[test]
fn a_rank_gives_up_waiting_for_one_that_does_not_come() {
    if akunu_emulated::skipped() {
        return;
    }
    let patience = Duration::from_millis(300);
    // In packets, and in chunks with a signal.
    for (rows, cols) in [(1, 64), (40, 1000)] {
        let [here, absent] = Group::members(2, 1).try_into().unwrap();
        let (ends, ended) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            let device = Emulator::default().in_group(&absent).unwrap();
            let _ = ended.recv();
            drop(device);
        });
        let mut device = Emulator::default().with_patience(patience).in_group(&here).unwrap();
        let op = AllReduce { residual: false, norm: None };
        let command = op.command(plain(), NormParams { cols: cols as u32, epsilon: 0.0 });
        let table = table(vec![command], rows);
        let numbers = rows * cols * 4;
        let buffers: Vec<DeviceBuffer> =
            [rows * Row::BYTES, rows * 4, rows * 8, 4, numbers, numbers, numbers]
                .iter()
                .map(|bytes| device.allocate("test", *bytes as u64).unwrap())
                .collect();
        let replay = device.prepare(&table, &buffers).unwrap();
        let lines: Vec<Row> = (0..rows).map(|i| Row::causal(1, i as u32, 0)).collect();
        let asked: Vec<u32> = (0..rows as u32).collect();
        let submission = Submission {
            entries: Entries::Rows(&lines),
            logit_rows: &asked,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        let start = Instant::now();
        let gave_up = device.replay(replay, submission).and_then(|()| device.wait()).unwrap_err().to_string();
        assert!(start.elapsed() >= patience, "{:?}", start.elapsed());
        assert!(gave_up.contains("rank"), "{gave_up}");
        ends.send(()).unwrap();
        other.join().unwrap();
    }
}

/// More chunks than there are threadgroups, so that places are used again.
#[test]
fn long_sums_use_places_again() {
    let cols = 4096;
    let op = AllReduce { residual: false, norm: None };
    let command = op.command(plain(), NormParams { cols, epsilon: 0.0 });
    agree(command, [600, cols as usize, cols as usize], 2, &[600, 600][..fewest_or(1, 2, 2)]);
}

#[test]
fn columns_of_all_ranks_are_put_side_by_side() {
    let operands = AllGatherOperands { x: f32(4), out: f32(6) };
    // A vocabulary of 11 tokens is all in the part of the first rank.
    for (cols, total, ranks) in [(32, 64, 2), (32, 50, 2), (32, 11, 2), (96, 200, 4), (2080, 6001, 3)] {
        let command = AllGather.command(operands, AllGatherParams { cols, total });
        agree(command, [3, cols as usize, total as usize], ranks, &[3, 1]);
    }
}

/// Runs a product of one row and the sum of its outputs over ranks as one table, several times. The ranks have different
/// rows, and others each time.
fn run_product(
    device: &mut dyn Device,
    (dtype, inputs, cols): (DType, usize, usize),
    out_stride: usize,
    ranks: usize,
) -> Vec<Vec<f32>> {
    let op = Matmul::plain(dtype, MatmulForm::Gemv);
    let params = MatmulParams {
        inputs: inputs as u32,
        outputs: cols as u32,
        out_stride: out_stride as u32,
        ..MatmulParams::default()
    };
    let planes = weights(dtype, 5, cols, inputs);
    let [x, out, residual, sum] = [4, 5, 6, 7].map(BufferId);
    let bound = [x].into_iter().chain((0..planes.len()).map(|i| BufferId(8 + i as u32))).chain([out]);
    let product = DispatchCommand::new(Kernel::Matmul(op), bound, params);
    let reduce = Kernel::AllReduce(AllReduce { residual: true, norm: None });
    let params = NormParams { cols: cols as u32, epsilon: 0.0 };
    let reduce = DispatchCommand::new(reduce, [out, sum, residual], params);
    let table = table(vec![product, reduce], 1);
    let row_bytes = if op.q8 { akunu_plan::q8::row_bytes(inputs) } else { inputs * 4 };
    let wide = out_stride * 4;
    let sizes = [Row::BYTES, 4, 8, 4, row_bytes, wide, wide, wide].into_iter();
    let buffers: Vec<DeviceBuffer> = sizes
        .chain(planes.iter().map(Vec::len))
        .map(|bytes| device.allocate("test", bytes as u64).unwrap())
        .collect();
    // Preparing a table may repack weights.
    for (plane, buffer) in planes.iter().zip(&buffers[8..]) {
        device.upload(*buffer, 0, plane).unwrap();
    }
    let replay = device.prepare(&table, &buffers).unwrap();
    device.upload(buffers[6], 0, &f32s(&values(99, out_stride))).unwrap();
    let steps = (0..5).map(|step| {
        let part = |rank: usize| {
            let numbers = values((step * ranks + rank) as u64 + 1, inputs);
            if op.q8 { q8_row(&numbers) } else { f32s(&numbers) }
        };
        let all: Vec<u8> = (0..ranks).flat_map(part).collect();
        let cut = akunu_plan::Cut { entries: 1, bytes: all.len(), share: row_bytes, same: 1, ranks };
        device.upload_cut(buffers[4], &all, &cut).unwrap();
        device.upload(buffers[7], 0, &vec![0xff; wide]).unwrap();
        let entries = Entries::Rows(&[Row::causal(1, 0, 0)]);
        device
            .replay(replay, Submission { entries, logit_rows: &[0], steps: 1, stop: &[], cancel: None })
            .unwrap();
        device.wait().unwrap();
        let mut found = vec![0; cols * 4];
        device.download(buffers[7], 0, &mut found).unwrap();
        to_f32s(&found)
    });
    steps.collect()
}

/// Products that send what the sum only waits for, in one chunk and in several, and some that do not: of an odd number of
/// outputs, of rows that are further apart, of more numbers than are sent.
#[test]
fn products_of_one_row_are_added_up() {
    if akunu_emulated::skipped() {
        return;
    }
    type Make = fn() -> Emulator;
    let gpus: [(&str, Make); 4] = [
        ("emulated", Emulator::default),
        ("backwards", || Emulator::default().backwards()),
        ("late", Emulator::cuda),
        ("streams", || Emulator::default().with_copies()),
    ];
    for (dtype, inputs, cols, out_stride, ranks) in [
        (DType::Q4_0, 64, 514, 514, 3),
        (DType::Q4K, 2048, 1000, 1000, 2),
        (DType::F32, 36, 1500, 1500, 4),
        (DType::BF16, 64, 37, 37, 3),
        (DType::Q4_0, 64, 64, 80, 2),
        (DType::F32, 8, 16386, 16386, 2),
    ] {
        let shape = (dtype, inputs, cols);
        let expected = run_product(&mut *references(ranks), shape, out_stride, ranks);
        for (name, gpu) in gpus {
            for mut fleet in [emulated(ranks, gpu), gathering(ranks, gpu)] {
                let found = run_product(&mut *fleet, shape, out_stride, ranks);
                for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let far =
                        found.iter().zip(expected).position(|(f, e)| (f - e).abs() > 1e-4 * e.abs().max(1.0));
                    assert!(
                        found.len() == expected.len() && far.is_none(),
                        "{name}, {shape:?}, {ranks} ranks, step {step}: number {far:?}"
                    );
                }
            }
        }
    }
}
