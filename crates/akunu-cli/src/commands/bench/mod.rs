//! `akunu bench`: prompt processing and generation speed.

mod compare;
mod earlier;
mod experts;
mod measure;
mod test;
mod texts;
mod towers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu::devices::ceilings::Ceilings;
use akunu::{Constraints, DeviceChoice, Engine, KvType, Model};
use clap::Args;
use serde::Serialize;

use self::compare::Speed;
use self::earlier::Measured;
use self::experts::Experts;
use self::measure::Runner;
use self::test::{Kind, Sampled, Test};
use super::ceilings;

use crate::args::{self, ModelArg, TaskArgs};
use crate::failure::Failure;
use crate::format::FormatArgs;
use crate::grid::Grid;
use crate::output::{self, Output};
use crate::progress::Progress;

/// Measures speed: prompt processing (pp) and generation (tg), texts per second of embedding models and rerankers, or
/// windows of audio (encode) and tokens (tg) of models that transcribe
///
/// Random token ids are used, so no vocabulary is needed. Each test has one warm-up run and -r measured runs; the
/// median is reported. Options that take lists (1,2,4) run every combination. With a format, generation is measured
/// both without and with it; its answers must be able to reach the length of the tests.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Prompt lengths; 0: none [default: 512]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::count_or_zero)]
    prompt: Vec<usize>,
    /// Numbers of tokens to generate; 0: none [default: 128]
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', value_parser = args::count_or_zero)]
    generate: Vec<usize>,
    /// Cached tokens before the test starts [default: 0]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::count_or_zero)]
    depth: Vec<usize>,
    /// Sequences generated at once, or texts processed at once; their tokens are added up [default: 1; for texts 1,32;
    /// for models that transcribe 1,8]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::count)]
    batch: Vec<usize>,
    /// Text lengths in tokens, for embedding models and rerankers [default: 16,128]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::count)]
    length: Vec<usize>,
    /// Windows of audio that a pass of the encoder computes, for models that transcribe; 0: none [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = args::count_or_zero)]
    windows: Vec<usize>,
    #[command(flatten)]
    task: TaskArgs,
    /// Samples instead of greedy decoding [with no value: served]
    #[arg(
        long,
        value_name = "SETTINGS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "served"
    )]
    sampled: Option<Sampled>,
    /// Measured runs of each test, after one warm-up run
    #[arg(short, long, default_value = "5", value_parser = args::count)]
    repetitions: usize,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::threads)]
    threads: Vec<usize>,
    /// Storage type of the KV cache [default: f16; for texts f32 on a CPU, f16 on a GPU]
    #[arg(long, value_parser = args::kv_type())]
    kv_type: Option<KvType>,
    /// Maximum prompt tokens per pass [default: depends on the device]
    #[arg(long, value_parser = args::count)]
    chunk: Option<usize>,
    /// Maximum duration of a chain in milliseconds, as in `run`; 0: single steps [default: as long as the device
    /// allows]
    #[arg(long, value_name = "MS", value_parser = args::count_or_zero)]
    chain_ms: Option<usize>,
    #[command(flatten)]
    on: args::OnDevices,
    #[command(flatten)]
    split: args::SplitArgs,
    /// Read the model's files into memory instead of mapping them
    #[arg(long)]
    no_mmap: bool,
    /// Runs every test twice on the Metal device, with tables encoded for every pass and as indirect command buffers
    /// encoded once, and reports which is faster
    #[arg(long)]
    metal_icb: bool,
    /// Measures memory bandwidth and compute throughput before and after each test, and reports how close it comes to
    /// these ceilings
    #[arg(long)]
    ceilings: bool,
    /// Compares with an earlier result of --json; exits with 1 if a test is slower
    ///
    /// A test is slower or faster if it was so in every run, with at least three runs on each side. Tests that only one
    /// side has, and differences in the machine, the model or the settings, are listed.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Prints a JSON array of objects; with --compare, an object with the comparison and this array as `results`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// One object of `bench --json`.
