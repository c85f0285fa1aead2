//! `akunu doctor`: hardware and devices of this machine, and advice.

mod advice;

use std::path::Path;

use akunu::devices::ceilings::{self, Ceilings, CeilingsError};
use akunu::devices::{self, Controller, Isa, unused_gpu};
use akunu::{BackendOptions, DeviceChoice, human};
use clap::Args;
use serde::Serialize;

use self::advice::Findings;
use crate::environment;
use crate::failure::Failure;
use crate::grid::{Grid, facts};
use crate::output::{self, Output};
use crate::progress::Progress;

/// Shows the hardware of this machine and which device and instruction set are used by default, and gives advice
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Measures memory bandwidth and multiplication throughput with 1 thread and more: the limits of generation and of
    /// prompt processing
    #[arg(long)]
    measure: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cpu: Option<String>,
    cores: usize,
    features: Vec<String>,
    memory_total: Option<u64>,
    memory_available: Option<u64>,
    gpu: Vec<Fact>,
    devices: Vec<DeviceReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<Measured>,
    /// Sentences; empty if there is nothing to say.
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    name: &'static str,
    detail: String,
    /// Whether `--device auto` selects it.
    default: bool,
    /// Free bytes of the memory that the device uses, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
}

/// Rounds of each measurement; the median is reported.
const ROUNDS: usize = 5;

#[derive(Debug, Serialize)]
struct Measured {
    threads: usize,
    memory: Read,
    cache: Option<Read>,
    int8_gop_s: f64,
    f32_gop_s: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Read {
    /// Size of the working set.
    bytes: u64,
    gb_s: f64,
}

pub fn run(args: &DoctorArgs, out: &mut Output) -> Result<(), Failure> {
    let backends = environment::backends();
    let mut report = report(&backends);
    report.advice = advice::advice(&findings(&report, &backends));
    if args.measure {
        report.measured = measure(&backends, report.cores, report.memory_available)?;
    }
    if args.json {
        return out.json(&report);
    }
    let width = output::width();
    out.listing(&facts(&lines(&report), width))?;
    out.listing(&print(&report.measured, width))?;
    if !report.advice.is_empty() {
        out.text("\n")?;
        let lines = report.advice.iter().map(|sentence| ("advice", sentence.clone()));
        out.listing(&facts(&lines.collect::<Vec<_>>(), width))?;
    }
    Ok(())
}

fn report(backends: &BackendOptions) -> DoctorReport {
    let devices = DeviceChoice::ALL.iter().copied().filter(|&choice| choice != DeviceChoice::Auto);
    DoctorReport {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cpu: processor(),
        cores: akunu::devices::physical_cores(),
        features: features(),
        memory_total: proc_field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)),
        memory_available: akunu::available_memory(),
        gpu: akunu::devices::gpu_facts(backends)
            .into_iter()
            .map(|(name, value)| Fact { name, value })
            .collect(),
        devices: devices.map(|choice| device(choice, backends)).collect(),
        measured: Vec::new(),
        advice: Vec::new(),
    }
}

fn device(choice: DeviceChoice, backends: &BackendOptions) -> DeviceReport {
    let (detail, available_bytes) = match akunu::open_device(choice, None, backends) {
        Ok(device) => (device.capabilities().detail.clone(), device.capabilities().available_bytes),
        Err(error) => (format!("not available: {error}"), None),
    };
    let default = DeviceChoice::Auto.resolve(backends) == choice;
    DeviceReport { name: choice.name(), detail, default, available_bytes }
}

fn findings(report: &DoctorReport, backends: &BackendOptions) -> Findings {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let default = report.devices.iter().find(|device| device.default);
    let gpu_is_default = DeviceChoice::Auto.resolve(backends) != DeviceChoice::Cpu;
    let memory = if gpu_is_default { "GPU memory" } else { "memory" };
    let free = default.and_then(|device| device.available_bytes).or(report.memory_available);
    let memory_limit = devices::memory_limit(&devices::control_groups(Controller::Memory));
    let processor_limit = devices::processor_limit(&devices::control_groups(Controller::Processors));
    let processors =
        read("/proc/cpuinfo").map(|text| text.lines().filter(|l| l.starts_with("processor")).count());
    let settings = environment::hub().ok();
    Findings {
        free: free.map(|free| (memory, free)),
        memory_total: report.memory_total,
        memory_limit,
        processors: processors.filter(|&count| count > 0).unwrap_or(report.cores),
        processor_limit,
        threads: report.cores,
        load: read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
        isa: backends.isa.as_ref().map(|_| backends.cpu_isa().map_err(|error| error.to_string())),
        best_isa: Some(Isa::best()),
        governor: advice::slow_governor(Path::new("/sys/devices/system/cpu/cpu0")),
        huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|text| advice::selected(&text)),
        nvidia: advice::has_nvidia(Path::new("/sys/bus/pci/devices")),
        gpu_is_default,
        gpu_problem: unused_gpu(backends),
        offline: settings.as_ref().is_some_and(|settings| settings.offline),
        hub: settings.map(|settings| {
            let (free, can_write) = advice::folder_state(&settings.cache);
            (settings.cache, free, can_write)
        }),
    }
}

