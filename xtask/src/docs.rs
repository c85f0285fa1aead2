//! `cargo xtask docs`: README.md and docs as a site with search, made by mdBook.
//!
//! Compiling mdBook takes minutes: where it is missing, a built one is downloaded from PyPI into the target folder, and
//! compared with the hashes in `xtask/mdbook.txt`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{built_program, root, run, skipped, target};

/// Where files are shown that are not pages of the site.
const REPOSITORY: &str = "https://github.com/akunu-project/akunu/blob/main";

/// Pages beside docs.
const BESIDE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

pub(crate) fn docs() -> Result<()> {
    let (book, site) = (target().join("docs-book"), target().join("docs-site"));
    write_book(&root(), &book)?;
    let Some(mut mdbook) = built_program("mdbook", true)? else {
        skipped("the site was not built", "install mdBook with `cargo install mdbook --locked`");
        return Ok(());
    };
    run(mdbook.arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    say!("{}", site.join("index.html").display());
    Ok(())
}

/// The pages in a new folder, with links that work in the site, and a table of contents.
fn write_book(root: &Path, book: &Path) -> Result<()> {
    if book.exists() {
        fs::remove_dir_all(book)?;
    }
    let mut files = BTreeMap::new();
    for name in BESIDE {
        files.insert(name.to_string(), fs::read(root.join(name))?);
    }
    collect(root, "docs", &mut files)?;
    let settings = files.remove("docs/book.toml").context("there is no docs/book.toml")?;
    let text = |name: &str| {
        let bytes = files.get(name).with_context(|| format!("there is no {name}"))?;
        Ok(String::from_utf8(bytes.clone())?)
    };
    let contents = contents(&text, files.keys())?;
    let source = book.join("src");
    for (name, bytes) in &files {
        let path = source.join(name);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        match name.ends_with(".md") {
            true => fs::write(path, with_links(root, name, &text(name)?, &|page| files.contains_key(page))?)?,
            false => fs::write(path, bytes)?,
        }
    }
    fs::write(source.join("SUMMARY.md"), contents)?;
    Ok(fs::write(book.join("book.toml"), settings)?)
}

/// The files in a folder and in its folders, by their paths from the root.
fn collect(root: &Path, folder: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.file_type()?.is_dir() {
            true => collect(root, &name, files)?,
            false => drop(files.insert(name, fs::read(entry.path())?)),
        }
    }
    Ok(())
}

/// The table of contents: what docs/README.md links to, in its order and under its titles.
fn contents<'a>(
    text: &dyn Fn(&str) -> Result<String>,
    names: impl Iterator<Item = &'a String> + Clone,
) -> Result<String> {
    let title = |name: &str| -> Result<String> {
        let page = text(name)?;
        let title = page.lines().find_map(|line| line.strip_prefix("# "));
        Ok(title.with_context(|| format!("{name} has no title"))?.replace(['[', ']'], ""))
    };
    let mut contents = "# Summary\n\n[Akunu](README.md)\n[All pages](docs/README.md)\n".to_string();
    let mut known = vec!["README.md".to_string(), "docs/README.md".to_string()];
    for line in text("docs/README.md")?.lines() {
        if let Some(part) = line.strip_prefix("## ") {
            contents += &format!("\n# {part}\n\n");
        }
        for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let name = resolved("docs/README.md", target.0.split('#').next().unwrap_or_default());
            let folder = name.strip_suffix("README.md").unwrap_or(&name);
            let is_folder = folder.ends_with('/') && folder != "docs/";
            let within = names.clone().filter(|page| is_folder && page.starts_with(folder));
            let depth = if is_folder { "  " } else { "" };
            if name.ends_with(".md") && !known.contains(&name) {
                contents += &format!("- [{}]({name})\n", title(&name)?);
                known.push(name.clone());
            } else if is_folder && !name.ends_with(".md") {
                contents += &format!("- [{}]()\n", folder.trim_end_matches('/').trim_start_matches("docs/"));
            }
            for page in within.filter(|page| page.ends_with(".md")) {
                if !known.contains(page) {
                    contents += &format!("{depth}- [{}]({page})\n", title(page)?);
                    known.push(page.clone());
                }
            }
        }
    }
    Ok(contents)
}

/// A path relative to a page, as a path from the root; a folder ends with a slash.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A page whose links to files that are not in the site lead to the repository. A link that leads nowhere is an error.
fn with_links(root: &Path, name: &str, page: &str, is_page: &dyn Fn(&str) -> bool) -> Result<String> {
    let (mut changed, mut is_code) = (String::new(), false);
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let mut pieces = line.split("](");
        changed += pieces.next().unwrap_or_default();
        for piece in pieces {
            let (target, rest) = piece.split_once(')').unwrap_or((piece, ""));
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = resolved(name, file);
            changed += "](";
            if is_code || file.is_empty() || file.contains("://") || is_page(&path) {
                // The site has a README.md as index.html.
                let index = is_page(&path) && file.ends_with("README.md");
                changed +=
                    &if index { piece.replacen("README.md", "index.md", 1) } else { piece.to_string() };
                continue;
            }
            if !root.join(&path).exists() {
                bail!("{name} links to {target}, which does not exist");
            }
            let hash = if anchor.is_empty() { "" } else { "#" };
            changed += &format!("{REPOSITORY}/{path}{hash}{anchor}){rest}");
        }
        changed.push('\n');
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_site_lead_to_the_repository() -> Result<()> {
        let page =
            "see [a](b.md#c), [d](../xtask/), [e](https://example.org) and [f](#g)\n```\n[x](y)\n```\n";
        let changed = with_links(&root(), "docs/page.md", page, &|name| name == "docs/b.md")?;
        let link = format!("[d]({REPOSITORY}/xtask/)");
        assert_eq!(changed, page.replace("[d](../xtask/)", &link));
        assert!(with_links(&root(), "docs/page.md", "[a](missing.md)", &|_| false).is_err());
        Ok(())
    }

    #[test]
    fn every_page_is_in_the_table_of_contents() -> Result<()> {
        let mut files = BTreeMap::new();
        collect(&root(), "docs", &mut files)?;
        let text = |name: &str| Ok(fs::read_to_string(root().join(name))?);
        let contents = contents(&text, files.keys())?;
        for name in files.keys().filter(|name| name.ends_with(".md")) {
            assert!(contents.contains(&format!("]({name})")), "{name}");
        }
        Ok(())
    }
}