#[derive(Debug, Serialize)]
struct Row {
    version: &'static str,
    /// Processor, cores, system.
    machine: String,
    model: String,
    device: String,
    /// Description by the device: `avx512, 2 threads`.
    detail: String,
    /// Whether indirect command buffers were used, if both ways are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    metal_icb: Option<bool>,
    threads: usize,
    kv_type: &'static str,
    /// Maximum prompt tokens per pass.
    chunk: usize,
    /// As requested; `None`: as long as the device allows.
    chain_ms: Option<usize>,
    test: String,
    /// Of all sequences. Median.
    tok_s: f64,
    min: f64,
    max: f64,
    bytes_per_token: f64,
    ops_per_token: f64,
    /// Of mixtures of experts.
    #[serde(flatten)]
    experts: Option<experts::Report>,
    #[serde(skip)]
    experts_line: Option<String>,
    gb_s: f64,
    gop_s: f64,
    load_s: f64,
    #[serde(flatten)]
    memory: Option<Memory>,
    /// Planned allocations, without weights in place.
    planned_memory: u64,
    ceilings: Option<ceilings::CeilingsReport>,
    of_ceiling: Option<f64>,
    runs: Vec<f64>,
}

/// Memory use of the process so far, if the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Memory {
    peak_memory: u64,
    /// Without mapped files. With ceilings, it includes the buffers that these read.
    own_memory: u64,
}

pub fn run(args: &BenchArgs, out: &mut Output) -> Result<(), Failure> {
    let earlier = args.compare.as_deref().map(earlier::read).transpose()?;
    let opened = Instant::now();
    let model = super::open(args.model.path(), args.no_mmap)?;
    let open_time = opened.elapsed();
    if let Some(task) = args.task.task(&model) {
        return texts::run(args, &model, task, open_time, earlier.as_deref(), out);
    }
    if model.config().encoder.is_some() {
        return towers::run(args, &model, open_time, earlier.as_deref(), out);
    }
    if !args.windows.is_empty() {
        return Err(Failure::usage("--windows is for models that transcribe"));
    }
    if !args.length.is_empty() {
        return Err(Failure::usage("--length is for embedding models and rerankers").hint(
            "use -p and -n for the numbers of prompt and generated tokens, or --pooling for embeddings",
        ));
    }
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("no test was selected").hint("set -p or -n to a number above 0"));
    }
    let threads: Vec<Option<usize>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };

    let ways: &[Option<bool>] = if args.metal_icb { &[Some(false), Some(true)] } else { &[None] };

    let total = threads.len() * ways.len() * tests.len() * (args.repetitions + 1);
    let mut progress = Progress::new("measuring", total as u64);
    let mut rows = Vec::new();
    for threads in threads {
        for &metal_icb in ways {
            let way = RunMode { threads, metal_icb };
            measure_all(args, &model, way, open_time, &tests, &mut progress, &mut rows)?;
        }
    }
    drop(progress);
    finish(args, &rows, earlier.as_deref(), print, out)
}

/// Prints the results, or compares them.
fn finish<R: Serialize>(
    args: &BenchArgs,
    rows: &[R],
    earlier: Option<&[Measured]>,
    print: impl Fn(&[R], &mut Output) -> Result<(), Failure>,
    out: &mut Output,
) -> Result<(), Failure> {
    match (earlier, &args.compare) {
        (Some(earlier), Some(path)) => {
            if !args.json {
                print(rows, out)?;
                out.text("\n")?;
            }
            earlier::report(earlier, rows, path, args.json, out)
        }
        _ if args.json => out.json(&rows),
        _ => print(rows, out),
    }
}

/// `AMD EPYC (family 26, model 2), 2 cores, linux x86_64`.
fn machine() -> String {
    let processor = super::doctor::processor().unwrap_or_else(|| "unknown processor".to_string());
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{processor}, {} cores, {os} {arch}", akunu::devices::physical_cores())
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let or = |list: &[usize], usual: usize| if list.is_empty() { vec![usual] } else { list.to_vec() };
    let (prompts, generated) = (or(&args.prompt, 512), or(&args.generate, 128));
    let (depths, batches) = (or(&args.depth, 0), or(&args.batch, 1));
    let mut tests = Vec::new();
    for &depth in &depths {
        let sampled = |kind| args.sampled.filter(|_| kind == Kind::Generate);
        let test = |kind, tokens, batch, constrained| Test {
            kind,
            tokens,
            depth,
            batch,
            sampled: sampled(kind),
            constrained,
        };
        tests.extend(prompts.iter().map(|&tokens| test(Kind::Prompt, tokens, 1, false)));
        let constrained = if args.format.is_given() { &[false, true][..] } else { &[false] };
        for &batch in &batches {
            for &tokens in &generated {
                tests.extend(constrained.iter().map(|&held| test(Kind::Generate, tokens, batch, held)));
            }
        }
    }
    tests.retain(|test| test.tokens > 0);
    tests
}

