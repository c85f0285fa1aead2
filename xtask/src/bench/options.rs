//! Options of `bench cpu`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub(super) const USAGE: &str = "\
cargo xtask bench cpu [OPTIONS]      (or target/release/xtask bench cpu, beside target/release/akunu)
  --models LIST      of smollm2-135m, qwen3-0.6b, tinyllama-1.1b [default: all]
  --types LIST       of Q4_0, Q4_K_M, Q6_K, Q8_0, F16, MLX4 [default: all; MLX4 for qwen3-0.6b only]
  --tests LIST       of speed, depth, batch, threads, shared, load [default: all; all but speed are for Q4_0 only]
  --threads N        [default: one per core]
  --repetitions N    runs of each test [default: 5]
  --quick            two models, Q4_0 and Q4_K_M, 3 runs, speed only
  --cache DIR        folder for the models [default: akunu-bench in the system's temporary folder]
  --json FILE        write machine, date, commit and rows
  --baselines DIR    folder with one file per kind of machine [default: benches/cpu here, or in the repository]
  --baseline         update the file of this kind of machine; rows that were not measured are kept
  --check            fail if a row is slower than the baseline by more than the margin
  --margin PERCENT   [default: 10]
  --commit ID        [default: from git]
Environment: AKUNU (path of akunu), LLAMA_BENCH (path of a llama-bench to compare with), AKUNU_ISA (instruction set).";

pub(super) const MODELS: &[&str] = &["smollm2-135m", "qwen3-0.6b", "tinyllama-1.1b"];
/// MLX4: MLX folders with 4 bits, which llama.cpp does not support.
pub(super) const TYPES: &[&str] = &["Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "F16", MLX];
pub(super) const MLX: &str = "MLX4";
/// The shape of the MLX folders.
pub(super) const MLX_MODEL: &str = "qwen3-0.6b";
pub(super) const TESTS: &[&str] = &["speed", "depth", "batch", "threads", "shared", "load"];

/// The type for all tests except speed.
pub(super) const MAIN_TYPE: &str = "Q4_0";

#[derive(Debug, PartialEq)]
pub(super) struct Options {
    pub(super) models: Vec<String>,
    pub(super) types: Vec<String>,
    pub(super) tests: Vec<String>,
    pub(super) threads: Option<usize>,
    pub(super) repetitions: usize,
    pub(super) cache: PathBuf,
    pub(super) json: Option<PathBuf>,
    pub(super) baselines: PathBuf,
    pub(super) write_baseline: bool,
    pub(super) check: bool,
    /// 0.1 means 10 %.
    pub(super) margin: f64,
    pub(super) commit: Option<String>,
}

impl Options {
    fn new(repository: &Path) -> Options {
        let here = PathBuf::from("benches/cpu");
        Options {
            models: owned(MODELS),
            types: owned(TYPES),
            tests: owned(TESTS),
            threads: None,
            repetitions: 5,
            cache: std::env::temp_dir().join("akunu-bench"),
            json: None,
            baselines: if here.is_dir() { here } else { repository.join("benches/cpu") },
            write_baseline: false,
            check: false,
            margin: 0.1,
            commit: None,
        }
    }

    pub(super) fn parse(args: &[String], repository: &Path) -> Result<Options> {
        let mut options = Options::new(repository);
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().with_context(|| format!("{flag} needs a value\n{USAGE}"));
            match flag.as_str() {
                "--models" => options.models = list(value()?, MODELS)?,
                "--types" => options.types = list(value()?, TYPES)?,
                "--tests" => options.tests = list(value()?, TESTS)?,
                "--threads" => options.threads = Some(number(flag, value()?)?),
                "--repetitions" => options.repetitions = number(flag, value()?)?,
                "--cache" => options.cache = value()?.into(),
                "--json" => options.json = Some(value()?.into()),
                "--baselines" => options.baselines = value()?.into(),
                "--margin" => options.margin = number(flag, value()?)? as f64 / 100.0,
                "--commit" => options.commit = Some(value()?.clone()),
                "--baseline" => options.write_baseline = true,
                "--check" => options.check = true,
                "--quick" => {
                    options.models = owned(&MODELS[..2]);
                    options.types = owned(&TYPES[..2]);
                    options.tests = owned(&TESTS[..1]);
                    options.repetitions = 3;
                }
                _ => bail!("unknown option {flag}\n{USAGE}"),
            }
        }
        Ok(options)
    }

    pub(super) fn tests(&self, name: &str) -> bool {
        self.tests.iter().any(|test| test == name)
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn list(text: &str, known: &[&str]) -> Result<Vec<String>> {
    let find = |name: &str| {
        let found = known.iter().find(|known| known.eq_ignore_ascii_case(name));
        found
            .map(|name| name.to_string())
            .with_context(|| format!("{name} must be one of {}", known.join(", ")))
    };
    text.split(',').map(find).collect()
}

fn number(flag: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => bail!("{flag} must be an integer from 1 to 1024, not {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Options::parse(&args, Path::new("/repository"))
    }

    #[test]
    fn lists_accept_known_names_in_any_case() {
        let options = parse("--models QWEN3-0.6b --types q8_0,F16 --margin 7 --check").unwrap();
        assert_eq!((options.models, options.types), (owned(&["qwen3-0.6b"]), owned(&["Q8_0", "F16"])));
        assert!(options.check && (options.margin - 0.07).abs() < 1e-9);
        let error = parse("--models gpt").unwrap_err().to_string();
        assert!(error.contains("gpt must be one of smollm2-135m"), "{error}");
    }

    #[test]
    fn unknown_or_incomplete_options_print_the_usage() {
        for line in ["--fast", "--json", "--threads"] {
            assert!(parse(line).unwrap_err().to_string().contains("--baselines DIR"), "{line}");
        }
        assert!(parse("--repetitions 0").is_err());
    }
}
