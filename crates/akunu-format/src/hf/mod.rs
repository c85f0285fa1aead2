//! Hugging Face and MLX checkpoints: `config.json` and SafeTensors, one file or several.

mod config;
mod json;
mod mlx;
mod rope;
mod tensors;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::error::printable;
use crate::{FormatError, ModelConfig, Region, TensorInfo, WeightProvider, names, provider};
use json::Document;

pub(crate) const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What the refusal of another type recommends.
pub(crate) const SUPPORTED: &str = "F32, F16 or BF16";

/// A model in SafeTensors with its configuration beside it. Tensor names are canonical.
#[derive(Debug)]
pub struct SafeTensorsModel {
    config: ModelConfig,
    stored: Vec<TensorInfo>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    regions: Vec<Region>,
}

impl SafeTensorsModel {
    /// Opens a folder with `config.json` and `model.safetensors` (or the shards that
    /// `model.safetensors.index.json` lists), or one file whose configuration is `NAME_config.json` or
    /// `config.json` beside it. A shard stands for its whole folder.
    pub fn open(path: &Path) -> Result<SafeTensorsModel, FormatError> {
        let (config_path, file) = if path.is_dir() {
            (path.join(CONFIG), None)
        } else {
            let config = config_beside(path)?;
            if let Some(folder) = folder_of_shard(path, &config)? {
                return SafeTensorsModel::open(folder);
            }
            (config, Some(path))
        };
        let document = Document::read(&config_path)?;
        let root = document.root();
        // Before weights are looked at: what cannot run should say so at once.
        config::refuse_unsupported(&root).map_err(|error| error.in_file(&config_path))?;
        let files = match file {
            Some(file) => BTreeMap::from([(file.to_path_buf(), Vec::new())]),
            None => weight_files(path)?,
        };

        let mut regions = Vec::new();
        let mut stored = Vec::new();
        for (file, promised) in &files {
            let region = crate::map::map_file(file)?;
            let found = tensors::read(&region, regions.len())
                .and_then(|found| refuse_absent(promised, &found).map(|()| found))
                .map_err(|error| error.in_file(file))?;
            stored.extend(found);
            regions.push(region);
        }
        let generation = generation_config(&config_path)?;
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.and_then(|name| name.to_str()).map(str::to_string);
        SafeTensorsModel::assemble(&root, generation.as_ref(), name, stored, regions)
            .map_err(|error| error.in_file(path))
    }

    /// From bytes: a whole SafeTensors file, and the text of its `config.json`.
    pub fn from_region(region: Region, config: &str) -> Result<SafeTensorsModel, FormatError> {
        let document = Document::parse(config)?;
        let root = document.root();
        config::refuse_unsupported(&root)?;
        let stored = tensors::read(&region, 0)?;
        SafeTensorsModel::assemble(&root, None, None, stored, vec![region])
    }

    fn assemble(
        root: &json::Json<'_>,
        generation: Option<&Document>,
        name: Option<String>,
        stored: Vec<tensors::Stored>,
        regions: Vec<Region>,
    ) -> Result<SafeTensorsModel, FormatError> {
        config::refuse_images(root, stored.iter().map(|tensor| tensor.name.as_str()))?;
        let joined = mlx::join(stored, mlx::Quantisation::of(root)?.as_ref())?;
        let stored = tensors::rename(joined, root.str("model_type")?.unwrap_or_default())?;
        let generation = generation.map(Document::root);
        let config = config::model_config(root, generation.as_ref(), name, &stored)?;
        let tensors = names::split_fused(&stored, &config)?;
        let by_name = provider::index_names(&tensors)?;
        names::refuse_unknown(&tensors, &config)?;
        Ok(SafeTensorsModel { config, stored, tensors, by_name, regions })
    }
}

impl WeightProvider for SafeTensorsModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn stored(&self) -> &[TensorInfo] {
        &self.stored
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }
}

/// `NAME_config.json` before `config.json`, so that several models can share a folder.
pub(crate) fn config_beside(file: &Path) -> Result<PathBuf, FormatError> {
    let own = file.file_stem().map(|stem| {
        let mut name = stem.to_os_string();
        name.push("_config.json");
        file.with_file_name(name)
    });
    let shared = file.with_file_name(CONFIG);
    let found = own.into_iter().chain([shared]).find(|path| path.is_file());
    found.ok_or_else(|| {
        FormatError::NotAModel {
            found: format!("a SafeTensors file without {CONFIG}"),
            advice: format!(
                "Put the {CONFIG} and the tokenizer.json that were published with it into its folder."
            ),
        }
        .in_file(file)
    })
}

