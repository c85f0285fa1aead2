//! Environment variables are read in one file of this program, and never by libraries.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::path::{Path, PathBuf};

use crate::common::{akunu, finish};

/// Library files that may read the environment, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("akunu-capi/src/environment.rs", "the C library is the boundary of a binary, as akunu-cli is"),
    ("akunu-cli/src/environment.rs", "the one place of the binary"),
    ("akunu-emulated/src/library.rs", "only tests use this crate; CXX names the compiler that they need"),
    ("akunu-testing/src/cases.rs", "only tests use this crate; a variable says how many cases they run"),
    ("akunu-testing/src/data.rs", "only tests use this crate; variables name their data"),
];

/// Code that reads variables at run time. `env!` reads them at compile time.
const READS: [&str; 5] = ["env::var", "env::{", "use std::env;", "var_os(", "getenv("];

/// Every Rust file under a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines of a file without comments and without its unit tests, which are at its end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests =
        text.find("#[cfg(test)]\nmod tests {").or_else(|| text.find("#[cfg(test)]\npub(crate) mod tests {"));
    let lines = text[..tests.unwrap_or(text.len())].lines().enumerate();
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn libraries_read_options_and_never_the_environment() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut readers = Vec::new();
    for folder in std::fs::read_dir(&crates).unwrap() {
        let mut files = Vec::new();
        sources(&folder.unwrap().path().join("src"), &mut files);
        // Unit tests in a separate file.
        files.retain(|file| !file.ends_with("tests.rs"));
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(&crates).unwrap().to_string_lossy().replace('\\', "/");
            let reads = |line: &str| READS.iter().any(|read| line.contains(read));
            let found: Vec<usize> =
                code(&text).filter(|(_, line)| reads(line)).map(|(line, _)| line + 1).collect();
            match EXCEPTIONS.iter().any(|(file, _)| *file == name) {
                true => assert!(!found.is_empty(), "{name} reads nothing any more: it is no exception"),
                false => readers.extend(found.iter().map(|line| format!("{name}:{line}"))),
            }
        }
    }
    readers.sort();
    let advice = "take an option instead, and read the variable in akunu-cli/src/environment.rs";
    assert!(readers.is_empty(), "these read the environment: {readers:#?}\n{advice}");
}

#[test]
fn the_page_has_every_variable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/environment.md")).unwrap();
    let is_name = |text: &str| {
        text.len() > 3 && text.chars().all(|c| c.is_ascii_uppercase() || c == '_') && text != "TRUE"
    };
    let mut count = 0;
    for file in ["akunu-cli/src/environment.rs", "akunu/src/backends.rs", "akunu-hub/src/settings.rs"] {
        let text = std::fs::read_to_string(root.join("crates").join(file)).unwrap();
        for (line, code) in code(&text) {
            for name in code.split('"').skip(1).step_by(2).filter(|text| is_name(text)) {
                assert!(
                    page.contains(&format!("`{name}")),
                    "{file}:{}: {name} is not in docs/environment.md",
                    line + 1
                );
                count += 1;
            }
        }
    }
    assert!(count > 15, "{count} variables were found");
}

#[test]
fn akunu_isa_picks_the_cpus_instruction_set() {
    let cpu = |isa: &str| {
        let mut command = akunu(&["doctor", "--json"]);
        command.env("AKUNU_ISA", isa);
        let report: serde_json::Value = serde_json::from_str(&finish(command).stdout).unwrap();
        let devices = report["devices"].as_array().unwrap();
        let cpu = devices.iter().find(|device| device["name"] == "cpu").unwrap();
        cpu["detail"].as_str().unwrap().to_string()
    };
    assert!(cpu("scalar").starts_with("scalar, "), "{}", cpu("scalar"));
    let unknown = cpu("sse9");
    assert!(unknown.starts_with("not available: ") && unknown.contains("sse9"), "{unknown}");
}
