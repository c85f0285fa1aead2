//! The models of a server: loaded on their first request, and unloaded when idle or when memory is needed.

mod changes;
pub(crate) mod digest;
mod entry;
mod keep_alive;
mod kind;
mod loaded;
mod residence;
mod speech;
mod texts;
pub(crate) mod variants;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use akunu::chat::{ChatTemplate, ChatTemplates};
use akunu::schedule::SchedulerOptions;
use akunu::{Device, EngineOptions, Error, Model, Pooling, open_device};

use crate::blocking::blocking;
use crate::job::Conversation;
use crate::kv_events::KvEvents;
use crate::record;
use crate::refusal::{Reason, Refusal};
use entry::Entry;
pub use entry::Facts;
pub(crate) use keep_alive::KeepAlive;
pub use kind::Kind;
pub use loaded::{Lease, Loaded};
use loaded::{LoadError, MemoryBudget};
pub use speech::{SpeechCounts, SpeechQueue};
pub(crate) use speech::{SpeechEvent, SpeechResult};
pub use texts::{TextCounts, TextQueue};
use variants::Variants;
pub(crate) use variants::{MAX_BYTES, Owner, Preset, Settings, Variant};

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

    /// When its file or folder was last changed; for the embedded model, the program.
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        static OF_PROGRAM: OnceLock<Option<SystemTime>> = OnceLock::new();
        let modified = |path: &Path| path.metadata().ok()?.modified().ok();
        match &self.path {
            Some(path) => modified(path),
            // Kept, because the program may be replaced while it runs.
            None => *OF_PROGRAM.get_or_init(|| modified(&std::env::current_exe().ok()?)),
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

/// Finds models besides those that are named, for a server that serves what is in a folder.
#[derive(Clone, Debug)]
pub struct Finder {
    /// Opens no model, so that it is fast.
    pub find: fn(Option<&Path>) -> Vec<ModelSpec>,
    pub folder: Option<PathBuf>,
    /// Requests within this time of a search do not search again.
    pub every: Duration,
}

pub type OpenDevice = fn(&EngineOptions) -> Result<Box<dyn Device>, Error>;

#[derive(Clone, Debug)]
pub struct ModelsOptions {
    pub models: Vec<ModelSpec>,
    /// Finds more of them while the server runs.
    pub finder: Option<Finder>,
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
    /// Chat templates of all models; `None`: those of their files.
    pub chat_templates: Option<ChatTemplates>,
    /// Read the files of models that are loaded into memory, instead of mapping them.
    pub no_mmap: bool,
    /// Publishes what is in the caches of models. Set by the server, from its own options.
    pub kv_events: Option<KvEvents>,
    /// Receives messages for the operator, such as errors with paths of files.
    pub log: fn(&str),
}

impl Default for ModelsOptions {
    fn default() -> ModelsOptions {
        ModelsOptions {
            models: vec![ModelSpec::embedded()],
            finder: None,
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
            chat_templates: None,
            no_mmap: false,
            kv_events: None,
            log: |_| {},
        }
    }
}

#[derive(Debug)]
pub struct Models {
    entries: RwLock<Vec<Arc<Entry>>>,
    variants: Variants,
    /// When models were searched for.
    searched: tokio::sync::Mutex<Option<Instant>>,
    options: ModelsOptions,
    /// Held while a model is being loaded. Only one is at a time, so that the memory in use is known.
    loading: Arc<tokio::sync::Mutex<()>>,
    /// Held while the files of a model are read for a description. Only one is at a time, so that threads are left for the
    /// work of requests.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// Held while a template that a client has given writes a conversation, which may take seconds and much memory.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// A lock that is held while one of these is done.
pub(crate) type Turn = tokio::sync::OwnedMutexGuard<()>;

type LeaseResult = Result<Lease, LoadError>;

/// How long a conversation waits until others are written by templates of clients.
const LONGEST_WRITING: Duration = Duration::from_secs(2);

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
        let searched = tokio::sync::Mutex::new(Some(Instant::now()));
        Models {
            entries: RwLock::new(entries),
            variants: Variants::default(),
            searched,
            options,
            loading: Arc::default(),
            looking: Arc::default(),
            writing: Arc::default(),
        }
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

    /// Finds a model without loading it.
    pub async fn spec(&self, name: Option<&str>) -> Result<Arc<ModelSpec>, Refusal> {
        Ok(self.find(name).await?.spec.clone())
    }

    /// What is known of a model; `None`: its files cannot be read.
    pub async fn facts(&self, spec: &ModelSpec) -> Option<Arc<Facts>> {
        let entry = self.entry(Some(&spec.name)).ok()?;
        if let Some(facts) = entry.facts.get() {
            return Some(facts.clone());
        }
        let guard = self.looking.clone().lock_owned().await;
        if let Some(facts) = entry.facts.get() {
            return Some(facts.clone());
        }
        let options = self.options.clone();
        let read = move || {
            let _guard = guard;
            let facts = Facts::of(&entry.spec, &entry.spec.open(false).ok()?, &options);
            Some(entry.facts.get_or_init(|| Arc::new(facts)).clone())
        };
        blocking(read).await.ok()?
    }

    /// The chat template of a model, or that of a variant of it.
    pub(crate) fn chat_template(
        &self,
        spec: &ModelSpec,
        variant: Option<&Variant>,
        model: &Model,
    ) -> Option<ChatTemplate> {
        match variant.and_then(|variant| variant.settings.template.as_ref()) {
            Some(source) => ChatTemplate::of_modelfile(source, &**model.tokenizer().ok()?).ok(),
            None => entry::chat_template(spec, model, &self.options).ok(),
        }
    }

    /// For conversations that a client's template writes: waits until no other does, but not for long.
    pub(crate) async fn writing(
        &self,
        mut conversations: impl Iterator<Item = &Conversation>,
    ) -> Result<Option<Turn>, Refusal> {
        if !conversations.any(|conversation| conversation.template.is_some()) {
            return Ok(None);
        }
        let turn = tokio::time::timeout(LONGEST_WRITING, self.writing.clone().lock_owned()).await;
        turn.map(Some).map_err(|_| {
            let message = "templates of models made by clients write other conversations; try again later";
            Refusal::new(Reason::TooMany, message).code("queue_full").retry_after(1)
        })
    }

    /// Reads a model's files for a description.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        spec: &ModelSpec,
        describe: impl FnOnce(&Model) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let guard = self.looking.clone().lock_owned().await;
        let spec = spec.clone();
        let look = move || {
            // Until the end, also if nobody waits for it any more.
            let _guard = guard;
            Ok(describe(&spec.open(false)?))
        };
        blocking(look).await?
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

    pub(crate) fn kv_events(&self) -> Option<&KvEvents> {
        self.options.kv_events.as_ref()
    }

    /// The most requests that a model answers at once.
    pub(crate) fn slots(&self) -> usize {
        self.options.engine.slots
    }

    /// Devices that have a part of each layer.
    pub(crate) fn ranks(&self) -> usize {
        let backends = &self.options.engine.backends;
        match &backends.hosts {
            Some(hosts) => hosts.ranks,
            None if backends.stages.is_some() => 1,
            None => backends.ranks.unwrap_or(backends.cards.len().max(1)),
        }
    }

    /// Leases a model, and loads it if necessary.
    pub async fn get(&self, name: Option<&str>) -> Result<Lease, Refusal> {
        record::note(|record| record.model(name.unwrap_or_default()));
        let entry = self.find(name).await?;
        if self.variant(name).is_none() {
            record::note(|record| record.model(&entry.spec.name));
        }
        if let Some(lease) = entry.lease() {
            return Ok(lease);
        }
        let mut guard = self.loading.clone().lock_owned().await;
        // Before a model is divided between a GPU and the CPU, others are unloaded.
        let mut may_split = self.used() == 0;
        loop {
            if let Some(lease) = entry.lease() {
                return Ok(lease);
            }
            let loaded;
            (loaded, guard) = self.load_beside(&entry, guard, may_split).await?;
            match loaded {
                Ok(lease) => return Ok(lease),
                Err(LoadError::OutOfMemory(_)) if self.unload_oldest().await => may_split = self.used() == 0,
                Err(LoadError::OutOfMemory(_)) if !may_split => may_split = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Loads all models that there are now, all at once.
    pub(crate) async fn preload(&self) -> Result<(), Refusal> {
        for entry in self.entries() {
            let guard = self.loading.clone().lock_owned().await;
            if entry.loaded().is_none() {
                self.load_beside(&entry, guard, true).await?.0?;
            }
        }
        Ok(())
    }

    /// Loads a model beside those that are loaded. The guard goes with the work, which ends also if nobody waits for it.
    async fn load_beside(
        &self,
        entry: &Arc<Entry>,
        guard: Turn,
        may_split: bool,
    ) -> Result<(LeaseResult, Turn), Refusal> {
        let budget = MemoryBudget { limit: self.options.memory, used: self.used(), may_split };
        let (entry, options) = (entry.clone(), self.options.clone());
        let load = move || {
            let loaded = Loaded::load(&entry.spec, options, budget).map(|loaded| {
                let loaded = Arc::new(loaded);
                *entry.loaded() = Some(loaded.clone());
                Lease::new(&loaded)
            });
            (loaded, guard)
        };
        blocking(load).await
    }

    /// Drops a model whose engine has failed. The next request loads it again.
    pub fn forget(&self, failed: &Lease) {
        for entry in self.entries() {
            entry.loaded().take_if(|loaded| failed.is_same_model(loaded));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn files_are_read_for_one_description_at_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let models = Arc::new(Models::new(ModelsOptions::default()));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        runtime.block_on(async {
            let look = |_| {
                let (models, running, most) = (models.clone(), running.clone(), most.clone());
                let describe = move |_: &Model| {
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::Relaxed);
                };
                tokio::spawn(async move { models.look(&ModelSpec::embedded(), describe).await })
            };
            let looks: Vec<_> = (0..4).map(look).collect();
            tokio::task::yield_now().await;
            // Of the first client, which hangs up.
            looks[0].abort();
            for look in looks.into_iter().skip(1) {
                look.await.unwrap().unwrap();
            }
        });
        assert_eq!(most.load(Ordering::Relaxed), 1);
    }

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
