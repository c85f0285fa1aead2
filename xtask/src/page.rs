//! Tests the chat page in headless Chromium, which is installed if `CI` is set.

use std::process::Command;

use anyhow::Result;

use crate::{installs, run, skipped, succeeds};

const TEST: &str = "crates/akunu-server/page/test.py";
const PROGRAMS: [&str; 3] = ["python3", "chromium", "chromedriver"];
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

pub(crate) fn page() -> Result<()> {
    let there = || PROGRAMS.iter().all(|program| succeeds(&[program, "--version"]));
    let add = [["apt-get", "install", "--yes", "--no-install-recommends"].as_slice(), &PACKAGES].concat();
    if !(there() || (installs() && succeeds(&["apt-get", "update"]) && succeeds(&add) && there())) {
        skipped(
            "the chat page",
            &format!("some of {} are missing; install them with `{}`", PROGRAMS.join(", "), add.join(" ")),
        );
        return Ok(());
    }
    run(Command::new("python3").args(["-B", TEST]))
}
