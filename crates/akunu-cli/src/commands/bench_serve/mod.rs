//! `akunu bench-serve`: load tests of a server.

mod client;
mod load;
mod statistics;

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use self::client::{ClientError, Server};
use self::load::{Arrivals, Lengths, Load};
use self::statistics::BenchServeReport;
use crate::args;
use crate::failure::Failure;
use crate::grid::{Grid, grouped};
use crate::interrupt;
use crate::output::{self, Output};

/// Measures a server under load: time to first token, time between tokens, tokens per second
///
/// Works with any server that implements OpenAI's protocol over plain HTTP. Requests arrive at random (--rate: a
/// Poisson process, regardless of the server's speed), or each of --streams sends its next request after a response.
/// Times count from when a request was due, including the wait for a free connection. One uncounted request is sent
/// first. Exits with 1 if a request failed.
#[derive(Debug, Args)]
pub struct BenchServeArgs {
    /// Server URL: http://127.0.0.1:8080
    url: String,
    /// Model name [default: the first that the server lists]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// Average requests per second
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = positive, conflicts_with = "streams")]
    rate: f64,
    /// Concurrent requests, instead of a rate
    #[arg(short, long, value_name = "N", value_parser = connections)]
    streams: Option<usize>,
    /// Maximum connections for --rate; further requests wait
    #[arg(long, value_name = "N", default_value = "256", value_parser = connections, conflicts_with = "streams")]
    concurrency: usize,
    /// Number of requests [default: 100, unless --seconds is given]
    #[arg(short = 'n', long, value_name = "N", value_parser = args::count)]
    requests: Option<usize>,
    /// Duration; running requests are completed
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Words per prompt: a number, or MIN..MAX for random lengths
    #[arg(short, long, value_name = "WORDS", default_value = "16..128", value_parser = lengths)]
    prompt: Lengths,
    /// Maximum tokens per answer: a number, or MIN..MAX
    #[arg(short, long, value_name = "TOKENS", default_value = "16..128", value_parser = lengths)]
    output: Lengths,
    /// Requests chat completions
    #[arg(long)]
    chat: bool,
    /// Requests answers of maximum length, from servers that support `ignore_eos`
    #[arg(long)]
    ignore_eos: bool,
    /// Temperature
    #[arg(long, value_name = "T", default_value = "0.8", value_parser = temperature)]
    temp: f64,
    /// Seed of the random arrivals, prompts and lengths
    #[arg(long, default_value = "0")]
    seed: u64,
    /// API key of the server [default: $AKUNU_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Timeout of a request without received data, in seconds
    #[arg(long, value_name = "S", default_value = "600", value_parser = positive)]
    timeout: f64,
    /// Prints a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    url: &'a str,
    model: &'a str,
    /// Requests per second, for random arrivals.
    rate: Option<f64>,
    streams: Option<usize>,
    #[serde(flatten)]
    report: &'a BenchServeReport,
}

pub fn run(args: &BenchServeArgs, out: &mut Output) -> Result<(), Failure> {
    let key = args.api_key.clone().or_else(crate::environment::api_key);
    let server = Server::new(&args.url, key, Duration::from_secs_f64(args.timeout))
        .map_err(|reason| Failure::usage(format!("{}: {reason}", args.url)).hint("http://HOST:PORT"))?;
    let refused = |error: ClientError| {
        Failure::new(format!("{}: {}: {}", args.url, error.kind, error.detail)).hint(
            "check that the server is running, that it has the model, and whether it needs a key (--api-key)",
        )
    };
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(&server).map_err(refused)?,
    };
    let load = args.load(server, model);
    load.warm_up().map_err(refused)?;
    let report = load.run(&interrupt::flag())?;
    if args.json {
        let rate = args.streams.is_none().then_some(args.rate);
        let (url, model) = (args.url.as_str(), load.model.as_str());
        out.json(&Shown { url, model, rate, streams: args.streams, report: &report })?;
    } else {
        print(&load, &args.url, &report, out)?;
    }
    if report.failed > 0 { Err(Failure::Reported) } else { Ok(()) }
}

