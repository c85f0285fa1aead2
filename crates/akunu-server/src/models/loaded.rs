//! A loaded model, whose engine, embedder or transcriber runs on a thread of its own.

use std::ops::{ControlFlow, Deref};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use akunu::chat::{ChatFormat, ChatTemplate};
use akunu::embed::plan_texts;
use akunu::schedule::{Handle, Scheduler};
use akunu::{
    Constraints, Device, EmbedOptions, EmbedTask, Embedder, Engine, EngineOptions, Error, Health, MemoryPlan,
    Model, Note, Transcriber, TranscriberOptions, human,
};

use super::entry::{chat_template, longest_text};
use super::speech::{SpeechQueue, SpeechWorker};
use super::texts::{TextQueue, TextWorker};
use super::{KeepAlive, Kind, ModelSpec, ModelsOptions};
use crate::kv_events::KvEvents;
use crate::refusal::{Reason, Refusal};

/// The memory limit for all models, and what the others use of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryBudget {
    pub(super) limit: Option<u64>,
    pub(super) used: u64,
    /// Whether a model that does not fit into a GPU's memory may be divided between the GPU and the CPU.
    pub(super) may_split: bool,
}

#[derive(Debug)]
pub(super) enum LoadError {
    /// The model may fit after another one is unloaded.
    OutOfMemory(String),
    Engine(Error),
    Thread(String),
}

impl From<Error> for LoadError {
    fn from(error: Error) -> LoadError {
        match error {
            error if error.is_out_of_memory() => LoadError::OutOfMemory(error.to_string()),
            error => LoadError::Engine(error),
        }
    }
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Refusal {
        let unavailable = |message| Refusal::new(Reason::Unavailable, message).code("model_not_loaded");
        match error {
            LoadError::OutOfMemory(message) => unavailable(message).retry_after(10).may_name_files(),
            LoadError::Engine(error) => {
                unavailable(format!("the model cannot be loaded: {error}")).may_name_files()
            }
            LoadError::Thread(message) => Refusal::internal(message),
        }
    }
}

/// The queue of a model's requests.
#[derive(Debug)]
enum RequestQueue {
    Engine(Handle),
    Texts(TextQueue),
    Speech(SpeechQueue),
}

/// Formats of templates of clients that are kept.
const MAX_GIVEN: usize = 16;

#[derive(Debug)]
pub struct Loaded {
    name: String,
    model: Arc<Model>,
    /// `Err`: why the model has no usable chat template.
    chat_format: Result<Arc<ChatFormat>, String>,
    /// The formats of the templates that clients gave for models made of this one, by source; the last used are last.
    given_formats: Mutex<Vec<(Arc<str>, Arc<ChatFormat>)>>,
    context: usize,
    most_text_bytes: usize,
    bytes: u64,
    device_bytes: u64,
    kind: Kind,
    /// As the last request that said so wants it; `None`: the server's default.
    keep_alive: Mutex<Option<KeepAlive>>,
    /// `None` only during drop.
    work: Option<RequestQueue>,
    thread: Option<JoinHandle<()>>,
    users: AtomicUsize,
    last_used: Mutex<Instant>,
    constraints: Constraints,
    kv_events: Option<KvEvents>,
    health: Health,
}

impl Loaded {
    pub(super) fn load(
        spec: &ModelSpec,
        options: ModelsOptions,
        budget: MemoryBudget,
    ) -> Result<Loaded, LoadError> {
        let model = spec.open(options.no_mmap)?;
        let model = Arc::new(model.named(&spec.name));
        let kind = Kind::of(&model, &options);
        let chat_format = chat_template(spec, &model, &options)
            .and_then(|template| ChatFormat::new(&model, template).map_err(|error| error.to_string()))
            .map(Arc::new);
        let (sender, receiver) = mpsc::channel();
        let (on_thread, kv_events) = (model.clone(), options.kv_events.clone());
        let thread = std::thread::Builder::new()
            .name("akunu-engine".into())
            .spawn(move || run(on_thread, &options, kind, budget, &sender))
            .map_err(|error| LoadError::Thread(format!("cannot start a thread for the engine: {error}")))?;
        let failed = || LoadError::Thread("the engine failed while it was being loaded".into());
        let Ready { work, context, memory: (bytes, device_bytes), health } =
            receiver.recv().map_err(|_| failed())??;
        let most_text_bytes = context.saturating_mul(longest_token(&model));
        Ok(Loaded {
            name: spec.name.clone(),
            constraints: Constraints::new(model.clone()),
            model,
            chat_format,
            given_formats: Mutex::new(Vec::new()),
            context,
            most_text_bytes,
            bytes,
            device_bytes,
            kind,
            keep_alive: Mutex::new(None),
            work: Some(work),
            thread: Some(thread),
            users: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
            kv_events,
            health,
        })
    }

