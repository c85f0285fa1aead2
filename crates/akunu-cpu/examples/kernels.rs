//! Speed of the matrix kernels compared with the machine's limits, measured in the same run:
//! `cargo xtask bench kernels [threads] [isa] [beginning of dtypes' names] [inputs]`
//!
//! Matrix-vector products are given in GB/s of weights, matrix-matrix products in GOP/s (two for each weight and row).
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::time::Instant;

use akunu_cpu::ceilings::{Ceilings, CeilingsError};
use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_format::blocks::{Rng, random_row};
use akunu_format::{Affine, ScaleType};
use akunu_plan::ops::{self, MatmulParams};
use akunu_plan::{
    Binding, BufferId, DType, Device, DeviceError, DispatchCommand, DispatchTable, Entries, Kernel,
    MatmulForm, Row, RowBounds, Submission, TableIo, q8,
};

/// Larger than any cache.
const WORKING_SET: usize = 96 << 20;
const INPUTS: usize = 2048;
const ROWS: [usize; 5] = [4, 16, 64, 256, 512];

/// One matrix product of `rows` rows, repeated over matrices that fill the working set.
fn table(dtype: DType, inputs: usize, outputs: usize, rows: usize, commands: usize) -> Arc<DispatchTable> {
    let params = MatmulParams {
        inputs: inputs as u32,
        outputs: outputs as u32,
        out_stride: outputs as u32,
        soft_cap: 0.0,
        epsilon: 0.0,
    };
    let kernel = Kernel::Matmul(ops::Matmul::plain(dtype, MatmulForm::for_rows(rows)));
    let planes = dtype.plane_bytes(inputs).unwrap_or([0; 3]);
    let command = |i: usize| {
        let weights = (0..dtype.planes()).map(|plane| Binding {
            buffer: BufferId([2, 6, 7][plane]),
            offset: (i * planes[plane] * outputs) as u64,
        });
        let bindings = std::iter::once(BufferId(1).into()).chain(weights).chain([BufferId(3).into()]);
        DispatchCommand::new(kernel, bindings, params)
    };
    Arc::new(DispatchTable {
        name: "bench",
        commands: (0..commands).map(command).collect(),
        labels: vec![String::new(); commands],
        rows,
        logit_rows: 1,
        steps: 1,
        io: TableIo::new([0, 4, 5, 3].map(BufferId)),
        bounds: RowBounds::one_sequence(1, rows as u32).into(),
        streams: akunu_plan::Streams::default(),
    })
}

fn activations(inputs: usize, rows: usize, q8_form: bool) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let mut bytes = vec![];
    for _ in 0..rows {
        let x: Vec<f32> = (0..inputs).map(|_| rng.uniform() - 0.5).collect();
        if !q8_form {
            bytes.extend_from_slice(bytemuck::cast_slice(&x));
            continue;
        }
        let (mut quants, mut scales, mut sums) = (vec![0_i8; inputs], vec![], vec![]);
        for (block, quants) in x.chunks(q8::BLOCK).zip(quants.chunks_mut(q8::BLOCK)) {
            let (scale, sum) = q8::quantise_block(block, quants);
            scales.push(scale);
            sums.push(sum);
        }
        for plane in [
            bytemuck::cast_slice(&quants),
            bytemuck::cast_slice(&scales),
            bytemuck::cast_slice::<i32, u8>(&sums),
        ] {
            bytes.extend_from_slice(plane);
        }
    }
    bytes
}

