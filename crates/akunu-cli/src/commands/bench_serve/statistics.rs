//! Statistics of a load test.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::client::ClientError;

/// The result of a request. Times count from when it was due.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Time to the first piece of text.
    pub first: Option<Duration>,
    /// Times between pieces of text.
    pub gaps: Vec<Duration>,
    pub total: Duration,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub finish: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// By nearest rank: the smallest value such that at least this share of the values is not above it. All 0 if there
    /// are no values.
    pub fn of(mut values: Vec<f64>) -> Percentiles {
        values.sort_by(f64::total_cmp);
        let Some(&max) = values.last() else { return Percentiles::default() };
        let count = values.len();
        let at = |percent: usize| values[(count * percent).div_ceil(100).max(1) - 1];
        let mean = values.iter().sum::<f64>() / count as f64;
        Percentiles { mean, p50: at(50), p90: at(90), p99: at(99), max }
    }

    pub fn values(&self) -> [f64; 5] {
        [self.mean, self.p50, self.p90, self.p99, self.max]
    }
}

/// Collects results.
#[derive(Debug, Default)]
pub struct Collector {
    outcomes: Vec<Outcome>,
    errors: BTreeMap<String, usize>,
    /// One of each kind.
    examples: BTreeMap<String, String>,
    running: usize,
    most_at_once: usize,
    late: usize,
}

/// Requests that waited longer than this for a connection count as late.
const LATE: Duration = Duration::from_millis(10);

impl Collector {
    pub fn begin(&mut self, waited: Duration) {
        self.running += 1;
        self.most_at_once = self.most_at_once.max(self.running);
        self.late += usize::from(waited > LATE);
    }

    pub fn end(&mut self, outcome: Result<Outcome, ClientError>) {
        self.running -= 1;
        match outcome {
            Ok(outcome) => self.outcomes.push(outcome),
            Err(error) => {
                *self.errors.entry(error.kind.clone()).or_default() += 1;
                self.examples.entry(error.kind).or_insert(error.detail);
            }
        }
    }

    pub fn report(self, seconds: f64) -> BenchServeReport {
        let done = &self.outcomes;
        let sum = |of: fn(&Outcome) -> u64| done.iter().map(of).sum::<u64>();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let output_tokens = sum(|o| o.output_tokens);
        let mut finish = BTreeMap::new();
        for outcome in done {
            *finish.entry(outcome.finish.clone()).or_default() += 1;
        }
        BenchServeReport {
            completed: done.len(),
            failed: self.errors.values().sum(),
            errors: self.errors,
            examples: self.examples,
            finish,
            late: self.late,
            most_at_once: self.most_at_once,
            seconds,
            prompt_tokens: sum(|o| o.prompt_tokens),
            cached_tokens: sum(|o| o.cached_tokens),
            output_tokens,
            output_tok_s: output_tokens as f64 / seconds,
            requests_s: done.len() as f64 / seconds,
            first_token_ms: Percentiles::of(done.iter().filter_map(|o| o.first).map(millis).collect()),
            between_tokens_ms: Percentiles::of(
                done.iter().flat_map(|o| &o.gaps).copied().map(millis).collect(),
            ),
            total_ms: Percentiles::of(done.iter().map(|o| millis(o.total)).collect()),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct BenchServeReport {
    pub completed: usize,
    pub failed: usize,
    /// By kind.
    pub errors: BTreeMap<String, usize>,
    /// The first message of each kind.
    pub examples: BTreeMap<String, String>,
    /// By reason.
    pub finish: BTreeMap<String, usize>,
    /// Requests that began more than 10 ms after they were due, because no connection or no CPU time was available.
    /// Their times count from when they were due.
    pub late: usize,
    pub most_at_once: usize,
    pub seconds: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub output_tok_s: f64,
    pub requests_s: f64,
    pub first_token_ms: Percentiles,
    /// Times between pieces of text: a piece is a token, unless the server sends several at once.
    pub between_tokens_ms: Percentiles,
    pub total_ms: Percentiles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_observed_values() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred, Percentiles { mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 });
        assert_eq!(Percentiles::of(vec![3.0, 1.0]).values(), [2.0, 1.0, 3.0, 3.0, 3.0]);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn requests_that_waited_for_a_connection_are_late() {
        let mut collector = Collector::default();
        for waited in [0, 10, 11, 500] {
            collector.begin(Duration::from_millis(waited));
        }
        let outcome = Outcome { output_tokens: 6, total: Duration::from_secs(1), ..Outcome::default() };
        collector.end(Ok(outcome));
        collector.end(Err(ClientError::new("timeout", "first")));
        collector.end(Err(ClientError::new("timeout", "second")));
        let report = collector.report(2.0);
        assert_eq!((report.late, report.most_at_once, report.completed, report.failed), (2, 4, 1, 2));
        assert_eq!((report.output_tok_s, report.total_ms.p50), (3.0, 1000.0));
        assert_eq!((report.errors["timeout"], report.examples["timeout"].as_str()), (2, "first"));
    }
}
