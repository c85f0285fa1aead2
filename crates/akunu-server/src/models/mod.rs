//! The models of a server: loaded when they are first asked for, put away when they are not.

mod kind;
mod loaded;
mod texts;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use akunu::schedule::SchedulerOptions;
use akunu::{Device, EngineOptions, Error, Model, Pooling, open_device};

use crate::refusal::{Reason, Refusal};
pub use kind::Kind;
pub use loaded::{Lease, Loaded};
use loaded::{LoadError, Room};
pub use texts::{TextCounts, TextQueue};

/// A model that can be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSpec {
    pub name: String,
    /// `None`: the one inside the binary.
    pub path: Option<PathBuf>,
    pub aliases: Vec<String>,
}

impl ModelSpec {
    /// The story-teller inside the binary.
    pub fn embedded() -> ModelSpec {
        ModelSpec { name: "akunu-tales".into(), ..ModelSpec::default() }
    }

    pub(crate) fn open(&self) -> Result<Model, Error> {
        match &self.path {
            Some(path) => Model::open(path),
            None => Model::embedded(),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Requests that a model works at together, where nobody says: each has a cache of its own for a whole context.
pub const PARALLEL: usize = 4;

pub type OpenDevice = fn(&EngineOptions) -> Result<Box<dyn Device>, Error>;

#[derive(Clone, Debug)]
pub struct ModelsOptions {
    pub models: Vec<ModelSpec>,
    pub engine: EngineOptions,
    /// What opens an engine's device, on its thread.
    pub device: OpenDevice,
    pub scheduler: SchedulerOptions,
    /// A model that nobody asked for this long is put away; `None`: never.
    pub idle_unload: Option<Duration>,
    /// Most bytes of all loaded models, weights included; `None`: what the machine has.
    pub memory: Option<u64>,
    /// Every model makes vectors, pooled this way, except those that have a classifier.
    pub pooling: Option<Pooling>,
    /// Generative models score documents, by whether they would answer with yes.
    pub rerank: bool,
}

impl Default for ModelsOptions {
    fn default() -> ModelsOptions {
        ModelsOptions {
            models: vec![ModelSpec::embedded()],
            engine: EngineOptions::default().batching(PARALLEL),
            device: |engine| open_device(engine.device, engine.threads, &engine.backends),
            scheduler: SchedulerOptions::default(),
            idle_unload: None,
            memory: None,
            pooling: None,
            rerank: false,
        }
    }
}

#[derive(Debug)]
pub struct Models {
    entries: Vec<Entry>,
    options: ModelsOptions,
    /// Held while a model is loaded: one at a time, so that each knows what the others leave.
    loading: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Entry {
    spec: ModelSpec,
    /// As its files said when somebody first asked.
    kind: OnceLock<Kind>,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

impl Entry {
    fn loaded(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> Option<Lease> {
        self.loaded().as_ref().map(Lease::new)
    }

    /// Takes the model away if nobody uses it and `wanted` agrees.
    fn take_idle(&self, wanted: impl Fn(&Loaded) -> bool) -> Option<Arc<Loaded>> {
        self.loaded().take_if(|loaded| loaded.is_idle() && wanted(loaded))
    }
}

impl Models {
    pub fn new(options: ModelsOptions) -> Models {
        let entry =
            |spec: &ModelSpec| Entry { spec: spec.clone(), kind: OnceLock::new(), loaded: Mutex::new(None) };
        let entries = options.models.iter().map(entry).collect();
        Models { entries, options, loading: tokio::sync::Mutex::new(()) }
    }

    /// What can be asked for, and whether it is loaded.
    pub fn list(&self) -> impl Iterator<Item = (&ModelSpec, Option<Lease>)> {
        self.entries.iter().map(|entry| (&entry.spec, entry.lease()))
    }

    fn entry(&self, name: Option<&str>) -> Result<&Entry, Refusal> {
        let found = match name {
            Some(name) => self.entries.iter().find(|entry| entry.spec.is_called(name)),
            None => self.entries.first(),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.spec.name.as_str()).collect();
            let name = name.unwrap_or_default();
            Refusal::new(
                Reason::NotFound,
                format!("there is no model \"{name}\" here; there is {}", names.join(", ")),
            )
            .param("model")
            .code("model_not_found")
        })
    }

    /// What is known of a model without loading it.
    pub fn spec(&self, name: Option<&str>) -> Result<&ModelSpec, Refusal> {
        Ok(&self.entry(name)?.spec)
    }

    /// What a model can do. `None`: its files cannot be read.
    pub async fn kind(&self, spec: &ModelSpec) -> Option<Kind> {
        let entry = self.entry(Some(&spec.name)).ok()?;
        if let Some(kind) = entry.kind.get() {
            return Some(*kind);
        }
        let (spec, options) = (spec.clone(), self.options.clone());
        let kind = blocking(move || Some(Kind::of(&spec.open().ok()?, &options))).await.ok()??;
        Some(*entry.kind.get_or_init(|| kind))
    }

    /// What a model that is open can do.
    pub(crate) fn kind_of(&self, model: &Model) -> Kind {
        Kind::of(model, &self.options)
    }

    /// A model, loaded if it is not yet.
    pub async fn get(&self, name: Option<&str>) -> Result<Lease, Refusal> {
        let entry = self.entry(name)?;
        if let Some(lease) = entry.lease() {
            return Ok(lease);
        }
        let _alone = self.loading.lock().await;
        if let Some(lease) = entry.lease() {
            return Ok(lease);
        }
        let loaded = self.load(&entry.spec).await?;
        let lease = Lease::new(&loaded);
        *entry.loaded() = Some(loaded);
        Ok(lease)
    }

    async fn load(&self, spec: &ModelSpec) -> Result<Arc<Loaded>, Refusal> {
        loop {
            let room = Room { most: self.options.memory, used: self.used() };
            let (spec, options) = (spec.clone(), self.options.clone());
            let loading = blocking(move || Loaded::load(&spec, options, room)).await?;
            match loading {
                Ok(loaded) => return Ok(Arc::new(loaded)),
                Err(LoadError::NoRoom(_)) if self.unload_oldest().await => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes of all loaded models.
    fn used(&self) -> u64 {
        self.entries.iter().filter_map(|entry| Some(entry.loaded().as_ref()?.bytes())).sum()
    }

    /// Puts away the model that has been idle longest. False: none is idle.
    async fn unload_oldest(&self) -> bool {
        let idle = |entry: &&Entry| entry.loaded().as_ref().and_then(|loaded| loaded.idle_since());
        let oldest = self.entries.iter().filter_map(|entry| Some((idle(&entry)?, entry)));
        let Some((_, entry)) = oldest.min_by_key(|(since, _)| *since) else { return false };
        // Somebody may have come for it meanwhile; then another look is due.
        if let Some(loaded) = entry.take_idle(|_| true) {
            let _ = blocking(move || drop(loaded)).await;
        }
        true
    }

    /// Whether idle ones are put away.
    pub fn are_unloaded(&self) -> bool {
        self.options.idle_unload.is_some()
    }

    /// Puts away what nobody asked for in a long while.
    pub async fn unload_idle(&self) {
        let Some(limit) = self.options.idle_unload else { return };
        let now = Instant::now();
        for entry in &self.entries {
            let is_old = |loaded: &Loaded| {
                loaded.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= limit)
            };
            if let Some(loaded) = entry.take_idle(is_old) {
                let _ = blocking(move || drop(loaded)).await;
            }
        }
    }

    /// An engine broke down: the next request starts another.
    pub fn forget(&self, broken: &Lease) {
        for entry in &self.entries {
            entry.loaded().take_if(|loaded| broken.is_of(loaded));
        }
    }
}

/// Runs what takes long, or blocks, where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Refusal::internal("this request hit a bug in Akunu"))
}
