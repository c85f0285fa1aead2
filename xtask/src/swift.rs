//! Builds the Swift package and runs its tests, with the compiler of the system, or on Linux with that of Debian 13 in
//! a folder of its own: it needs a newer C library than older systems have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{capi, root, run, succeeds, target};

const SUITE: &str = "trixie";
const PACKAGES: [&str; 4] = ["swiftlang", "libc6-dev", "libstdc++-14-dev", "pkg-config"];

/// Runs a command in a root, with the repository as /akunu and the folder of this task as /swift. The mounts end with
/// it.
const ENTER: &str = "
    mount -t proc proc $1/proc
    mount --rbind /dev $1/dev
    mkdir -p $1/akunu $1/swift
    mount --bind $2 $1/akunu
    mount --bind $3 $1/swift
    cp /etc/resolv.conf $1/etc/resolv.conf
    root=$1
    shift 3
    exec chroot $root \"$@\"";

pub(crate) fn swift(args: &[String]) -> Result<()> {
    let brings = match args {
        [] => false,
        [flag] if flag == "--bring" => true,
        _ => bail!("usage: `cargo xtask swift [--bring]`"),
    };
    fs::create_dir_all(target().join("swift"))?;
    let folder = fs::canonicalize(target().join("swift"))?;
    let root_folder = folder.join("root");
    let is_here = succeeds(&["swift", "--version"]);
    // A link that leads somewhere only inside.
    if !is_here && fs::symlink_metadata(root_folder.join("usr/bin/swift")).is_err() {
        if !brings {
            bail!(
                "there is no Swift compiler: install one, or run `cargo xtask swift --bring` as root on Linux, which \
                 installs Debian's under {} (3 GB)",
                root_folder.display()
            );
        }
        bring(&folder, &root_folder)?;
    }
    // Optimised as for tests, which compiles less.
    capi::install_into(&capi::build("dev")?, std::env::consts::OS, &folder.join("prefix"))?;
    for task in [&["test"][..], &["run", "Story"]] {
        let mut command = match is_here {
            true => package(Command::new("swift"), task, &root(), &folder),
            false => {
                package(enter(&folder, &root_folder, "swift"), task, Path::new("/akunu"), Path::new("/swift"))
            }
        };
        run(&mut command)?;
    }
    Ok(())
}

/// The arguments of `swift`, where the repository and this task's folder are at these paths.
fn package(mut swift: Command, task: &[&str], repository: &Path, folder: &Path) -> Command {
    let prefix = folder.join("prefix/lib");
    swift.env("PKG_CONFIG_PATH", prefix.join("pkgconfig")).arg(task[0]);
    swift.arg("--package-path").arg(repository.join("bindings/swift"));
    swift.arg("--scratch-path").arg(folder.join("build"));
    swift.args(["-Xlinker", "-rpath", "-Xlinker"]).arg(prefix).args(&task[1..]);
    swift
}

fn enter(folder: &Path, root_folder: &Path, program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", ENTER, "enter"]);
    command.arg(root_folder).arg(absolute_root()).arg(folder).arg(program);
    command.env("HOME", "/root").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn absolute_root() -> PathBuf {
    fs::canonicalize(root()).unwrap_or_else(|_| root())
}

/// Installs Debian with its Swift compiler in a folder.
fn bring(folder: &Path, root_folder: &Path) -> Result<()> {
    for tool in ["debootstrap", "unshare"] {
        if !succeeds(&[tool, "--version"]) {
            bail!("{tool} is missing: `apt-get install debootstrap util-linux`");
        }
    }
    run(Command::new("debootstrap").args(["--variant=minbase", SUITE]).arg(root_folder))?;
    let mut update = enter(folder, root_folder, "apt-get");
    run(update.arg("update"))?;
    let mut install = enter(folder, root_folder, "apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run(install.args(["install", "--yes", "--no-install-recommends"]).args(PACKAGES))
}
