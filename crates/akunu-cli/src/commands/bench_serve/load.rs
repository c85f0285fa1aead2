//! Generates requests: random arrivals, or a fixed number of concurrent streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use akunu_format::blocks::Rng;
use serde_json::{Value as Json, json};

use super::client::{ClientError, Server};
use super::statistics::{BenchServeReport, Collector, Outcome};
use crate::failure::Failure;

/// Words of about one token each in most vocabularies.
const WORDS: [&str; 32] = [
    "the", "dog", "ran", "up", "a", "hill", "and", "saw", "big", "red", "ball", "she", "was", "so", "happy",
    "to", "play", "with", "her", "friend", "in", "park", "they", "had", "fun", "all", "day", "then", "he",
    "went", "home", "sun",
];
/// Stack size: these threads only wait and read.
const STACK: usize = 256 << 10;
/// Interval at which Ctrl-C is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Lengths between two inclusive bounds, uniform on a logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub least: usize,
    pub most: usize,
}

impl Lengths {
    fn draw(self, rng: &mut Rng) -> usize {
        let ratio = (self.most + 1) as f64 / self.least as f64;
        let drawn = self.least as f64 * ratio.powf(f64::from(rng.uniform()));
        (drawn as usize).clamp(self.least, self.most)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// A Poisson process with this rate per second, over a limited number of connections.
    Poisson { rate: f64, connections: usize },
    /// Each stream sends the next request when it has received a response.
    Streams(usize),
}

#[derive(Debug)]
pub struct Load {
    pub server: Server,
    pub model: String,
    pub chat: bool,
    pub ignore_eos: bool,
    pub temperature: f64,
    pub arrivals: Arrivals,
    pub requests: Option<usize>,
    pub seconds: Option<Duration>,
    pub prompt: Lengths,
    pub output: Lengths,
    pub seed: u64,
}

/// The sequence of requests, which is the same for the same seed.
struct Schedule<'a> {
    load: &'a Load,
    rng: Rng,
    made: usize,
    /// When the next request is due, relative to the start.
    due: Duration,
}

struct Planned {
    due: Duration,
    body: Json,
}

impl Load {
    /// Sends one request before the measurement, so that the model is loaded and fatal errors are reported immediately.
    pub fn warm_up(&self) -> Result<(), ClientError> {
        let body = self.body("Once upon a time", 1, 0);
        self.ask(&body, Instant::now()).map(drop)
    }

    pub fn run(&self, cancel: &AtomicBool) -> Result<BenchServeReport, Failure> {
        let connections = match self.arrivals {
            Arrivals::Poisson { connections, .. } => connections,
            Arrivals::Streams(streams) => streams,
        };
        let workers = connections.min(self.requests.unwrap_or(usize::MAX));
        let schedule = Schedule { load: self, rng: Rng::new(self.seed), made: 0, due: Duration::ZERO };
        let (schedule, collector) = (Mutex::new(schedule), Mutex::new(Collector::default()));
        let started = Instant::now();
        thread::scope(|scope| {
            for number in 0..workers {
                let work = || self.work(&schedule, &collector, started, cancel);
                let named = thread::Builder::new().name(format!("stream {number}")).stack_size(STACK);
                if let Err(error) = named.spawn_scoped(scope, work) {
                    cancel.store(true, Ordering::Relaxed);
                    return Err(Failure::new(format!(
                        "cannot start a thread for connection {number}: {error}"
                    )));
                }
            }
            Ok(())
        })?;
        let collector = collector.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(collector.report(started.elapsed().as_secs_f64()))
    }

    /// The work of one thread. The thread that holds the schedule waits for the next arrival; the others wait for the
    /// schedule.
    fn work(
        &self,
        schedule: &Mutex<Schedule<'_>>,
        collector: &Mutex<Collector>,
        started: Instant,
        cancel: &AtomicBool,
    ) {
        loop {
            let planned = {
                let mut schedule = schedule.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(planned) = schedule.next(started.elapsed()) else { return };
                if !sleep_until(started + planned.due, cancel) {
                    return;
                }
                planned
            };
            let due = started + planned.due;
            let record = |change: &mut dyn FnMut(&mut Collector)| {
                change(&mut collector.lock().unwrap_or_else(PoisonError::into_inner));
            };
            record(&mut |collector| collector.begin(due.elapsed()));
            let mut outcome = Some(self.ask(&planned.body, due));
            record(&mut |collector| outcome.take().into_iter().for_each(|outcome| collector.end(outcome)));
        }
    }

    fn body(&self, prompt: &str, tokens: usize, seed: u64) -> Json {
        let mut body = json!({
            "model": self.model, "max_tokens": tokens, "temperature": self.temperature, "seed": seed,
            "stream": true, "stream_options": {"include_usage": true},
        });
        match self.chat {
            true => body["messages"] = json!([{"role": "user", "content": prompt}]),
            false => body["prompt"] = json!(prompt),
        }
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        body
    }

