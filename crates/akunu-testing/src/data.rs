//! Test data that is too large for the repository: real vocabularies, trained models, goldens.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The path of a file or folder of the test data, in the folder that `AKUNU_TEST_DATA` names, else in `../shared/data`
/// beside the repository.
///
/// Returns `None` if it is not there, after a line on stderr that says that `test` is skipped.
///
/// # Panics
/// If it is not there but required: with `AKUNU_REQUIRE_DATA=1`, or in CI (`CI` is set) unless `AKUNU_REQUIRE_DATA=0`.
pub fn data(test: &str, file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = env::var_os("AKUNU_TEST_DATA").map_or_else(beside, PathBuf::from);
    let variable = |name: &str| env::var(name).ok();
    let required = is_required(variable("AKUNU_REQUIRE_DATA").as_deref(), variable("CI").as_deref());
    find(test, &folder.join(file), required)
}

fn find(test: &str, path: &Path, required: bool) -> Option<PathBuf> {
    if path.exists() {
        return Some(path.to_path_buf());
    }
    let path = path.display();
    assert!(
        !required,
        "{test} needs {path}; AKUNU_TEST_DATA names the folder with the test data, AKUNU_REQUIRE_DATA=0 skips the test"
    );
    // Written past the test harness, which captures what tests print: a skipped test should be seen.
    let _ = writeln!(std::io::stderr(), "skipped: {test} needs {path}");
    None
}

/// Whether missing data is an error, by the values of `AKUNU_REQUIRE_DATA` and `CI`.
fn is_required(require: Option<&str>, ci: Option<&str>) -> bool {
    let is_set = |value: &str| !matches!(value, "" | "0" | "false");
    match require {
        Some(value) if !value.is_empty() => is_set(value),
        _ => ci.is_some_and(is_set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_required_in_ci_and_where_a_variable_says_so() {
        for (require, ci, required) in [
            (None, None, false),
            (Some("1"), None, true),
            (None, Some("true"), true),
            (Some(""), Some("1"), true),
            (None, Some("false"), false),
            (Some("0"), Some("true"), false),
            (Some("1"), Some("false"), true),
        ] {
            assert_eq!(is_required(require, ci), required, "{require:?} {ci:?}");
        }
    }

    #[test]
    fn what_is_there_is_found_and_what_is_not_skips_the_test() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for required in [false, true] {
            assert_eq!(find("a_test", &here.join("src"), required), Some(here.join("src")));
        }
        assert_eq!(find("a_test", &here.join("none"), false), None);
    }

    #[test]
    #[should_panic(expected = "a_test needs")]
    fn required_data_that_is_missing_is_an_error() {
        find("a_test", &Path::new(env!("CARGO_MANIFEST_DIR")).join("none"), true);
    }
}
