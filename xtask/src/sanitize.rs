//! The tests of unsafe code in Miri, and with the sanitizers for addresses and threads. `docs/testing.md` says what they
//! cover and how long they take.
//!
//! What they need and is missing is skipped, with the command that installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{cargo, clean, run, skipped, succeeds, target};

const TOOLCHAIN: &str = "nightly";
const HOST: &str = "x86_64-unknown-linux-gnu";

/// What Miri runs: arguments for cargo, and for the test program. It does not map files, generated cases take hours there,
/// and its floats differ from the library's in the last digits.
const MIRI: [(&[&str], &[&str]); 4] = [
    (&["-p", "akunu-pool", "--lib"], &[]),
    (&["-p", "akunu-plan", "--lib"], &["--skip", "random", "--skip", "the_library"]),
    (
        &["-p", "akunu-format", "--lib"],
        &["--skip", "random", "--skip", "rounding", "--skip", "a_file", "--skip", "the_standard_library"],
    ),
    (&["-p", "akunu-cpu", "--test", "cpu"], &["small::", "reference::"]),
];

/// Tests of the C API that load the library into programs without the sanitizer's runtime, or use their own.
const NOT_SANITIZED: [&str; 4] = ["python", "valgrind", "address_sanitizer", "the_static_library"];

pub(crate) fn sanitize(args: &[String]) -> Result<()> {
    match args {
        [] => {
            miri()?;
            address()?;
            thread()
        }
        [name] if name == "miri" => miri(),
        [name] if name == "address" => address(),
        [name] if name == "thread" => thread(),
        _ => bail!("usage: `cargo xtask sanitize [miri | address | thread]`"),
    }
}

fn miri() -> Result<()> {
    let components = ["miri", "rust-src"];
    if !components.iter().all(|component| has(component)) {
        skipped("Miri", &bring(&components));
        return Ok(());
    }
    for (arguments, tests) in MIRI {
        say!("Miri: {} {}", arguments.join(" "), tests.join(" "));
        let mut command = nightly(&["miri", "test", "--locked"]);
        command.args(arguments).arg("--").args(tests);
        // The clock and the number of processors.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("CARGO_TARGET_DIR", folder("miri"));
        run(&mut command)?;
    }
    Ok(())
}

/// Rust's own compiler can do it: the standard library need not be instrumented.
fn address() -> Result<()> {
    if !is_supported("address") {
        return Ok(());
    }
    run(&mut sanitized(cargo(&["test"]), "address", &["-p", "akunu-pool", "--lib"])?)?;
    programs(cargo(&["test"]), "address", "")
}

/// The C API's programs, compiled with a sanitizer as the library is, and with more arguments of the compiler.
fn programs(command: Command, sanitizer: &str, link: &str) -> Result<()> {
    if !succeeds(&["cc", "--version"]) {
        skipped("the C API's programs", "there is no C compiler (cc)");
        return Ok(());
    }
    let compilers = [("CC", compiler("cc", sanitizer, link)?), ("CXX", compiler("c++", sanitizer, link)?)];
    let mut programs = sanitized(command, sanitizer, &["-p", "akunu-capi", "--test", "capi", "--"])?;
    // One after the other, because grammars have a time within which they must be compiled.
    programs.arg("--test-threads=1");
    programs.args(NOT_SANITIZED.iter().flat_map(|test| ["--skip", test])).envs(compilers);
    run(&mut programs)
}

/// Accesses in the standard library have to be seen too, so it is compiled again.
fn thread() -> Result<()> {
    if !is_supported("thread") {
        return Ok(());
    }
    if !has("rust-src") {
        skipped("the sanitizer for threads", &bring(&["rust-src"]));
        return Ok(());
    }
    // Optimised as tests are: compiling takes longer, and kernels that are not run ten times as long.
    let library = || nightly(&["test", "-Zbuild-std"]);
    run(&mut sanitized(library(), "thread", &["-p", "akunu-pool", "--lib"])?)?;
    programs(library(), "thread", &rust_runtime()?)
}

/// Arguments that link programs with Rust's own runtime of the sanitizer for threads: that of an older C compiler lacks
/// functions that Rust's compiler calls.
fn rust_runtime() -> Result<String> {
    let output = nightly_tool("rustc").args(["--print", "target-libdir"]).output()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let runtime = folder.join("librustc-nightly_rt.tsan.a");
    if !runtime.is_file() {
        bail!("the nightly toolchain has no {}", runtime.display());
    }
    Ok(format!(
        "-nodefaultlibs -rdynamic -Wl,--whole-archive {} -Wl,--no-whole-archive -lstdc++ -lpthread -ldl -lm -lrt \
         -lresolv -lc -lgcc_s -lgcc",
        runtime.display()
    ))
}

fn is_supported(name: &str) -> bool {
    let supported = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    if !supported {
        skipped(&format!("the sanitizer for {name}"), "it runs on Linux on x86-64 only");
    }
    supported
}

/// Adds a sanitizer and a target folder of its own to a `cargo test`. With a target, macros and build scripts are compiled
/// without it.
fn sanitized(mut command: Command, name: &str, arguments: &[&str]) -> Result<Command> {
    say!("sanitizer: {name}, {}", arguments.join(" "));
    command.args(["--locked", "--target", HOST]).args(arguments).env("CARGO_TARGET_DIR", folder(name));
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    // For build scripts, before `CC`.
    command.env(format!("CC_{}", HOST.replace('-', "_")), "cc");
    Ok(command)
}

/// A C compiler that links the sanitizer's runtime, which the library needs too.
fn compiler(name: &str, sanitizer: &str, link: &str) -> Result<PathBuf> {
    let path = folder("compilers").join(format!("{name}-{sanitizer}"));
    fs::create_dir_all(folder("compilers"))?;
    fs::write(&path, format!("#!/bin/sh\nexec {name} -fsanitize={sanitizer} \"$@\" {link}\n"))?;
    executable(&path)?;
    Ok(path)
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_path: &Path) -> Result<()> {
    Ok(())
}

/// Whether a component of the nightly toolchain is installed.
fn has(component: &str) -> bool {
    let output = Command::new("rustup").args(["component", "list", "--toolchain", TOOLCHAIN]).output();
    let listed =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    listed.lines().any(|line| line.starts_with(component) && line.ends_with("(installed)"))
}

fn bring(components: &[&str]) -> String {
    let components = components.join(" ");
    format!("install it with `rustup toolchain install {TOOLCHAIN} --component {components}`")
}

fn nightly(args: &[&str]) -> Command {
    let mut command = nightly_tool("cargo");
    command.args(args);
    clean(&mut command);
    command
}

fn nightly_tool(name: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN, name]);
    command
}

fn folder(name: &str) -> PathBuf {
    target().join("sanitize").join(name)
}
