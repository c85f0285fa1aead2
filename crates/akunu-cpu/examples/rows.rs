//! Speed of the row kernels in bytes read and written per second, beside the machine's read rate:
//! `cargo run --release -p akunu-cpu --example rows -- [threads] [isa] [rows] [cols] [beginning of names]`
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::time::Instant;

use akunu_cpu::ceilings::{Ceilings, CeilingsError};
use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_format::blocks::Rng;
use akunu_plan::ops::{self, ElementParams, NormParams};
use akunu_plan::{
    Access, Activation, BufferId, Content, Device, DeviceError, DispatchCommand, DispatchTable, Entries,
    Kernel, NormKind, OutputForms, Row, RowBounds, RowSet, Submission, TableIo,
};

/// The buffers that every table has before those of its command.
const IO: u32 = 4;

/// A table of one command with buffers of its own, which must be as large as it requires, and the bytes that it
/// accesses.
fn table(kernel: Kernel, params: impl bytemuck::NoUninit, rows: usize) -> Result<Made, DeviceError> {
    let slots = kernel.bindings();
    let mut others = IO..;
    let bindings: Vec<BufferId> = slots
        .iter()
        .map(|slot| match slot.content {
            Content::Rows(_) => BufferId(0),
            Content::U32 if slot.access == Access::Read => BufferId(1),
            _ => BufferId(others.next().unwrap_or(IO)),
        })
        .collect();
    let table = DispatchTable {
        name: "bench",
        commands: vec![DispatchCommand::new(kernel, bindings.iter().copied(), params)],
        labels: vec![String::new()],
        rows,
        logit_rows: rows,
        steps: 1,
        io: TableIo::new([0, 1, 2, 3].map(BufferId)),
        bounds: RowBounds::one_sequence(1, rows as u32).into(),
        streams: akunu_plan::Streams::default(),
    };
    let failed = |message| DeviceError::Failed { device: "cpu", message };
    let extents = akunu_plan::extents(&table, &table.commands[0]).map_err(failed)?;
    let mut sizes = vec![(rows * Row::BYTES) as u64, rows as u64 * 4, rows as u64 * 8, 4];
    sizes.extend(bindings.iter().zip(&extents).filter(|(id, _)| id.0 >= IO).map(|(_, bytes)| bytes));
    Ok(Made { table: Arc::new(table), sizes, bytes: extents.iter().sum() })
}

struct Made {
    table: Arc<DispatchTable>,
    sizes: Vec<u64>,
    /// Bytes that a command reads and writes.
    bytes: u64,
}

/// Bytes per second of the best of many runs (the machine may be shared).
fn measure(options: CpuOptions, made: &Made) -> Result<f64, DeviceError> {
    let mut device = CpuDevice::new(options)?;
    let mut rng = Rng::new(1);
    let mut buffers = vec![];
    for &bytes in &made.sizes {
        let values: Vec<f32> = (0..bytes.div_ceil(4)).map(|_| 6.0 * rng.uniform() - 3.0).collect();
        buffers.push(device.allocate("bench", bytes)?);
        device.upload(buffers[buffers.len() - 1], 0, &bytemuck::cast_slice(&values)[..bytes as usize])?;
    }
    let replay = device.prepare(&made.table, &buffers)?;
    let live: Vec<Row> = (0..made.table.rows as u32).map(|i| Row::causal(0, i, 0)).collect();
    let asked: Vec<u32> = (0..live.len() as u32).collect();
    let submission =
        Submission { entries: Entries::Rows(&live), logit_rows: &asked, steps: 1, stop: &[], cancel: None };
    let mut best = f64::INFINITY;
    for _ in 0..64 {
        let start = Instant::now();
        device.replay(replay, submission)?;
        device.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(made.bytes as f64 / best)
}

fn tables(rows: usize, cols: u32) -> Vec<Result<Made, DeviceError>> {
    let mut all = vec![];
    let norm = NormParams { cols, epsilon: 1e-5 };
    for (kind, bias) in [(NormKind::Rms, false), (NormKind::Layer, false), (NormKind::Layer, true)] {
        for out in [OutputForms::F32, OutputForms::Q8] {
            all.push(table(ops::Norm { kind, bias, out, rows: RowSet::All, pick: false }.into(), norm, rows));
        }
    }
    for (heads, head_dim) in [(1, cols), (cols / 64, 64)] {
        let (epsilon, in_stride, out_stride) = (1e-5, cols, cols);
        let params = ops::HeadNormParams { heads, head_dim, epsilon, in_stride, out_stride };
        all.push(table(ops::HeadNorm { kind: NormKind::Layer, bias: false }.into(), params, rows));
    }
    all.push(table(ops::Add.into(), ops::AddParams { cols, scale: 1.0 }, rows));
    let activations =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Tanh, Activation::Relu];
    for activation in activations {
        for out in [OutputForms::F32, OutputForms::Q8] {
            all.push(table(ops::Glu { activation, out }.into(), ElementParams { cols }, rows));
            let op = ops::Activate { activation, input: ops::InputForm::F32, out, rows: RowSet::All };
            all.push(table(op.into(), ElementParams { cols }, rows));
        }
    }
    all
}

fn main() -> Result<(), DeviceError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|n| n.parse().ok());
    let isa = arguments.next().filter(|name| !name.is_empty());
    let isa = isa.map(|name| name.parse::<Isa>()).transpose()?;
    let mut number = |or| arguments.next().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (rows, cols) = (number(4096), number(384));
    let only = arguments.next().unwrap_or_default();
    let options = CpuOptions { threads, isa, ..CpuOptions::default() };
    let device = CpuDevice::new(options)?;
    println!("{}, {rows} rows of {cols}", device.capabilities().detail);
    let failed = |error: CeilingsError| DeviceError::Failed { device: "cpu", message: error.to_string() };
    let working_set = (rows * cols * 8) as u64;
    let mut ceilings = Ceilings::new(device.isa(), device.threads(), working_set).map_err(failed)?;
    ceilings.measure(5);
    println!("read {:.1} GB/s of {} MB", ceilings.read().max / 1e9, working_set >> 20);
    for made in tables(rows, cols as u32) {
        let made = made?;
        let name = made.table.commands[0].kernel.name();
        if name.starts_with(&only) {
            println!("{name:24} {:6.1} GB/s", measure(options, &made)? / 1e9);
        }
    }
    Ok(())
}
