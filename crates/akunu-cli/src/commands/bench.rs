//! `akunu bench`: tokens per second of prompts and of generation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu::{DeviceChoice, DispatchTable, Engine, KvType, Model, Session};
use clap::Args;
use serde::Serialize;

use crate::args::{self, ModelArg};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};
use crate::progress::Progress;

/// Measures speed: prompt processing (pp) and generation (tg)
///
/// Random token ids, so a vocabulary is not needed. Each test runs once to warm up and -r times for the record; the median
/// counts. Options that take lists (1,2,4) run every combination.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Prompt lengths; 0: none
    #[arg(short, long, value_name = "LIST", default_value = "512", value_delimiter = ',', value_parser = args::count_or_zero)]
    prompt: Vec<usize>,
    /// Numbers of tokens to generate; 0: none
    #[arg(short = 'n', long, value_name = "LIST", default_value = "128", value_delimiter = ',', value_parser = args::count_or_zero)]
    generate: Vec<usize>,
    /// Positions that stand in the cache before
    #[arg(short, long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = args::count_or_zero)]
    depth: Vec<usize>,
    /// Runs of each test, after one to warm up
    #[arg(short, long, default_value = "5", value_parser = args::count)]
    repetitions: usize,
    /// CPU threads [default: one for each core]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = args::threads)]
    threads: Vec<usize>,
    /// How keys and values are stored
    #[arg(long, default_value = "f16", value_parser = args::kv_type())]
    kv_type: KvType,
    /// Most prompt tokens in one pass [default: what suits the device]
    #[arg(long, value_parser = args::count)]
    chunk: Option<usize>,
    /// What runs the model
    #[arg(long, default_value = "auto", value_parser = args::device())]
    device: DeviceChoice,
    /// Prints a JSON array of objects
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Prompt { tokens: usize, depth: usize },
    Generate { tokens: usize, depth: usize },
}

impl Test {
    fn tokens(self) -> usize {
        match self {
            Test::Prompt { tokens, .. } | Test::Generate { tokens, .. } => tokens,
        }
    }

    fn depth(self) -> usize {
        match self {
            Test::Prompt { depth, .. } | Test::Generate { depth, .. } => depth,
        }
    }

    /// As llama-bench has it: `pp512`, `tg128`, `tg128@d4096`.
    fn name(self) -> String {
        let (kind, tokens, depth) = match self {
            Test::Prompt { tokens, depth } => ("pp", tokens, depth),
            Test::Generate { tokens, depth } => ("tg", tokens, depth),
        };
        if depth == 0 { format!("{kind}{tokens}") } else { format!("{kind}{tokens}@d{depth}") }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    device: String,
    threads: usize,
    test: String,
    /// Median.
    tok_s: f64,
    min: f64,
    max: f64,
    bytes_per_token: f64,
    gb_s: f64,
    load_s: f64,
    /// Of the process so far.
    peak_memory: Option<u64>,
    runs: Vec<f64>,
}

pub fn run(args: &BenchArgs, out: &mut Output) -> Result<(), Failure> {
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("there is nothing to measure").hint("give -p or -n a number above 0"));
    }
    let opened = Instant::now();
    let model = super::open(args.model.model.as_deref())?;
    let open_time = opened.elapsed();
    let threads: Vec<Option<usize>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };

    let total = threads.len() * tests.len() * (args.repetitions + 1);
    let mut progress = Progress::new("measuring", total as u64);
    let mut rows = Vec::new();
    for threads in threads {
        measure_all(args, &model, threads, open_time, &tests, &mut progress, &mut rows)?;
    }
    drop(progress);
    if args.json {
        return out.json(&rows);
    }
    print(&rows, out)
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &args.depth {
        tests.extend(args.prompt.iter().map(|&tokens| Test::Prompt { tokens, depth }));
        tests.extend(args.generate.iter().map(|&tokens| Test::Generate { tokens, depth }));
    }
    tests.retain(|test| test.tokens() > 0);
    tests
}