    /// Why the model cannot be used any more, if its device has failed for good.
    pub fn failure(&self) -> Option<&str> {
        self.health.reason()
    }

    /// Refuses requests for a model whose device has failed for good.
    pub(crate) fn check_usable(&self) -> Result<(), Refusal> {
        match self.failure() {
            None => Ok(()),
            Some(reason) => {
                let message = format!(
                    "the model is no longer usable, because {reason}; the server has to be started again"
                );
                Err(Refusal::new(Reason::Unavailable, message).code("device_failed").may_name_files())
            }
        }
    }

    /// The cached grammars of response formats.
    pub(crate) fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Checks that the model can do what a request needs.
    pub(crate) fn check_kind(&self, requested: Kind) -> Result<(), Refusal> {
        match (self.kind, requested) {
            (Kind::Generates, Kind::Generates)
            | (Kind::Embeds(_), Kind::Embeds(_))
            | (Kind::Scores, Kind::Scores)
            | (Kind::Transcribes, Kind::Transcribes) => Ok(()),
            (kind, requested) => Err(kind.refuse(&self.name, requested)),
        }
    }

    /// The context length of a slot, or the maximum tokens of a text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The most bytes of a text that fits the context.
    pub(crate) fn most_text_bytes(&self) -> usize {
        self.most_text_bytes
    }

    /// The chat template and format of a conversation: the model's, or the given one.
    pub fn chat_format(&self, template: Option<&Arc<str>>) -> Result<Arc<ChatFormat>, Refusal> {
        if let Some(source) = template {
            return self.given_format(source);
        }
        self.chat_format.clone().map_err(|reason| {
            Refusal::invalid(format!(
                "the model \"{}\" has no usable chat template: {reason}. Use /v1/completions with a prompt instead",
                self.name
            ))
            .param("model")
            .code("no_chat_template")
        })
    }

    fn given_format(&self, source: &Arc<str>) -> Result<Arc<ChatFormat>, Refusal> {
        let lock = || self.given_formats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = lock();
        if let Some(index) = known.iter().position(|(of, _)| of == source) {
            let last = known.remove(index);
            let format = last.1.clone();
            known.push(last);
            return Ok(format);
        }
        drop(known);
        let template = ChatTemplate::of_modelfile(source, &**self.model.tokenizer()?).map_err(Error::from)?;
        let format = Arc::new(ChatFormat::new(&self.model, template)?);
        let mut known = lock();
        if known.len() == MAX_GIVEN {
            known.remove(0);
        }
        known.push((source.clone(), format.clone()));
        Ok(format)
    }

