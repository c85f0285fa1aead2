//! `cargo xtask dynamo`: the worker for NVIDIA Dynamo (`dynamo/`), a workspace of its own: its tests, among them those of
//! Dynamo for backends, and the worker behind Dynamo's frontend of PyPI.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::clients::{python_command, python_with};
use crate::{cargo, deny, root, run, skipped, succeeds, target};

const MANIFEST: [&str; 2] = ["--manifest-path", "dynamo/Cargo.toml"];

pub(crate) fn dynamo() -> Result<()> {
    if !cfg!(target_os = "linux") || !(env::var_os("PROTOC").is_some() || succeeds(&["protoc", "--version"]))
    {
        skipped(
            "the worker for Dynamo",
            "it needs Linux and `apt-get install protobuf-compiler libclang-dev`",
        );
        return Ok(());
    }
    run(cargo(&["fmt", "--check"]).args(MANIFEST))?;
    deny::check(MANIFEST[1], &[], &["licenses", "sources"])?;
    for (task, then) in [("clippy", &["--all-targets", "--", "-D", "warnings"][..]), ("test", &[])] {
        run(in_workspace(task).args(then))?;
    }
    let folder = root().join("xtask/dynamo");
    let python = match python_with(&folder.join("requirements.txt"), &target().join("dynamo-frontend/python"))
    {
        Ok(python) => python,
        Err(missing) => {
            skipped("the frontend of Dynamo", &missing);
            return Ok(());
        }
    };
    run(in_workspace("build").args(["--bins", "--examples"]))?;
    let logs = target().join("dynamo-frontend/logs");
    fs::create_dir_all(&logs)?;
    let mut test = python_command(&python);
    test.args(["-W", "ignore"]).arg(folder.join("frontend_test.py"));
    test.env("PYTHONPATH", root().join("xtask/routers")).env("AKUNU_LOGS", &logs);
    test.env("AKUNU_DYNAMO", built().join("debug/akunu-dynamo"));
    test.env("AKUNU_EXPECTED", built().join("debug/examples/expected"));
    run(test.env("NO_PROXY", "*").env("no_proxy", "*"))
}

fn built() -> PathBuf {
    target().join("dynamo")
}

/// With a flag that Dynamo's crates need, which cargo reads by itself only in that folder.
fn in_workspace(task: &str) -> Command {
    let mut command = cargo(&[task, "--locked", "--config", "dynamo/.cargo/config.toml"]);
    command.args(MANIFEST).env("CARGO_TARGET_DIR", built()).env_remove("RUSTFLAGS");
    command
}
