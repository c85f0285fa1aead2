//! The files of a checkpoint: its configuration, and its weights in one SafeTensors file or several.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::json::{Document, Json};
use super::quantisation::{self, QUANTIZATION, QUANTIZATION_CONFIG, Quantisation};
use super::tensors::{self, Stored};
use super::{CONFIG, GPTQ_CONFIG, INDEX, WEIGHTS};
use crate::error::printable;
use crate::{FormatError, Loading, Region, TensorInfo};

/// A checkpoint whose configuration has been read, but not its weights.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config_path: PathBuf,
    config: Document,
    /// The single file that was opened; `None` for a folder.
    file: Option<PathBuf>,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors` (or the shards listed in
    /// `model.safetensors.index.json`), or one file whose configuration is `NAME_config.json` or `config.json` beside
    /// it. A shard opens its whole folder.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        let (config_path, file) = if path.is_dir() {
            (path.join(CONFIG), None)
        } else {
            let config = config_beside(path)?;
            if let Some(folder) = folder_of_shard(path, &config)? {
                return Checkpoint::open(folder);
            }
            (config, Some(path.to_path_buf()))
        };
        let mut config = Document::read(&config_path)?;
        let gptq = config_path.with_file_name(GPTQ_CONFIG);
        let has_own = [QUANTIZATION, QUANTIZATION_CONFIG].iter().any(|key| config.root().get(key).is_some());
        if !has_own && is_shared(&config_path) && gptq.is_file() {
            config.add_gptq(Document::read(&gptq)?);
        }
        Ok(Checkpoint { path: path.to_path_buf(), config_path, config, file })
    }

    /// The path that was opened: the folder, or the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config_path(&self) -> &Path {
        &self.config_path
    }

    pub fn config(&self) -> Json<'_> {
        self.config.root()
    }

    /// The name of the folder or file.
    pub fn name(&self) -> Option<String> {
        let name = if self.file.is_none() { self.path.file_name() } else { self.path.file_stem() };
        name.and_then(|name| name.to_str()).map(str::to_string)
    }

    /// `generation_config.json`: end-of-text ids, often more than in `config.json`, and sampling settings.
    pub fn generation(&self) -> Result<Option<Document>, FormatError> {
        let path = self.config_path.with_file_name("generation_config.json");
        if is_shared(&self.config_path) && path.is_file() {
            Document::read(&path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Maps or reads the files. `is_ignorable` tells which tensors an index may list although the file does not contain
    /// them.
    pub fn weights(
        &self,
        loading: Loading,
        is_ignorable: impl Fn(&str) -> bool,
    ) -> Result<Weights, FormatError> {
        let files = match &self.file {
            Some(file) => BTreeMap::from([(file.clone(), Vec::new())]),
            None => weight_files(&self.path)?,
        };
        let mut weights = Weights { stored: Vec::new(), regions: Vec::new() };
        for (file, promised) in &files {
            let region = crate::map::load_file(file, loading)?;
            let found = tensors::read(&region, weights.regions.len())
                .and_then(|found| refuse_absent(promised, &found, &is_ignorable).map(|()| found))
                .map_err(|error| error.in_file(file))?;
            weights.stored.extend(found);
            weights.regions.push(region);
        }
        Ok(weights)
    }
}

/// Tensors as stored in the files, under the names in the files.
#[derive(Debug)]
pub struct Weights {
    stored: Vec<Stored>,
    regions: Vec<Region>,
}

impl Weights {
    /// From memory: a whole SafeTensors file.
    pub fn from_region(region: Region) -> Result<Weights, FormatError> {
        Ok(Weights { stored: tensors::read(&region, 0)?, regions: vec![region] })
    }

    /// A SafeTensors file.
    pub fn open(path: &Path, loading: Loading) -> Result<Weights, FormatError> {
        let region = crate::map::load_file(path, loading)?;
        Weights::from_region(region).map_err(|error| error.in_file(path))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stored.iter().map(|tensor| tensor.name.as_str())
    }

    /// Removes tensors by name, whatever their types.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.stored.retain(|tensor| wanted(&tensor.name));
    }

    /// The tensors, with the parts of quantised weights combined, and the regions that contain them: those of the
    /// files, and derived ones.
    pub fn join(
        self,
        quantisation: Option<&Quantisation<'_>>,
    ) -> Result<(Vec<TensorInfo>, Vec<Region>), FormatError> {
        quantisation::join(self.stored, self.regions, quantisation)
    }
}

/// `NAME_config.json` takes precedence over `config.json`, so that several models can share a folder.
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

/// Whether a configuration is that of its folder, and not of one file in it.
fn is_shared(config: &Path) -> bool {
    config.file_name().is_some_and(|name| name == CONFIG)
}

/// Weight files, and the tensors that an index lists for each; the lists are empty without an index.
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

/// The folder whose index names this file, unless the file has its own configuration.
fn folder_of_shard<'p>(file: &'p Path, config: &Path) -> Result<Option<&'p Path>, FormatError> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if !is_shared(config) || folder.join(WEIGHTS).is_file() || !folder.join(INDEX).is_file() {
        return Ok(None);
    }
    let document = Document::read(&folder.join(INDEX))?;
    let name = file.file_name().and_then(|name| name.to_str());
    let listed = document.root().object("weight_map")?.is_some_and(|map| {
        map.keys().any(|tensor| map.str(tensor).is_ok_and(|file| file.is_some() && file == name))
    });
    Ok(listed.then_some(folder))
}

/// The files that the index names.
fn shards(index: &Json<'_>, folder: &Path) -> Result<Files, FormatError> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| FormatError::MissingKey { key: "weight_map".to_string(), place: INDEX })?;
    let mut files = Files::new();
    for name in map.keys() {
        let file = map.str(name)?.unwrap_or_default();
        // Only files of the same folder, so that an index cannot refer to any other path.
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

/// An index is written together with its shards: if a tensor is absent, the file is damaged or of another model.
fn refuse_absent(
    promised: &[String],
    found: &[Stored],
    is_ignorable: impl Fn(&str) -> bool,
) -> Result<(), FormatError> {
    let found: HashSet<&str> = found.iter().map(|tensor| tensor.name.as_str()).collect();
    let absent = |name: &&String| !found.contains(name.as_str()) && !is_ignorable(name);
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
    "Its weights are in PyTorch's format: convert them to SafeTensors (transformers' save_pretrained does).";

/// Checks names only, since this just improves the advice of an error.
pub(crate) fn holds_pytorch(folder: &Path) -> bool {
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pytorch_model") || [".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| named(&entry.path()))
}
