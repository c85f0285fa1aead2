//! The licences of what is shipped, with their texts.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, ensure};

use super::packages::Package;

/// Beginnings of the names of files with licences and notices.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT"];

pub(super) fn document(packages: &[Package]) -> Result<String> {
    let others: Vec<&Package> = packages.iter().filter(|package| !package.is_ours()).collect();
    let mut page = String::from("akunu contains these packages. The texts of their licences follow.\n\n");
    // Each text once, with the packages that have it.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for package in others {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.licence.as_deref().unwrap_or("see below");
        page += &format!("{name}: {licence}\n");
        let found = texts_of(package)?;
        if found.is_empty() {
            ensure!(package.licence.is_some(), "{name} has neither a licence nor its text");
            without.push(name.clone());
        }
        for text in found {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    for (text, names) in texts {
        page += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    if !without.is_empty() {
        page += &format!("\n{}\nWithout a text in their archives: {}\n", "=".repeat(80), without.join(", "));
    }
    Ok(page)
}

fn texts_of(package: &Package) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(&package.folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n");
            texts.push(text.trim().to_string());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_printed_once_with_everyone_whose_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let package = |name: &str, files: &[(&str, &str)]| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            for (file, text) in files {
                fs::write(folder.join(file), text).unwrap();
            }
            let (name, version) = (name.to_string(), "1.0.0".to_string());
            let (licence, checksum) = (Some("MIT".to_string()), Some("ab".to_string()));
            Package { name, version, licence, checksum, folder, ..Package::default() }
        };
        let packages = [
            package("one", &[("LICENSE-MIT", "Permission\n"), ("README.md", "not this")]),
            package("two", &[("license", "Permission\r\n"), ("NOTICE.txt", "By two")]),
            package("three", &[]),
            Package { name: "akunu".into(), ..Package::default() },
        ];
        let page = document(&packages).unwrap();
        assert_eq!(page.matches("Permission").count(), 1, "{page}");
        for part in [
            "one 1.0.0: MIT\n",
            "\none 1.0.0, two 1.0.0\n\nPermission\n",
            "By two",
            "archives: three 1.0.0\n",
        ] {
            assert!(page.contains(part), "{part:?} in {page}");
        }
        assert!(!page.contains("not this") && !page.contains("akunu 0"), "{page}");
    }
}