fn lines(report: &DoctorReport) -> Vec<(&'static str, String)> {
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
    lines.extend(report.gpu.iter().map(|fact| (fact.name, fact.value.clone())));
    for device in &report.devices {
        let default = if device.default { " (default)" } else { "" };
        lines.push(("device", format!("{}: {}{default}", device.name, device.detail)));
    }
    lines
}

/// `AMD EPYC (family 26, model 2)`: in virtual machines, many generations have the same name.
pub(super) fn processor() -> Option<String> {
    let field = |name| proc_field("/proc/cpuinfo", name);
    let name = field("model name")?;
    Some(match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    })
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

/// Instruction sets that are relevant for kernels.
fn features() -> Vec<String> {
    let mut found: Vec<String> = akunu::devices::features().into_iter().map(str::to_string).collect();
    // The standard library does not report these with a stable compiler, but Linux does.
    let flags = proc_field("/proc/cpuinfo", "flags").unwrap_or_default();
    found.extend(flags.split(' ').filter(|flag| flag.starts_with("amx")).map(str::to_string));
    found
}

/// Measures with 1, 2, 4, … threads up to all cores: main memory, last-level cache, and multiplication.
fn measure(
    backends: &BackendOptions,
    cores: usize,
    available: Option<u64>,
) -> Result<Vec<Measured>, Failure> {
    let memory = ceilings::DRAM_BYTES.min(available.unwrap_or(u64::MAX) / 2);
    let mut steps: Vec<usize> = (0..).map(|i| 1 << i).take_while(|&n| n < cores).collect();
    steps.push(cores);
    let sets: Vec<u64> = [Some(memory), ceilings::cache_bytes()].into_iter().flatten().collect();
    let mut progress = Progress::new("measuring", (sets.len() * steps.len() * ROUNDS) as u64);
    let mut found: Vec<Measured> = Vec::new();
    let isa = backends.cpu_isa().map_err(CeilingsError::from)?;
    for bytes in sets {
        let mut ceilings = Ceilings::new(isa, 1, bytes)?;
        for &threads in &steps {
            ceilings = ceilings.with_threads(threads);
            for _ in 0..ROUNDS {
                ceilings.measure(1);
                progress.advance();
            }
            let read = Read { bytes, gb_s: ceilings.read().median / 1e9 };
            match found.iter_mut().find(|row| row.threads == threads) {
                Some(row) => row.cache = Some(read),
                None => found.push(Measured {
                    threads,
                    memory: read,
                    cache: None,
                    int8_gop_s: ceilings.int8().median / 1e9,
                    f32_gop_s: ceilings.f32().median / 1e9,
                }),
            }
        }
    }
    Ok(found)
}

fn print(measured: &[Measured], width: Option<usize>) -> String {
    let Some(first) = measured.first() else { return String::new() };
    let cache = first
        .cache
        .map_or(String::new(), |read| format!("; cache: {} in the last-level cache", human(read.bytes)));
    let mut text = format!(
        "\nmemory: GB/s read of {}{cache}; int8 and f32: GOP/s, with multiplication and addition as two operations\n\n",
        human(first.memory.bytes)
    );
    let mut grid =
        Grid::new().number("threads").number("memory").number("cache").number("int8").number("f32");
    for row in measured {
        grid.row([
            row.threads.to_string(),
            format!("{:.1}", row.memory.gb_s),
            row.cache.map_or(String::new(), |read| format!("{:.1}", read.gb_s)),
            format!("{:.0}", row.int8_gop_s),
            format!("{:.0}", row.f32_gop_s),
        ]);
    }
    text.push_str(&grid.render(width));
    text
}
