//! `akunu doctor`: what this machine has, and what would be used.

use std::hint::black_box;
use std::time::Instant;

use akunu::{DeviceChoice, human};
use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::grid::{Grid, facts};
use crate::output::{self, Output};
use crate::progress::Progress;

/// Shows what this machine has and which device and instruction set would be used
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Measures how fast memory is read, with 1 thread and more: the bound of generation
    #[arg(long)]
    measure: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cpu: Option<String>,
    cores: usize,
    features: Vec<String>,
    memory_total: Option<u64>,
    memory_available: Option<u64>,
    devices: Vec<DeviceReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bandwidth: Vec<Bandwidth>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    name: &'static str,
    detail: String,
    /// What `--device auto` takes.
    default: bool,
}

#[derive(Debug, Serialize)]
struct Bandwidth {
    threads: usize,
    gb_s: f64,
}

pub fn run(args: &DoctorArgs, out: &mut Output) -> Result<(), Failure> {
    let mut report = report();
    if args.measure {
        report.bandwidth = measure(report.cores, report.memory_available);
    }
    if args.json {
        return out.json(&report);
    }
    let width = output::width();
    out.text(&facts(&lines(&report), width))?;
    if !report.bandwidth.is_empty() {
        let mut grid = Grid::new().number("threads").number("GB/s read");
        for b in &report.bandwidth {
            grid.row([b.threads.to_string(), format!("{:.1}", b.gb_s)]);
        }
        out.text("\n")?;
        out.text(&grid.render(width))?;
    }
    Ok(())
}

fn report() -> Report {
    let devices = DeviceChoice::ALL.into_iter().filter(|&choice| choice != DeviceChoice::Auto);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cpu: proc_field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        features: features(),
        memory_total: proc_field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)),
        memory_available: akunu::available_memory(),
        devices: devices.map(device).collect(),
        bandwidth: Vec::new(),
    }
}

fn device(choice: DeviceChoice) -> DeviceReport {
    let detail = match akunu::open_device(choice, None) {
        Ok(device) => device.capabilities().detail.clone(),
        Err(error) => format!("cannot be used: {error}"),
    };
    DeviceReport { name: choice.name(), detail, default: DeviceChoice::Auto.resolve() == choice }
}

fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_string();
    let mut lines = vec![
        ("akunu", report.version.to_string()),
        ("system", format!("{} on {}", report.os, report.arch)),
        ("processor", report.cpu.clone().unwrap_or_else(unknown)),
        ("cores", format!("{} to use", report.cores)),
        ("features", report.features.join(" ")),
        (
            "memory",
            format!(
                "{} available of {}",
                report.memory_available.map_or_else(unknown, human),
                report.memory_total.map_or_else(unknown, human)
            ),
        ),
    ];
    for device in &report.devices {
        let default = if device.default { " (the one used unless --device says otherwise)" } else { "" };
        lines.push(("device", format!("{}: {}{default}", device.name, device.detail)));
    }
    lines
}

/// The first value of a field in a `name : value` file.
fn proc_field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string())
}

fn kib(text: &str) -> Option<u64> {
    Some(text.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Instruction sets that kernels may care about.
#[cfg(target_arch = "x86_64")]
fn features() -> Vec<String> {
    macro_rules! detected {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let all = detected!(
        "sse4.1",
        "avx",
        "f16c",
        "fma",
        "avx2",
        "avxvnni",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512vbmi",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16"
    );
    let mut found = names(&all);
    // The standard library does not say on a stable compiler; Linux does.
    let flags = proc_field("/proc/cpuinfo", "flags").unwrap_or_default();
    found.extend(flags.split(' ').filter(|flag| flag.starts_with("amx")).map(str::to_string));
    found
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<String> {
    macro_rules! detected {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
        };
    }
    names(&detected!("neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<String> {
    names(&[])
}

fn names(features: &[(&str, bool)]) -> Vec<String> {
    features.iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect()
}

/// Reads a buffer far larger than caches, each thread its own part; the best of some rounds.
fn measure(cores: usize, available: Option<u64>) -> Vec<Bandwidth> {
    const LARGEST: u64 = 1 << 30;
    const ROUNDS: usize = 5;
    let bytes = available.map_or(LARGEST, |a| LARGEST.min(a / 2));
    // Written, so that every page is there.
    let words: Vec<u64> = (0..bytes / 8).collect();
    let mut steps: Vec<usize> = (0..).map(|i| 1 << i).take_while(|&n| n < cores).collect();
    steps.push(cores);
    let mut progress = Progress::new("reading memory", (steps.len() * ROUNDS) as u64);
    let mut found = Vec::new();
    for threads in steps {
        let mut best = 0.0f64;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            read_all(&words, threads);
            best = best.max(words.len() as f64 * 8.0 / started.elapsed().as_secs_f64());
            progress.advance();
        }
        found.push(Bandwidth { threads, gb_s: best / 1e9 });
    }
    found
}

fn read_all(words: &[u64], threads: usize) {
    std::thread::scope(|scope| {
        for part in words.chunks(words.len().div_ceil(threads).max(1)) {
            scope.spawn(move || {
                let mut sums = [0u64; 32];
                let (rows, _) = part.as_chunks::<32>();
                for row in rows {
                    for (sum, &word) in sums.iter_mut().zip(row) {
                        *sum ^= word;
                    }
                }
                black_box(sums)
            });
        }
    });
}
