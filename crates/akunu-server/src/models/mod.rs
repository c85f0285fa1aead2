//! The models of a server: loaded on their first request, and unloaded when idle or when memory is needed.

pub(crate) mod digest;
mod entry;
mod keep_alive;
mod kind;
mod loaded;
mod speech;
mod texts;
mod variants;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use akunu::schedule::SchedulerOptions;
use akunu::{Device, EngineOptions, Error, Model, Pooling, open_device};

use tokio::task::JoinHandle;

use crate::record;
use crate::refusal::{Reason, Refusal};
use entry::Entry;
pub use entry::Facts;
pub(crate) use entry::template;
pub(crate) use keep_alive::KeepAlive;
pub use kind::Kind;
pub use loaded::{Lease, Loaded};
use loaded::{LoadError, MemoryBudget};
pub use speech::{SpeechCounts, SpeechQueue};
pub(crate) use speech::{SpeechEvent, SpeechResult};
pub use texts::{TextCounts, TextQueue};
use variants::Variants;
pub(crate) use variants::{MAX_BYTES, Preset, Settings, Variant};

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

/// `hf:OWNER/NAME` for the names that Ollama has for models of the hub, `hf.co/OWNER/NAME`.
pub(crate) fn hub_name(name: &str) -> Cow<'_, str> {
    let of_hub = ["hf.co/", "huggingface.co/"].iter().find_map(|host| name.strip_prefix(host));
    of_hub.map_or(name.into(), |rest| format!("{}{rest}", akunu_hub::PREFIX).into())
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
    /// Clients may say how long a model stays loaded without requests.
    pub keep_alive: bool,
    /// Maximum memory of all loaded models, including weights; `None`: the memory of the machine.
    pub memory: Option<u64>,
    /// Models that the memory for KV caches is divided between; `None`: all.
    pub shares: Option<usize>,
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
            keep_alive: false,
            memory: None,
            shares: None,
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
    entries: RwLock<Vec<Arc<Entry>>>,
    variants: Variants,
    options: ModelsOptions,
    /// Held while a model is being loaded. Only one is at a time, so that the memory in use is known.
    loading: tokio::sync::Mutex<()>,
}

/// A model in memory.
#[derive(Clone, Debug)]
pub(crate) struct InMemory {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) bytes: u64,
    /// The part that is memory of a GPU.
    pub(crate) device_bytes: u64,
    pub(crate) context: usize,
    /// The time until it is unloaded, if it has no further request; `None`: it stays.
    pub(crate) expires_in: Option<Duration>,
}

/// Names of models in an error message.
const MAX_NAMES: usize = 20;

