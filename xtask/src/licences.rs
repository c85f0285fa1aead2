//! Checks that every crate that ships has a permissive licence, and occurs in one version only.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that may occur in two versions, with the reason.
const DUPLICATES: &[(&str, &str)] = &[
    ("base64", "tokenizers reads SentencePiece's tables with an old one"),
    ("getrandom", "ring, tokenizers and tempfile are each a version apart"),
    ("hashbrown", "llguidance's derivre is a version ahead of indexmap and safetensors"),
    ("r-efi", "comes with getrandom, for UEFI only"),
    ("rand_core", "comes with tokenizers' rand"),
    ("syn", "derive macros, at build time only, move to version 3 one by one"),
    ("windows-sys", "comes with ring's getrandom, on Windows only"),
];

pub(crate) fn check() -> Result<()> {
    let output = cargo(&["metadata", "--format-version", "1", "--locked"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages: BTreeMap<&str, &Value> =
        array(&metadata["packages"]).filter_map(|p| Some((p["id"].as_str()?, p))).collect();
    let shipped = shipped(&metadata).context("cargo metadata has an unknown shape")?;

    let mut problems = Vec::new();
    for package in packages.values() {
        let licence = package["license"].as_str().unwrap_or("none stated");
        if !is_permissive(licence) {
            problems.push(format!("{} {} has the licence {licence}", package["name"], package["version"]));
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in shipped.iter().filter_map(|id| packages.get(id)) {
        if let (Some(name), Some(version)) = (package["name"].as_str(), package["version"].as_str()) {
            versions.entry(name).or_default().insert(version);
        }
    }
    for (name, versions) in versions.iter().filter(|(_, v)| v.len() > 1) {
        if !DUPLICATES.iter().any(|(allowed, _)| allowed == name) {
            problems.push(format!("{name} occurs in versions {versions:?}"));
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    say!("{} crates, {} of them shipped: all permissive, one version each", packages.len(), shipped.len());
    Ok(())
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The dependencies of the workspace's crates without dev-dependencies, on all platforms.
fn shipped(metadata: &Value) -> Option<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Value> =
        array(&metadata["resolve"]["nodes"]).filter_map(|n| Some((n["id"].as_str()?, n))).collect();
    let mut queue: Vec<&str> = array(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = queue.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in array(&nodes.get(id)?["deps"]) {
            if array(&dependency["dep_kinds"]).any(ships) {
                queue.push(dependency["pkg"].as_str()?);
            }
        }
    }
    Some(seen)
}

/// Neither a dev-dependency nor one of model-checking builds.
fn ships(kind: &Value) -> bool {
    kind["kind"] != "dev" && kind["target"] != "cfg(loom)"
}

/// One alternative of every `OR`, all parts of every `AND`.
fn is_permissive(licence: &str) -> bool {
    let licence = licence.replace(['(', ')'], "").replace('/', " OR ");
    licence.split(" AND ").all(|part| part.split(" OR ").any(|name| PERMISSIVE.contains(&name.trim())))
}
