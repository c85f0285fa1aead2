//! Linux programs that run with an older glibc than this machine's: Zig links them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, installs, run, skipped, target};

/// That of RHEL 8 and Debian 10, and older than that of Ubuntu 20.04.
const GLIBC: (u32, u32) = (2, 28);

/// Builds a program, and checks which glibc it needs.
pub(super) fn build(triple: &str, arguments: &[&str], program: &Path) -> Result<()> {
    let (major, minor) = GLIBC;
    let Some(mut zigbuild) = zigbuild(arguments)? else {
        let install = "`python3 -m pip install --require-hashes -r xtask/zig.txt --target target/zig`";
        skipped(&format!("glibc {major}.{minor}"), &format!("cargo-zigbuild is missing: {install}"));
        run(cargo(&["build", "--target", triple]).args(arguments))?;
        say!("akunu needs glibc {}", newest(program)?);
        return Ok(());
    };
    run(zigbuild.arg("--target").arg(format!("{triple}.{major}.{minor}")))?;
    let newest = newest(program)?;
    ensure!(numbers(&newest) <= vec![major, minor, u32::MAX], "akunu needs glibc {newest}");
    say!("akunu needs glibc {newest}");
    Ok(())
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

/// The newest version of glibc whose symbols a file needs.
pub(super) fn newest(file: &Path) -> Result<String> {
    let output = Command::new("objdump").arg("-T").arg(file).output()?;
    if !output.status.success() {
        bail!("objdump failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let symbols = String::from_utf8_lossy(&output.stdout);
    newest_of(&symbols).with_context(|| format!("{} needs no glibc", file.display()))
}

fn newest_of(symbols: &str) -> Option<String> {
    let found = symbols.split("GLIBC_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].to_string()
    });
    found.max_by_key(|version| numbers(version))
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let symbols = "0000 DF *UND* 0000 (GLIBC_2.4) a\n0000 DF *UND* 0000 (GLIBC_2.28) b\n\
                       0000 w DF *UND* 0000 (GLIBC_2.2.5) c\n0000 DF *UND* 0000 (GLIBC_2.28) d\n0000 g DF .text x y\n";
        assert_eq!(newest_of(symbols).as_deref(), Some("2.28"));
        assert_eq!(newest_of("0000 g DF .text x y"), None);
    }
}
