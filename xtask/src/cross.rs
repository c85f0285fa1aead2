//! Other platforms from this one: macOS, iOS and Windows are type-checked, and with many cases the kernels for ARM run under
//! an emulator.
//!
//! Rust's library for a target, the cross linker and the emulator are installed where `CI` is set; elsewhere what is
//! missing is left out, loudly, with the command that brings it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{cargo, installs, run, skipped, succeeds};

/// What of the workspace is for a target.
const ALL: &[&str] = &["--workspace", "--exclude", "akunu-python", "--exclude", "xtask", "--all-targets"];
const ENGINE: &[&str] = &["--package", "akunu"];
/// The crates with code that is compiled for iOS and not for macOS.
const OWN_OF_IOS: &[&str] = &["--package", "akunu-cpu", "--package", "akunu-metal"];
/// The crates with code that only Apple's systems or ARM compile; with what they are built on they are the engine. What Unix
/// compiles of other crates is linted for Linux, and what Linux alone compiles is left out for Windows, too.
const OWN_OF_MACOS: &[&str] =
    &["--package", "akunu", "--package", "akunu-cpu", "--package", "akunu-metal", "--all-targets"];

/// The same without tests (`--all-targets`), of which few have code for a system.
const ALL_BUT_TESTS: &[&str] = ALL.split_at(ALL.len() - 1).0;

/// What is checked with few cases, and with more.
const CHECKED: [(&str, &[&str], &[&str]); 3] = [
    ("aarch64-apple-darwin", OWN_OF_MACOS, ALL),
    ("x86_64-pc-windows-gnu", ALL_BUT_TESTS, ALL),
    ("aarch64-apple-ios", OWN_OF_IOS, ENGINE),
];

const ARM: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];

/// The emulated processors with their tests of `akunu-cpu`: one with every feature that a kernel may need, whose tests compare
/// every instruction set with the scalar one, and one without any of these (a Raspberry Pi 4's), which has to choose plain
/// NEON.
const PROCESSORS: [(&str, &[&str]); 2] =
    [("max", &["same_bits::", "quantised::"]), ("cortex-a72", &["quantised::"])];

pub(crate) fn cross() -> Result<()> {
    let few = std::env::var("AKUNU_TEST_CASES").map_or(true, |cases| ["fewest", "few"].contains(&&*cases));
    for (target, of_few, of_more) in CHECKED {
        let packages = if few { of_few } else { of_more };
        match library(target) {
            Ok(()) => check(target, packages)?,
            Err(missing) => skipped(target, &missing),
        }
    }
    // Compiling all kernels for ARM and running them in an emulator takes as long as half of all tests.
    if few {
        return Ok(());
    }
    if cfg!(target_arch = "aarch64") {
        skipped(EMULATOR, "this processor is such a one: `cargo test` runs its kernels");
        return Ok(());
    }
    match library(ARM).and_then(|()| emulator()) {
        Ok(()) => test_arm(),
        Err(missing) => {
            skipped(ARM, &missing);
            Ok(())
        }
    }
}

/// Lints, for they type-check too. Nothing is linked, so a compiler of C that does nothing will do for the one crate that
/// has C in it.
fn check(target: &str, packages: &[&str]) -> Result<()> {
    say!("clippy for {target}");
    let triple = target.replace('-', "_");
    let mut command = cargo(&["clippy", "--locked", "--target", target]);
    command.args(packages).args(["--", "-D", "warnings"]);
    run(command.env(format!("CC_{triple}"), "true").env(format!("AR_{triple}"), "true"))
}

/// The tests that hold every instruction set to the scalar twin, and its products to goldens, with few cases. The other ways of
/// calling the kernels change no bit on this machine's processor, and are slow in an emulator.
fn test_arm() -> Result<()> {
    for (processor, tests) in PROCESSORS {
        say!("tests for {ARM}, on the emulator's {processor}");
        let test = ["test", "--locked", "--package", "akunu-cpu", "--test", "cpu", "--target", ARM, "--"];
        let mut command = cargo(&test);
        command.args(tests);
        for test in ["any_number_of_threads", "rows_together", "rows_by_picks"] {
            command.args(["--skip", test]);
        }
        command
            .env("AKUNU_TEST_CASES", "few")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                format!("{EMULATOR} -cpu {processor} -L /usr/aarch64-linux-gnu"),
            );
        run(&mut command)?;
    }
    Ok(())
}

/// Rust's library for the target is there, or was brought.
fn library(target: &str) -> Result<(), String> {
    let there = || {
        let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
        output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
    };
    let add = ["rustup", "target", "add", target];
    if there() || (installs() && succeeds(&add) && there()) {
        return Ok(());
    }
    Err(format!("Rust's library for it is missing: `{}`", add.join(" ")))
}

/// The linker and the emulator are there, or were brought.
fn emulator() -> Result<(), String> {
    let there = || [LINKER, EMULATOR].iter().all(|tool| succeeds(&[tool, "--version"]));
    let add = [["apt-get", "install", "--yes", "--no-install-recommends"].as_slice(), &PACKAGES].concat();
    if there() || (installs() && succeeds(&["apt-get", "update"]) && succeeds(&add) && there()) {
        return Ok(());
    }
    Err(format!("{LINKER} or {EMULATOR} is missing: `{}`", add.join(" ")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::root;

    const CONDITIONS: [&str; 4] =
        ["target_vendor", "target_os = \"macos\"", "target_os = \"ios\"", "target_arch"];
    /// The same on the machines that run the tests.
    const EITHER: &str = "any(target_arch = \"x86_64\", target_arch = \"aarch64\")";

    fn sources(folder: PathBuf) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(path) } else { vec![path] }).collect()
    }

    /// `cfg!` does not count: what it decides is compiled everywhere.
    #[test]
    fn what_only_apple_or_arm_compiles_is_in_crates_that_are_linted_for_them() {
        let (mut found, mut linted) = (Vec::new(), 0);
        for path in sources(root().join("crates")) {
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let name = path.strip_prefix(root().join("crates")).unwrap().iter().next().unwrap();
            let is_linted = OWN_OF_MACOS.iter().any(|package| name == *package);
            for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
                let line = line.replace(EITHER, "");
                if line.contains("cfg!(") || !CONDITIONS.iter().any(|condition| line.contains(condition)) {
                    continue;
                }
                match is_linted {
                    true => linted += 1,
                    false => found.push(format!("{}:{}: {line}", path.display(), number + 1)),
                }
            }
        }
        assert!(linted > 20, "{linted}");
        assert!(found.is_empty(), "a crate that is missing in OWN_OF_MACOS:\n{}", found.join("\n"));
    }
}
