//! Speed of attention: `cargo run --release -p akunu-cpu --example attention -- [threads] [isa]`
//!
//! One row at a depth is given in GB/s of keys and values, a chunk of a prompt in GFLOP/s (two for each element of
//! every visible key and value).
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::time::Instant;

use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_plan::ops::{self, AttentionParams};
use akunu_plan::{
    Binding, BufferId, Device, DeviceError, DispatchCommand, DispatchTable, Entries, KvType, OutputForms,
    Row, RowBounds, Submission, TableIo,
};

/// (name, heads, kv heads, head dim)
const MODELS: [(&str, u32, u32, u32); 4] = [
    ("smollm2-135m", 9, 3, 64),
    ("tinyllama-1.1b", 32, 4, 64),
    ("qwen3-0.6b", 16, 8, 128),
    ("gpt2", 12, 12, 64),
];

/// More keys and values than any cache holds, in as many layers as needed.
const WORKING_SET: u64 = 96 << 20;

struct Bench {
    device: CpuDevice,
    rows: Vec<Row>,
    replay: akunu_plan::ReplayId,
    layers: usize,
}

/// `rows` rows at `depth`; or, with slots, one row of each.
fn bench(
    options: CpuOptions,
    (heads, kv_heads, head_dim): (u32, u32, u32),
    depth: u32,
    rows: u32,
    slots: u32,
) -> Result<Bench, DeviceError> {
    let mut device = CpuDevice::new(options)?;
    let order = device.capabilities().keys;
    let slot = order.positions((depth + rows) as usize) as u32;
    let positions = slots * slot;
    let (cols, head) = (u64::from(heads * head_dim), u64::from(head_dim) * 2);
    let layer = u64::from(kv_heads * positions) * head;
    let layers = if rows > 1 { 4 } else { (WORKING_SET / (2 * layer)).clamp(2, 64) } as usize;
    let total = u64::from(rows.max(slots));
    let sizes =
        [total * 16, total * cols * 4, layer * layers as u64, layer * layers as u64, total * cols * 4, 4, 8];
    let mut buffers = vec![];
    for bytes in sizes {
        buffers.push(device.allocate("bench", bytes)?);
    }
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let q: Vec<f32> = (0..total * cols).map(|_| noise()).collect();
    device.upload(buffers[1], 0, bytemuck::cast_slice(&q))?;
    let kv: Vec<u16> = (0..1 << 19).map(|_| half::f16::from_f32(noise()).to_bits()).collect();
    let kv: &[u8] = bytemuck::cast_slice(&kv);
    for buffer in [2, 3] {
        for at in (0..sizes[buffer]).step_by(kv.len()) {
            let n = (sizes[buffer] - at).min(kv.len() as u64);
            device.upload(buffers[buffer], at, &kv[..n as usize])?;
        }
    }
    let params = AttentionParams {
        heads,
        kv_heads,
        head_dim,
        positions,
        scale: 1.0 / (head_dim as f32).sqrt(),
        ..AttentionParams::default()
    };
    let command = |i: usize| {
        let op = ops::Attention::plain(KvType::F16, OutputForms::F32);
        let offset = i as u64 * layer;
        let at = |buffer, offset| Binding { buffer: BufferId(buffer), offset };
        let bindings = [at(1, 0), at(2, offset), at(3, offset), at(0, 0), at(4, 0)];
        DispatchCommand::new(op.into(), bindings, params)
    };
    let table = DispatchTable {
        name: "bench",
        commands: (0..layers).map(command).collect(),
        labels: vec![String::new(); layers],
        rows: total as usize,
        logit_rows: 1,
        steps: 1,
        io: TableIo::new([0, 5, 6, 4].map(BufferId)),
        bounds: RowBounds { vocab: 1, positions, context: slot, alignment: order.alignment() as u32 }.into(),
        streams: akunu_plan::Streams::default(),
    };
    let replay = device.prepare(&Arc::new(table), &buffers)?;
    let row = |i: u32| if slots > 1 { Row::causal(0, depth, i * slot) } else { Row::causal(0, depth + i, 0) };
    Ok(Bench { device, rows: (0..rows.max(slots)).map(row).collect(), replay, layers })
}

impl Bench {
    /// Seconds of one command, the best of many passes.
    fn seconds(&mut self) -> Result<f64, DeviceError> {
        let mut best = f64::INFINITY;
        for _ in 0..24 {
            let clock = Clock::start(self.device.threads());
            let submission = Submission {
                entries: Entries::Rows(&self.rows),
                logit_rows: &[],
                steps: 1,
                stop: &[],
                cancel: None,
            };
            self.device.replay(self.replay, submission)?;
            self.device.wait()?;
            best = best.min(clock.seconds());
        }
        Ok(best / self.layers as f64)
    }
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
    let options = CpuOptions { threads, isa, ..CpuOptions::default() };
    println!("{}", CpuDevice::new(options)?.capabilities().detail);
    println!(
        "{:16} {:>12} {:>12} {:>14} {:>12} {:>12}",
        "", "1 @256 GB/s", "1 @4096 GB/s", "16x1 @512 GB/s", "256 GFLOP/s", "256 @4096"
    );
    for (name, heads, kv_heads, dim) in MODELS {
        let shape = (heads, kv_heads, dim);
        let mut line = format!("{name:16}");
        for (depth, slots) in [(255, 1), (4095, 1), (511, 16)] {
            let seconds = bench(options, shape, depth, 1, slots)?.seconds()?;
            let bytes = f64::from(slots * kv_heads * (depth + 1) * dim * 4);
            line += &format!(" {:12.2}", bytes / seconds / 1e9);
        }
        for depth in [0, 3840] {
            let seconds = bench(options, shape, depth, 256, 1)?.seconds()?;
            let pairs = f64::from(256 * depth + 256 * 257 / 2) * f64::from(heads);
            line += &format!(" {:12.1}", 4.0 * pairs * f64::from(dim) / seconds / 1e9);
        }
        println!("{line}");
    }
    Ok(())
}
