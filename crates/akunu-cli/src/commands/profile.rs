//! `akunu profile`: where a pass spends its time.

use std::path::{Path, PathBuf};

use akunu::{LabelTiming, ProfileOptions};
use clap::Args;
use serde_json::json;

use crate::args::{self, EngineArgs, ModelArg};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};

/// Times each command of a pass: time, bytes read, GB/s and share
///
/// Commands are run one at a time, so their sum is a little more than a pass takes. Layers are added up; --each lists every
/// command.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Rows of the pass: 1 is a decode step
    #[arg(long, default_value = "1", value_parser = args::count)]
    rows: usize,
    /// Positions that stand in the cache before
    #[arg(short, long, default_value = "0", value_parser = args::count_or_zero)]
    depth: usize,
    /// Passes, of which the median counts
    #[arg(short = 'r', long, default_value = "10", value_parser = args::count)]
    passes: usize,
    /// Every command instead of the sum over layers
    #[arg(long)]
    each: bool,
    /// Writes a trace for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[arg(long, help = "Prints JSON")]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// One line of the listing.
#[derive(Clone, Debug)]
struct Line {
    label: String,
    kernel: String,
    calls: usize,
    ns: u64,
    bytes: u64,
}

impl Line {
    fn gb_s(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.bytes as f64 / self.ns as f64 }
    }
}

pub fn run(args: &ProfileArgs, out: &mut Output) -> Result<(), Failure> {
    let model = super::open(args.model.model.as_deref())?;
    let mut options = args.engine.options();
    if args.rows > 1 {
        options.chunk.get_or_insert(args.rows);
    }
    let mut engine = super::engine(&model, &options, true)?;
    let wanted = ProfileOptions { passes: args.passes, depth: args.depth, rows: args.rows };
    let timings = engine.profile(wanted)?;
    if let Some(path) = &args.trace {
        write_trace(path, model.name(), &timings)?;
    }
    let lines = lines(&timings, args.each);
    let total: u64 = lines.iter().map(|l| l.ns).sum();
    if args.json {
        return out.json(&json(&lines, total));
    }
    let mut grid = Grid::new()
        .text("label")
        .text("kernel")
        .number("calls")
        .number("µs")
        .number("MB")
        .number("GB/s")
        .number("share");
    for line in lines.iter().chain([&sum(&lines)]) {
        grid.row([
            line.label.clone(),
            line.kernel.clone(),
            line.calls.to_string(),
            format!("{:.1}", line.ns as f64 / 1e3),
            format!("{:.3}", line.bytes as f64 / 1e6),
            format!("{:.2}", line.gb_s()),
            format!("{:.1}%", 100.0 * line.ns as f64 / total.max(1) as f64),
        ]);
    }
    out.text(&grid.render(output::width()))?;
    if let Some(path) = &args.trace {
        output::note(&format!("trace written to {}", path.display()));
    }
    Ok(())
}

/// Sums over layers, the slowest first; or every command in its order.
fn lines(timings: &[LabelTiming], each: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for t in timings {
        let (label, bytes) =
            (if each { t.label.clone() } else { without_layer(&t.label) }, t.weight_bytes + t.kv_bytes);
        match lines.iter_mut().find(|l| !each && l.label == label && l.kernel == t.kernel) {
            Some(line) => {
                line.calls += 1;
                line.ns += t.ns;
                line.bytes += bytes;
            }
            None => lines.push(Line { label, kernel: t.kernel.clone(), calls: 1, ns: t.ns, bytes }),
        }
    }
    if !each {
        lines.sort_by_key(|l| std::cmp::Reverse(l.ns));
    }
    lines
}

fn sum(lines: &[Line]) -> Line {
    Line {
        label: "total".to_string(),
        kernel: String::new(),
        calls: lines.iter().map(|l| l.calls).sum(),
        ns: lines.iter().map(|l| l.ns).sum(),
        bytes: lines.iter().map(|l| l.bytes).sum(),
    }
}

/// `layer.3.attention` as `layer.*.attention`.
fn without_layer(label: &str) -> String {
    let parts = label.split('.').map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { "*" } else { p });
    parts.collect::<Vec<_>>().join(".")
}

fn json(lines: &[Line], total: u64) -> serde_json::Value {
    let each = lines.iter().map(|l| {
        json!({
            "label": l.label, "kernel": l.kernel, "calls": l.calls, "ns": l.ns, "bytes": l.bytes,
            "gb_s": l.gb_s(), "share": l.ns as f64 / total.max(1) as f64,
        })
    });
    json!({ "total_ns": total, "labels": each.collect::<Vec<_>>() })
}

/// The commands one after the other, as complete events of Chrome's trace format (times in microseconds).
fn write_trace(path: &Path, model: &str, timings: &[LabelTiming]) -> Result<(), Failure> {
    let mut at = 0;
    let mut events = Vec::with_capacity(timings.len());
    for t in timings {
        events.push(json!({
            "name": t.label, "cat": t.kernel, "ph": "X", "pid": 1, "tid": 1,
            "ts": at as f64 / 1e3, "dur": t.ns as f64 / 1e3,
            "args": { "kernel": t.kernel, "weight_bytes": t.weight_bytes, "kv_bytes": t.kv_bytes },
        }));
        at += t.ns;
    }
    let trace = json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "model": model } });
    std::fs::write(path, trace.to_string()).map_err(|error| Failure::io("write", path, &error))
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
            weight_bytes: 10,
            kv_bytes: 1,
        };
        let timings = [timing("embed", 1), timing("layer.0.attention", 2), timing("layer.11.attention", 3)];
        let lines = lines(&timings, false);
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].label.as_str(), lines[0].ns, lines[0].bytes), ("layer.*.attention", 5, 22));
    }
}
