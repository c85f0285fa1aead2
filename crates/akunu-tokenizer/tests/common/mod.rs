//! Where test data lies, and how a test without it says so.

use std::path::PathBuf;

/// The path of a file in the shared test data, or `None` after saying that `test` is skipped.
pub(crate) fn data(test: &str, file: &str) -> Option<PathBuf> {
    let root = std::env::var_os("AKUNU_TEST_DATA")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")));
    let path = root.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {test} needs {}", path.display());
    None
}
