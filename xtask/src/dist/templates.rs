//! Fills the templates of other package managers with the version and the checksums of a release.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::VERSION;
use crate::root;

const FOLDERS: [&str; 2] = ["packaging/homebrew", "packaging/winget"];

/// `cargo xtask packages SHA256SUMS DIR`
pub(crate) fn packages(args: &[String]) -> Result<()> {
    let [sums, out] = args else { anyhow::bail!("usage: `cargo xtask packages SHA256SUMS DIR`") };
    let sums = fs::read_to_string(sums).with_context(|| format!("cannot read {sums}"))?;
    fs::create_dir_all(out)?;
    for folder in FOLDERS {
        for entry in fs::read_dir(root().join(folder))? {
            let path = entry?.path();
            let name = path.file_name().context("a template has no name")?;
            let filled = fill(&fs::read_to_string(&path)?, VERSION, &sums);
            let filled = filled.with_context(|| format!("{} cannot be filled", path.display()))?;
            fs::write(Path::new(out).join(name), filled)?;
        }
    }
    Ok(())
}

/// Replaces `@VERSION@` and `@SHA256 END@`, the checksum of `akunu-VERSION-END`; the comment about templates is dropped.
fn fill(template: &str, version: &str, sums: &str) -> Result<String> {
    let mut filled = String::new();
    for line in template.lines().filter(|line| !line.starts_with("# Template")) {
        let mut line = line.replace("@VERSION@", version);
        if let Some((before, rest)) = line.clone().split_once("@SHA256 ") {
            let (end, after) = rest.split_once('@').context("a placeholder does not end")?;
            line = format!("{before}{}{after}", checksum(sums, &format!("akunu-{version}-{end}"))?);
        }
        filled += &line;
        filled.push('\n');
    }
    Ok(filled)
}

fn checksum<'a>(sums: &'a str, name: &str) -> Result<&'a str> {
    let lines = sums.lines().filter_map(|line| line.split_once("  "));
    let hash = lines.filter(|(_, file)| *file == name).map(|(hash, _)| hash).next();
    let hash = hash.with_context(|| format!("SHA256SUMS has no {name}"))?;
    ensure!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash} is no SHA-256");
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_filled_from_the_checksums_of_a_release() {
        let ends = [
            "x86_64-unknown-linux-gnu.tar.gz",
            "aarch64-unknown-linux-gnu.tar.gz",
            "x86_64-apple-darwin.tar.gz",
            "aarch64-apple-darwin.tar.gz",
            "x86_64-pc-windows-msvc.zip",
        ];
        let lines =
            ends.iter().enumerate().map(|(index, end)| format!("{index:064x}  akunu-{VERSION}-{end}\n"));
        let folder = tempfile::tempdir().unwrap();
        let (sums, out) = (folder.path().join("SHA256SUMS"), folder.path().join("out"));
        fs::write(&sums, lines.collect::<String>()).unwrap();
        let arguments = [&sums, &out].map(|path| path.to_str().unwrap().to_string());
        packages(&arguments).unwrap();
        let names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), 4);
        for name in names {
            let text = fs::read_to_string(&name).unwrap();
            assert!(!text.contains('@') && !text.contains("Template") && text.contains(VERSION), "{text}");
        }
        let formula = fs::read_to_string(out.join("akunu.rb")).unwrap();
        assert!(
            formula.contains(&format!("aarch64-apple-darwin.tar.gz\"\n      sha256 \"{:064x}\"", 3)),
            "{formula}"
        );
    }

    #[test]
    fn a_missing_archive_and_a_wrong_checksum_are_errors() {
        let error = |sums: &str| format!("{:#}", fill("@SHA256 linux@", "1.0.0", sums).unwrap_err());
        assert!(error("").contains("has no akunu-1.0.0-linux"));
        assert!(error("ab  akunu-1.0.0-linux").contains("is no SHA-256"));
    }
}
