//! Compares results with earlier ones: `--compare OLD.json`.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::compare::{Speed, Verdict};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::output::{self, Output};

/// With this many runs on each side, one side is the faster in all of them by chance once in 20 times; with two runs,
/// once in 6.
const LEAST_RUNS: usize = 3;
/// A file of results has some kilobytes.
const MAX_BYTES: u64 = 64 << 20;
const NOT_RECORDED: &str = "not recorded";

/// The fields of a result, of either kind of models, that are compared. Older files lack some of them.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    model: String,
    device: String,
    detail: String,
    threads: usize,
    test: String,
    #[serde(default)]
    metal_icb: Option<bool>,
    tok_s: f64,
    min: f64,
    max: f64,
    #[serde(default)]
    bytes_per_token: Option<f64>,
    #[serde(default)]
    runs: Vec<f64>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    kv_type: Option<String>,
    #[serde(default)]
    chunk: Option<usize>,
    #[serde(default)]
    chain_ms: Option<usize>,
}

impl Measured {
    fn speed(&self) -> Speed {
        Speed { median: self.tok_s, min: self.min, max: self.max }
    }

    fn is_sound(&self) -> bool {
        let all = [self.tok_s, self.min, self.max].into_iter().chain(self.runs.iter().copied());
        all.into_iter().all(|speed| speed.is_finite() && speed > 0.0)
            && self.min <= self.tok_s
            && self.tok_s <= self.max
    }

    /// `tg128, 2 threads`.
    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        let icb = if self.metal_icb == Some(true) { ", icb" } else { "" };
        format!("{}, {} thread{plural}{icb}", self.test, self.threads)
    }

    /// What a speed depends on besides the test.
    fn circumstances(&self) -> [(&'static str, String); 9] {
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| NOT_RECORDED.to_string());
        let number =
            |n: Option<usize>, none: &str| n.map_or_else(|| none.to_string(), |n: usize| n.to_string());
        [
            ("version", or(&self.version)),
            ("model", self.model.clone()),
            ("machine", or(&self.machine)),
            ("device", self.device.clone()),
            ("device details", self.detail.clone()),
            ("threads", self.threads.to_string()),
            ("KV cache", or(&self.kv_type)),
            ("tokens per pass", number(self.chunk, NOT_RECORDED)),
            ("--chain-ms", number(self.chain_ms, "default")),
        ]
    }
}

/// Why a file cannot be compared with.
#[derive(Debug)]
pub enum EarlierError {
    Io(std::io::Error),
    TooLarge,
    NotJson(serde_json::Error),
    /// JSON of another kind.
    NotResults,
    NoRows,
    Row {
        number: usize,
        problem: String,
    },
}

impl fmt::Display for EarlierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EarlierError::Io(error) => write!(f, "it cannot be read: {error}"),
            EarlierError::TooLarge => write!(f, "it has more than {}", akunu::human(MAX_BYTES)),
            EarlierError::NotJson(error) => write!(f, "it is not JSON: {error}"),
            EarlierError::NotResults => write!(f, "it has no results"),
            EarlierError::NoRows => write!(f, "its list of results is empty"),
            EarlierError::Row { number, problem } => write!(f, "result {number}: {problem}"),
        }
    }
}

/// Reads the output of `bench --json`, made with or without `--compare`.
pub fn read(path: &Path) -> Result<Vec<Measured>, Failure> {
    let read = || {
        let bytes = akunu_file::read(path, MAX_BYTES).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => EarlierError::TooLarge,
            _ => EarlierError::Io(error),
        })?;
        parse(&bytes)
    };
    read().map_err(|error| {
        Failure::new(format!("cannot compare with {}: {error}", path.display()))
            .hint("akunu bench --json > OLD.json writes such a file")
    })
}

fn parse(json: &[u8]) -> Result<Vec<Measured>, EarlierError> {
    let mut value: serde_json::Value = serde_json::from_slice(json).map_err(EarlierError::NotJson)?;
    if let Some(results) = value.get_mut("results") {
        value = results.take();
    }
    let serde_json::Value::Array(rows) = value else { return Err(EarlierError::NotResults) };
    if rows.is_empty() {
        return Err(EarlierError::NoRows);
    }
    let row = |(number, row)| {
        let refuse = |problem: String| EarlierError::Row { number, problem };
        let row: Measured = serde_json::from_value(row).map_err(|error| refuse(error.to_string()))?;
        match row.is_sound() {
            true => Ok(row),
            false => Err(refuse("its speeds are not positive numbers in order".to_string())),
        }
    };
    (1..).zip(rows).map(row).collect()
}

