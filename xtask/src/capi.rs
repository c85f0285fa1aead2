//! Generates the C API's header with cbindgen, and installs the library.

use std::env;
use std::fs;
use std::io::ErrorKind;
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
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (prefix, profile) = match args[..] {
        [prefix] => (prefix, "release"),
        [prefix, "--profile", profile] => (prefix, profile),
        _ => bail!("usage: `cargo xtask capi DIR [--profile PROFILE]`"),
    };
    let prefix = std::path::absolute(prefix)?;
    let names = install_into(&build(profile)?, env::consts::OS, &prefix)?;
    let (prefix, lib) = (prefix.display(), prefix.join("lib"));
    say!("installed under {prefix}: {}", names.join(", "));
    say!(
        "compile with: cc story.c $(PKG_CONFIG_PATH={} pkg-config --cflags --libs akunu)",
        lib.join("pkgconfig").display()
    );
    if cfg!(target_os = "linux") {
        say!(
            "programs find the library after `ldconfig` as root, if {0} is among its folders (/etc/ld.so.conf); \
             elsewhere link with -Wl,-rpath,{0}",
            lib.display()
        );
    }
    Ok(())
}

/// Builds the libraries, and returns their folder.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    run(&mut cargo(&["build", "--profile", profile, "--locked", "-p", "akunu-capi"]))?;
    Ok(target().join(if profile == "dev" { "debug" } else { profile }))
}

/// The libraries: as Cargo builds them, as they are installed, and the link that linkers look for.
fn libraries(system: &str) -> Result<Vec<(&'static str, String, Option<&'static str>)>> {
    let abi = abi_version()?;
    let archive = ("libakunu_capi.a", "libakunu.a".to_string(), None);
    Ok(match system {
        "windows" => vec![
            // Its name is in the import library.
            ("akunu_capi.dll", "akunu_capi.dll".to_string(), None),
            ("akunu_capi.dll.lib", "akunu.lib".to_string(), None),
        ],
        "macos" | "ios" => {
            vec![("libakunu_capi.dylib", format!("libakunu.{abi}.dylib"), Some("libakunu.dylib")), archive]
        }
        _ => vec![("libakunu_capi.so", format!("libakunu.so.{abi}"), Some("libakunu.so")), archive],
    })
}

/// What a program that is linked with the archive needs of a system.
fn private_libraries(system: &str) -> &'static str {
    match system {
        "macos" | "ios" => "-framework Foundation -framework Metal -lobjc",
        _ => "-lpthread -ldl -lm",
    }
}

/// Installs libraries that were built in a folder for a system, and returns the names of all files.
pub(crate) fn install_into(built: &Path, system: &str, prefix: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut place = |name: String| -> Result<PathBuf> {
        let path = prefix.join(&name);
        let folder = path.parent().unwrap_or(prefix);
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        names.push(name);
        Ok(path)
    };
    for (from, to, link) in libraries(system)? {
        let (from, path) = (built.join(from), place(format!("lib/{to}"))?);
        // A program may have it mapped.
        remove(&path)?;
        fs::copy(&from, path).with_context(|| format!("cannot copy {}", from.display()))?;
        if let Some(link) = link {
            let path = place(format!("lib/{link}"))?;
            remove(&path)?;
            symlink(&to, &path)?;
        }
    }
    fs::copy(header_path(), place("include/akunu.h".into())?)?;
    let template = fs::read_to_string(root().join(CRATE).join("akunu.pc.in"))?;
    let filled = template
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@PRIVATE@", private_libraries(system));
    fs::write(place("lib/pkgconfig/akunu.pc".into())?, filled)?;
    Ok(names)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn symlink(to: &str, path: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(to, path)?)
}

#[cfg(not(unix))]
fn symlink(to: &str, path: &Path) -> Result<()> {
    bail!("{} links to {to}: install it on a Unix system", path.display())
}

