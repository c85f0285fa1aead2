//! The models of a server: loaded on their first request, and unloaded when idle or when memory is needed.

mod kind;
mod loaded;
mod speech;
mod texts;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use akunu::embed::default_longest;
use akunu::schedule::SchedulerOptions;
use akunu::{Device, EngineOptions, Error, Model, Pooling, open_device};

use tokio::task::JoinHandle;

use crate::record;
use crate::refusal::{Reason, Refusal};
pub use kind::Kind;
pub use loaded::{Lease, Loaded};
use loaded::{LoadError, MemoryBudget};
pub use speech::{SpeechCounts, SpeechQueue};
pub(crate) use speech::{SpeechEvent, SpeechResult};
pub use texts::{TextCounts, TextQueue};

/// A model that can be requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSpec {
    pub name: String,
    /// `None`: the embedded model.
    pub path: Option<PathBuf>,
    pub aliases: Vec<String>,
}

impl ModelSpec {
    /// The model embedded in the binary.
    pub fn embedded() -> ModelSpec {
        ModelSpec { name: "akunu-tales".into(), ..ModelSpec::default() }
    }

    /// Opens its files, without reading weights unless `no_mmap`.
    pub fn open(&self, no_mmap: bool) -> Result<Model, Error> {
        match &self.path {
            Some(path) if no_mmap => Model::read(path),
            Some(path) => Model::open(path),
            None => Model::embedded(),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// The name that the command line has for the embedded model stands for it without being listed.
    fn is_also_called(&self, name: &str) -> bool {
        self.path.is_none() && name == EMBEDDED
    }
}

/// The name of the embedded model on the command line, and in requests besides its own.
pub const EMBEDDED: &str = "embedded";

/// Default number of concurrent requests of a model. Each has a slot with a whole context.
pub const PARALLEL: usize = 4;

pub type OpenDevice = fn(&EngineOptions) -> Result<Box<dyn Device>, Error>;

#[derive(Clone, Debug)]
pub struct ModelsOptions {
    pub models: Vec<ModelSpec>,
    pub engine: EngineOptions,
    /// Opens an engine's device, on the engine's thread.
    pub device: OpenDevice,
    pub scheduler: SchedulerOptions,
    /// Unload models that have had no request for this long; `None`: never.
    pub idle_unload: Option<Duration>,
    /// Maximum memory of all loaded models, including weights; `None`: the memory of the machine.
    pub memory: Option<u64>,
    /// Use all models without a classifier for embeddings, with this pooling.
    pub pooling: Option<Pooling>,
    /// Use generative models as rerankers, by their probability of answering yes.
    pub rerank: bool,
    /// Texts of a window of audio that models that transcribe follow; 1: greedy.
    pub beams: usize,
    /// Read the files of models that are loaded into memory, instead of mapping them.
    pub no_mmap: bool,
    /// Receives messages for the operator, such as errors with paths of files.
    pub log: fn(&str),
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
            beams: 1,
            no_mmap: false,
            log: |_| {},
        }
    }
}

#[derive(Debug)]
pub struct Models {
    entries: Vec<Entry>,
    options: ModelsOptions,
    /// Held while a model is being loaded. Only one is at a time, so that the memory in use is known.
    loading: tokio::sync::Mutex<()>,
}

/// What is known of a model without loading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: Kind,
    /// The most tokens of a prompt and its answer, or of a text, if memory suffices; `None`: it takes no texts.
    pub context: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    spec: ModelSpec,
    /// Read from the model's files on first use.
    facts: OnceLock<Facts>,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

impl Facts {
    fn of(model: &Model, options: &ModelsOptions) -> Facts {
        let kind = Kind::of(model, options);
        let context = match kind {
            Kind::Generates => Some(options.engine.context.unwrap_or(model.config().context_length)),
            Kind::Embeds(_) | Kind::Scores => {
                Some(longest_text(model, &options.engine).unwrap_or(default_longest(model.config())))
            }
            Kind::Transcribes => None,
        };
        Facts { kind, context }
    }
}