/// The output of `bench --compare --json`.
#[derive(Debug, Serialize)]
pub struct Comparison {
    tests: Vec<Compared>,
    /// Circumstances that differ between tests with the same name.
    differences: Vec<Difference>,
    /// Tests of the earlier file that were not measured now.
    only_old: Vec<String>,
    /// Tests that the earlier file does not have.
    only_new: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Compared {
    test: String,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    metal_icb: Option<bool>,
    /// Tokens per second: medians.
    old: f64,
    new: f64,
    /// Half the distance between the slowest and the fastest run, as a fraction of the median.
    old_spread: f64,
    new_spread: f64,
    /// New speed over old speed: of the medians, and the extremes over all pairs of runs.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    result: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// Every new run is faster than every old one.
    Faster,
    Slower,
    WithinSpread,
    /// Fewer than three runs on one side.
    TooFewRuns,
}

impl Outcome {
    fn of(old: &Measured, new: &Measured) -> Outcome {
        if old.runs.len().min(new.runs.len()) < LEAST_RUNS {
            return Outcome::TooFewRuns;
        }
        match Verdict::of(old.speed(), new.speed()) {
            Verdict::Faster => Outcome::Faster,
            Verdict::Slower => Outcome::Slower,
            Verdict::Alike => Outcome::WithinSpread,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Outcome::Faster => "faster",
            Outcome::Slower => "slower",
            Outcome::WithinSpread => "within the spread",
            Outcome::TooFewRuns => "too few runs",
        }
    }
}

#[derive(Debug, PartialEq, Serialize)]
struct Difference {
    what: String,
    old: String,
    new: String,
}

impl Compared {
    fn of(old: &Measured, new: &Measured) -> Compared {
        let spread = |row: &Measured| (row.max - row.min) / 2.0 / row.tok_s;
        Compared {
            test: new.test.clone(),
            threads: new.threads,
            metal_icb: new.metal_icb,
            old: old.tok_s,
            new: new.tok_s,
            old_spread: spread(old),
            new_spread: spread(new),
            ratio: new.tok_s / old.tok_s,
            ratio_min: new.min / old.max,
            ratio_max: new.max / old.min,
            result: Outcome::of(old, new),
        }
    }
}

/// Pairs results of the same test, threads and way of running. If each side has one number of threads, these may differ.
fn compare(old: &[Measured], new: &[Measured]) -> Comparison {
    let one_thread_count = |rows: &[Measured]| rows.windows(2).all(|pair| pair[0].threads == pair[1].threads);
    let any_threads = one_thread_count(old) && one_thread_count(new);
    let same = |a: &Measured, b: &Measured| {
        (&a.test, a.metal_icb) == (&b.test, b.metal_icb) && (any_threads || a.threads == b.threads)
    };
    let mut left: Vec<&Measured> = old.iter().collect();
    let (mut tests, mut differences, mut only_new) = (Vec::new(), Vec::new(), Vec::new());
    let mut note = |what: String, old: String, new: String| {
        let difference = Difference { what, old, new };
        if difference.old != difference.new && !differences.contains(&difference) {
            differences.push(difference);
        }
    };
    for row in new {
        let Some(at) = left.iter().position(|earlier| same(earlier, row)) else {
            only_new.push(row.name());
            continue;
        };
        let earlier = left.remove(at);
        for ((what, old), (_, new)) in earlier.circumstances().into_iter().zip(row.circumstances()) {
            note(what.to_string(), old, new);
        }
        // Differs if the model has the same name but other weights.
        if let (Some(old), Some(new)) = (earlier.bytes_per_token, row.bytes_per_token) {
            let bytes = |bytes: f64| format!("{bytes:.0}");
            note(format!("bytes per token of {}", row.test), bytes(old), bytes(new));
        }
        tests.push(Compared::of(earlier, row));
    }
    let only_old = left.into_iter().map(Measured::name).collect();
    Comparison { tests, differences, only_old, only_new }
}

#[derive(Serialize)]
struct WithResults<'a, R> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    /// As `bench --json` gives them without --compare.
    results: &'a [R],
}

/// Prints the comparison. A failure (exit code 1) if some test is slower, or if no test can be compared.
pub fn report<R: Serialize>(
    old: &[Measured],
    rows: &[R],
    path: &Path,
    json: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let new = serde_json::to_vec(rows).map_err(EarlierError::NotJson).and_then(|json| parse(&json));
    let new = new.map_err(|error| Failure::new(format!("the results cannot be compared: {error}")))?;
    let comparison = compare(old, &new);
    if comparison.tests.is_empty() {
        let failure = Failure::new(format!("no test of {} was measured", path.display()));
        return Err(failure.hint(format!("its tests are {}", comparison.only_old.join("; "))));
    }
    match json {
        true => out.json(&WithResults { comparison: &comparison, results: rows })?,
        false => print(&comparison, path, out)?,
    }
    match comparison.tests.iter().any(|test| test.result == Outcome::Slower) {
        true => out.flush().and(Err(Failure::Reported)),
        false => Ok(()),
    }
}

