//! Generates the C API's header with cbindgen, and installs the library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run, skipped, target};

/// The header depends on the version of cbindgen.
const CBINDGEN: &str = "0.29.4";

const CRATE: &str = "crates/akunu-capi";

/// Fails if the header is out of date. `cargo xtask gen` writes it.
pub(crate) fn check() -> Result<()> {
    let Some(made) = header()? else { return Ok(()) };
    if fs::read_to_string(header_path())? != made {
        bail!("{CRATE}/include/akunu.h does not match the crate: run `cargo xtask gen`");
    }
    say!("akunu.h matches the crate");
    Ok(())
}

pub(crate) fn write() -> Result<()> {
    if let Some(made) = header()? {
        fs::write(header_path(), made)?;
    }
    Ok(())
}

/// Builds the libraries, and installs them with the header and the pkg-config file under a folder.
pub(crate) fn install(args: &[String]) -> Result<()> {
    let [prefix] = args else { bail!("usage: `cargo xtask capi DIR`") };
    run(&mut cargo(&["build", "--release", "--locked", "-p", "akunu-capi"]))?;
    let prefix = std::path::absolute(prefix)?;
    place(&prefix, &target().join("release"))?;
    let pkgconfig = prefix.join("lib/pkgconfig");
    say!("installed under {}: set PKG_CONFIG_PATH={}", prefix.display(), pkgconfig.display());
    Ok(())
}

/// Copies the libraries that were built into a folder, the header and the pkg-config file under a prefix.
pub(crate) fn place(prefix: &Path, built: &Path) -> Result<()> {
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let pkgconfig = lib.join("pkgconfig");
    for folder in [&include, &pkgconfig] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::copy(header_path(), include.join("akunu.h"))?;
    let template = fs::read_to_string(root().join(CRATE).join("akunu.pc.in"))?;
    let filled = template
        // Relative to the file, so that the folder can be moved.
        .replace("@PREFIX@", "${pcfiledir}/../..")
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(pkgconfig.join("akunu.pc"), filled)?;
    let mut found = 0;
    for name in
        ["libakunu_capi.so", "libakunu_capi.dylib", "akunu_capi.dll", "libakunu_capi.a", "akunu_capi.lib"]
    {
        let built = built.join(name);
        if built.is_file() {
            fs::copy(built, lib.join(name))?;
            found += 1;
        }
    }
    if found == 0 {
        bail!("no library was built");
    }
    Ok(())
}

fn header_path() -> PathBuf {
    root().join(CRATE).join("include/akunu.h")
}

/// The generated header; `None`, with a message, if cbindgen is missing.
fn header() -> Result<Option<String>> {
    let Some(cbindgen) = cbindgen() else {
        let install = format!("`cargo install cbindgen --version {CBINDGEN} --locked`");
        skipped("akunu.h", &format!("cbindgen {CBINDGEN} is missing: {install}"));
        return Ok(None);
    };
    let crate_folder = root().join(CRATE);
    let output = Command::new(cbindgen)
        .args(["--quiet", "--config"])
        .arg(crate_folder.join("cbindgen.toml"))
        .arg(&crate_folder)
        .output()?;
    if !output.status.success() {
        bail!("cbindgen failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Some(String::from_utf8(output.stdout)?))
}

/// On the path, or in the target folder, where it is installed if `CI` is set.
fn cbindgen() -> Option<PathBuf> {
    let tools = target().join("tools");
    let own = tools.join("bin").join(format!("cbindgen{}", env::consts::EXE_SUFFIX));
    let there = || [PathBuf::from("cbindgen"), own.clone()].into_iter().find(|path| is_cbindgen(path));
    if let Some(found) = there() {
        return Some(found);
    }
    env::var_os("CI")?;
    // It runs for a second only, so an optimised build would take longer.
    let install = ["install", "cbindgen", "--version", CBINDGEN, "--locked", "--debug", "--root"];
    cargo(&install).arg(tools).status().ok()?;
    there()
}

fn is_cbindgen(path: &Path) -> bool {
    let output = Command::new(path).arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(CBINDGEN))
}
