//! The list of what a release contains, in CycloneDX 1.5.

use anyhow::Result;
use serde_json::{Value, json};

use super::packages::Package;

/// The model that the program contains.
const EMBEDDED: &str = "akunu-tales";

/// The document depends on the packages only, so that two builds of a commit have the same one.
pub(super) fn document(version: &str, packages: &[Package]) -> Result<String> {
    let components: Vec<Value> = packages.iter().map(component).collect();
    let model = json!({
        "type": "machine-learning-model",
        "bom-ref": EMBEDDED,
        "name": EMBEDDED,
        "version": version,
        "licenses": [{ "expression": "MIT" }],
    });
    let depends = |package: &Package| {
        let needs = package.needs.iter().map(|&index| reference(&packages[index]));
        json!({ "ref": reference(package), "dependsOn": needs.collect::<Vec<_>>() })
    };
    let roots =
        packages.iter().filter(|package| ["akunu-cli", "akunu-capi"].contains(&package.name.as_str()));
    let contains: Vec<String> = roots.map(reference).chain([EMBEDDED.to_string()]).collect();
    let mut dependencies = vec![json!({ "ref": "akunu", "dependsOn": contains })];
    dependencies.extend(packages.iter().map(depends));
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "akunu",
                "name": "akunu",
                "version": version,
                "licenses": [{ "expression": "MIT" }],
            },
        },
        "components": components.into_iter().chain([model]).collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    });
    if let Some(licence) = &package.licence {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Its package URL.
fn reference(package: &Package) -> String {
    // A plus sign of a version would be read as a space.
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dist::packages;

    /// What CycloneDX 1.5 requires of a document, of components and of dependencies.
    fn check(document: &Value) {
        assert_eq!((&document["bomFormat"], &document["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        assert!(document["version"].as_u64().is_some_and(|version| version >= 1));
        let types = ["application", "library", "machine-learning-model"];
        let mut references = BTreeSet::new();
        let main = &document["metadata"]["component"];
        for component in document["components"].as_array().unwrap().iter().chain([main]) {
            assert!(types.iter().any(|kind| component["type"] == *kind), "{component}");
            assert!(component["name"].as_str().is_some_and(|name| !name.is_empty()), "{component}");
            assert!(references.insert(component["bom-ref"].as_str().unwrap().to_string()), "{component}");
            // Either one expression, or a list of licences.
            if let Some(licences) = component["licenses"].as_array() {
                assert!(licences.len() == 1 && licences[0]["expression"].is_string(), "{component}");
            }
            for hash in component["hashes"].as_array().unwrap_or(&vec![]) {
                let digits = hash["content"].as_str().unwrap();
                assert!(
                    hash["alg"] == "SHA-256" && digits.bytes().all(|b| b.is_ascii_hexdigit()),
                    "{component}"
                );
            }
        }
        let dependencies = document["dependencies"].as_array().unwrap();
        let mut seen = BTreeSet::new();
        for dependency in dependencies {
            let of = dependency["ref"].as_str().unwrap();
            assert!(references.contains(of) && seen.insert(of), "{dependency}");
            let mut on = BTreeSet::new();
            for needed in dependency["dependsOn"].as_array().unwrap() {
                assert!(
                    references.contains(needed.as_str().unwrap()) && on.insert(needed.as_str()),
                    "{dependency}"
                );
            }
        }
    }

    #[test]
    fn a_document_has_the_required_fields() {
        let document: Value =
            serde_json::from_str(&super::document("1.2.3", &packages::tests::example()).unwrap()).unwrap();
        check(&document);
        assert_eq!(document["components"][2]["purl"], "pkg:cargo/half@1.0.0");
        assert_eq!(document["components"][2]["hashes"][0]["content"], "ab01");
        assert_eq!(document["dependencies"][0]["dependsOn"][1], "pkg:cargo/akunu-cli@1.0.0");
    }

    #[test]
    fn so_has_that_of_this_workspace() {
        let packages = packages::shipped("x86_64-unknown-linux-gnu").unwrap();
        let document: Value = serde_json::from_str(&super::document("1.2.3", &packages).unwrap()).unwrap();
        check(&document);
        let components = document["components"].as_array().unwrap();
        // Whoever is not ours comes from a registry, whose checksum is known.
        let ours =
            |component: &&Value| component["name"].as_str().is_some_and(|name| name.starts_with("akunu"));
        assert!(
            components
                .iter()
                .filter(|c| !ours(c))
                .all(|c| c["hashes"][0]["content"].as_str().unwrap().len() == 64)
        );
    }
}
