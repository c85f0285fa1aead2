//! Measures the two towers of a model that transcribes: windows of audio, and tokens of its decoder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu::{Cost, DeviceChoice, KvType, Model, TowerOptions, Towers};
use serde::Serialize;

use super::earlier::Measured;
use super::test::{self, Kind};
use super::{BenchArgs, Memory, machine, measured, median_min_max, memory};
use crate::commands::ceilings;
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};
use crate::progress::Progress;

/// Seconds of audio in a window.
const WINDOW_S: f64 = 30.0;

#[derive(Clone, Copy, Debug)]
enum Test {
    /// This many windows in one pass.
    Encode(usize),
    Decode(test::Test),
}

impl Test {
    fn name(self) -> String {
        match self {
            Test::Encode(1) => "encode".to_string(),
            Test::Encode(windows) => format!("encode@w{windows}"),
            Test::Decode(test) => test.name(),
        }
    }
}

/// One object of `bench --json` for models that transcribe.
#[derive(Debug, Serialize)]
struct Row {
    version: &'static str,
    machine: String,
    model: String,
    device: String,
    detail: String,
    threads: usize,
    kv_type: &'static str,
    test: String,
    /// States of the encoder, or tokens of all sequences, per second. Median.
    tok_s: f64,
    min: f64,
    max: f64,
    /// Milliseconds of a pass of the encoder, or of a step of the decoder, from the median.
    pass_ms: f64,
    /// Seconds of audio per second, of an encoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    real_time: Option<f64>,
    bytes_per_token: f64,
    ops_per_token: f64,
    gb_s: f64,
    gop_s: f64,
    load_s: f64,
    #[serde(flatten)]
    memory: Option<Memory>,
    planned_memory: u64,
    ceilings: Option<ceilings::CeilingsReport>,
    of_ceiling: Option<f64>,
    /// As `tok_s`, of each run.
    runs: Vec<f64>,
}

/// Rejects options that apply only to other models.
fn refuse_settings(args: &BenchArgs) -> Result<(), Failure> {
    let given = [
        ("--prompt", !args.prompt.is_empty()),
        ("--length", !args.length.is_empty()),
        ("--sampled", args.sampled.is_some()),
        ("--chunk", args.chunk.is_some()),
        ("--chain-ms", args.chain_ms.is_some()),
        ("--metal-icb", args.metal_icb),
        ("a format", args.format.is_given()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!("{name} is not for models that transcribe")).hint(
            "use --windows for the windows of audio at once, and -n, -b and -d for the tokens of the decoder",
        )),
    }
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let or = |list: &[usize], usual: &[usize]| if list.is_empty() { usual.to_vec() } else { list.to_vec() };
    let mut tests: Vec<Test> = or(&args.windows, &[1]).into_iter().map(Test::Encode).collect();
    for depth in or(&args.depth, &[0]) {
        for batch in or(&args.batch, &[1, 8]) {
            for tokens in or(&args.generate, &[128]) {
                let kind = Kind::Generate;
                let test = test::Test { kind, tokens, depth, batch, sampled: None, constrained: false };
                tests.push(Test::Decode(test));
            }
        }
    }
    tests.retain(|test| match *test {
        Test::Encode(windows) => windows > 0,
        Test::Decode(test) => test.tokens > 0,
    });
    tests
}

fn decoded(tests: &[Test]) -> impl Iterator<Item = test::Test> {
    tests.iter().filter_map(|test| match *test {
        Test::Encode(_) => None,
        Test::Decode(test) => Some(test),
    })
}

pub fn run(
    args: &BenchArgs,
    model: &Arc<Model>,
    open_time: Duration,
    earlier: Option<&[Measured]>,
    out: &mut Output,
) -> Result<(), Failure> {
    refuse_settings(args)?;
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("no test was selected").hint("set --windows or -n to a number above 0"));
    }
    let context = decoded(&tests).map(|test| test.depth + test.tokens).max().unwrap_or(1);
    let trained = model.config().context_length;
    if context > trained {
        let problem = format!("-d and -n together are {context}, but the decoder has {trained} positions");
        return Err(Failure::usage(problem));
    }
    let windows = tests.iter().map(|test| if let Test::Encode(windows) = *test { windows } else { 1 });
    let windows = windows.max().unwrap_or(1);
    let sequences = decoded(&tests).map(|test| test.batch).max().unwrap_or(1);
    let threads: Vec<Option<usize>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };
    let mut progress =
        Progress::new("measuring", (threads.len() * tests.len() * (args.repetitions + 1)) as u64);
    let mut rows = Vec::new();
    for threads in threads {
        let options = TowerOptions {
            device: args.on.device.choice,
            threads,
            backends: args.on.backends(),
            kv: args.kv_type.unwrap_or(KvType::F16),
            context,
            windows,
            sequences,
        };
        let mut towers = Towers::new(model.clone(), &options)?;
        let load_s = (open_time + towers.load_time()).as_secs_f64();
        for &test in &tests {
            let row = measure(args, &mut towers, &options, test, &mut progress)?;
            rows.push(Row { load_s, ..row });
        }
    }
    drop(progress);
    super::finish(args, &rows, earlier, print, out)
}

