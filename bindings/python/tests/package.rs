//! The stubs of the native module name what it has. Its functions are tested in Python: `cargo xtask python`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of functions after a word at the beginning of a line.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest = line.trim_start().strip_prefix(before)?;
        Some(rest.split(['(', '<', ' ', ':', '\'']).next()?.to_string())
    };
    text.lines().filter_map(name).collect()
}

/// Up to the end of the first item.
fn first_item(text: &str) -> &str {
    text.split("\n}\n").next().unwrap()
}

#[test]
fn stubs_have_the_classes_and_methods_of_the_module() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
    let stubs = fs::read_to_string(folder.join("akunu/_akunu.pyi")).unwrap();
    let classes: BTreeSet<String> = source
        .split("#[pyclass")
        .skip(1)
        .map(|rest| names(rest, "struct ").pop_first().unwrap())
        .chain(["LoadError".to_string()])
        .collect();
    assert_eq!(names(&stubs, "class "), classes);
    let methods: BTreeSet<String> = source
        .split("#[pymethods]")
        .skip(1)
        .flat_map(|rest| names(first_item(rest), "fn "))
        .map(|name| if name == "new" { "__init__".into() } else { name })
        .chain(source.split("#[pyfunction]").skip(1).flat_map(|rest| names(first_item(rest), "fn ")))
        .collect();
    assert_eq!(names(&stubs, "def "), methods);
}