fn print(found: &Comparison, path: &Path, out: &mut Output) -> Result<(), Failure> {
    let mut grid = Grid::new().word("test").number("threads").number("old tok/s").number("±");
    grid = grid.number("new tok/s").number("±").number("ratio").number("from").number("to").word("result");
    let percent = |part: f64| format!("{:.1}%", 100.0 * part);
    for test in &found.tests {
        grid.row([
            format!("{}{}", test.test, if test.metal_icb == Some(true) { " icb" } else { "" }),
            test.threads.to_string(),
            format!("{:.2}", test.old),
            percent(test.old_spread),
            format!("{:.2}", test.new),
            percent(test.new_spread),
            format!("{:.3}", test.ratio),
            format!("{:.3}", test.ratio_min),
            format!("{:.3}", test.ratio_max),
            test.result.words().to_string(),
        ]);
    }
    out.listing(&grid.render(output::width()))?;
    let path = path.display();
    let differences = found.differences.iter().map(|d| format!("{}: {} → {}", d.what, d.old, d.new));
    let only_old = found.only_old.iter().map(|test| format!("only in {path}: {test}"));
    let only_new = found.only_new.iter().map(|test| format!("not in {path}: {test}"));
    let lines: Vec<String> = differences.chain(only_old).chain(only_new).collect();
    if !lines.is_empty() {
        out.text("\n")?;
    }
    lines.iter().try_for_each(|line| out.line(&output::printable(line)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(test: &str, threads: usize, runs: &[f64]) -> serde_json::Value {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        json!({
            "model": "m", "device": "cpu", "detail": "avx2", "threads": threads, "test": test,
            "tok_s": sorted[sorted.len() / 2], "min": sorted[0], "max": sorted[sorted.len() - 1], "runs": runs,
            "bytes_per_token": 100.0, "machine": "here", "kv_type": "f16", "chunk": 256, "version": "1",
        })
    }

    fn rows(rows: &[serde_json::Value]) -> Vec<Measured> {
        parse(&serde_json::to_vec(rows).unwrap()).unwrap()
    }

    #[test]
    fn a_difference_counts_if_no_runs_overlap_and_there_are_enough() {
        let old = rows(&[row("tg8", 1, &[10.0, 11.0, 12.0])]);
        let result = |runs: &[f64]| compare(&old, &rows(&[row("tg8", 1, runs)])).tests[0].result;
        assert_eq!(result(&[13.0, 14.0, 12.5]), Outcome::Faster);
        assert_eq!(result(&[13.0, 14.0, 12.0]), Outcome::WithinSpread);
        assert_eq!(result(&[9.0, 9.5, 9.9]), Outcome::Slower);
        assert_eq!(result(&[5.0, 6.0]), Outcome::TooFewRuns);
        let test = &compare(&old, &rows(&[row("tg8", 1, &[20.0, 22.0, 24.0])])).tests[0];
        assert_eq!((test.ratio, test.ratio_min, test.ratio_max), (2.0, 20.0 / 12.0, 2.4));
        assert_eq!((test.old_spread, test.new_spread), (1.0 / 11.0, 2.0 / 22.0));
    }

    #[test]
    fn tests_without_a_partner_and_other_circumstances_are_listed() {
        let runs = [10.0, 11.0, 12.0];
        let old = [row("pp8", 1, &runs), row("tg8", 1, &runs), row("tg8", 2, &runs)];
        let mut changed = row("tg8", 2, &runs);
        changed["machine"] = json!("there");
        changed["bytes_per_token"] = json!(50.0);
        changed["kv_type"] = json!(null);
        let found = compare(&rows(&old), &rows(&[row("tg8", 1, &runs), changed, row("tg8", 4, &runs)]));
        assert_eq!(found.tests.iter().map(|test| test.threads).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found.only_old, ["pp8, 1 thread"]);
        assert_eq!(found.only_new, ["tg8, 4 threads"]);
        let told: Vec<String> =
            found.differences.iter().map(|d| format!("{}: {} → {}", d.what, d.old, d.new)).collect();
        assert_eq!(
            told,
            ["machine: here → there", "KV cache: f16 → not recorded", "bytes per token of tg8: 100 → 50"]
        );
    }

    #[test]
    fn default_thread_counts_of_two_machines_are_compared_and_said() {
        let runs = [10.0, 11.0, 12.0];
        let found = compare(&rows(&[row("tg8", 2, &runs)]), &rows(&[row("tg8", 8, &runs)]));
        assert_eq!((found.tests.len(), found.differences[0].what.as_str()), (1, "threads"));
    }

    #[test]
    fn other_files_are_refused_by_kind() {
        let refused = |json: &str| parse(json.as_bytes()).unwrap_err();
        assert!(matches!(refused("{"), EarlierError::NotJson(_)));
        assert!(matches!(refused("{}"), EarlierError::NotResults));
        assert!(matches!(refused("[]"), EarlierError::NoRows));
        assert!(matches!(refused("[1]"), EarlierError::Row { number: 1, .. }));
        let mut bad = row("tg8", 1, &[1.0, 2.0, 3.0]);
        bad["min"] = json!(-1.0);
        let both = json!([row("tg8", 1, &[1.0]), bad]).to_string();
        assert!(matches!(refused(&both), EarlierError::Row { number: 2, .. }));
        assert_eq!(
            parse(json!({"results": [row("tg8", 1, &[1.0])]}).to_string().as_bytes()).unwrap().len(),
            1
        );
    }
}