fn measure(
    args: &BenchArgs,
    towers: &mut Towers,
    options: &TowerOptions,
    test: Test,
    progress: &mut Progress,
) -> Result<Row, Failure> {
    // Tokens of a run, and the passes that compute them.
    let (cost, tokens, passes): (Cost, usize, usize) = match test {
        Test::Encode(windows) => (towers.encode_cost(windows), windows * towers.positions(), 1),
        Test::Decode(test) => (test.cost(towers.plan()), test.all_tokens(), test.tokens),
    };
    let used = match args.on.device.choice.resolve(&options.backends) {
        DeviceChoice::Cpu => crate::commands::threads(options.threads),
        _ => 1,
    };
    let per_pass = cost.bytes() / passes as u64;
    let mut beside = match args.ceilings {
        true => ceilings::of(options.device, &options.backends, used, per_pass)?.map(measured),
        false => None,
    };
    if let Test::Decode(test) = test {
        towers.fill(test.batch, test.depth)?;
    }
    let mut runs = Vec::with_capacity(args.repetitions);
    for run in 0..=args.repetitions {
        let began = Instant::now();
        match test {
            Test::Encode(windows) => towers.encode(windows)?,
            Test::Decode(test) => towers.decode(test.batch, test.depth, test.tokens)?,
        }
        if run > 0 {
            runs.push(tokens as f64 / began.elapsed().as_secs_f64());
        }
        progress.advance();
    }
    beside = beside.map(measured);
    let (tok_s, min, max) = median_min_max(&runs);
    let each = |count: u64| count as f64 / tokens as f64;
    let (bytes_per_token, ops_per_token) = (each(cost.bytes()), each(cost.ops()));
    let real_time = match test {
        Test::Encode(_) => Some(WINDOW_S * tok_s / towers.positions() as f64),
        Test::Decode(_) => None,
    };
    let capabilities = towers.device().capabilities();
    Ok(Row {
        version: env!("CARGO_PKG_VERSION"),
        machine: machine(),
        model: towers.model().name().to_string(),
        device: capabilities.name.to_string(),
        detail: capabilities.detail.clone(),
        threads: used,
        kv_type: towers.plan().options.kv.name(),
        test: test.name(),
        tok_s,
        min,
        max,
        pass_ms: 1e3 * tokens as f64 / passes as f64 / tok_s,
        real_time,
        bytes_per_token,
        ops_per_token,
        gb_s: bytes_per_token * tok_s / 1e9,
        gop_s: ops_per_token * tok_s / 1e9,
        load_s: 0.0,
        memory: memory(),
        planned_memory: towers.plan().memory.allocated(),
        ceilings: beside.as_ref().map(ceilings::CeilingsReport::new),
        of_ceiling: beside.as_ref().map(|ceilings| ceilings.floor(cost) * tok_s / tokens as f64),
        runs,
    })
}

fn print(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let mut grid = Grid::new().text("model").spare("device").number("threads").word("test").number("ms");
    grid = grid.number("× real time").number("tok/s").number("min").number("max");
    grid = grid.number("GB/s").number("GOP/s").number("of ceiling");
    for row in rows {
        grid.row([
            row.model.clone(),
            row.device.clone(),
            row.threads.to_string(),
            row.test.clone(),
            format!("{:.2}", row.pass_ms),
            row.real_time.map_or(String::new(), |times| format!("{times:.1}")),
            format!("{:.2}", row.tok_s),
            format!("{:.2}", row.min),
            format!("{:.2}", row.max),
            format!("{:.2}", row.gb_s),
            format!("{:.1}", row.gop_s),
            row.of_ceiling.map_or(String::new(), |part| format!("{:.0}%", 100.0 * part)),
        ]);
    }
    out.listing(&grid.render(output::width()))?;
    if let Some(last) = rows.last() {
        super::print_machine(last.ceilings.as_ref(), last.load_s, last.memory, out)?;
    }
    Ok(())
}