impl BenchServeArgs {
    fn load(&self, server: Server, model: String) -> Load {
        let connections = self.concurrency;
        Load {
            server,
            model,
            chat: self.chat,
            ignore_eos: self.ignore_eos,
            temperature: self.temp,
            arrivals: self
                .streams
                .map_or(Arrivals::Poisson { rate: self.rate, connections }, Arrivals::Streams),
            requests: self.requests.or(self.seconds.is_none().then_some(100)),
            seconds: self.seconds.map(Duration::from_secs_f64),
            prompt: self.prompt,
            output: self.output,
            seed: self.seed,
        }
    }
}

fn first_model(server: &Server) -> Result<String, ClientError> {
    let models = server.get("/v1/models")?;
    let first = models["data"][0]["id"].as_str();
    first.map(str::to_string).ok_or_else(|| ClientError::new("malformed", "the server lists no model"))
}

fn print(load: &Load, url: &str, report: &BenchServeReport, out: &mut Output) -> Result<(), Failure> {
    let arrivals = match load.arrivals {
        Arrivals::Poisson { rate, .. } => format!("{rate} requests/s on average"),
        Arrivals::Streams(streams) => format!("{streams} at once"),
    };
    out.line(&format!("{} at {url}, {arrivals}, {:.1} s", load.model, report.seconds))?;
    let ends: Vec<String> = report.finish.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let late = if report.late > 0 { format!(", {} late", report.late) } else { String::new() };
    out.line(&format!(
        "requests: {} completed ({}), {} failed, at most {} concurrent{late}; {:.2}/s",
        report.completed,
        ends.join(", "),
        report.failed,
        report.most_at_once,
        report.requests_s
    ))?;
    for (kind, count) in &report.errors {
        let example = report.examples.get(kind).map_or("", String::as_str);
        out.line(&format!("  {count} {kind}: {example}"))?;
    }
    out.line(&format!(
        "tokens: {} in ({} from the cache), {} out; {:.1} tok/s out\n",
        grouped(report.prompt_tokens),
        grouped(report.cached_tokens),
        grouped(report.output_tokens),
        report.output_tok_s
    ))?;
    let mut grid =
        Grid::new().word("ms").number("mean").number("p50").number("p90").number("p99").number("max");
    for (name, percentiles) in [
        ("first token", &report.first_token_ms),
        ("between tokens", &report.between_tokens_ms),
        ("whole answer", &report.total_ms),
    ] {
        let [mean, p50, p90, p99, max] = percentiles.values().map(|value| format!("{value:.1}"));
        grid.row([name.to_string(), mean, p50, p90, p99, max]);
    }
    out.listing(&grid.render(output::width()))
}

fn positive(text: &str) -> Result<f64, String> {
    const MAX: f64 = 1e6;
    let number = text.parse().ok().filter(|number| (1e-6..=MAX).contains(number));
    number.ok_or_else(|| format!("it must be a number above 0 and at most {MAX}"))
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 100".to_string())
}

fn connections(text: &str) -> Result<usize, String> {
    const MAX: usize = 4096;
    let number = args::count(text).ok().filter(|&number| number <= MAX);
    number.ok_or_else(|| format!("it must be an integer from 1 to {MAX}"))
}

fn lengths(text: &str) -> Result<Lengths, String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    match (args::count(least), args::count(most)) {
        (Ok(least), Ok(most)) if least <= most && most <= 1 << 24 => Ok(Lengths { least, most }),
        _ => Err("it must be a positive integer, or a range such as 16..128".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_one_number_or_two() {
        assert_eq!(lengths("7"), Ok(Lengths { least: 7, most: 7 }));
        assert_eq!(lengths("1..16"), Ok(Lengths { least: 1, most: 16 }));
        for text in ["", "0", "5..4", "1..", "..3", "1..2..3", "0..4", "x"] {
            assert!(lengths(text).is_err(), "{text}");
        }
    }
}
