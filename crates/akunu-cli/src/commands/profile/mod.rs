//! `akunu profile`: the time of each command of a pass.

mod page;

use std::path::PathBuf;
use std::sync::Arc;

use akunu::devices::ceilings::Ceilings;
use akunu::{
    Cost, EmbedTask, Embedder, EngineOptions, LabelTiming, Model, PassRows, ProfileOptions, TextIds,
    TowerOptions, Towers,
};
use akunu_plan::{Entries, Row};
use clap::Args;
use serde_json::json;

use self::page::Page;
use super::ceilings;

use crate::args::{self, EitherArgs, ModelArg, TaskArgs};
use crate::bars::Style;
use crate::failure::Failure;
use crate::grid::Grid;
use crate::out_file::OutFile;
use crate::output::{self, Output};
use crate::sources;

/// Measures the time of each command of a pass, relative to the machine's limits
///
/// Ceilings are measured before and after: memory bandwidth for as many bytes as the pass reads, and multiplication
/// throughput. A command at 100% takes the time that its bytes or its operations need at the ceiling. Commands are run
/// one at a time, so their sum is slightly more than the time of a pass. Times are summed over layers; --each lists
/// every command.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Processes a prompt of this many tokens instead of a decode step; for embedding models and rerankers, a text of
    /// this length [their default: 128]
    #[arg(short, long, value_name = "N", value_parser = args::count)]
    prompt: Option<usize>,
    /// Number of sequences in the decode step; for embedding models and rerankers, of texts in the pass
    #[arg(short, long, visible_alias = "texts", value_name = "N", default_value = "1", value_parser = args::count)]
    batch: usize,
    /// Encodes this many windows of audio instead of a decode step, for models that transcribe
    #[arg(long, value_name = "N", value_parser = args::count)]
    windows: Option<usize>,
    /// Cached tokens before the pass
    #[arg(short, long, default_value = "0", value_parser = args::count_or_zero)]
    depth: usize,
    /// Number of passes; the median is reported
    #[arg(short = 'r', long, default_value = "10", value_parser = args::count)]
    passes: usize,
    /// Lists every command instead of sums over layers
    #[arg(long)]
    each: bool,
    /// Writes a trace for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes a page with charts and a table of all commands, for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    task: TaskArgs,
    /// Context length in tokens, or maximum text length for embedding models [default: as needed for -d and -p, and 256 or the model's own]
    #[arg(short, long, value_parser = args::count, allow_negative_numbers = true, help_heading = "Engine")]
    context: Option<usize>,
    #[command(flatten)]
    engine: EitherArgs,
}

/// The least context that is planned for: with fewer rows, some devices plan other kernels for a step of many sequences
/// than a server has.
fn least_context(model: &Model) -> usize {
    model.config().context_length.min(256)
}

/// Default length of a text in tokens.
const TEXT_TOKENS: usize = 128;

/// One line of the listing.
#[derive(Clone, Debug)]
struct Line {
    label: String,
    kernel: String,
    calls: usize,
    ns: u64,
    cost: Cost,
    /// Minimum nanoseconds according to the ceilings; 0 if these are unknown.
    floor: f64,
}

impl Line {
    fn per_ns(&self, count: u64) -> f64 {
        if self.ns == 0 { 0.0 } else { count as f64 / self.ns as f64 }
    }

    fn of_ceiling(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.floor / self.ns as f64 }
    }

    fn add(&mut self, other: &Line) {
        self.calls += other.calls;
        self.ns += other.ns;
        self.cost = self.cost + other.cost;
        self.floor += other.floor;
    }
}

pub fn run(args: &ProfileArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.path(), args.engine.device.no_mmap)?;
    if let (Some(trace), Some(html)) = (&args.trace, &args.html)
        && sources::is_same_target(trace, html)
    {
        let problem = format!("the trace and the page would both be {}", html.display());
        return Err(Failure::usage(problem));
    }
    let open = |path: &PathBuf| OutFile::open(path, model.weights(), &[]);
    let trace = args.trace.as_ref().map(open).transpose()?;
    let html = args.html.as_ref().map(open).transpose()?;
    let Measured { timings, ceilings, facts } = match args.task.task(&model) {
        None if model.config().encoder.is_some() => transcribing(args, &model)?,
        None => generating(args, &model)?,
        Some(task) => encoding(args, &model, task)?,
    };
    if let Some(file) = trace {
        file.write(trace_of(model.name(), &timings).to_string().as_bytes())?;
    }
    let report = ceilings.as_ref().map(ceilings::CeilingsReport::new);
    if let Some(file) = html {
        let commands = lines(&timings, ceilings.as_ref(), true);
        let page = Page { model: model.name(), facts, commands: &commands, ceilings: report.as_ref() };
        file.write(page.html().as_bytes())?;
    }
    let lines = lines(&timings, ceilings.as_ref(), args.each);
    if args.json {
        return out.json(&json(&lines, report));
    }
    if let Some(report) = report {
        out.line(&report.line())?;
        out.text("\n")?;
    }
    let width = output::width();
    out.listing(&listing(&lines, Style::of_stdout(), width).render(width))?;
    for (what, path) in [("trace", &args.trace), ("page", &args.html)] {
        if let Some(path) = path {
            output::note(&format!("{what} written to {}", path.display()));
        }
    }
    Ok(())
}

