//! A measured row, and the file that stores rows.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) model: String,
    #[serde(rename = "type")]
    pub(super) quant: String,
    pub(super) threads: usize,
    /// `tg128`, `pp512`, `tg128@d4096`, `tg32@b16`, `first_token`, `own_memory`.
    pub(super) test: String,
    pub(super) unit: Unit,
    /// Median.
    pub(super) value: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Fraction of the machine's ceilings for memory bandwidth and multiplication, which are measured in the same run.
    pub(super) of_ceiling: Option<f64>,
    pub(super) read_gb_s: Option<f64>,
    pub(super) int8_gop_s: Option<f64>,
    pub(super) f32_gop_s: Option<f64>,
    /// llama-bench's median, measured alternately.
    pub(super) peer: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "tok/s")]
    TokensPerSecond,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "MB")]
    Megabytes,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::TokensPerSecond => "tok/s",
            Unit::Milliseconds => "ms",
            Unit::Megabytes => "MB",
        }
    }
}

impl Row {
    pub(super) fn is_same_test(&self, other: &Row) -> bool {
        let key = |row: &Row| (row.model.clone(), row.quant.clone(), row.threads, row.test.clone());
        key(self) == key(other)
    }

    /// The ratio by which this is better than `other`.
    pub(super) fn against(&self, other: &Row) -> f64 {
        match self.unit {
            Unit::TokensPerSecond => self.value / other.value,
            Unit::Milliseconds | Unit::Megabytes => other.value / self.value,
        }
    }

    /// Whether this is worse than `before` by more than the margin and not because of a slower machine: if both rows
    /// have ceilings, their fraction must be worse too.
    pub(super) fn is_worse(&self, before: &Row, margin: f64) -> bool {
        let ceilings = self.of_ceiling.zip(before.of_ceiling).map_or(0.0, |(now, then)| now / then);
        self.against(before).max(ceilings) < 1.0 - margin
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The name of its baseline.
    pub(super) kind: String,
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) isa: String,
    pub(super) features: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// Date of the last update.
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn read(path: &Path) -> Result<Option<Report>> {
        match fs::read(path) {
            Ok(bytes) => {
                let report = serde_json::from_slice(&bytes);
                Ok(Some(report.with_context(|| format!("{} is not a report of bench cpu", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn row(&self, like: &Row) -> Option<&Row> {
        self.rows.iter().find(|row| row.is_same_test(like))
    }

    /// Replaces rows by those of a newer report.
    pub(super) fn update(&mut self, newer: Report) {
        let mut rows = std::mem::take(&mut self.rows);
        rows.retain(|row| newer.row(row).is_none());
        let Report { machine, date, commit, rows: new } = newer;
        rows.extend(new);
        rows.sort_by(|a, b| {
            (&a.model, &a.quant, &a.test, a.threads).cmp(&(&b.model, &b.quant, &b.test, b.threads))
        });
        *self = Report { machine, date, commit, rows };
    }
}

/// `AMD EPYC (family 26, model 2)`, 2 cores, avx512: `amd-epyc-family-26-model-2-2-cores-avx512`.
pub(super) fn kind(cpu: &str, cores: usize, isa: &str) -> String {
    let cpu = cpu.to_lowercase().replace("(r)", "").replace("(tm)", "");
    let words: Vec<&str> =
        cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let plural = if cores == 1 { "" } else { "s" };
    format!("{}-{cores}-core{plural}-{isa}", words.join("-"))
}

pub(super) fn median_min_max(runs: &[f64]) -> (f64, f64, f64) {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => (0.0, 0.0, 0.0),
        all => {
            let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
            ((low + high) / 2.0, all[0], all[all.len() - 1])
        }
    }
}

/// `2026-11-21`, in UTC.
pub(super) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// The date of a number of days since 1970.
fn date(mut days: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn row(test: &str, unit: Unit, value: f64, of_ceiling: Option<f64>) -> Row {
        Row {
            model: "m".into(),
            quant: "Q4_0".into(),
            threads: 2,
            test: test.into(),
            unit,
            value,
            min: value,
            max: value,
            of_ceiling,
            read_gb_s: None,
            int8_gop_s: None,
            f32_gop_s: None,
            peer: None,
        }
    }

    #[test]
    fn more_tokens_are_better_and_more_time_is_worse() {
        let speed = |value| row("tg128", Unit::TokensPerSecond, value, None);
        assert!(speed(89.0).is_worse(&speed(100.0), 0.1) && !speed(91.0).is_worse(&speed(100.0), 0.1));
        let time = |value| row("first_token", Unit::Milliseconds, value, None);
        assert!(time(120.0).is_worse(&time(100.0), 0.1) && !time(80.0).is_worse(&time(100.0), 0.1));
    }

    #[test]
    fn a_slower_machine_is_not_a_slower_engine() {
        let speed = |value, of| row("tg128", Unit::TokensPerSecond, value, Some(of));
        assert!(!speed(50.0, 0.8).is_worse(&speed(100.0, 0.8), 0.1));
        assert!(speed(50.0, 0.6).is_worse(&speed(100.0, 0.8), 0.1));
        assert!(!speed(100.0, 0.6).is_worse(&speed(100.0, 0.8), 0.1));
    }

    #[test]
    fn a_baseline_keeps_rows_that_were_not_measured() {
        let report = |rows| Report {
            machine: Machine {
                kind: "k".into(),
                cpu: "c".into(),
                cores: 2,
                isa: "i".into(),
                features: vec![],
            },
            date: "d".into(),
            commit: "c".into(),
            rows,
        };
        let speed = |test: &str, value| row(test, Unit::TokensPerSecond, value, None);
        let mut baseline = report(vec![speed("pp512", 1.0), speed("tg128", 2.0)]);
        baseline.update(report(vec![speed("tg128", 3.0), speed("tg32@b16", 4.0)]));
        let values: Vec<(&str, f64)> = baseline.rows.iter().map(|r| (r.test.as_str(), r.value)).collect();
        assert_eq!(values, [("pp512", 1.0), ("tg128", 3.0), ("tg32@b16", 4.0)]);
        let text = serde_json::to_string(&baseline).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap().rows, baseline.rows);
    }

    #[test]
    fn names_of_machines_and_dates() {
        assert_eq!(
            kind("Intel(R) Xeon(R) Processor @ 2.10GHz", 2, "amx"),
            "intel-xeon-processor-2-10ghz-2-cores-amx"
        );
        assert_eq!(
            [0, 59, 11_016, 20_778].map(date),
            ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-21"]
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median_min_max(&[4.0, 1.0, 3.0]), (3.0, 1.0, 4.0));
        assert_eq!(median_min_max(&[4.0, 1.0, 3.0, 2.0]), (2.5, 1.0, 4.0));
    }
}