/// Options for running tests.
#[derive(Clone, Copy, Debug)]
struct RunMode {
    threads: Option<usize>,
    metal_icb: Option<bool>,
}

fn measure_all(
    args: &BenchArgs,
    model: &Arc<Model>,
    way: RunMode,
    open_time: Duration,
    tests: &[Test],
    progress: &mut Progress,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    let RunMode { threads, metal_icb } = way;
    let longest = tests.iter().map(|test| test.depth + test.tokens).max().unwrap_or(1);
    let batch = tests.iter().map(|test| test.batch).max().unwrap_or(1);
    if args.chunk.is_some_and(|chunk| chunk < batch) {
        return Err(Failure::usage(format!(
            "--chunk is smaller than the {batch} sequences, each of which needs a row per pass"
        ))
        .hint(format!("--chunk {batch}, or more")));
    }
    let options = args.split.over(akunu::EngineOptions {
        device: args.on.device.choice,
        threads,
        backends: args.on.backends(),
        context: Some((longest + 1).max(batch)),
        kv: args.kv_type.unwrap_or(KvType::F16),
        slots: batch,
        logit_rows: batch,
        chunk: args.chunk,
        chain_time: args.chain_ms.map_or(Duration::MAX, args::milliseconds),
        ..Default::default()
    });
    let engine = match metal_icb {
        None => super::engine(model, &options, true)?,
        Some(indirect) => {
            let device = akunu::devices::open_metal(args.on.device.choice, indirect, &options.backends)?;
            Engine::on_device(Arc::clone(model), device, &options)?
        }
    };
    let load_s = (open_time + engine.load_time()).as_secs_f64();
    let used = if args.on.device.choice.resolve(&options.backends) == DeviceChoice::Cpu {
        super::threads(threads)
    } else {
        1
    };
    let row = [akunu_plan::Row::causal(0, 0, 0)];
    let weights = engine.plan().tables.decode().cost(akunu_plan::Entries::Rows(&row), 1).weight_bytes;
    let mut beside = if args.ceilings {
        ceilings::of(args.on.device.choice, &options.backends, used, weights)?
    } else {
        None
    };
    let format = args.format.read()?;
    let constraints = Constraints::new(model.clone());
    let constraint = format.map(|format| constraints.get(&format, None, None)).transpose()?;
    let mut runner = Runner::new(engine, batch, longest, constraint)?;
    for &test in tests {
        let (mut runs, mut reads) = (Vec::with_capacity(args.repetitions), Vec::new());
        beside = beside.map(|ceilings| measured(ceilings.with_threads(used)));
        for run in 0..=args.repetitions {
            let measured = runner.run(test)?;
            if run > 0 {
                runs.push(test.all_tokens() as f64 / measured.time.as_secs_f64());
                reads.push(measured.reads);
            }
            progress.advance();
        }
        beside = beside.map(measured);
        let experts = Experts::of(runner.engine()?, &reads, test.all_tokens());
        let row = Row::new(runner.engine()?, test, (runs, experts), beside.as_ref());
        rows.push(Row { threads: used, chain_ms: args.chain_ms, load_s, metal_icb, ..row });
    }
    Ok(())
}

impl Row {
    fn new(
        engine: &Engine,
        test: Test,
        (runs, experts): (Vec<f64>, Option<Experts>),
        ceilings: Option<&Ceilings>,
    ) -> Row {
        let (tok_s, min, max) = median_min_max(&runs);
        let (mut cost, tokens) = (test.cost(engine.plan()), test.all_tokens() as f64);
        if let Some(bytes) = experts.and_then(|experts| experts.bytes()) {
            let most = test.most_expert_bytes(engine.plan());
            cost.weight_bytes = cost.weight_bytes.saturating_sub(most) + bytes;
        }
        let (bytes_per_token, ops_per_token) = (cost.bytes() as f64 / tokens, cost.ops() as f64 / tokens);
        let capabilities = engine.device().capabilities();
        Row {
            version: env!("CARGO_PKG_VERSION"),
            machine: machine(),
            model: engine.model().name().to_string(),
            device: capabilities.name.to_string(),
            detail: capabilities.detail.clone(),
            metal_icb: None,
            threads: 1,
            kv_type: engine.plan().options.kv.name(),
            chunk: engine.plan().options.prefill_rows,
            chain_ms: None,
            test: test.name(),
            tok_s,
            min,
            max,
            bytes_per_token,
            ops_per_token,
            experts: experts.map(|experts| experts.report()),
            experts_line: experts.and_then(|experts| experts.line(&test.name())),
            gb_s: bytes_per_token * tok_s / 1e9,
            gop_s: ops_per_token * tok_s / 1e9,
            load_s: 0.0,
            memory: memory(),
            planned_memory: engine.plan().whole_memory().allocated(),
            ceilings: ceilings.map(ceilings::CeilingsReport::new),
            of_ceiling: ceilings.map(|ceilings| ceilings.floor(cost) * tok_s / tokens),
            runs,
        }
    }
}

