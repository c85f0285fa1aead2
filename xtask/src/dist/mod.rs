//! Builds the files of a release for this machine's platform, into `target/archives`: archives of the program, of the C
//! library and of debug information, an SBOM, and SHA256SUMS.

mod glibc;
#[cfg(all(test, unix))]
mod install;
mod packages;
mod sbom;
mod templates;
mod third_party;

use std::env::consts::{EXE_SUFFIX, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use templates::packages as fill_templates;

use crate::hash::sha256;
use crate::{capi, cargo, root, run, target};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What the program itself may take: debug information is apart.
const LARGEST_PROGRAM: u64 = 25_000_000;

/// Where completions of each shell are looked for under a prefix.
const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "share/bash-completion/completions/akunu"),
    ("zsh", "share/zsh/site-functions/_akunu"),
    ("fish", "share/fish/vendor_completions.d/akunu.fish"),
    ("powershell", "share/akunu/completions/akunu.ps1"),
];

pub(crate) fn dist(args: &[String]) -> Result<()> {
    ensure!(args.is_empty(), "usage: `cargo xtask dist`");
    let triple = host()?;
    let built = build(&triple)?;
    let out = target().join("archives");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    let name = |what: &str, end: &str| format!("{what}-{VERSION}-{triple}{end}");
    let (program, library, debug) = (name("akunu", ""), name("libakunu", ""), name("akunu", "-debug"));

    let packages = packages::shipped(&triple)?;
    let folder = out.join(&program);
    let binary = place(&built.join(format!("akunu{EXE_SUFFIX}")), &folder.join("bin"))?;
    separate_debug(&binary, &built, &out.join(&debug))?;
    generated(&binary, &folder)?;
    documents(&folder, &packages)?;
    let size = fs::metadata(&binary)?.len();
    say!("akunu: {:.2} MB, stripped", size as f64 / 1e6);

    let folder = out.join(&library);
    capi::install_into(&built, std::env::consts::OS, &folder)?;
    strip_libraries(&folder.join("lib"))?;
    documents(&folder, &packages)?;

    let mut names = Vec::new();
    for folder in [&program, &library, &debug] {
        names.push(archive(&out, folder)?);
    }
    let name = format!("akunu-{VERSION}-{triple}.cdx.json");
    fs::write(out.join(&name), sbom::document(VERSION, &packages)?)?;
    names.push(name);
    let mut sums = String::new();
    for name in &names {
        sums += &format!("{}  {name}\n", sha256(&out.join(name))?);
    }
    fs::write(out.join("SHA256SUMS"), &sums)?;
    try_out(&out, &names[0], &program)?;
    for name in names.iter().map(String::as_str).chain(["SHA256SUMS"]) {
        let path = out.join(name);
        say!("{} ({:.1} MB)", path.display(), fs::metadata(&path)?.len() as f64 / 1e6);
    }
    ensure!(size <= LARGEST_PROGRAM, "akunu has {size} bytes, and may have {LARGEST_PROGRAM}");
    Ok(())
}

fn host() -> Result<String> {
    let output = Command::new("rustc").args(["--print", "host-tuple"]).output()?;
    ensure!(output.status.success(), "rustc does not say which platform this is");
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

/// Builds the program and the C library, and returns the folder with them.
fn build(triple: &str) -> Result<PathBuf> {
    let arguments = |package| ["--profile", "dist", "--locked", "--package", package];
    let built = target().join(triple).join("dist");
    if OS == "linux" {
        glibc::build(triple, &arguments("akunu-cli"), &built.join("akunu"))?;
    } else {
        run(cargo(&["build", "--target", triple]).args(arguments("akunu-cli")))?;
    }
    // With the system's own linker: Zig's does not know how to hide the symbols of other packages.
    run(cargo(&["build", "--target", triple]).args(arguments("akunu-capi")))?;
    if OS == "linux" {
        let needed = glibc::newest(&built.join("libakunu_capi.so"))?;
        say!("libakunu needs glibc {needed}, because this machine's own linker has made it");
    }
    Ok(built)
}

/// Copies a file into a folder.
fn place(from: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let to = folder.join(from.file_name().context("a path has no file name")?);
    fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(to)
}

/// Moves the program's debug information into another folder.
fn separate_debug(binary: &Path, built: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    match OS {
        "linux" => {
            let debug = folder.join("akunu.debug");
            run(Command::new("objcopy").arg("--only-keep-debug").arg(binary).arg(&debug))?;
            run(Command::new("strip").arg(binary))?;
            let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
            link.push(&debug);
            run(Command::new("objcopy").arg(link).arg(binary))
        }
        "macos" => {
            run(Command::new("dsymutil").arg(binary).arg("-o").arg(folder.join("akunu.dSYM")))?;
            run(Command::new("strip").arg(binary))
        }
        "windows" => place(&built.join("akunu.pdb"), folder).map(drop),
        other => bail!("debug information of {other} cannot be separated yet"),
    }
}

fn strip_libraries(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A link would be replaced by a copy, and Windows keeps debug information apart.
        if entry.file_type()?.is_file() && OS != "windows" {
            let flag = if OS == "macos" { "-S" } else { "--strip-debug" };
            run(Command::new("strip").arg(flag).arg(entry.path()))?;
        }
    }
    Ok(())
}

/// Completions and manual pages, which the program itself prints.
fn generated(binary: &Path, folder: &Path) -> Result<()> {
    for (shell, place) in COMPLETIONS {
        let output = Command::new(binary).args(["completions", shell]).output()?;
        ensure!(output.status.success(), "akunu completions {shell} failed: {}", output.status);
        let place = folder.join(place);
        fs::create_dir_all(place.parent().context("a path has no folder")?)?;
        fs::write(place, output.stdout)?;
    }
    run(Command::new(binary).arg("__man").arg(folder.join("share/man/man1")))
}

fn documents(folder: &Path, packages: &[packages::Package]) -> Result<()> {
    let folder = folder.join("share/doc/akunu");
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        place(&root().join(name), &folder)?;
    }
    fs::write(folder.join("THIRD-PARTY.txt"), third_party::document(packages)?)?;
    Ok(())
}

/// Packs a folder, and returns the name of the archive. Where tar can, an archive depends on its content only.
fn archive(out: &Path, folder: &str) -> Result<String> {
    let mut tar = Command::new("tar");
    let name = if OS == "windows" { format!("{folder}.zip") } else { format!("{folder}.tar.gz") };
    if OS == "linux" {
        let date = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output()?;
        let mtime = format!("--mtime=@{}", String::from_utf8(date.stdout)?.trim());
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go-w,a+rX", &mtime]);
        tar.arg("--use-compress-program=gzip -9n");
    }
    tar.args(["-a", "-c", "-f"]).arg(out.join(&name)).arg("-C").arg(out).arg(folder);
    run(&mut tar)?;
    Ok(name)
}

/// Unpacks the archive into an empty folder, and runs what is in it.
fn try_out(out: &Path, archive: &str, folder: &str) -> Result<()> {
    let place = out.join("unpacked");
    fs::create_dir(&place)?;
    run(Command::new("tar").arg("-x").arg("-f").arg(out.join(archive)).arg("-C").arg(&place))?;
    let program = place.join(folder).join("bin").join(format!("akunu{EXE_SUFFIX}"));
    let output =
        Command::new(&program).args(["run", "Once upon a time", "-n", "8", "--temp", "0", "-q"]).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && told.len() > 16, "the unpacked program failed: {told:?}, {output:?}");
    fs::remove_dir_all(place)?;
    say!("unpacked and run: {}", told.trim());
    Ok(())
}