/// `AKUNU_ABI_VERSION` of the header.
fn abi_version() -> Result<String> {
    let header = fs::read_to_string(header_path())?;
    let version = header.lines().find_map(|line| line.strip_prefix("#define AKUNU_ABI_VERSION "));
    Ok(version.context("akunu.h has no AKUNU_ABI_VERSION")?.to_string())
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// A folder with the libraries as `cargo build` names them: tests have archives with a hash in their names.
    fn built(folder: &Path) {
        let deps = env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let shared = deps.join("libakunu_capi.so");
        let archives = fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libakunu_capi") && name.ends_with(".a")
        });
        let archive = archives.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap()).unwrap();
        symlink(shared.to_str().unwrap(), &folder.join("libakunu_capi.so")).unwrap();
        symlink(archive.to_str().unwrap(), &folder.join("libakunu_capi.a")).unwrap();
    }

    fn output(command: &mut Command) -> String {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Compiles the example with the flags of pkg-config.
    fn compile(prefix: &Path, pkg_config: &[&str], flags: &[&str]) -> PathBuf {
        let mut query = Command::new("pkg-config");
        query.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(pkg_config).arg("akunu");
        let found = output(&mut query);
        let program = prefix.join("story");
        let mut compiler = Command::new("cc");
        compiler.args(flags).arg(root().join(CRATE).join("examples/story.c")).arg("-o").arg(&program);
        output(compiler.args(found.split_whitespace()));
        program
    }

    fn story(program: &Path, library_path: &Path) -> String {
        let mut command = Command::new(program);
        output(command.args(["-", "Once upon a time", "24"]).env("LD_LIBRARY_PATH", library_path))
    }

    fn dynamic(path: &Path) -> String {
        output(Command::new("readelf").arg("--dynamic").arg(path))
    }

    #[test]
    fn programs_are_linked_with_what_is_installed() {
        for tool in ["cc", "pkg-config", "readelf"] {
            if !crate::succeeds(&[tool, "--version"]) {
                return skipped("the installed C library", &format!("{tool} is missing"));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (libraries, staged) = (folder.path().join("built"), folder.path().join("staged"));
        fs::create_dir(&libraries).unwrap();
        built(&libraries);
        // Twice, since what is there is replaced.
        install_into(&libraries, "linux", &staged).unwrap();
        let names = install_into(&libraries, "linux", &staged).unwrap();
        assert!(names.iter().all(|name| staged.join(name).is_file()), "{names:?}");
        // It may be moved.
        let prefix = folder.path().join("prefix");
        fs::rename(&staged, &prefix).unwrap();

        let soname = format!("libakunu.so.{}", akunu_capi::AKUNU_ABI_VERSION);
        let lib = prefix.join("lib");
        assert!(dynamic(&lib.join("libakunu.so")).contains(&format!("soname: [{soname}]")));
        let program = compile(&prefix, &["--cflags", "--libs"], &[]);
        assert!(dynamic(&program).contains(&format!("Shared library: [{soname}]")));
        let text = story(&program, &lib);
        assert!(text.len() > 24, "{text}");

        // Without the shared library the linker takes the archive.
        fs::remove_file(lib.join("libakunu.so")).unwrap();
        let program = compile(&prefix, &["--static", "--cflags", "--libs"], &[]);
        assert!(!dynamic(&program).contains("libakunu"));
        assert_eq!(story(&program, &folder.path().join("none")), text);
    }

    #[test]
    fn the_version_of_a_library_is_that_of_its_abi() {
        assert_eq!(abi_version().unwrap(), akunu_capi::AKUNU_ABI_VERSION.to_string());
        let names =
            |system| libraries(system).unwrap().into_iter().map(|(_, name, _)| name).collect::<Vec<_>>();
        let abi = akunu_capi::AKUNU_ABI_VERSION;
        assert_eq!(names("linux"), [format!("libakunu.so.{abi}"), "libakunu.a".into()]);
        assert_eq!(names("macos"), [format!("libakunu.{abi}.dylib"), "libakunu.a".into()]);
    }
}
