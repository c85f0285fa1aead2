//! The packages that are part of what is shipped, as cargo resolves them for a platform.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cargo, root};

const ROOTS: [&str; 2] = ["akunu-cli", "akunu-capi"];

#[derive(Debug, Clone, Default)]
pub(super) struct Package {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: Option<String>,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// The folder of its source.
    pub folder: PathBuf,
    /// SHA-256 of its archive in the registry; `None` for packages of this workspace.
    pub checksum: Option<String>,
    /// Indices of the packages that it needs.
    pub needs: Vec<usize>,
}

impl Package {
    pub fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }
}

/// What the program and the C library contain: neither build scripts, macros, nor tests. Sorted by name.
pub(super) fn shipped(triple: &str) -> Result<Vec<Package>> {
    let arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", triple];
    let output = cargo(&arguments).output()?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    of(&serde_json::from_slice(&output.stdout)?, &checksums(&lock))
}

fn of(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Vec<Package>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(String::from);
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().filter_map(|p| Some((text(&p["id"])?, p))).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().filter_map(|n| Some((text(&n["id"])?, n))).collect();
    let is_macro = |id: &str| {
        list(&packages[id]["targets"])
            .iter()
            .any(|target| list(&target["kind"]).contains(&"proc-macro".into()))
    };
    let needs = |id: &str| -> Vec<String> {
        let is_normal = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let deps = nodes.get(id).map(|node| list(&node["deps"])).unwrap_or_default();
        deps.iter()
            .filter(|dep| is_normal(dep))
            .filter_map(|dep| text(&dep["pkg"]))
            .filter(|id| !is_macro(id))
            .collect()
    };
    let is_root = |package: &Value| ROOTS.iter().any(|root| package["name"] == *root);
    let mut pending: Vec<String> =
        packages.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| id.clone()).collect();
    ensure!(pending.len() == ROOTS.len(), "cargo metadata does not list {ROOTS:?}");
    let mut reached = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if reached.insert(id.clone()) {
            pending.extend(needs(&id));
        }
    }
    let key = |id: &String| (text(&packages[id]["name"]), text(&packages[id]["version"]));
    let mut ids: Vec<String> = reached.into_iter().collect();
    ids.sort_by_key(key);
    let place: BTreeMap<&String, usize> = ids.iter().enumerate().map(|(index, id)| (id, index)).collect();
    ids.iter()
        .map(|id| {
            let package = &packages[id];
            let name = text(&package["name"]).context("a package has no name")?;
            let version = text(&package["version"]).context("a package has no version")?;
            let manifest =
                PathBuf::from(text(&package["manifest_path"]).context("a package has no manifest")?);
            let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
            ensure!(checksum.is_some() || package["source"].is_null(), "{name} {version} has no checksum");
            let mut needs: Vec<usize> = needs(id).iter().map(|id| place[id]).collect();
            needs.sort_unstable();
            needs.dedup();
            Ok(Package {
                name,
                version,
                // The form before SPDX expressions.
                licence: text(&package["license"]).map(|l| l.replace(" / ", " OR ").replace('/', " OR ")),
                description: text(&package["description"]),
                repository: text(&package["repository"]),
                folder: manifest.parent().map(PathBuf::from).unwrap_or_default(),
                checksum,
                needs,
            })
        })
        .collect()
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|line| line.trim_end_matches('"').to_string())
    };
    let blocks = lock.split("[[package]]").skip(1);
    blocks.filter_map(|b| Some(((value(b, "name")?, value(b, "version")?), value(b, "checksum")?))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests
pub(super) mod tests {
    use super::*;

    /// Two roots, a library, and what is not shipped: a macro, and what tests and build scripts need.
    pub fn example() -> Vec<Package> {
        let package = |name: &str, kind: &str, source: Option<&str>| {
            serde_json::json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source,
                "manifest_path": format!("/src/{name}/Cargo.toml"), "targets": [{ "kind": [kind] }],
            })
        };
        let dep = |name: &str, kind: Option<&str>| {
            let kinds = serde_json::json!([{ "kind": kind, "target": null }]);
            serde_json::json!({ "pkg": name, "dep_kinds": kinds })
        };
        let index = Some("registry");
        let metadata = serde_json::json!({
            "packages": [
                package("akunu-cli", "bin", None), package("akunu-capi", "lib", None), package("half", "lib", index),
                package("derive", "proc-macro", index), package("tempfile", "lib", index), package("cc", "lib", index),
            ],
            "resolve": { "nodes": [
                { "id": "akunu-cli", "deps": [dep("half", None), dep("derive", None), dep("tempfile", Some("dev"))] },
                { "id": "akunu-capi", "deps": [dep("half", None), dep("cc", Some("build"))] },
                { "id": "half", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"half\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"ab01\"\n";
        of(&metadata, &checksums(lock)).unwrap()
    }

    #[test]
    fn what_is_linked_is_shipped_and_nothing_else() {
        let packages = example();
        let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["akunu-capi", "akunu-cli", "half"]);
        assert_eq!(packages[1].needs, [2]);
        assert_eq!(packages[2].licence.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!((packages[2].checksum.as_deref(), packages[2].is_ours()), (Some("ab01"), false));
        assert!(packages[0].is_ours());
    }

    #[test]
    fn this_workspace_ships_known_packages() {
        let packages = shipped("x86_64-unknown-linux-gnu").unwrap();
        let has = |name: &str| packages.iter().any(|package| package.name == name);
        assert!(
            ["akunu-cli", "akunu-capi", "akunu-server", "clap_builder", "ring"].iter().all(|name| has(name))
        );
        assert!(["xtask", "insta", "serde_derive", "cc", "akunu-testing"].iter().all(|name| !has(name)));
        assert!(packages.iter().all(|package| package.licence.is_some()));
    }
}
