//! `--models`: the models of a folder, or of the hub's cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use akunu_hub::{Cache, Hub, KNOWN, Reference};
use akunu_server::ModelSpec;

use super::stem;
use crate::failure::Failure;
use crate::{hub, output};

/// How deep folders are searched: `PUBLISHER/MODEL/FILE`, as other programs keep them.
const DEPTH: usize = 3;

/// What may be a model below a folder, or in the cache of the hub.
pub(super) fn find(folder: Option<&Path>) -> Result<Vec<ModelSpec>, Failure> {
    match folder {
        Some(folder) => in_folder(folder),
        None => in_cache(),
    }
}

/// The same while the server runs. A folder that cannot be read then has nothing new.
pub(super) fn find_again(folder: Option<&Path>) -> Vec<ModelSpec> {
    find(folder).unwrap_or_default()
}

/// GGUF files, and folders with SafeTensors.
fn in_folder(folder: &Path) -> Result<Vec<ModelSpec>, Failure> {
    let mut paths = Vec::new();
    if let Err(error) = walk(folder, DEPTH, &mut paths) {
        return Err(
            Failure::io("read", folder, &error).hint("--models takes a folder; name a file without it")
        );
    }
    paths.sort();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in &paths {
        *counts.entry(name(path)).or_default() += 1;
    }
    let spec = |path: PathBuf| {
        // Files of the same name are told apart by their folders.
        let own = name(&path);
        let relative = path.strip_prefix(folder).ok().and_then(Path::to_str);
        let long = relative.map(|path| path.strip_suffix(".gguf").unwrap_or(path).replace('\\', "/"));
        let name = if counts.get(&own) == Some(&1) { own } else { long.unwrap_or(own) };
        ModelSpec { name, path: Some(path), aliases: Vec::new() }
    };
    Ok(paths.into_iter().map(spec).collect())
}

/// The models in the hub's cache; those that have short names are called by them too.
fn in_cache() -> Result<Vec<ModelSpec>, Failure> {
    let settings = hub::settings()?;
    let models = Cache::new(settings.cache.clone()).models()?;
    let spec = |model: akunu_hub::CachedModel| ModelSpec {
        name: model.name,
        path: Some(model.path),
        aliases: Vec::new(),
    };
    let mut specs: Vec<ModelSpec> = models.into_iter().map(spec).collect();
    let hub = Hub::new(settings);
    for known in KNOWN {
        let Some(pulled) = Reference::named(known.name).ok().and_then(|name| hub.cached(&name).ok()) else {
            continue;
        };
        if let Some(spec) = specs.iter_mut().find(|spec| spec.path.as_ref() == Some(&pulled.path)) {
            spec.aliases.push(known.name.to_string());
        }
    }
    Ok(specs)
}

/// Those that can be opened. The others are named, since their requests would fail.
pub(super) fn usable(specs: Vec<ModelSpec>) -> Vec<ModelSpec> {
    let mut usable = Vec::new();
    for spec in specs {
        match spec.open(false) {
            Ok(_) => usable.push(spec),
            Err(error) => output::note(&format!("note: {} is left out: {error}", spec.name)),
        }
    }
    usable
}

/// Finds models in a folder, without those that begin with a dot.
fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            match is_checkpoint(&path) {
                true => found.push(path),
                // A folder that may not be read has no models for this server.
                false if depth > 1 => drop(walk(&path, depth - 1, found)),
                false => {}
            }
        } else if is_model(name) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_checkpoint(folder: &Path) -> bool {
    let has_weights = || {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "safetensors"))
    };
    folder.join("config.json").is_file() && has_weights()
}

/// A GGUF file with a model: no projector or importance matrix, and no later part of a split model.
fn is_model(file: &str) -> bool {
    let lower = file.to_ascii_lowercase();
    let Some(stem) = lower.strip_suffix(".gguf") else { return false };
    let is_part = stem.rsplit_once("-of-").is_some_and(|(rest, _)| {
        rest.rsplit_once('-').is_some_and(|(_, number)| {
            number.len() == 5 && number != "00001" && number.bytes().all(|b| b.is_ascii_digit())
        })
    });
    !(is_part || stem.contains("mmproj") || stem.starts_with("imatrix"))
}

/// A file's name without its ending and the number of its part, or a folder's name.
fn name(path: &Path) -> String {
    let name = stem(path);
    match name.rsplit_once("-00001-of-") {
        Some((rest, count)) if count.bytes().all(|b| b.is_ascii_digit()) => rest.to_string(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_projectors_are_no_models() {
        for (file, expected) in [
            ("a.gguf", true),
            ("A-Q4_K_M.GGUF", true),
            ("a-00001-of-00003.gguf", true),
            ("a-00002-of-00003.gguf", false),
            ("mmproj-a.gguf", false),
            ("a-mmproj-f16.gguf", false),
            ("imatrix.gguf", false),
            ("a.safetensors", false),
            ("state-of-art.gguf", true),
        ] {
            assert_eq!(is_model(file), expected, "{file}");
        }
        assert_eq!(name(Path::new("x/a-00001-of-00003.gguf")), "a");
        assert_eq!(name(Path::new("x/a.gguf")), "a");
    }
}