impl Row {
    /// Whether its bytes are the most that it may have read.
    fn is_bound(&self) -> bool {
        self.experts.as_ref().is_some_and(|experts| !experts.are_counted())
    }
}

fn measured(mut ceilings: Ceilings) -> Ceilings {
    ceilings.measure(ceilings::ROUNDS);
    ceilings
}

fn median_min_max(runs: &[f64]) -> (f64, f64, f64) {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() {
        0 => return (0.0, 0.0, 0.0),
        n if n % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    };
    (median, sorted[0], sorted[sorted.len() - 1])
}

fn memory() -> Option<Memory> {
    read_memory(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn read_memory(status: &str) -> Option<Memory> {
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let peak_memory = field("VmHWM")?;
    Some(Memory { peak_memory, own_memory: peak_memory.saturating_sub(field("RssFile")?) })
}

/// Tests that were run both ways.
fn compared(rows: &[Row]) -> Vec<(&str, Speed, Speed)> {
    let speed = |row: &Row| Speed { median: row.tok_s, min: row.min, max: row.max };
    let way = |indirect: bool| rows.iter().filter(move |row| row.metal_icb == Some(indirect));
    let pairs = way(false).flat_map(|direct| {
        let same = move |row: &&Row| (&row.test, row.threads) == (&direct.test, direct.threads);
        way(true).filter(same).map(move |indirect| (direct, indirect))
    });
    pairs.map(|(direct, indirect)| (direct.test.as_str(), speed(direct), speed(indirect))).collect()
}

/// Lines below the table, for either kind of model, from its last row.
fn print_machine(
    ceilings: Option<&ceilings::CeilingsReport>,
    load_s: f64,
    memory: Option<Memory>,
    out: &mut Output,
) -> Result<(), Failure> {
    out.text("\n")?;
    if let Some(ceilings) = ceilings {
        out.line(&ceilings.line())?;
    }
    let peak = memory.map(|m| format!(", peak memory {}", akunu::human(m.peak_memory)));
    out.line(&format!("load {load_s:.3} s{}", peak.unwrap_or_default()))
}

fn print(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let mut grid = Grid::new().text("model").spare("device").number("threads").word("test").number("tok/s");
    grid = grid.number("min").number("max").number("GB/s").number("GOP/s").number("of ceiling");
    for row in rows {
        grid.row([
            row.model.clone(),
            format!("{}{}", row.device, if row.metal_icb == Some(true) { " icb" } else { "" }),
            row.threads.to_string(),
            row.test.clone(),
            format!("{:.2}", row.tok_s),
            format!("{:.2}", row.min),
            format!("{:.2}", row.max),
            format!("{}{:.2}", if row.is_bound() { "≤ " } else { "" }, row.gb_s),
            format!("{:.1}", row.gop_s),
            row.of_ceiling.map_or(String::new(), |part| format!("{:.0}%", 100.0 * part)),
        ]);
    }
    out.listing(&grid.render(output::width()))?;
    if rows.iter().any(Row::is_bound) {
        out.text("\n")?;
        out.line(
            "≤: this device does not count which experts are read; those that rows can reach are counted.",
        )?;
    }
    rows.iter().filter_map(|row| row.experts_line.as_ref()).try_for_each(|line| out.line(line))?;
    if let Some(last) = rows.last() {
        print_machine(last.ceilings.as_ref(), last.load_s, last.memory, out)?;
    }
    let compared = compared(rows);
    if !compared.is_empty() {
        compare::report(&compared).iter().try_for_each(|line| out.line(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median_min_max(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
        assert_eq!(median_min_max(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
    }

    #[test]
    fn own_memory_excludes_mapped_files() {
        let status = "VmPeak:\t 99 kB\nVmHWM:\t   50 kB\nRssAnon:\t 18 kB\nRssFile:\t      30 kB\n";
        let expected = Memory { peak_memory: 50 << 10, own_memory: 20 << 10 };
        assert_eq!(read_memory(status), Some(expected));
        assert_eq!(read_memory("VmPeak:\t 99 kB\n"), None);
    }
}
