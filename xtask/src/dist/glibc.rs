//! Linux programs that run with an older glibc than this machine's: Zig links them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::{cargo, installs, run, skipped, target};

/// That of RHEL 8 and Debian 10, and older than that of Ubuntu 20.04.
const GLIBC: (u32, u32) = (2, 28);

/// Builds packages, and returns the folder with what was built.
pub(super) fn build(triple: &str, arguments: &[&str]) -> Result<PathBuf> {
    let (major, minor) = GLIBC;
    let built = target().join(triple).join("dist");
    let Some(mut zigbuild) = zigbuild(arguments)? else {
        let install = "`python3 -m pip install --require-hashes -r xtask/zig.txt --target target/zig`";
        skipped(&format!("glibc {major}.{minor}"), &format!("cargo-zigbuild is missing: {install}"));
        run(cargo(&["build", "--target", triple]).args(arguments))?;
        say!("akunu needs glibc {}", needed(&built.join("akunu"))?.join(", "));
        return Ok(built);
    };
    run(zigbuild.arg("--target").arg(format!("{triple}.{major}.{minor}")))?;
    for file in ["akunu", "libakunu_capi.so", "libakunu.so"] {
        let file = built.join(file);
        if file.is_file() {
            check(&file)?;
        }
    }
    Ok(built)
}

/// `cargo zigbuild`, from `target/zig`, where it is installed if `CI` is set.
fn zigbuild(arguments: &[&str]) -> Result<Option<Command>> {
    let folder = target().join("zig");
    let program = folder.join("bin/cargo-zigbuild");
    if !program.is_file() && installs() {
        let install =
            ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"];
        let mut pip = Command::new("python3");
        run(pip.args(install).args(["--requirement", "xtask/zig.txt", "--target"]).arg(&folder))?;
    }
    if !program.is_file() {
        return Ok(None);
    }
    let mut zigbuild = cargo(&[]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(folder.join("bin")).chain(std::env::split_paths(&path));
    // `cargo zigbuild` finds Zig as a module of Python.
    zigbuild
        .arg("zigbuild")
        .args(arguments)
        .env("PATH", std::env::join_paths(paths)?)
        .env("PYTHONPATH", folder);
    Ok(Some(zigbuild))
}

/// Fails if a program or library needs a newer glibc.
fn check(file: &Path) -> Result<()> {
    let needed = needed(file)?;
    for version in &needed {
        let newest = version.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        ensure!(newest <= vec![GLIBC.0, GLIBC.1, u32::MAX], "{} needs glibc {version}", file.display());
    }
    let newest = needed.last().map_or("none", String::as_str);
    say!("{} needs glibc {newest}", file.file_name().unwrap_or_default().to_string_lossy());
    Ok(())
}

/// The versions of glibc's symbols that a file needs, in their order.
fn needed(file: &Path) -> Result<Vec<String>> {
    let output = Command::new("objdump").arg("-T").arg(file).output()?;
    if !output.status.success() {
        bail!("objdump failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(versions(&String::from_utf8_lossy(&output.stdout)))
}

fn versions(symbols: &str) -> Vec<String> {
    let numbers =
        |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    let found = symbols.split("GLIBC_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        (numbers(&rest[..end]), rest[..end].to_string())
    });
    let sorted: BTreeSet<(Vec<u32>, String)> = found.collect();
    sorted.into_iter().map(|(_, version)| version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_by_their_numbers() {
        let symbols = "0000 DF *UND* 0000 (GLIBC_2.4) a\n0000 DF *UND* 0000 (GLIBC_2.28) b\n\
                       0000 w DF *UND* 0000 (GLIBC_2.2.5) c\n0000 DF *UND* 0000 (GLIBC_2.28) d\n0000 g DF .text x y\n";
        assert_eq!(versions(symbols), ["2.2.5", "2.4", "2.28"]);
    }
}