/// The most tokens of a text of a model that makes vectors or scores, if the server's options limit it.
fn longest_text(model: &Model, engine: &EngineOptions) -> Option<usize> {
    engine.context.map(|context| context.min(model.config().context_length))
}

impl Entry {
    fn loaded(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> Option<Lease> {
        self.loaded().as_ref().map(Lease::new)
    }

    /// Takes the model if it is idle and `predicate` is true.
    fn take_idle(&self, predicate: impl Fn(&Loaded) -> bool) -> Option<Arc<Loaded>> {
        self.loaded().take_if(|loaded| loaded.is_idle() && predicate(loaded))
    }
}

impl Models {
    /// Replaces the paths of models in an error message by their names, and logs the original: clients must not learn
    /// about the server's file system.
    pub(crate) fn without_paths(&self, message: String) -> String {
        let mut clean = message.clone();
        for spec in self.entries.iter().map(|entry| &entry.spec) {
            let Some(path) = &spec.path else { continue };
            for path in [path.canonicalize().ok(), Some(path.clone())].into_iter().flatten() {
                // A path without a separator says nothing about folders, and may be an ordinary word.
                let Some(folder) = path.parent().filter(|folder| folder.components().next().is_some()) else {
                    continue;
                };
                clean = clean.replace(&path.display().to_string(), &spec.name);
                if folder.file_name().is_some() {
                    clean = clean.replace(&format!("{}{}", folder.display(), std::path::MAIN_SEPARATOR), "");
                }
            }
        }
        if clean != message {
            (self.options.log)(&format!("error: {message}"));
        }
        clean
    }

    pub fn new(options: ModelsOptions) -> Models {
        let entry =
            |spec: &ModelSpec| Entry { spec: spec.clone(), facts: OnceLock::new(), loaded: Mutex::new(None) };
        let entries = options.models.iter().map(entry).collect();
        Models { entries, options, loading: tokio::sync::Mutex::new(()) }
    }

    /// All models, with a lease of those that are loaded, which does not count as a use.
    pub fn list(&self) -> impl Iterator<Item = (&ModelSpec, Option<Lease>)> {
        self.entries.iter().map(|entry| (&entry.spec, entry.loaded().as_ref().map(Lease::to_look)))
    }

