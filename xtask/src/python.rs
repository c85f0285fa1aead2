//! `cargo xtask python`: tests of the Python package.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::clients::{caller_model, installer, python as python_of_clients, python_command, python_with};
use crate::{cargo, root, run, skipped, target};

const PACKAGE: &str = "bindings/python";

pub(crate) fn python(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => built(),
        ["wheel"] => wheel(),
        _ => bail!("cargo xtask python [wheel]"),
    }
}

/// Two replicas in Ray Serve.
pub(crate) fn ray() -> Result<()> {
    let wanted = root().join(PACKAGE).join("ray/requirements.txt");
    let python = match python_with(&wanted, &target().join("python/ray")) {
        Ok(python) => python,
        Err(missing) => {
            skipped("Ray Serve", &missing);
            return Ok(());
        }
    };
    let package = assemble()?;
    let mut test = python_command(&python);
    test.arg(root().join(PACKAGE).join("ray/ray_test.py")).env("PYTHONPATH", package);
    run(test.env("NO_PROXY", "*").env("no_proxy", "*"))
}

fn built() -> Result<()> {
    let wanted = root().join(PACKAGE).join("tests/requirements.txt");
    let python = match python_with(&wanted, &target().join("python/venv")) {
        Ok(python) => python,
        Err(missing) => {
            skipped("the Python package", &missing);
            return Ok(());
        }
    };
    let package = assemble()?;
    test(&python, Some(&package))?;
    // Their packages are installed for the tests of clients too.
    for (packages, adapter) in [("frameworks.txt", "langchain"), ("llamaindex.txt", "llamaindex")] {
        match python_of_clients(packages) {
            Ok(python) => pytest(&python, Some(&package), &["-k", adapter])?,
            Err(missing) => skipped(adapter, &missing),
        }
    }
    Ok(())
}

/// A folder with the package and the module that the tests of the workspace have built, so that nothing is compiled for
/// it again.
fn assemble() -> Result<PathBuf> {
    run(&mut cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let folder = target().join("python/package");
    let _ = fs::remove_dir_all(&folder);
    copy(&root().join(PACKAGE).join("akunu"), &folder.join("akunu"))?;
    let (library, module) = match env::consts::OS {
        "windows" => ("_akunu.dll", "_akunu.pyd"),
        "macos" => ("lib_akunu.dylib", "_akunu.abi3.so"),
        _ => ("lib_akunu.so", "_akunu.abi3.so"),
    };
    let library = target().join("debug/deps").join(library);
    fs::copy(&library, folder.join("akunu").join(module)).with_context(|| library.display().to_string())?;
    Ok(folder)
}

/// The package as users install it.
fn wheel() -> Result<()> {
    let tools = python_with(&root().join(PACKAGE).join("maturin.txt"), &target().join("python/maturin"));
    let tools = tools.map_err(|missing| anyhow::anyhow!("maturin: {missing}"))?;
    let wheels = target().join("python/wheels");
    let _ = fs::remove_dir_all(&wheels);
    let maturin = tools.with_file_name(format!("maturin{}", env::consts::EXE_SUFFIX));
    let manifest = root().join(PACKAGE).join("Cargo.toml");
    let mut build = Command::new(maturin);
    build
        .args(["build", "--release", "--locked", "--compatibility", "linux", "--manifest-path"])
        .arg(manifest);
    run(build.arg("--interpreter").arg(&tools).arg("--out").arg(&wheels))?;
    let wheel = fs::read_dir(&wheels)?.next().context("maturin built no wheel")??.path();
    say!("python: {}, {} MiB", wheel.display(), wheel.metadata()?.len() >> 20);
    let fresh = target().join("python/fresh");
    let _ = fs::remove_dir_all(&fresh);
    let wanted = root().join(PACKAGE).join("tests/requirements.txt");
    let python = python_with(&wanted, &fresh).map_err(|missing| anyhow::anyhow!("{missing}"))?;
    run(installer(&python)?.arg(&wheel))?;
    test(&python, None)
}

/// Runs pytest, and the examples. `package`: a folder with the package, if it is not installed.
fn test(python: &Path, package: Option<&Path>) -> Result<()> {
    pytest(python, package, &[])?;
    for example in ["text.py", "tools.py", "many.py"] {
        let example = root().join(PACKAGE).join("examples").join(example);
        run(with_package(python_command(python).arg(example), package))?;
    }
    Ok(())
}

fn pytest(python: &Path, package: Option<&Path>, more: &[&str]) -> Result<()> {
    let mut pytest = python_command(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(more);
    pytest.arg(root().join(PACKAGE).join("tests"));
    pytest.env("AKUNU_CALLER", caller_model()?).env("AKUNU_ROOT", root());
    run(with_package(&mut pytest, package))
}

fn with_package<'a>(python: &'a mut Command, package: Option<&Path>) -> &'a mut Command {
    if let Some(folder) = package {
        python.env("PYTHONPATH", folder);
    }
    python.env("NO_PROXY", "*").env("no_proxy", "*")
}

/// Copies a folder without what Python has compiled.
fn copy(from: &PathBuf, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| *name != "__pycache__") else { continue };
        match path.is_dir() {
            true => copy(&path, &to.join(name))?,
            false => drop(fs::copy(&path, to.join(name))?),
        }
    }
    Ok(())
}