fn measure_all(
    args: &BenchArgs,
    model: &Arc<Model>,
    threads: Option<usize>,
    open_time: Duration,
    tests: &[Test],
    progress: &mut Progress,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    let longest = tests.iter().map(|test| test.depth() + test.tokens()).max().unwrap_or(1);
    let options = akunu::EngineOptions {
        device: args.device,
        threads,
        context: Some(longest + 1),
        kv: args.kv_type,
        chunk: args.chunk,
        ..Default::default()
    };
    let mut engine = super::engine(model, &options, true)?;
    let load = open_time + engine.load_time();
    let ids = super::random_ids(longest + 1, engine.vocab_size(), 42);
    let mut session = engine.session()?;
    for &test in tests {
        let mut runs = Vec::with_capacity(args.repetitions);
        for run in 0..=args.repetitions {
            let seconds = measure(&mut engine, &mut session, test, &ids)?;
            if run > 0 {
                runs.push(test.tokens() as f64 / seconds.as_secs_f64());
            }
            progress.advance();
        }
        let (tok_s, min, max) = median_min_max(&runs);
        let bytes_per_token = bytes_per_token(&engine, test);
        rows.push(Row {
            model: model.name().to_string(),
            device: engine.device().capabilities().name.to_string(),
            threads: if args.device == DeviceChoice::Reference { 1 } else { super::threads(threads) },
            test: test.name(),
            tok_s,
            min,
            max,
            bytes_per_token,
            gb_s: bytes_per_token * tok_s / 1e9,
            load_s: load.as_secs_f64(),
            peak_memory: peak_memory(),
            runs,
        });
    }
    Ok(())
}

fn measure(engine: &mut Engine, session: &mut Session, test: Test, ids: &[u32]) -> Result<Duration, Failure> {
    let depth = test.depth();
    match test {
        Test::Prompt { tokens, .. } => {
            stand_at(engine, session, &ids[..depth])?;
            let started = Instant::now();
            engine.prefill(session, &ids[..depth + tokens])?;
            Ok(started.elapsed())
        }
        Test::Generate { tokens, .. } => {
            stand_at(engine, session, &ids[..depth])?;
            let most = engine.plan().tables.decode.steps;
            let (mut token, mut left) = (ids[depth], tokens);
            let started = Instant::now();
            while left > 0 {
                let found = engine.decode(session, token, left.min(most), &[], None)?;
                match found.last() {
                    Some(&last) => token = last,
                    None => return Err(Failure::new("the device decoded nothing")),
                }
                left -= found.len().min(left);
            }
            Ok(started.elapsed())
        }
    }
}

/// Brings the session to hold just these ids, whatever it held.
fn stand_at(engine: &mut Engine, session: &mut Session, ids: &[u32]) -> Result<(), Failure> {
    if session.len() < ids.len() || &session.tokens()[..ids.len()] != ids {
        session.clear();
        engine.prefill(session, ids)?;
    }
    session.truncate(ids.len());
    Ok(())
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

/// Weights and KV cache that the test reads for each of its tokens, on average.
fn bytes_per_token(engine: &Engine, test: Test) -> f64 {
    let tables = &engine.plan().tables;
    let (table, tokens) = match test {
        Test::Prompt { tokens, .. } => (&tables.prefill, tokens),
        Test::Generate { tokens, .. } => (&tables.decode, tokens),
    };
    let passes = match test {
        Test::Prompt { .. } => tokens.div_ceil(table.rows),
        Test::Generate { .. } => tokens,
    };
    let weights: u64 = table.info.iter().map(|i| i.weight_bytes).sum();
    let kv: u64 = (1..=tokens).map(|i| kv_bytes(table, (test.depth() + i) as u64)).sum();
    (weights * passes as u64 + kv) as f64 / tokens as f64
}

/// KV cache that one row reads when it sees `len` positions.
fn kv_bytes(table: &DispatchTable, len: u64) -> u64 {
    let commands = table.info.iter();
    commands.map(|i| i.kv_bytes_per_position * i.kv_window.map_or(len, |w| len.min(u64::from(w)))).sum()
}

/// The most memory that this process ever had resident, where the system says.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn print(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let mut grid = Grid::new().text("model").word("device").number("threads").word("test").number("tok/s");
    grid = grid.number("min").number("max").number("MB/token").number("GB/s");
    for row in rows {
        grid.row([
            row.model.clone(),
            row.device.clone(),
            row.threads.to_string(),
            row.test.clone(),
            format!("{:.2}", row.tok_s),
            format!("{:.2}", row.min),
            format!("{:.2}", row.max),
            format!("{:.3}", row.bytes_per_token / 1e6),
            format!("{:.2}", row.gb_s),
        ]);
    }
    out.text(&grid.render(output::width()))?;
    if let Some(last) = rows.last() {
        let peak = last.peak_memory.map(|bytes| format!(", peak memory {}", akunu::human(bytes)));
        out.text("\n")?;
        out.line(&format!("load {:.3} s{}", last.load_s, peak.unwrap_or_default()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        assert_eq!(Test::Prompt { tokens: 512, depth: 0 }.name(), "pp512");
        assert_eq!(Test::Generate { tokens: 128, depth: 4096 }.name(), "tg128@d4096");
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median_min_max(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
        assert_eq!(median_min_max(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
    }
}