/// The seconds of the best of many passes (the machine may be shared), and the weights and bytes that a pass reads.
fn measure(
    options: CpuOptions,
    dtype: DType,
    inputs: usize,
    rows: usize,
) -> Result<(f64, f64, f64), DeviceError> {
    let failed = |message| DeviceError::Failed { device: "cpu", message };
    let Some(row) = dtype.row_bytes(inputs).filter(|bytes| *bytes > 0) else {
        return Err(failed(format!("a row of {inputs} inputs is not whole blocks of {}", dtype.name())));
    };
    let mut device = CpuDevice::new(options)?;
    let outputs = 2048;
    let bytes = row * outputs;
    // More rows are limited by arithmetic, wherever their weights are.
    let commands = if rows <= 16 { (WORKING_SET / bytes).max(1) } else { 4 };
    let mut rng = Rng::new(2);
    // Random rows are slow to generate: a few, repeated.
    let mut some = vec![0; row * 64];
    for row in some.chunks_mut(row) {
        random_row(dtype, &mut rng, 0.1, row).map_err(|e| failed(e.to_string()))?;
    }
    let mut weights: [Vec<u8>; 3] = Default::default();
    let sizes = dtype.plane_bytes(inputs).unwrap_or([0; 3]);
    for i in 0..outputs * commands {
        let mut rest = &some[i % 64 * row..][..row];
        for (plane, size) in weights.iter_mut().zip(sizes) {
            let (part, more) = rest.split_at(size);
            plane.extend_from_slice(part);
            rest = more;
        }
    }
    let x = activations(inputs, rows, dtype.is_quantised());
    let table = table(dtype, inputs, outputs, rows, commands);
    let sizes = [
        rows * Row::BYTES,
        x.len(),
        weights[0].len(),
        rows * outputs * 4,
        4,
        8,
        weights[1].len(),
        weights[2].len(),
    ];
    let mut buffers = vec![];
    for bytes in sizes {
        buffers.push(device.allocate("bench", bytes as u64)?);
    }
    device.upload(buffers[1], 0, &x)?;
    for (buffer, plane) in [2, 6, 7].into_iter().zip(&weights) {
        device.upload(buffers[buffer], 0, plane)?;
    }
    let replay = device.prepare(&table, &buffers)?;
    let live: Vec<Row> = (0..rows).map(|i| Row::causal(0, i as u32, 0)).collect();
    let submission =
        Submission { entries: Entries::Rows(&live), logit_rows: &[], steps: 1, stop: &[], cancel: None };
    let mut seconds = vec![];
    for _ in 0..16 {
        let clock = Clock::start(device.threads());
        device.replay(replay, submission)?;
        device.wait()?;
        seconds.push(clock.seconds());
    }
    let best = seconds.into_iter().fold(f64::INFINITY, f64::min);
    Ok((best, (inputs * outputs * commands) as f64, (bytes * commands) as f64))
}

/// The elapsed seconds; with one thread only its own CPU time, since the machine may be shared.
struct Clock {
    wall: Instant,
    thread: Option<f64>,
}

impl Clock {
    fn start(threads: usize) -> Clock {
        Clock { wall: Instant::now(), thread: (threads == 1).then(thread_seconds).flatten() }
    }

    fn seconds(&self) -> f64 {
        let thread = self.thread.zip(thread_seconds()).map(|(start, end)| end - start);
        thread.unwrap_or_else(|| self.wall.elapsed().as_secs_f64())
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the thread's own clock")]
fn thread_seconds() -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place for the result.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (failed == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

#[cfg(not(target_os = "linux"))]
fn thread_seconds() -> Option<f64> {
    None
}

fn main() -> Result<(), DeviceError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|n| n.parse().ok());
    let isa = arguments.next().or_else(|| std::env::var("AKUNU_ISA").ok()).filter(|name| !name.is_empty());
    let isa = isa.map(|name| name.parse::<Isa>()).transpose()?;
    let only = arguments.next();
    let inputs = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(INPUTS);
    let options = CpuOptions { threads, isa, ..CpuOptions::default() };
    let device = CpuDevice::new(options)?;
    println!("{}", device.capabilities().detail);
    let failed = |error: CeilingsError| DeviceError::Failed { device: "cpu", message: error.to_string() };
    let mut ceilings = Ceilings::new(device.isa(), device.threads(), WORKING_SET as u64).map_err(failed)?;
    ceilings.measure(5);
    let ceiling = ceilings.read().max / 1e9;
    let [int8, f32] = [ceilings.int8(), ceilings.f32()].map(|rate| rate.max / 1e9);
    println!("read {ceiling:.1} GB/s, multiply {int8:.0} int8 and {f32:.0} f32 GOP/s");
    let rows = ROWS.map(|rows| format!(" {:>9}", format!("x{rows}"))).concat();
    println!("{:14} {:>7} {:>5}{rows} GOP/s", "", "GB/s", "of it");
    let affine =
        Affine::all().filter(|a| a.group() == 64 && a.scales() == ScaleType::BF16).map(DType::Affine);
    let wanted = |dtype: &DType| {
        only.as_ref().is_none_or(|only| dtype.name().to_lowercase().starts_with(&only.to_lowercase()))
    };
    for dtype in DType::ALL.into_iter().chain(affine).filter(wanted) {
        let (s, _, bytes) = measure(options, dtype, inputs, 1)?;
        let speed = bytes / s / 1e9;
        let mut line = format!("{:14} {speed:7.1} {:4.0}%", dtype.name(), 100.0 * speed / ceiling);
        for rows in ROWS {
            let (s, weights, _) = measure(options, dtype, inputs, rows)?;
            line += &format!(" {:9.1}", 2.0 * weights * rows as f64 / s / 1e9);
        }
        println!("{line}");
    }
    Ok(())
}
