//! Compiles the GPU kernels with the compilers of their devices, all of which are optional: NVIDIA's, and clang for
//! Metal.
//!
//! NVRTC is at the path in `AKUNU_NVRTC`, or the system's; if `CI` is set it is downloaded from PyPI into a temporary
//! folder.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{cargo, fetch_package, metal, run, skipped, target};

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];
const PACKAGE: &str = "nvidia-cuda-nvrtc";

/// With `every`, each kind of function for each architecture; otherwise enough combinations to cover all differences.
pub(crate) fn kernels(args: &[String]) -> Result<()> {
    let (chosen, order) = match args {
        [] => ("few", "turns"),
        [word] if word == "every" => ("kinds", "every"),
        _ => bail!("usage: `cargo xtask kernels [every]`"),
    };
    let folder = target().join("kernels");
    let texts = folder.join("texts");
    if texts.exists() {
        std::fs::remove_dir_all(&texts)?;
    }
    // As part of the workspace, so that nothing is built again after its tests.
    run(&mut cargo(&["build", "--quiet", "--workspace", "--locked", "--example", "texts"]))?;
    let writer = target().join("debug/examples").join(format!("texts{}", env::consts::EXE_SUFFIX));
    run(Command::new(writer).arg(&texts))?;
    match metal::clang(&folder)? {
        Some(clang) => metal::check(&clang, &texts.join("metal"))?,
        None => skipped("the kernels' address spaces were not checked", &metal::bring()),
    }
    let Some(library) = library(&folder)? else {
        let bring = format!(
            "install it with `pip install {PACKAGE}`, and set AKUNU_NVRTC to the path of its libnvrtc.so"
        );
        skipped("GPU kernels were not compiled", &format!("no NVRTC; {bring}"));
        return Ok(());
    };
    let mut command = Command::new("python3");
    run(command.arg("xtask/nvrtc.py").arg(&library).arg(texts.join(chosen)).arg(order).args(ARCHITECTURES))
}

fn library(folder: &Path) -> Result<Option<PathBuf>> {
    if let Some(path) = env::var_os("AKUNU_NVRTC") {
        let path = PathBuf::from(path);
        if !path.exists() {
            bail!("AKUNU_NVRTC: {} does not exist", path.display());
        }
        return Ok(Some(path));
    }
    let package = folder.join("nvrtc");
    if env::var_os("CI").is_some() && find(&package).is_none() {
        fetch_package(PACKAGE, &package)?;
    }
    let places = [package, "/usr/local/cuda".into(), "/usr/lib/x86_64-linux-gnu".into()];
    Ok(places.iter().find_map(|place| find(place)))
}

/// libnvrtc.so in a folder or below, except the parts that it loads itself.
fn find(folder: &Path) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc.so"));
    entries.iter().find(|path| named(path)).cloned().or_else(|| {
        let folders = entries.iter().filter(|path| path.is_dir() && !path.is_symlink());
        folders.filter_map(|path| find(path)).next()
    })
}
