//! Measures texts per second of embedding models and rerankers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu::{DeviceChoice, EmbedOptions, EmbedTask, Embedder, Model, TextIds};
use serde::Serialize;

use super::earlier::Measured;
use super::{BenchArgs, Memory, machine, measured, median_min_max, memory};
use crate::commands::ceilings;
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};
use crate::progress::Progress;

/// A number of texts at once, with this many tokens each.
#[derive(Clone, Copy, Debug)]
struct Test {
    batch: usize,
    length: usize,
}

/// One object of `bench --json` for embedding models and rerankers.
#[derive(Debug, Serialize)]
struct Row {
    version: &'static str,
    machine: String,
    model: String,
    device: String,
    detail: String,
    threads: usize,
    kv_type: &'static str,
    /// Maximum tokens per pass.
    chunk: usize,
    /// `32x128`: number of texts at once, and tokens of each.
    test: String,
    batch: usize,
    length: usize,
    /// Median.
    tok_s: f64,
    min: f64,
    max: f64,
    /// Texts per second, from the median.
    texts_s: f64,
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
    /// Tokens per second of each run.
    runs: Vec<f64>,
}

/// Rejects options that apply only to generative models.
fn refuse_settings(args: &BenchArgs) -> Result<(), Failure> {
    let given = [
        ("--prompt", !args.prompt.is_empty()),
        ("--generate", !args.generate.is_empty()),
        ("--depth", !args.depth.is_empty()),
        ("--sampled", args.sampled.is_some()),
        ("--chain-ms", args.chain_ms.is_some()),
        ("--metal-icb", args.metal_icb),
        ("--windows", !args.windows.is_empty()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!(
            "{name} is for generative models, but this model is for embeddings or reranking"
        ))
        .hint("use --batch and --length for the number of texts at once and their tokens")),
    }
}

/// Text lengths: those requested, or those default lengths that the model supports.
fn lengths(asked: &[usize], longest: usize) -> Result<Vec<usize>, Failure> {
    const USUAL: [usize; 2] = [16, 128];
    if let Some(length) = asked.iter().find(|&&length| length > longest) {
        let problem =
            format!("--length is {length}, but the maximum text length of this model is {longest} tokens");
        return Err(Failure::usage(problem));
    }
    if !asked.is_empty() {
        return Ok(asked.to_vec());
    }
    let (fitting, left_out): (Vec<usize>, Vec<usize>) =
        USUAL.into_iter().partition(|&length| length <= longest);
    if !left_out.is_empty() {
        let left_out: Vec<String> = left_out.iter().map(usize::to_string).collect();
        output::note(&format!(
            "note: texts of {} tokens are skipped: the maximum text length of this model is {longest}",
            left_out.join(" and of ")
        ));
    }
    Ok(if fitting.is_empty() { vec![longest] } else { fitting })
}

pub fn run(
    args: &BenchArgs,
    model: &Arc<Model>,
    task: EmbedTask,
    open_time: Duration,
    earlier: Option<&[Measured]>,
    out: &mut Output,
) -> Result<(), Failure> {
    refuse_settings(args)?;
    let batches = if args.batch.is_empty() { vec![1, 32] } else { args.batch.clone() };
    let lengths = lengths(&args.length, model.config().context_length)?;
    let test = |batch| lengths.iter().map(move |&length| Test { batch, length });
    let tests: Vec<Test> = batches.into_iter().flat_map(test).collect();
    let threads: Vec<Option<usize>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };
    let mut progress =
        Progress::new("measuring", (threads.len() * tests.len() * (args.repetitions + 1)) as u64);
    let mut rows = Vec::new();
    for threads in threads {
        let options = EmbedOptions {
            device: args.on.device.choice,
            threads,
            backends: args.on.backends(),
            task,
            longest: tests.iter().map(|test| test.length).max(),
            kv: args.kv_type,
            rows: args.chunk,
            ..EmbedOptions::default()
        };
        let mut embedder = Embedder::new(model.clone(), &options)?;
        let load_s = (open_time + embedder.load_time()).as_secs_f64();
        for &test in &tests {
            let row = measure(args, &mut embedder, &options, test, &mut progress)?;
            rows.push(Row { load_s, ..row });
        }
    }
    drop(progress);
    super::finish(args, &rows, earlier, print, out)
}

fn measure(
    args: &BenchArgs,
    embedder: &mut Embedder,
    options: &EmbedOptions,
    test: Test,
    progress: &mut Progress,
) -> Result<Row, Failure> {
    let Test { batch, length } = test;
    let vocab = embedder.model().config().vocab_size;
    let text = |seed| TextIds::from(crate::commands::random_ids(length, vocab, seed));
    let texts: Vec<TextIds> = (1..=batch as u64).map(text).collect();
    let (cost, tokens) = (embedder.cost(&texts)?, (batch * length) as f64);
    let used = match args.on.device.choice.resolve(&options.backends) {
        DeviceChoice::Cpu => crate::commands::threads(options.threads),
        _ => 1,
    };
    let mut beside = match args.ceilings {
        true => ceilings::of(options.device, &options.backends, used, cost.weight_bytes)?.map(measured),
        false => None,
    };
    let mut runs = Vec::with_capacity(args.repetitions);
    for run in 0..=args.repetitions {
        let began = Instant::now();
        embedder.encode(&texts)?;
        if run > 0 {
            runs.push(tokens / began.elapsed().as_secs_f64());
        }
        progress.advance();
    }
    beside = beside.map(measured);
    let (tok_s, min, max) = median_min_max(&runs);
    let (bytes_per_token, ops_per_token) = (cost.bytes() as f64 / tokens, cost.ops() as f64 / tokens);
    let capabilities = embedder.device().capabilities();
    let plan = &embedder.plan().options;
    let (kv_type, chunk) = (plan.kv.name(), plan.rows);
    Ok(Row {
        version: env!("CARGO_PKG_VERSION"),
        machine: machine(),
        model: embedder.model().name().to_string(),
        device: capabilities.name.to_string(),
        detail: capabilities.detail.clone(),
        threads: used,
        kv_type,
        chunk,
        test: format!("{batch}x{length}"),
        batch,
        length,
        tok_s,
        min,
        max,
        texts_s: tok_s / length as f64,
        bytes_per_token,
        ops_per_token,
        gb_s: bytes_per_token * tok_s / 1e9,
        gop_s: ops_per_token * tok_s / 1e9,
        load_s: 0.0,
        memory: memory(),
        planned_memory: embedder.plan().memory.allocated(),
        ceilings: beside.as_ref().map(ceilings::CeilingsReport::new),
        of_ceiling: beside.as_ref().map(|ceilings| ceilings.floor(cost) * tok_s / tokens),
        runs,
    })
}

fn print(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let mut grid = Grid::new().text("model").spare("device").number("threads").word("test").number("texts/s");
    grid =
        grid.number("tok/s").number("min").number("max").number("GB/s").number("GOP/s").number("of ceiling");
    for row in rows {
        grid.row([
            row.model.clone(),
            row.device.clone(),
            row.threads.to_string(),
            row.test.clone(),
            format!("{:.2}", row.texts_s),
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