struct Measured {
    timings: Vec<LabelTiming>,
    ceilings: Option<Ceilings>,
    /// For the head of the page.
    facts: Vec<(&'static str, String)>,
}

fn facts(
    args: &ProfileArgs,
    device: &akunu::Capabilities,
    pass: String,
    timings: &[LabelTiming],
    ceilings: Option<&Ceilings>,
) -> Vec<(&'static str, String)> {
    let total: u64 = timings.iter().map(|timing| timing.ns).sum();
    let plural = if args.passes == 1 { "" } else { "es" };
    let mut facts = vec![
        ("akunu", env!("CARGO_PKG_VERSION").to_string()),
        ("device", format!("{}: {}", device.name, device.detail)),
        ("pass", pass),
        ("time", format!("{:.3} ms, median of {} pass{plural}", total as f64 / 1e6, args.passes)),
    ];
    facts.extend(ceilings.map(|ceilings| ("ceilings", ceilings::CeilingsReport::new(ceilings).text())));
    facts
}

fn generating(args: &ProfileArgs, model: &Arc<Model>) -> Result<Measured, Failure> {
    if args.prompt.is_some() && args.batch > 1 {
        return Err(Failure::usage("--prompt is one sequence: it does not go with --batch"));
    }
    if args.windows.is_some() {
        return Err(Failure::usage("--windows is for models that transcribe"));
    }
    let mut options = args.engine.options(args.context);
    let longest = args.depth + args.prompt.unwrap_or(1);
    options.context.get_or_insert(longest.max(least_context(model)));
    options = options.batching(args.batch);
    let rows = args.prompt.map_or(PassRows::Step(args.batch), PassRows::Prompt);
    let mut engine = super::engine(model, &options, true)?;
    let row = vec![Row::causal(0, args.depth as u32, 0); args.batch];
    let bytes = engine.plan().tables.decode().cost(Entries::Rows(&row), args.batch).bytes();
    let wanted = ProfileOptions { passes: args.passes, depth: args.depth, rows };
    // Those of one device do not bound what two compute.
    let (timings, ceilings) = match engine.plan().options.host.is_nothing() {
        true => with_ceilings(&options, bytes, || Ok(engine.profile(wanted)?))?,
        false => (engine.profile(wanted)?, None),
    };
    let pass = match args.prompt {
        Some(rows) => format!("a prompt of {rows} tokens"),
        None => step_of(args.batch),
    };
    let pass = format!("{pass} after {} cached tokens", args.depth);
    let facts = facts(args, engine.device().capabilities(), pass, &timings, ceilings.as_ref());
    Ok(Measured { timings, ceilings, facts })
}

fn transcribing(args: &ProfileArgs, model: &Arc<Model>) -> Result<Measured, Failure> {
    if args.prompt.is_some() {
        return Err(Failure::usage("--prompt is not for models that transcribe"));
    }
    if args.windows.is_some() && args.batch > 1 {
        return Err(Failure::usage("--batch is for the decoder, and --windows for the encoder"));
    }
    let engine = args.engine.options(args.context);
    let options = TowerOptions {
        device: engine.device,
        threads: engine.threads,
        backends: engine.backends.clone(),
        kv: engine.kv,
        context: args.context.unwrap_or((args.depth + 1).max(least_context(model))),
        windows: args.windows.unwrap_or(1),
        sequences: args.batch,
    };
    let mut towers = Towers::new(model.clone(), &options)?;
    let row = vec![Row::causal(0, args.depth as u32, 0); args.batch];
    let (bytes, pass) = match args.windows {
        Some(windows) => (towers.encode_cost(windows).bytes(), format!("{windows} windows of audio")),
        None => (
            towers.plan().tables.decode().cost(Entries::Rows(&row), args.batch).bytes(),
            format!("{} after {} cached tokens", step_of(args.batch), args.depth),
        ),
    };
    let time = || match args.windows {
        Some(windows) => Ok(towers.profile_encoder(windows, args.passes)?),
        None => Ok(towers.profile_decoder(args.batch, args.depth, args.passes)?),
    };
    let (timings, ceilings) = with_ceilings(&engine, bytes, time)?;
    let facts = facts(args, towers.device().capabilities(), pass, &timings, ceilings.as_ref());
    Ok(Measured { timings, ceilings, facts })
}

fn step_of(sequences: usize) -> String {
    match sequences {
        1 => "a decode step".into(),
        _ => format!("a decode step of {sequences} sequences"),
    }
}

fn encoding(args: &ProfileArgs, model: &Arc<Model>, task: EmbedTask) -> Result<Measured, Failure> {
    if args.depth > 0 || args.windows.is_some() {
        return Err(Failure::usage("--depth and --windows are not for models of texts"));
    }
    let tokens = args.prompt.unwrap_or(TEXT_TOKENS.min(model.config().context_length));
    let mut options = args.engine.text_options(task, args.context)?;
    options.longest.get_or_insert(tokens);
    options.rows.get_or_insert(tokens.saturating_mul(args.batch));
    let mut embedder = Embedder::new(model.clone(), &options)?;
    let ids = |seed| TextIds::from(super::random_ids(tokens, model.config().vocab_size, seed));
    let texts: Vec<TextIds> = (0..args.batch as u64).map(ids).collect();
    let row = [Row::causal(0, 0, 0)];
    let bytes = embedder.plan().table.cost(Entries::Rows(&row), 1).bytes();
    let options = args.engine.options(args.context);
    let (timings, ceilings) = with_ceilings(&options, bytes, || Ok(embedder.profile(&texts, args.passes)?))?;
    let pass = format!("{} texts of {tokens} tokens", args.batch);
    let facts = facts(args, embedder.device().capabilities(), pass, &timings, ceilings.as_ref());
    Ok(Measured { timings, ceilings, facts })
}

/// Ceilings are measured before and after the timed passes.
fn with_ceilings(
    options: &EngineOptions,
    bytes: u64,
    time: impl FnOnce() -> Result<Vec<LabelTiming>, Failure>,
) -> Result<(Vec<LabelTiming>, Option<Ceilings>), Failure> {
    let mut ceilings =
        ceilings::of(options.device, &options.backends, super::threads(options.threads), bytes)?;
    ceilings.iter_mut().for_each(|c| c.measure(ceilings::ROUNDS));
    let timings = time()?;
    ceilings.iter_mut().for_each(|c| c.measure(ceilings::ROUNDS));
    Ok((timings, ceilings))
}

/// Cells of the longest bar; fewer if the terminal is narrow.
const BAR: usize = 30;
const LEAST_BAR: usize = 6;

/// With bars of the shares, if there is space for them.
fn listing(lines: &[Line], style: Style, width: Option<usize>) -> Grid {
    let plain = columns(lines, None);
    let cells = match (width, plain.width(width)) {
        (None, _) => BAR,
        (Some(terminal), Some(used)) => terminal.saturating_sub(used + 2).min(BAR),
        (Some(_), None) => 0,
    };
    match cells {
        LEAST_BAR.. => columns(lines, Some((style, cells))),
        _ => plain,
    }
}

fn columns(lines: &[Line], bar: Option<(Style, usize)>) -> Grid {
    let mut grid = Grid::new().text("label").spare("kernel").number("calls").number("µs").number("share");
    grid = grid.number("MB").number("GB/s").number("GOP/s").number("of ceiling");
    if bar.is_some() {
        grid = grid.word("");
    }
    let sum = sum(lines);
    let longest = lines.iter().map(|line| line.ns).max().unwrap_or(0).max(1) as f64;
    let number = |value: f64, digits: usize| match value {
        0.0 => String::new(),
        _ => format!("{value:.digits$}"),
    };
    let rows = lines.iter().map(|line| (line, line.ns as f64 / longest)).chain([(&sum, 0.0)]);
    for (line, share) in rows {
        let mut cells = vec![
            line.label.clone(),
            line.kernel.clone(),
            line.calls.to_string(),
            format!("{:.1}", line.ns as f64 / 1e3),
            format!("{:.1}%", 100.0 * line.ns as f64 / sum.ns.max(1) as f64),
            number(line.cost.bytes() as f64 / 1e6, 2),
            number(line.per_ns(line.cost.bytes()), 2),
            number(line.per_ns(line.cost.ops()), 1),
            if line.floor == 0.0 { String::new() } else { format!("{:.0}%", 100.0 * line.of_ceiling()) },
        ];
        cells.extend(bar.map(|(style, cells)| style.share(share, cells)));
        grid.cells(&cells);
    }
    grid
}

/// Sums over layers, the slowest first; or all commands in order.
fn lines(timings: &[LabelTiming], ceilings: Option<&Ceilings>, each: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for t in timings {
        let line = Line {
            label: if each { t.label.clone() } else { without_layer(&t.label) },
            kernel: t.kernel.clone(),
            calls: 1,
            ns: t.ns,
            cost: t.cost,
            floor: ceilings.map_or(0.0, |ceilings| 1e9 * ceilings.floor(t.cost)),
        };
        match lines.iter_mut().find(|l| !each && l.label == line.label && l.kernel == line.kernel) {
            Some(sum) => sum.add(&line),
            None => lines.push(line),
        }
    }
    if !each {
        lines.sort_by_key(|l| std::cmp::Reverse(l.ns));
    }
    lines
}

fn sum(lines: &[Line]) -> Line {
    let (label, kernel, cost) = ("total".to_string(), String::new(), Cost::default());
    let mut sum = Line { label, kernel, calls: 0, ns: 0, cost, floor: 0.0 };
    lines.iter().for_each(|line| sum.add(line));
    sum
}

/// `layer.3.attention` as `layer.*.attention`.
fn without_layer(label: &str) -> String {
    let parts = label.split('.').map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { "*" } else { p });
    parts.collect::<Vec<_>>().join(".")
}

