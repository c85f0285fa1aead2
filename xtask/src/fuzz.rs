//! Fuzzing with coverage, on stable Rust: LLVM's pass for coverage comes with rustc, and libFuzzer with
//! `libfuzzer-sys`, which compiles it with the system's C++ compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run, target};

/// Counters of edges, a table of their addresses, and hooks for comparisons. One codegen unit: the pass would otherwise
/// count a function that several units have more than once.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// The least counters of a target. libFuzzer's own code has none, and each target calls a parser.
const LEAST_COUNTERS: usize = 1000;

/// Targets that run at the same time.
const PARALLEL: usize = 2;

/// Bytes of a failed target's output that are shown, and of its input.
const SHOWN: usize = 6000;

const HELP: &str = "\
cargo xtask fuzz                   list the targets
cargo xtask fuzz NAME [OPTIONS]    fuzz one for a minute, or as libFuzzer's options say;
                                   with --release optimised, for long runs
cargo xtask fuzz all SECONDS       fuzz each for so long, from the seeds
cargo xtask fuzz check             type-check all of them";

pub fn fuzz(args: &[String]) -> Result<()> {
    let targets = targets()?;
    match args {
        [] => {
            say!("{}", targets.join("\n"));
            Ok(())
        }
        [all, seconds] if all == "all" => {
            let seconds = seconds.parse().with_context(|| format!("{seconds} is not a number\n{HELP}"))?;
            fuzz_all(&targets, seconds)
        }
        [check] if check == "check" => {
            let check = ["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--bins"];
            run(cargo(&check).env("RUSTFLAGS", "--cfg fuzzing").env("CARGO_TARGET_DIR", built()))
        }
        [name, options @ ..] if targets.contains(name) => fuzz_one(name, options),
        [name, ..] => bail!("there is no target {name}\n{HELP}"),
    }
}

/// The files of `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_string));
    }
    names.sort();
    Ok(names)
}

/// With `name`, one target. The corpus that is found is kept in the target folder for the next run.
fn fuzz_one(name: &str, options: &[String]) -> Result<()> {
    let (profiles, options): (Vec<&String>, Vec<&String>) =
        options.iter().partition(|option| *option == "--release");
    let profile = if profiles.is_empty() { "debug" } else { "release" };
    let mut what = vec!["--bin", name];
    what.extend(profiles.iter().map(|option| option.as_str()));
    build(&what)?;
    let run_folder = RunFolder::new(name)?;
    let mut command = fuzzer(name, profile, &folder("corpus", name)?, &run_folder)?;
    if !options.iter().any(|option| option.starts_with("-max_total_time") || option.starts_with("-runs")) {
        command.arg("-max_total_time=60");
    }
    run(command.args(options))
}

fn fuzz_all(targets: &[String], seconds: u32) -> Result<()> {
    build(&["--bins"])?;
    let left = Mutex::new(targets.iter());
    let next = || left.lock().ok().and_then(|mut left| left.next());
    let work = || -> Vec<Result<()>> { std::iter::from_fn(next).map(|name| timed(name, seconds)).collect() };
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        let panicked = |_| vec![Err(anyhow::anyhow!("a thread panicked"))];
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let failed: Vec<String> =
        results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

/// Runs a target from its seeds, with an error if it finds an input that fails.
fn timed(name: &str, seconds: u32) -> Result<()> {
    let run_folder = RunFolder::new(name)?;
    let new = run_folder.0.join("corpus");
    std::fs::create_dir_all(&new)?;
    let mut command = fuzzer(name, "debug", &new, &run_folder)?;
    // The same inputs for every change, as many as the time allows, and time enough for each beside other work.
    let output = command
        .args(["-seed=1", "-timeout=60", "-reduce_inputs=0"])
        .arg(format!("-max_total_time={seconds}"))
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let done = log.lines().rfind(|line| line.starts_with("Done ")).unwrap_or("no summary");
    if output.status.success() {
        say!("{name}: {done}");
        return Ok(());
    }
    let mut report = format!("{name}: {}\n{}", output.status, tail(&log));
    for line in log.lines() {
        if let Some(path) = line.split("Test unit written to ").nth(1)
            && let Ok(input) = std::fs::read(path)
        {
            report += &format!("\n{path}, {} bytes, in base64:\n{}", input.len(), base64(&input));
        }
    }
    bail!(report)
}

fn tail(log: &str) -> &str {
    let start = log.len().saturating_sub(SHOWN);
    &log[log.ceil_char_boundary(start)..]
}

/// Builds targets into a folder of their own, because the flags would otherwise cause rebuilds.
fn build(what: &[&str]) -> Result<()> {
    let mut command =
        cargo(&["build", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", &host()?]);
    run(command.args(what).env("RUSTFLAGS", INSTRUMENTED).env("CARGO_TARGET_DIR", built()))
        .context("fuzz targets need a C++ compiler, by which libFuzzer is compiled")
}

fn built() -> PathBuf {
    target().join("fuzz")
}

/// With `--target`, cargo does not instrument build scripts and macros.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc did not print its host")?.to_string())
}

/// A folder of a target that is kept.
fn folder(kind: &str, name: &str) -> Result<PathBuf> {
    let folder = built().join(kind).join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The command that runs a target, once it is known to be instrumented.
fn fuzzer(name: &str, profile: &str, corpus: &Path, run_folder: &RunFolder) -> Result<Command> {
    let program = built().join(host()?).join(profile).join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(&program).arg("-runs=0").env("TMPDIR", &run_folder.0).output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let counters = counters(&log).unwrap_or(0);
    if counters < LEAST_COUNTERS {
        bail!(
            "{name} has {counters} counters of coverage: this compiler does not instrument\n{}",
            tail(&log)
        );
    }
    let mut command = Command::new(program);
    command.env("TMPDIR", &run_folder.0).stdin(Stdio::null());
    command.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/", folder("artifacts", name)?.display()));
    let dictionary = root().join(format!("fuzz/dictionaries/{name}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    command.arg(corpus);
    let seeds = root().join("fuzz/seeds").join(name);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    Ok(command)
}

/// From `INFO: Loaded 1 modules   (6537 inline 8-bit counters)`.
fn counters(log: &str) -> Option<usize> {
    let line = log.lines().find(|line| line.starts_with("INFO: Loaded 1 modules"))?;
    line.split_once('(')?.1.split_once(" inline 8-bit counters")?.0.parse().ok()
}

/// Temporary files of one run, in memory where the system has a folder for it; removed when dropped.
struct RunFolder(PathBuf);

impl RunFolder {
    fn new(name: &str) -> Result<RunFolder> {
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let folder = parent.join(format!("akunu-fuzz-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(RunFolder(folder))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648.
    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn counters_are_read_from_the_log() {
        let line =
            "INFO: Loaded 1 modules   (6537 inline 8-bit counters): 6537 [0x55ab6d055be8, 0x55ab6d057571), ";
        assert_eq!(counters(line), Some(6537));
        assert_eq!(counters("INFO: A corpus is not provided"), None);
    }
}
