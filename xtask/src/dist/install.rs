//! Tests of `install.sh`, with releases in a folder.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hash::sha256;
use crate::root;

/// A folder with releases (`from`), a home, and a place for temporary files.
struct Scene(tempfile::TempDir);

struct Done {
    succeeded: bool,
    stdout: String,
    stderr: String,
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene(tempfile::tempdir().unwrap());
        for folder in ["from", "home", "tmp"] {
            fs::create_dir(scene.path(folder)).unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The archive of a version, whose program is a script, and SHA256SUMS. `extra` is one more file.
    fn release(&self, version: &str, extra: &str, script: &str) -> PathBuf {
        let name = format!("akunu-{version}-{}", target());
        let folder = self.path(&name);
        for (file, text) in [("bin/akunu", script), ("share/man/man1/akunu.1", "a page"), (extra, "more")] {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), text).unwrap();
        }
        fs::set_permissions(folder.join("bin/akunu"), fs::Permissions::from_mode(0o755)).unwrap();
        let archive = self.path("from").join(format!("{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(&archive).arg("-C").arg(self.0.path()).arg(&name);
        assert!(tar.status().unwrap().success());
        let sums = format!(
            "{}  {name}.tar.gz\n{}  {name}-debug.tar.gz\n",
            sha256(&archive).unwrap(),
            "0".repeat(64)
        );
        fs::write(self.path("from/SHA256SUMS"), sums).unwrap();
        archive
    }

    fn install(&self, arguments: &[&str]) -> Done {
        let mut command = Command::new("sh");
        command.arg(root().join("install.sh")).args(arguments);
        command.args(["--from", &format!("file://{}", self.path("from").display())]);
        command.env("HOME", self.path("home")).env("TMPDIR", self.path("tmp")).env_remove("PREFIX");
        let output = command.output().unwrap();
        assert_eq!(fs::read_dir(self.path("tmp")).unwrap().count(), 0, "temporary files are left");
        Done {
            succeeded: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn fails(&self, arguments: &[&str], words: &str) {
        let done = self.install(arguments);
        assert!(
            !done.succeeded && done.stderr.contains(&format!("error: {words}")),
            "{words}: {}",
            done.stderr
        );
    }

    /// The files under the home, sorted.
    fn installed(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut pending = vec![self.path("home")];
        while let Some(folder) = pending.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => pending.push(path),
                    false => found.push(relative(&path, &self.path("home"))),
                }
            }
        }
        found.sort();
        found
    }
}

fn relative(path: &Path, folder: &Path) -> String {
    path.strip_prefix(folder).unwrap().display().to_string()
}

fn target() -> String {
    let system = if cfg!(target_os = "macos") { "apple-darwin" } else { "unknown-linux-gnu" };
    format!("{}-{system}", std::env::consts::ARCH)
}

fn script(version: &str) -> String {
    format!("#!/bin/sh\necho akunu {version}\n")
}

#[test]
fn an_archive_with_the_right_checksum_is_installed_and_removed_again() {
    let scene = Scene::new();
    scene.release("1.0.0", "share/old", &script("1.0.0"));
    fs::create_dir_all(scene.path("home/.local/bin")).unwrap();
    fs::write(scene.path("home/.local/bin/other"), "somebody else's").unwrap();
    let done = scene.install(&[]);
    assert!(
        done.succeeded && done.stdout.contains("akunu 1.0.0 is installed"),
        "{}{}",
        done.stdout,
        done.stderr
    );
    let list = ".local/share/akunu/installed";
    let files =
        [".local/bin/akunu", ".local/bin/other", list, ".local/share/man/man1/akunu.1", ".local/share/old"];
    assert_eq!(scene.installed(), files);

    // A newer release replaces it, and what it no longer has is removed.
    scene.release("1.1.0", "share/new", &script("1.1.0"));
    assert!(scene.install(&["--version", "v1.1.0"]).stdout.contains("akunu 1.1.0 is installed"));
    assert!(!scene.path("home/.local/share/old").exists() && scene.path("home/.local/share/new").exists());

    let would = scene.install(&["--uninstall", "--dry-run"]);
    assert!(would.stdout.contains(".local/bin/akunu") && scene.installed().len() == 5, "{}", would.stdout);
    assert!(scene.install(&["--uninstall"]).succeeded);
    assert_eq!(scene.installed(), [".local/bin/other"]);
    assert!(!scene.path("home/.local/share").exists());
    scene.fails(&["--uninstall"], "nothing was installed under");
}

#[test]
fn a_wrong_checksum_installs_nothing() {
    let scene = Scene::new();
    let archive = scene.release("1.0.0", "share/x", &script("1.0.0"));
    let mut bytes = fs::read(&archive).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&archive, bytes).unwrap();
    scene.fails(&[], &format!("akunu-1.0.0-{}.tar.gz has SHA-256 ", target()));
    assert!(!scene.path("home/.local/bin").exists());
}

#[test]
fn what_is_not_there_is_named() {
    let scene = Scene::new();
    scene.fails(&[], "there is no release at file://");
    let archive = scene.release("1.0.0", "share/x", &script("1.0.0"));
    scene.fails(&["--version", "2.0.0"], "the release at file://");
    fs::remove_file(archive).unwrap();
    scene.fails(&[], "file://");
    scene.release("1.0.0", "share/x", "#!/bin/sh\nexit 127\n");
    scene.fails(&[], "the program does not run on this system");
    scene.fails(&["--nonsense"], "unknown option --nonsense");
    scene.fails(&["--prefix", "/dev/null/akunu"], "/dev/null/akunu cannot be written to");
    assert!(!scene.path("home/.local/bin").exists());
}

#[test]
fn a_dry_run_writes_nothing() {
    let scene = Scene::new();
    scene.release("1.0.0", "share/x", &script("1.0.0"));
    let prefix = scene.path("elsewhere");
    let done = scene.install(&["--dry-run", "--prefix", prefix.to_str().unwrap()]);
    assert!(done.succeeded && done.stdout.contains("would download"), "{}{}", done.stdout, done.stderr);
    assert!(!prefix.exists() && scene.installed().is_empty());
}

#[test]
fn the_list_of_an_installation_removes_nothing_outside_the_prefix() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("home/.local/share/akunu")).unwrap();
    for line in ["../../victim", "/etc/passwd"] {
        fs::write(scene.path("home/.local/share/akunu/installed"), format!("{line}\n")).unwrap();
        fs::write(scene.path("victim"), "").unwrap();
        let done = scene.install(&["--uninstall"]);
        assert!(!done.succeeded && done.stderr.contains("is damaged"), "{}", done.stderr);
        assert!(scene.path("victim").exists());
    }
}

#[test]
fn shellcheck_finds_nothing() {
    if !crate::succeeds(&["shellcheck", "--version"]) {
        crate::skipped("install.sh", "shellcheck is missing");
        return;
    }
    let output =
        Command::new("shellcheck").args(["--shell", "sh"]).arg(root().join("install.sh")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