/// The output of `profile --json`. `labels` has sums over layers, the slowest first, or all commands in order with
/// --each. Of a label: `calls`, `ns`, `bytes` and `ops` in a pass, `gb_s` and `gop_s`, the `share` of the total, and
/// `of_ceiling`, the time at the ceilings over the measured one (null where ceilings are unknown).
fn json(lines: &[Line], ceilings: Option<ceilings::CeilingsReport>) -> serde_json::Value {
    let total = sum(lines);
    let each = lines.iter().map(|l| {
        json!({
            "label": l.label, "kernel": l.kernel, "calls": l.calls, "ns": l.ns,
            "bytes": l.cost.bytes(), "ops": l.cost.ops(),
            "gb_s": l.per_ns(l.cost.bytes()), "gop_s": l.per_ns(l.cost.ops()),
            "of_ceiling": ceilings.is_some().then(|| l.of_ceiling()),
            "share": l.ns as f64 / total.ns.max(1) as f64,
        })
    });
    json!({
        "total_ns": total.ns, "of_ceiling": ceilings.is_some().then(|| total.of_ceiling()),
        "labels": each.collect::<Vec<_>>(), "ceilings": ceilings,
    })
}

/// The commands as consecutive complete events in Chrome's trace format (times in microseconds).
fn trace_of(model: &str, timings: &[LabelTiming]) -> serde_json::Value {
    let mut at = 0;
    let mut events = Vec::with_capacity(timings.len());
    for t in timings {
        events.push(json!({
            "name": t.label, "cat": t.kernel, "ph": "X", "pid": 1, "tid": 1,
            "ts": at as f64 / 1e3, "dur": t.ns as f64 / 1e3,
            "args": { "kernel": t.kernel, "bytes": t.cost.bytes(), "ops": t.cost.ops() },
        }));
        at += t.ns;
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "model": model } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_added_up() {
        let timing = |label: &str, ns| LabelTiming {
            label: label.into(),
            kernel: "k".into(),
            ns,
            cost: Cost { weight_bytes: 10, kv_bytes: 1, ..Cost::default() },
        };
        let timings = [timing("embed", 1), timing("layer.0.attention", 2), timing("layer.11.attention", 3)];
        let lines = lines(&timings, None, false);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[0].label.as_str(), lines[0].ns, lines[0].cost.bytes()),
            ("layer.*.attention", 5, 22)
        );
    }

    #[test]
    fn the_listing_fits_eighty_columns() {
        let (label, kernel) = ("layer.*.attn_output".to_string(), "gemv_q4_0_f32in_bias_add".to_string());
        let cost = Cost { weight_bytes: 1_234_567_890, int8_ops: 98_765_432_100_000, ..Cost::default() };
        let line = Line { label, kernel, calls: 100, ns: 123_456_789, cost, floor: 1e8 };
        for width in [60, 80, 100, 200] {
            let text = listing(std::slice::from_ref(&line), Style::BLOCKS, Some(width)).render(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.contains("of ceiling") && text.contains("81%"), "{text}");
            assert_eq!(text.contains('█'), width >= 100, "{text}");
        }
    }
}