impl Models {
    /// Replaces the paths of models in an error message by their names, and logs the original: clients must not learn
    /// about the server's file system.
    pub(crate) fn without_paths(&self, message: String) -> String {
        let mut clean = message.clone();
        for spec in self.entries().iter().map(|entry| &entry.spec) {
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
        let entries = options.models.iter().map(|spec| Arc::new(Entry::new(spec.clone()))).collect();
        let loading = tokio::sync::Mutex::new(());
        Models { entries: RwLock::new(entries), variants: Variants::default(), options, loading }
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All models, with a lease of those that are loaded, which does not count as a use.
    pub fn list(&self) -> Vec<(Arc<ModelSpec>, Option<Lease>)> {
        let looked_at = |entry: &Arc<Entry>| {
            let lease = entry.loaded().as_ref().map(Lease::to_look);
            (entry.spec.clone(), lease)
        };
        self.entries().iter().map(looked_at).collect()
    }

    fn entry(&self, name: Option<&str>) -> Result<Arc<Entry>, Refusal> {
        let entries = self.entries();
        let found = match name.map(hub_name).as_deref() {
            Some(name) => {
                let is_called = |name: &str| entries.iter().find(|entry| entry.spec.is_called(name));
                let of_variant = || is_called(&self.variants.find(name)?.of);
                let also = || entries.iter().find(|entry| entry.spec.is_also_called(name));
                is_called(name).or_else(of_variant).or_else(also)
            }
            None => entries.first(),
        };
        found.cloned().ok_or_else(|| {
            let mut names: Vec<&str> = entries.iter().map(|entry| entry.spec.name.as_str()).collect();
            let more = names.len().saturating_sub(MAX_NAMES);
            names.truncate(MAX_NAMES);
            let name = name.unwrap_or_default();
            if names.is_empty() {
                let message = "the server has no models yet: download one (/api/pull)";
                return Refusal::new(Reason::NotFound, message).param("model").code("model_not_found");
            }
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Refusal::new(
                Reason::NotFound,
                format!("unknown model \"{name}\"; available: {}{more}", names.join(", ")),
            )
            .param("model")
            .code("model_not_found")
        })
    }

    /// The variant of a name, unless that is a model's.
    pub(crate) fn variant(&self, name: Option<&str>) -> Option<Arc<Variant>> {
        let name = hub_name(name?);
        self.variants.find(&name).filter(|_| !self.has(&name))
    }

    /// Whether there is a model of this name that no client has made.
    fn has(&self, name: &str) -> bool {
        self.entries().iter().any(|entry| entry.spec.is_called(name))
    }

    pub(crate) fn variants(&self) -> Vec<Arc<Variant>> {
        self.variants.all()
    }

    /// Adds a model that has been downloaded, unless it is served already.
    pub(crate) fn add(&self, name: &str, path: PathBuf) -> Result<(), Refusal> {
        if self.has(name) {
            return Ok(());
        }
        let spec = ModelSpec { name: name.into(), path: Some(path), aliases: Vec::new() };
        if let Err(error) = spec.open(false) {
            (self.options.log)(&format!("error: /api/pull of {name}: {error}"));
            let message = format!("the model \"{name}\" was downloaded, and cannot be used by this server");
            return Err(Refusal::invalid(message).param("model"));
        }
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |entry: &&Arc<Entry>| entry.spec.path == spec.path || entry.spec.is_called(name);
        let same = entries.iter().find(is_same);
        match same.map(|entry| entry.spec.name.clone()) {
            None => entries.push(Arc::new(Entry::new(spec))),
            Some(of) if of == name => {}
            // Another name of it, so that its weights are loaded once.
            Some(of) => {
                drop(entries);
                let settings = Settings::default();
                let (owner, created) = (None, std::time::SystemTime::now());
                self.variants.put(Variant { name: name.into(), of, settings, owner, created })?;
            }
        }
        Ok(())
    }

    /// A message for the operator.
    pub(crate) fn tell(&self, message: &str) {
        (self.options.log)(message);
    }

    /// Adds a variant, or replaces that of its name.
    pub(crate) fn put_variant(&self, mut variant: Variant) -> Result<(), Refusal> {
        variant.name = hub_name(&variant.name).into_owned();
        if self.has(&variant.name) {
            let message = format!("\"{}\" is a model of this server, and cannot be replaced", variant.name);
            return Err(Refusal::new(Reason::Forbidden, message).param("model"));
        }
        self.variants.put(variant)
    }

    /// Removes a variant; false: there is none of this name.
    pub(crate) fn remove_variant(&self, name: &str, owner: Option<u64>) -> Result<bool, Refusal> {
        self.variants.remove(&hub_name(name), owner)
    }

    /// The models that are loaded.
    pub(crate) fn in_memory(&self) -> Vec<InMemory> {
        let of_entry = |entry: &Arc<Entry>| {
            let guard = entry.loaded();
            let loaded = guard.as_ref()?;
            Some(InMemory {
                spec: entry.spec.clone(),
                bytes: loaded.bytes(),
                device_bytes: loaded.device_bytes(),
                context: loaded.context(),
                expires_in: self.expires_in(loaded),
            })
        };
        self.entries().iter().filter_map(of_entry).collect()
    }

    /// Sets how long a model that is loaded stays so without requests, if clients may.
    pub(crate) fn keep(&self, name: &str, keep: Option<KeepAlive>) {
        let (Some(keep), Ok(entry)) = (keep.filter(|_| self.options.keep_alive), self.entry(Some(name)))
        else {
            return;
        };
        if let Some(loaded) = entry.loaded().as_ref() {
            loaded.set_keep_alive(keep);
        }
    }

    /// Finds a model without loading it.
    pub fn spec(&self, name: Option<&str>) -> Result<Arc<ModelSpec>, Refusal> {
        Ok(self.entry(name)?.spec.clone())
    }

    /// What is known of a model; `None`: its files cannot be read.
    pub async fn facts(&self, spec: &ModelSpec) -> Option<Arc<Facts>> {
        let entry = self.entry(Some(&spec.name)).ok()?;
        if let Some(facts) = entry.facts.get() {
            return Some(facts.clone());
        }
        let (spec, options) = (spec.clone(), self.options.clone());
        let read = move || Some(Facts::of(&spec, &spec.open(false).ok()?, &options));
        let facts = Arc::new(blocking(read).await.ok()??);
        Some(entry.facts.get_or_init(|| facts).clone())
    }

    /// A digest of a model's files; zeros if they cannot be read.
    pub(crate) async fn digest(&self, spec: &ModelSpec) -> String {
        let Ok(entry) = self.entry(Some(&spec.name)) else { return digest::UNKNOWN.into() };
        let read = blocking(move || entry.digest.get(&entry.spec).ok()).await;
        read.ok().flatten().unwrap_or_else(|| digest::UNKNOWN.into())
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

    /// The most requests that a model answers at once.
    pub(crate) fn slots(&self) -> usize {
        self.options.engine.slots
    }

    /// Leases a model, and loads it if necessary.
    pub async fn get(&self, name: Option<&str>) -> Result<Lease, Refusal> {
        record::note(|record| record.model(name.unwrap_or_default()));
        let entry = self.entry(name)?;
        if self.variant(name).is_none() {
            record::note(|record| record.model(&entry.spec.name));
        }
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
        self.entries().iter().filter_map(|entry| Some(entry.loaded().as_ref()?.bytes())).sum()
    }

    /// Unloads the model that has been idle for the longest time. False: none is idle.
    async fn unload_oldest(&self) -> bool {
        let idle = |entry: &Entry| entry.loaded().as_ref().and_then(|loaded| loaded.idle_since());
        let entries = self.entries();
        let oldest = entries.iter().filter_map(|entry| Some((idle(entry)?, entry)));
        let Some((_, entry)) = oldest.min_by_key(|(since, _)| *since) else { return false };
        // If a request has leased it in the meantime, the caller checks again.
        if let Some(loaded) = entry.take_idle(|_| true) {
            let _ = blocking(move || drop(loaded)).await;
        }
        true
    }

    /// Whether models are unloaded because of time: idle ones, or those whose clients ask for it.
    pub fn has_timeouts(&self) -> bool {
        self.options.idle_unload.is_some() || self.options.keep_alive
    }

    /// Whether clients may say how long a model stays loaded.
    pub(crate) fn may_keep_alive(&self) -> bool {
        self.options.keep_alive
    }

    /// How long a loaded model stays without requests; `None`: for ever.
    fn limit(&self, loaded: &Loaded) -> Option<Duration> {
        match loaded.keep_alive() {
            None => self.options.idle_unload,
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
        }
    }

    /// The time until a loaded model is unloaded, if it has no further request; `None`: it stays.
    fn expires_in(&self, loaded: &Loaded) -> Option<Duration> {
        let limit = self.limit(loaded)?;
        Some(loaded.idle_since().map_or(limit, |since| limit.saturating_sub(since.elapsed())))
    }

    /// Unloads models that have been idle for their time.
    pub async fn unload_idle(&self) {
        let now = Instant::now();
        for entry in self.entries() {
            let is_old = |loaded: &Loaded| {
                let limit = self.limit(loaded);
                let passed = loaded.idle_since().map(|since| now.saturating_duration_since(since));
                limit.zip(passed).is_some_and(|(limit, passed)| passed >= limit)
            };
            if let Some(loaded) = entry.take_idle(is_old) {
                let _ = blocking(move || drop(loaded)).await;
            }
        }
    }

    /// Unloads a model, once it has no requests.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), Refusal> {
        let entry = self.entry(Some(name))?;
        if let Some(loaded) = entry.take_idle(|_| true) {
            return blocking(move || drop(loaded)).await;
        }
        if let Some(loaded) = entry.loaded().as_ref() {
            loaded.set_keep_alive(KeepAlive::UNLOAD);
        }
        Ok(())
    }

    /// Drops a model whose engine has failed. The next request loads it again.
    pub fn forget(&self, failed: &Lease) {
        for entry in self.entries() {
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