    fn entry(&self, name: Option<&str>) -> Result<&Entry, Refusal> {
        let found = match name {
            Some(name) => {
                let mut entries = self.entries.iter();
                let also = || self.entries.iter().find(|entry| entry.spec.is_also_called(name));
                entries.find(|entry| entry.spec.is_called(name)).or_else(also)
            }
            None => self.entries.first(),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.spec.name.as_str()).collect();
            let name = name.unwrap_or_default();
            Refusal::new(
                Reason::NotFound,
                format!("unknown model \"{name}\"; available: {}", names.join(", ")),
            )
            .param("model")
            .code("model_not_found")
        })
    }

    /// Finds a model without loading it.
    pub fn spec(&self, name: Option<&str>) -> Result<&ModelSpec, Refusal> {
        Ok(&self.entry(name)?.spec)
    }

    /// The kind of a model; `None`: its files cannot be read.
    pub async fn kind(&self, spec: &ModelSpec) -> Option<Kind> {
        Some(self.facts(spec).await?.kind)
    }

    /// What is known of a model; `None`: its files cannot be read.
    pub async fn facts(&self, spec: &ModelSpec) -> Option<Facts> {
        let entry = self.entry(Some(&spec.name)).ok()?;
        if let Some(facts) = entry.facts.get() {
            return Some(*facts);
        }
        let (spec, options) = (spec.clone(), self.options.clone());
        let facts = blocking(move || Some(Facts::of(&spec.open(false).ok()?, &options))).await.ok()??;
        Some(*entry.facts.get_or_init(|| facts))
    }

    /// Positions of the KV cache that all requests to a model share, if it is loaded and generates text.
    pub fn kv_capacity(&self, spec: &ModelSpec) -> Option<usize> {
        let entry = self.entry(Some(&spec.name)).ok()?;
        let loaded = entry.loaded();
        Some(loaded.as_ref()?.handle()?.stats().kv_capacity)
    }

    /// The context of a model that is loaded.
    pub fn loaded_context(&self, spec: &ModelSpec) -> Option<usize> {
        Some(self.entry(Some(&spec.name)).ok()?.loaded().as_ref()?.context())
    }

    /// The kind of an open model.
    pub(crate) fn kind_of(&self, model: &Model) -> Kind {
        Kind::of(model, &self.options)
    }

    /// Leases a model, and loads it if necessary.
    pub async fn get(&self, name: Option<&str>) -> Result<Lease, Refusal> {
        record::note(|record| record.model(name.unwrap_or_default()));
        let entry = self.entry(name)?;
        record::note(|record| record.model(&entry.spec.name));
        if let Some(lease) = entry.lease() {
            return Ok(lease);
        }
        let _guard = self.loading.lock().await;
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
            let budget = MemoryBudget { limit: self.options.memory, used: self.used() };
            let (spec, options) = (spec.clone(), self.options.clone());
            let loading = blocking(move || Loaded::load(&spec, options, budget)).await?;
            match loading {
                Ok(loaded) => return Ok(Arc::new(loaded)),
                Err(LoadError::OutOfMemory(_)) if self.unload_oldest().await => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Memory of all loaded models.
    fn used(&self) -> u64 {
        self.entries.iter().filter_map(|entry| Some(entry.loaded().as_ref()?.bytes())).sum()
    }

    /// Unloads the model that has been idle for the longest time. False: none is idle.
    async fn unload_oldest(&self) -> bool {
        let idle = |entry: &&Entry| entry.loaded().as_ref().and_then(|loaded| loaded.idle_since());
        let oldest = self.entries.iter().filter_map(|entry| Some((idle(&entry)?, entry)));
        let Some((_, entry)) = oldest.min_by_key(|(since, _)| *since) else { return false };
        // If a request has leased it in the meantime, the caller checks again.
        if let Some(loaded) = entry.take_idle(|_| true) {
            let _ = blocking(move || drop(loaded)).await;
        }
        true
    }

    /// Whether idle models are unloaded.
    pub fn has_idle_timeout(&self) -> bool {
        self.options.idle_unload.is_some()
    }

    /// Unloads models that have been idle for the configured time.
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

    /// Drops a model whose engine has failed. The next request loads it again.
    pub fn forget(&self, failed: &Lease) {
        for entry in &self.entries {
            entry.loaded().take_if(|loaded| failed.is_same_model(loaded));
        }
    }
}

/// A task that is aborted when this is dropped, as when a client hangs up.
#[derive(Debug)]
pub(crate) struct Attached<T>(JoinHandle<T>);

impl<T> Attached<T> {
    pub(crate) fn new(task: JoinHandle<T>) -> Attached<T> {
        Attached(task)
    }

    /// The result of the task. A panic is an error of the request.
    pub(crate) async fn finished(mut self) -> Result<T, Refusal> {
        let result = (&mut self.0).await;
        result.map_err(|_| Refusal::internal("internal error: a bug in Akunu"))
    }
}

impl<T> Drop for Attached<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs blocking work on a blocking thread. Work that nobody waits for any more is not begun.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    Attached::new(tokio::task::spawn_blocking(work)).finished().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_of_clients_that_hung_up_is_not_begun() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (release, held) = channel::<()>();
        let was_begun = Arc::new(AtomicBool::new(false));
        runtime.block_on(async {
            let first = tokio::spawn(blocking(move || held.recv()));
            tokio::task::yield_now().await;
            let begun = was_begun.clone();
            let second = tokio::spawn(blocking(move || begun.store(true, Ordering::Relaxed)));
            tokio::task::yield_now().await;
            second.abort();
            assert!(second.await.is_err());
            release.send(()).unwrap();
            first.await.unwrap().unwrap().unwrap();
            blocking(|| ()).await.unwrap();
        });
        assert!(!was_begun.load(Ordering::Relaxed));
    }
}