/// End-of-text ids, often more than `config.json` names, and how to sample.
fn generation_config(config_path: &Path) -> Result<Option<Document>, FormatError> {
    let path = config_path.with_file_name("generation_config.json");
    let own_config = config_path.file_name().is_some_and(|name| name == CONFIG);
    if own_config && path.is_file() { Document::read(&path).map(Some) } else { Ok(None) }
}

/// Weights, and the tensors that an index says are in each file: none, where there is no index.
type Files = BTreeMap<PathBuf, Vec<String>>;

fn weight_files(folder: &Path) -> Result<Files, FormatError> {
    let single = folder.join(WEIGHTS);
    if single.is_file() {
        return Ok(BTreeMap::from([(single, Vec::new())]));
    }
    let index = folder.join(INDEX);
    if !index.is_file() {
        return Err(no_weights(folder));
    }
    let document = Document::read(&index)?;
    shards(&document.root(), folder).map_err(|error| error.in_file(&index))
}

/// The folder whose index names this file, unless the file has a configuration of its own.
fn folder_of_shard<'p>(file: &'p Path, config: &Path) -> Result<Option<&'p Path>, FormatError> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let own_config = config.file_name().is_none_or(|name| name != CONFIG);
    if own_config || folder.join(WEIGHTS).is_file() || !folder.join(INDEX).is_file() {
        return Ok(None);
    }
    let document = Document::read(&folder.join(INDEX))?;
    let name = file.file_name().and_then(|name| name.to_str());
    let listed = document.root().object("weight_map")?.is_some_and(|map| {
        map.keys().any(|tensor| map.str(tensor).is_ok_and(|file| file.is_some() && file == name))
    });
    Ok(listed.then_some(folder))
}

/// The files that the index names, in their order.
fn shards(index: &json::Json<'_>, folder: &Path) -> Result<Files, FormatError> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| FormatError::MissingKey { key: "weight_map".to_string(), place: INDEX })?;
    let mut files = Files::new();
    for name in map.keys() {
        let file = map.str(name)?.unwrap_or_default();
        // Only files of this very folder: an index must not lead anywhere else.
        let plain = Path::new(file).file_name().is_some_and(|name| name == file);
        if !plain {
            let problem = format!("{file:?} is not a plain file name");
            return Err(FormatError::Config {
                key: "weight_map".to_string(),
                place: "index of shards",
                problem,
            });
        }
        files.entry(folder.join(file)).or_default().push(name.to_string());
    }
    let missing: Vec<_> = files.keys().filter(|file| !file.is_file()).collect();
    let problem = match (missing.as_slice(), files.len()) {
        (_, 0) => "the index names no files".to_string(),
        ([], _) => return Ok(files),
        ([first, rest @ ..], all) => {
            let name = printable(&first.file_name().unwrap_or_default().to_string_lossy());
            let others = match rest.len() {
                0 => "is".to_string(),
                more => format!("and {more} more are"),
            };
            format!("of {all} files, {name} {others} missing: download what is missing into the same folder")
        }
    };
    Err(FormatError::Split { problem })
}

/// An index is written with its shards: what lacks a tensor is of another model, or damaged.
fn refuse_absent(promised: &[String], found: &[tensors::Stored]) -> Result<(), FormatError> {
    let found: HashSet<&str> = found.iter().map(|tensor| tensor.name.as_str()).collect();
    let absent = |name: &&String| !found.contains(name.as_str()) && !names::is_ignorable(name);
    match promised.iter().find(absent) {
        None => Ok(()),
        Some(name) => {
            let problem = format!("it is not in this file, where {INDEX} places it: download both again");
            Err(FormatError::tensor(name, problem))
        }
    }
}

fn no_weights(folder: &Path) -> FormatError {
    let advice = match holds_pytorch(folder) {
        true => ONLY_PYTORCH.to_string(),
        false => format!("It needs {WEIGHTS}, or {INDEX} and the shards that it names."),
    };
    FormatError::NotAModel { found: "a folder without SafeTensors weights".to_string(), advice }
        .in_file(folder)
}

pub(crate) const ONLY_PYTORCH: &str =
    "Its weights are in PyTorch's format: save them as SafeTensors (transformers' save_pretrained does).";

/// By names alone: all that is wanted is better advice.
pub(crate) fn holds_pytorch(folder: &Path) -> bool {
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pytorch_model") || [".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| named(&entry.path()))
}