    fn ask(&self, body: &Json, due: Instant) -> Result<Outcome, ClientError> {
        let path = if self.chat { "/v1/chat/completions" } else { "/v1/completions" };
        let (mut outcome, mut last, mut pieces) = (Outcome::default(), None, 0);
        self.server.stream(path, body, |event| {
            let choice = &event["choices"][0];
            if text(choice) {
                let now = due.elapsed();
                pieces += 1;
                match last.replace(now) {
                    None => outcome.first = Some(now),
                    Some(before) => outcome.gaps.push(now.saturating_sub(before)),
                }
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                outcome.finish = reason.to_string();
            }
            if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                let count = |value: &Json| value.as_u64().unwrap_or(0);
                outcome.prompt_tokens = count(&usage["prompt_tokens"]);
                outcome.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
                outcome.output_tokens = count(&usage["completion_tokens"]);
            }
            Ok(())
        })?;
        if outcome.finish.is_empty() {
            return Err(ClientError::new("malformed", "the stream gives no finish_reason"));
        }
        if outcome.output_tokens == 0 {
            outcome.output_tokens = pieces;
        }
        outcome.total = due.elapsed();
        Ok(outcome)
    }
}

/// Whether an event contains text.
fn text(choice: &Json) -> bool {
    let delta = &choice["delta"];
    [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]]
        .iter()
        .any(|value| value.as_str().is_some_and(|text| !text.is_empty()))
}

/// Returns false if cancelled.
fn sleep_until(due: Instant, cancel: &AtomicBool) -> bool {
    loop {
        if cancel.load(Ordering::Relaxed) {
            return false;
        }
        match due.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => return true,
            Some(left) => thread::sleep(left.min(POLL_INTERVAL)),
        }
    }
}

impl Schedule<'_> {
    fn next(&mut self, now: Duration) -> Option<Planned> {
        let load = self.load;
        if load.requests.is_some_and(|requests| self.made >= requests) {
            return None;
        }
        match load.arrivals {
            // The gap before the first request is random too.
            Arrivals::Poisson { rate, .. } => {
                let gap = -f64::from(1.0 - self.rng.uniform()).ln() / rate;
                self.due += Duration::try_from_secs_f64(gap).unwrap_or(Duration::MAX / 4);
            }
            Arrivals::Streams(_) => self.due = now,
        }
        if load.seconds.is_some_and(|seconds| self.due >= seconds) {
            return None;
        }
        self.made += 1;
        let words = load.prompt.draw(&mut self.rng);
        let tokens = load.output.draw(&mut self.rng);
        let prompt: Vec<&str> =
            (0..words).map(|_| WORDS[(self.rng.next_u64() % WORDS.len() as u64) as usize]).collect();
        Some(Planned { due: self.due, body: load.body(&prompt.join(" "), tokens, self.made as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(arrivals: Arrivals) -> Load {
        Load {
            server: Server::new("localhost:1", None, Duration::from_secs(1)).unwrap(),
            model: "model".into(),
            chat: false,
            ignore_eos: false,
            temperature: 1.0,
            arrivals,
            requests: Some(4000),
            seconds: None,
            prompt: Lengths { least: 10, most: 1000 },
            output: Lengths { least: 7, most: 7 },
            seed: 3,
        }
    }

    fn planned(load: &Load) -> Vec<Planned> {
        let mut schedule = Schedule { load, rng: Rng::new(load.seed), made: 0, due: Duration::ZERO };
        std::iter::from_fn(|| schedule.next(Duration::ZERO)).collect()
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let planned = planned(&load(Arrivals::Poisson { rate: 50.0, connections: 1 }));
        let due: Vec<f64> = planned.iter().map(|p| p.due.as_secs_f64()).collect();
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // For 4000 exponential gaps: the mean is within 5 standard errors, and the standard deviation is about equal to
        // it.
        assert!((mean * 50.0 - 1.0).abs() < 5.0 / 4000f64.sqrt(), "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn lengths_are_within_bounds_and_log_uniform() {
        let planned = planned(&load(Arrivals::Streams(1)));
        let words = |p: &Planned| p.body["prompt"].as_str().unwrap().split(' ').count();
        assert!(planned.iter().all(|p| (10..=1000).contains(&words(p)) && p.body["max_tokens"] == 7));
        let short = planned.iter().filter(|p| words(p) < 100).count();
        assert!((1800..2200).contains(&short), "{short}");
    }

    #[test]
    fn the_same_seed_gives_the_same_requests() {
        let (one, mut other) = (load(Arrivals::Streams(1)), load(Arrivals::Streams(9)));
        let bodies = |load: &Load| planned(load).into_iter().map(|p| p.body).collect::<Vec<_>>();
        assert_eq!(bodies(&one), bodies(&other));
        other.seed = 4;
        assert_ne!(bodies(&one), bodies(&other));
    }
}
