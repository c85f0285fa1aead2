//! Finds the test data that lies beside the project.
#![allow(dead_code)]

use std::path::PathBuf;

/// The data folder; `None`, with a line that says so, where it is not there.
pub(crate) fn data(test: &str, file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("AKUNU_TEST_DATA")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")));
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    // Past the test harness' capture: a skipped test should be seen.
    use std::io::Write;
    let line = format!("skipped: {test} needs {file}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}
