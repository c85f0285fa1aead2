//! The options of a model or a server, from JSON that the Python code writes.

use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use akunu::{BackendOptions, DeviceChoice, EngineOptions, KvDisk, KvType, Pooling};
use akunu_hub::{Hub, Reference, Settings, Silent};
use akunu_server::{Keys, ModelSpec, Options};
use pyo3::prelude::*;
use serde_json::{Map, Value as Json};

/// The fields of the JSON object, each of which is taken once.
struct Fields(Map<String, Json>);

impl Fields {
    fn take<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Json) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>, String> {
        match self.0.remove(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => match read(&value) {
                Some(read) => Ok(Some(read)),
                None => Err(format!("{name} is {value}: it must be {expected}")),
            },
        }
    }

    fn count(&mut self, name: &str) -> Result<Option<usize>, String> {
        let count = |value: &Json| usize::try_from(value.as_u64()?).ok().filter(|count| *count > 0);
        self.take(name, count, "a positive integer")
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        self.take(name, |value| value.as_str().map(String::from), "a text")
    }

    fn flag(&mut self, name: &str) -> Result<bool, String> {
        Ok(self.take(name, Json::as_bool, "True or False")?.unwrap_or(false))
    }

    fn seconds(&mut self, name: &str) -> Result<Option<Duration>, String> {
        let seconds = |value: &Json| Duration::try_from_secs_f64(value.as_f64()?).ok();
        self.take(name, seconds, "a number of seconds")
    }

    fn list(&mut self, name: &str) -> Result<Vec<String>, String> {
        let texts = |value: &Json| {
            value
                .as_array()?
                .iter()
                .map(|text| text.as_str().map(String::from))
                .collect::<Option<Vec<String>>>()
        };
        Ok(self.take(name, texts, "a list of texts")?.unwrap_or_default())
    }
}

/// Messages for the operator go to Python's logger `akunu`.
fn log(text: &str) {
    Python::attach(|py| {
        let logger = py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("akunu",)));
        // A logger of the program may raise; nobody waits for it here.
        let _ = logger.and_then(|logger| logger.call_method1("warning", (text,)));
    });
}

/// Reads options. Models keep the names that they were given.
pub(crate) fn read(json: &str) -> Result<Options, String> {
    let fields = serde_json::from_str(json).map_err(|error| format!("options: {error}"))?;
    let mut fields = Fields(fields);
    let bytes = |mib: usize| (mib as u64) << 20;
    let slots = fields.count("parallel")?.unwrap_or(akunu_server::PARALLEL);
    let defaults = EngineOptions::default();
    let kv_type = |value: &Json| KvType::from_name(value.as_str()?);
    let (device, cards) = devices(fields.text("device")?, defaults.device)?;
    let (ranks, stages) = (fields.count("tensor_parallel")?, fields.count("pipeline_parallel")?);
    if ranks.is_some() && stages.is_some() {
        return Err("tensor_parallel and pipeline_parallel: a model is divided in one way".into());
    }
    let backends = BackendOptions::from_variables(|name| env::var_os(name));
    let engine = EngineOptions {
        device,
        threads: fields.count("threads")?,
        backends: BackendOptions { ranks, stages, cards, ..backends },
        gpu_layers: fields.take(
            "gpu_layers",
            |value| usize::try_from(value.as_u64()?).ok(),
            "a number of layers",
        )?,
        context: fields.count("context")?,
        kv: fields.take("kv_type", kv_type, "f32, f16 or q8_0")?.unwrap_or(defaults.kv),
        kv_memory: fields.count("kv_memory")?.map(bytes),
        kv_host: fields.count("kv_host")?.map(bytes),
        kv_disk: fields
            .text("kv_disk")?
            .map(|folder| KvDisk { folder: folder.into(), bytes: KvDisk::DEFAULT_BYTES }),
        chunk: fields.count("chunk")?,
        ..defaults
    }
    .batching(slots);
    let mut options = Options::default();
    options.models.engine = engine;
    options.models.log = log;
    options.models.models = fields.list("models")?.into_iter().map(spec).collect();
    options.models.scheduler.queue = fields.count("queue")?.unwrap_or(options.models.scheduler.queue);
    let pooling = |value: &Json| Pooling::from_name(value.as_str()?);
    options.models.pooling = fields.take("pooling", pooling, "mean, cls or last")?;
    options.models.rerank = fields.flag("rerank")?;
    options.models.beams = fields.count("beams")?.unwrap_or(1);
    options.models.memory = fields.count("max_memory")?.map(bytes);
    options.models.no_mmap = fields.flag("no_mmap")?;
    options.host = fields.text("host")?.unwrap_or(options.host);
    let port = |value: &Json| u16::try_from(value.as_u64()?).ok();
    options.port = fields.take("port", port, "a port")?.unwrap_or(0);
    options.keys = Keys::new(&fields.list("api_keys")?.join("\n"));
    options.allowed_hosts = fields.list("allow_hosts")?;
    options.preload = fields.flag("preload")?;
    options.drain = fields.seconds("drain")?.unwrap_or(options.drain);
    match fields.0.keys().next() {
        None => Ok(options),
        Some(name) => Err(format!("there is no option {name}")),
    }
}

/// A device, or GPUs by their numbers: `cuda`, `cuda:0,1`.
fn devices(text: Option<String>, default: DeviceChoice) -> Result<(DeviceChoice, Vec<u32>), String> {
    let Some(text) = text else { return Ok((default, Vec::new())) };
    let (name, cards) = text.split_once(':').map_or((&*text, None), |(name, cards)| (name, Some(cards)));
    let choice = DeviceChoice::from_str(name).map_err(|error| format!("device: {error}"))?;
    let cards =
        cards.map(|cards| choice.cards(cards)).transpose().map_err(|error| format!("device: {error}"))?;
    Ok((choice, cards.unwrap_or_default()))
}

/// A model by what it was called: a path, a name of the hub, or "" for the embedded one.
fn spec(name: String) -> ModelSpec {
    match name.as_str() {
        "" => ModelSpec::embedded(),
        _ => ModelSpec { path: Some(PathBuf::from(&name)), name, ..ModelSpec::default() },
    }
}

/// Finds models on the hub, and downloads what is missing. Models in files get the names of their files.
pub(crate) fn resolve(mut options: Options) -> Result<Options, String> {
    for spec in &mut options.models.models {
        let Some(path) = spec.path.clone() else { continue };
        let is_named = Reference::is_reference(&spec.name);
        if is_named && (spec.name.starts_with(akunu_hub::PREFIX) || !path.exists()) {
            let text = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
            let settings = Settings::from_variables(text).map_err(|error| error.to_string())?;
            let reference = Reference::named(&spec.name).map_err(|error| error.to_string())?;
            let pulled =
                Hub::new(settings).pull(&reference, &mut Silent).map_err(|error| error.to_string())?;
            spec.path = Some(pulled.path);
        } else {
            spec.name = stem(&path);
        }
    }
    Ok(options)
}

/// A file's name without `.gguf`, or a folder's name.
fn stem(path: &Path) -> String {
    let name =
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
    name.strip_suffix(".gguf").map(str::to_string).unwrap_or(name)
}
