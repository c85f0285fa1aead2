//! Compilers, and the library that Cargo built next to this test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The folder with the shared and the static library.
pub fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

pub fn shared() -> PathBuf {
    let name = format!("{}akunu_capi{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let path = libraries().join(name);
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

/// A folder in which linkers and programs find the shared library by its names.
pub fn installed() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
        std::fs::create_dir_all(&folder).unwrap();
        let abi = akunu_capi::AKUNU_ABI_VERSION;
        for name in match cfg!(target_vendor = "apple") {
            true => ["libakunu.dylib".to_string(), format!("libakunu.{abi}.dylib")],
            false => ["libakunu.so".to_string(), format!("libakunu.so.{abi}")],
        } {
            let _ = std::fs::remove_file(folder.join(&name));
            #[cfg(unix)]
            std::os::unix::fs::symlink(shared(), folder.join(&name)).unwrap();
        }
        folder
    });
    &FOLDER
}

pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A tool, named by an environment variable or by default. `None`, with a message, if it is not installed.
pub fn tool(variable: &str, usual: &str) -> Option<String> {
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_string());
    let is_installed =
        cfg!(unix) && Command::new(&name).arg("--version").output().is_ok_and(|o| o.status.success());
    if !is_installed {
        eprintln!("SKIPPED: {name} is not installed (set {variable} to use another one)");
    }
    is_installed.then_some(name)
}

/// Runs a command that must succeed.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    output
}

/// A program that is compiled and linked with the library.
pub struct Program {
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Program {
    /// `None` without a compiler. The extension of the source gives its language.
    pub fn new(source: &Path, flags: &[&str]) -> Option<Program> {
        let libraries = installed();
        let rpath = format!("-Wl,-rpath,{}", libraries.display());
        let mut link = ["-L", libraries.to_str()?, "-lakunu", &rpath].map(str::to_string).to_vec();
        if cfg!(target_os = "linux") {
            // Cargo's LD_LIBRARY_PATH names a folder that may have an older library, and only an rpath of the old kind
            // precedes it.
            link.push("-Wl,--disable-new-dtags".into());
        }
        Program::linked(source, flags, &link)
    }

    pub fn linked(source: &Path, flags: &[&str], link: &[String]) -> Option<Program> {
        let is_c = source.extension()? == "c";
        let compiler = if is_c { tool("CC", "cc") } else { tool("CXX", "c++") }?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let mut command = Command::new(compiler);
        command.arg(if is_c { "-std=c11" } else { "-std=c++11" });
        command
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I"])
            .arg(here("include"))
            .args(flags);
        command.arg(source).arg("-o").arg(&path).args(link).args(["-pthread", "-lm"]);
        succeed(&mut command);
        Some(Program { path, _folder: folder })
    }

    pub fn run(&self) -> String {
        String::from_utf8(succeed(&mut Command::new(&self.path)).stdout).unwrap()
    }
}
