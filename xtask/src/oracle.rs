//! The comparison of our tokenizers with the library `tokenizers` (`oracle/`), a workspace of its own: tests of the main
//! one have the library's answers in files, and do not compile it.

use anyhow::Result;

use crate::{cargo, run, target};

const MANIFEST: [&str; 2] = ["--manifest-path", "oracle/Cargo.toml"];

pub(crate) fn oracle() -> Result<()> {
    run(cargo(&["fmt", "--check"]).args(MANIFEST))?;
    let built = target().join("oracle");
    for (task, then) in [("clippy", &["--all-targets", "--", "-D", "warnings"][..]), ("test", &[])] {
        run(cargo(&[task, "--locked"]).args(MANIFEST).arg("--target-dir").arg(&built).args(then))?;
    }
    Ok(())
}
