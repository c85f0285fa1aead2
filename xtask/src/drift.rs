//! Generated files that are checked in.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{cargo, root};

/// (file, arguments of `akunu` that print it)
const GENERATED: &[(&str, &[&str])] = &[("docs/cli.md", &["__markdown"])];

pub(crate) fn generate() -> Result<()> {
    for (file, args) in GENERATED {
        let text = produce(args)?;
        fs::write(root().join(file), text).with_context(|| format!("writing {file}"))?;
        println!("wrote {file}");
    }
    Ok(())
}

pub(crate) fn check() -> Result<()> {
    for (file, args) in GENERATED {
        let there = fs::read_to_string(root().join(file)).with_context(|| format!("reading {file}"))?;
        if there != produce(args)? {
            bail!("{file} is out of date; run `cargo xtask gen` and commit it");
        }
        println!("{file} is up to date");
    }
    Ok(())
}

fn produce(args: &[&str]) -> Result<String> {
    let output = cargo(&["run", "--quiet", "-p", "akunu-cli", "--"]).args(args).output()?;
    if !output.status.success() {
        bail!("akunu {args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