    /// The scheduler of a model that generates text.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        match &self.work {
            Some(RequestQueue::Engine(handle)) => Some(handle),
            _ => None,
        }
    }

    /// The queue of an embedding or reranking model.
    pub(crate) fn texts(&self) -> Option<&TextQueue> {
        match &self.work {
            Some(RequestQueue::Texts(queue)) => Some(queue),
            _ => None,
        }
    }

    /// The queue of a model that transcribes.
    pub(crate) fn speech(&self) -> Option<&SpeechQueue> {
        match &self.work {
            Some(RequestQueue::Speech(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Memory use, including weights and KV cache.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The part of [`Loaded::bytes`] that is memory of a GPU.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    pub(super) fn keep_alive(&self) -> Option<KeepAlive> {
        *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long the model stays loaded without requests.
    pub(crate) fn set_keep_alive(&self, keep: KeepAlive) {
        *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }

    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.is_idle().then(|| *self.last_used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which its requests have reported.
            let _ = thread.join();
        }
        if let (Some(events), Kind::Generates) = (&self.kv_events, self.kind) {
            events.publish(&self.name, None, 0);
        }
    }
}

/// The bytes of the vocabulary's longest token; no limit without a vocabulary, which is an error of its own.
fn longest_token(model: &Model) -> usize {
    let Ok(tokenizer) = model.tokenizer() else { return usize::MAX };
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    ids.filter_map(|id| tokenizer.token_text(id)).map(str::len).max().unwrap_or(0)
}

/// What an engine's thread reports once the model is loaded.
#[derive(Debug)]
struct Ready {
    work: RequestQueue,
    context: usize,
    memory: Memory,
    health: Health,
}

/// Bytes of memory, and the part that is a GPU's.
type Memory = (u64, u64);

/// The loop of an engine's thread.
#[derive(Debug)]
enum Worker {
    Scheduler(Box<Scheduler>),
    Texts(Box<TextWorker>),
    Speech(Box<SpeechWorker>),
}

/// The main function of an engine's thread.
fn run(
    model: Arc<Model>,
    options: &ModelsOptions,
    kind: Kind,
    budget: MemoryBudget,
    ready: &Sender<Result<Ready, LoadError>>,
) {
    let started = match kind.task() {
        Some(task) => start_texts(model, options, task, budget),
        None if kind == Kind::Transcribes => start_speech(model, options, budget),
        None => start(model, options, budget),
    };
    match started {
        Ok((worker, report)) => {
            if ready.send(Ok(report)).is_err() {
                return;
            }
            match worker {
                Worker::Scheduler(scheduler) => drop(scheduler.run()),
                Worker::Texts(worker) => worker.run(),
                Worker::Speech(worker) => worker.run(),
            }
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// The memory that a model needs by its plan, if the budget allows it.
fn memory_of(
    model: &Model,
    memory: &MemoryPlan,
    budget: MemoryBudget,
    device: &dyn Device,
) -> Result<Memory, LoadError> {
    // Weights in place are among what was read.
    let (made, in_place) = (memory.weights_made, memory.weights_in_place + memory.host_weights);
    let on_host = memory.host_cache + memory.host_work;
    let bytes = memory.allocated() + on_host + in_place.max(model.read_bytes() + made);
    match budget.limit.filter(|limit| budget.used + bytes > *limit) {
        None => {
            let is_host = matches!(device.capabilities().name, "cpu" | "reference");
            Ok((bytes, if is_host { 0 } else { memory.allocated() }))
        }
        Some(limit) => Err(LoadError::OutOfMemory(format!(
            "the model needs {}, and of the limit of {} for all models (--max-memory) {} are in use",
            human(bytes),
            human(limit),
            human(budget.used)
        ))),
    }
}

fn start(
    model: Arc<Model>,
    options: &ModelsOptions,
    budget: MemoryBudget,
) -> Result<(Worker, Ready), LoadError> {
    let ModelsOptions { models, shares, engine, device, scheduler, kv_events, log, .. } = options;
    let name = model.name().to_string();
    let device = device(engine)?;
    let engine = EngineOptions {
        memory: budget.limit,
        models: shares.unwrap_or(models.len()).max(1),
        ..engine.clone()
    };
    let is_stated = engine.gpu_layers.is_some() || engine.cpu_experts.is_some();
    let engine = match budget.may_split || is_stated {
        true => engine,
        false => EngineOptions { gpu_layers: Some(usize::MAX), ..engine },
    };
    let plan = akunu::plan(&model, device.capabilities(), &engine)?;
    let (plan, memory) = match memory_of(&model, &plan.whole_memory(), budget, &*device) {
        // No other model is unloaded for them.
        Err(_) if plan.memory.slots > 0 => {
            let computed = EngineOptions { stream_rows: Some(0), ..engine.clone() };
            let plan = akunu::plan(&model, device.capabilities(), &computed)?;
            let memory = memory_of(&model, &plan.whole_memory(), budget, &*device)?;
            (plan, memory)
        }
        found => (plan, found?),
    };
    let health = device.health();
    // Also while no request would find out.
    let (told, told_name) = (*log, name.clone());
    health.on_fail(Box::new(move |reason| {
        told(&format!(
            "error: {told_name} is no longer usable: {reason}; the server has to be started again"
        ));
    }));
    let mut engine = Engine::by_plan(model, device, plan, &engine, &mut |_, _| ControlFlow::Continue(()))?;
    for note in
        engine.notes().iter().filter(|note| matches!(note, Note::Split { .. } | Note::PagedExperts { .. }))
    {
        log(&format!("note: {name}: {note}"));
    }
    engine.set_log(*log);
    let context = engine.context();
    let (mut scheduler, handle) = Scheduler::new(engine, scheduler)?;
    if let Some(events) = kv_events {
        let (events, block) = (events.clone(), handle.stats().kv_block);
        // Of an engine before this one.
        events.publish(&name, None, block);
        scheduler.report_cache(Box::new(move |changes| events.publish(&name, Some(changes), block)));
    }
    Ok((
        Worker::Scheduler(Box::new(scheduler)),
        Ready { work: RequestQueue::Engine(handle), context, memory, health },
    ))
}

fn start_texts(
    model: Arc<Model>,
    options: &ModelsOptions,
    task: EmbedTask,
    budget: MemoryBudget,
) -> Result<(Worker, Ready), LoadError> {
    let ModelsOptions { engine, device, scheduler, .. } = options;
    let device = device(engine)?;
    let options = EmbedOptions {
        device: engine.device,
        threads: engine.threads,
        backends: engine.backends.clone(),
        task,
        longest: longest_text(&model, engine),
        rows: engine.chunk,
        fuse: engine.fuse,
        ..EmbedOptions::default()
    };
    let plan = plan_texts(&model, device.capabilities(), &options)?.0;
    let memory = memory_of(&model, &plan.memory, budget, &*device)?;
    let embedder = Embedder::on_device(model, device, &options)?;
    let (queue, worker) = TextQueue::new(embedder, task, scheduler.queue);
    let context = queue.longest();
    Ok((
        Worker::Texts(Box::new(worker)),
        Ready { work: RequestQueue::Texts(queue), context, memory, health: Health::default() },
    ))
}

fn start_speech(
    model: Arc<Model>,
    options: &ModelsOptions,
    budget: MemoryBudget,
) -> Result<(Worker, Ready), LoadError> {
    let ModelsOptions { engine, device, scheduler, beams, .. } = options;
    let device = device(engine)?;
    let (windows, beams) = (engine.slots, *beams);
    let options = TranscriberOptions { engine: engine.clone(), windows, beams, word_times: true };
    let plan = akunu::plan(&model, device.capabilities(), &options.engine()?)?;
    let memory = memory_of(&model, &plan.memory, budget, &*device)?;
    let transcriber = Transcriber::load(model, device, &options, &mut |_, _| ControlFlow::Continue(()))?;
    let context = transcriber.engine().context();
    let (queue, worker) = SpeechQueue::new(transcriber, (windows, beams), scheduler.queue);
    Ok((
        Worker::Speech(Box::new(worker)),
        Ready { work: RequestQueue::Speech(queue), context, memory, health: Health::default() },
    ))
}

/// A use of a loaded model, which prevents it from being unloaded.
#[derive(Debug)]
pub struct Lease {
    loaded: Arc<Loaded>,
    /// Whether the time until an idle model is unloaded begins with the end of this use.
    is_request: bool,
}

impl Lease {
    pub(super) fn new(loaded: &Arc<Loaded>) -> Lease {
        Lease::counted(loaded, true)
    }

    /// A lease for looking at a model, which does not make it one that was used.
    pub(super) fn to_look(loaded: &Arc<Loaded>) -> Lease {
        Lease::counted(loaded, false)
    }

    fn counted(loaded: &Arc<Loaded>, is_request: bool) -> Lease {
        loaded.users.fetch_add(1, Ordering::AcqRel);
        Lease { loaded: loaded.clone(), is_request }
    }

    pub(super) fn is_same_model(&self, loaded: &Arc<Loaded>) -> bool {
        Arc::ptr_eq(&self.loaded, loaded)
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        Lease::counted(&self.loaded, self.is_request)
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_request {
            let mut last_used = self.loaded.last_used.lock().unwrap_or_else(PoisonError::into_inner);
            *last_used = Instant::now();
        }
        self.loaded.users.fetch_sub(1, Ordering::AcqRel);
    }
}
