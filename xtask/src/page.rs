//! Tests the chat page in headless Chromium, which is installed if `CI` is set, also by the rules of axe.

use std::process::Command;

use anyhow::Result;

use crate::clients::npm;
use crate::{installs, root, run, skipped, succeeds, target};

const TEST: &str = "crates/akunu-server/page/test.py";
/// The version of axe.
const PACKAGE: &str = "xtask/page/package.json";
const AXE: &str = "node_modules/axe-core/axe.min.js";
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
    let mut tests = Command::new("python3");
    match npm(&root().join(PACKAGE), target().join("page")) {
        Ok(folder) => drop(tests.env("AXE", folder.join(AXE))),
        Err(missing) => skipped("the rules of axe", &missing),
    }
    run(tests.args(["-B", TEST]))
}
