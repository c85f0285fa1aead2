//! Hugging Face and MLX checkpoints: `config.json` and SafeTensors, one file or several.

mod config;
mod json;
mod mlx;
mod rope;
mod tensors;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

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
    /// `config.json` beside it.
    pub fn open(path: &Path) -> Result<SafeTensorsModel, FormatError> {
        let (config_path, files) = if path.is_dir() {
            (path.join(CONFIG), None)
        } else {
            (config_beside(path)?, Some(vec![path.to_path_buf()]))
        };
        let document = Document::read(&config_path)?;
        let root = document.root();
        // Before weights are looked at: what cannot run should say so at once.
        config::refuse_unsupported(&root).map_err(|error| error.in_file(&config_path))?;
        let files = match files {
            Some(files) => files,
            None => weight_files(path)?,
        };

        let mut regions = Vec::new();
        let mut stored = Vec::new();
        for file in &files {
            let region = crate::map::map_file(file)?;
            let found = tensors::read(&region, regions.len()).map_err(|error| error.in_file(file))?;
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
fn config_beside(file: &Path) -> Result<PathBuf, FormatError> {
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
            advice: format!("Put the model's {CONFIG} beside it."),
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

fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let single = folder.join(WEIGHTS);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = folder.join(INDEX);
    if !index.is_file() {
        return Err(no_weights(folder));
    }
    let document = Document::read(&index)?;
    shards(&document.root(), folder).map_err(|error| error.in_file(&index))
}

/// The files that the index names, in their order.
fn shards(index: &json::Json<'_>, folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| FormatError::MissingKey { key: "weight_map".to_string(), place: "index of shards" })?;
    let mut files = std::collections::BTreeSet::new();
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
        files.insert(folder.join(file));
    }
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => Err(FormatError::Split {
            problem: format!("{} is missing: put it beside the others", missing.display()),
        }),
        None if files.is_empty() => {
            Err(FormatError::Split { problem: "the index names no files".to_string() })
        }
        None => Ok(files.into_iter().collect()),
    }
}

fn no_weights(folder: &Path) -> FormatError {
    let advice = if folder.join("pytorch_model.bin").exists()
        || folder.join("pytorch_model.bin.index.json").exists()
    {
        "Its weights are in PyTorch's format: save them as SafeTensors (transformers' save_pretrained does)."
            .to_string()
    } else {
        format!("It needs {WEIGHTS}, or {INDEX} and the shards that it names.")
    };
    FormatError::NotAModel { found: "a folder without SafeTensors weights".to_string(), advice }
        .in_file(folder)
}
