//! A model whose engine, or embedder, runs on a thread of its own.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use akunu::chat::{ChatError, ChatForm, ChatTemplates};
use akunu::constrain::Constraints;
use akunu::embed::plan_texts;
use akunu::schedule::{Handle, Scheduler};
use akunu::{EmbedOptions, EmbedTask, Embedder, Engine, Error, MemoryPlan, Model, human};

use super::texts::{TextQueue, TextWorker};
use super::{Kind, ModelSpec, ModelsOptions};
use crate::refusal::{Reason, Refusal};

/// What other models leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) most: Option<u64>,
    pub(super) used: u64,
}

#[derive(Debug)]
pub(super) enum LoadError {
    /// It might fit if another model went.
    NoRoom(String),
    Engine(Error),
    Thread(String),
}

impl From<Error> for LoadError {
    fn from(error: Error) -> LoadError {
        match error {
            Error::DoesNotFit { .. } => LoadError::NoRoom(error.to_string()),
            error => LoadError::Engine(error),
        }
    }
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Refusal {
        let unavailable = |message| Refusal::new(Reason::Unavailable, message).code("model_not_loaded");
        match error {
            LoadError::NoRoom(message) => unavailable(message).retry_after(10),
            LoadError::Engine(error) => unavailable(format!("the model cannot be loaded: {error}")),
            LoadError::Thread(message) => Refusal::internal(message),
        }
    }
}

/// What takes a model's requests.
#[derive(Debug)]
enum Work {
    Engine(Handle),
    Texts(TextQueue),
}

#[derive(Debug)]
pub struct Loaded {
    name: String,
    model: Arc<Model>,
    /// Or why it does not hold conversations.
    form: Result<ChatForm, String>,
    context: usize,
    bytes: u64,
    kind: Kind,
    /// `None` only while it is dropped.
    work: Option<Work>,
    thread: Option<JoinHandle<()>>,
    users: AtomicUsize,
    last_used: Mutex<Instant>,
    constraints: Constraints,
}

impl Loaded {
    pub(super) fn load(spec: &ModelSpec, options: ModelsOptions, room: Room) -> Result<Loaded, LoadError> {
        let model = spec.open()?;
        let model = Arc::new(model.named(&spec.name));
        let kind = Kind::of(&model, &options);
        let form = form(spec, &model);
        let (sender, receiver) = mpsc::channel();
        let on_thread = model.clone();
        let thread = std::thread::Builder::new()
            .name("akunu-engine".into())
            .spawn(move || run(on_thread, &options, kind, room, &sender))
            .map_err(|error| LoadError::Thread(format!("no thread for an engine: {error}")))?;
        let died = || LoadError::Thread("the engine broke down while it was loaded".into());
        let Ready { work, context, bytes } = receiver.recv().map_err(|_| died())??;
        Ok(Loaded {
            name: spec.name.clone(),
            constraints: Constraints::new(model.clone()),
            model,
            form,
            context,
            bytes,
            kind,
            work: Some(work),
            thread: Some(thread),
            users: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        })
    }

    /// The grammars of response formats.
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

    /// Refuses what a model of this kind cannot do.
    pub(crate) fn check_kind(&self, wanted: Kind) -> Result<(), Refusal> {
        match (self.kind, wanted) {
            (Kind::Generates, Kind::Generates)
            | (Kind::Embeds(_), Kind::Embeds(_))
            | (Kind::Scores, Kind::Scores) => Ok(()),
            (kind, wanted) => Err(kind.refuse(&self.name, wanted)),
        }
    }

    /// Positions of each slot, or tokens of the longest text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How conversations are written for it.
    pub fn form(&self) -> Result<&ChatForm, Refusal> {
        self.form.as_ref().map_err(|reason| {
            Refusal::invalid(format!(
                "the model \"{}\" does not hold conversations: {reason}. Give it a text to go on with instead: \
                 /v1/completions",
                self.name
            ))
            .param("model")
            .code("no_chat_template")
        })
    }

    /// The scheduler of a model that generates text.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        match &self.work {
            Some(Work::Engine(handle)) => Some(handle),
            _ => None,
        }
    }

    /// The queue of a model that makes vectors or scores.
    pub(crate) fn texts(&self) -> Option<&TextQueue> {
        match &self.work {
            Some(Work::Texts(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Weights, cache and everything else.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
            // It broke down, or has nothing more to do.
            let _ = thread.join();
        }
    }
}

fn form(spec: &ModelSpec, model: &Model) -> Result<ChatForm, String> {
    let missing = |error: ChatError| match error {
        ChatError::Missing => "it comes without a chat template".to_string(),
        error => error.to_string(),
    };
    let templates = ChatTemplates::find(model.metadata(), spec.path.as_deref()).map_err(missing)?;
    let tokenizer = model.tokenizer().map_err(|error| error.to_string())?;
    let template = templates.template(None, &**tokenizer).map_err(missing)?;
    ChatForm::new(model, template).map_err(|error| error.to_string())
}

/// What an engine's thread answers once the model is loaded.
#[derive(Debug)]
struct Ready {
    work: Work,
    context: usize,
    bytes: u64,
}

/// What an engine's thread runs.
#[derive(Debug)]
enum Runs {
    Scheduler(Box<Scheduler>),
    Texts(Box<TextWorker>),
}

/// An engine's thread.
fn run(
    model: Arc<Model>,
    options: &ModelsOptions,
    kind: Kind,
    room: Room,
    ready: &Sender<Result<Ready, LoadError>>,
) {
    let started = match kind.task() {
        None => start(model, options, room),
        Some(task) => start_texts(model, options, task, room),
    };
    match started {
        Ok((runs, is)) => {
            if ready.send(Ok(is)).is_err() {
                return;
            }
            match runs {
                Runs::Scheduler(scheduler) => drop(scheduler.run()),
                Runs::Texts(worker) => worker.run(),
            }
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// The bytes that a plan takes, if other models leave so many.
fn bytes_of(memory: &MemoryPlan, room: Room) -> Result<u64, LoadError> {
    let bytes = memory.allocated() + memory.weights_in_place;
    match room.most.filter(|most| room.used + bytes > *most) {
        None => Ok(bytes),
        Some(most) => Err(LoadError::NoRoom(format!(
            "the model needs {}, and of {} for all models {} are taken",
            human(bytes),
            human(most),
            human(room.used)
        ))),
    }
}

fn start(model: Arc<Model>, options: &ModelsOptions, room: Room) -> Result<(Runs, Ready), LoadError> {
    let ModelsOptions { engine, device, scheduler, .. } = options;
    let device = device(engine)?;
    let bytes = bytes_of(&akunu::plan(&model, device.capabilities(), engine)?.memory, room)?;
    let engine = Engine::on_device(model, device, engine)?;
    let context = engine.context();
    let (scheduler, handle) = Scheduler::new(engine, scheduler)?;
    Ok((Runs::Scheduler(Box::new(scheduler)), Ready { work: Work::Engine(handle), context, bytes }))
}

fn start_texts(
    model: Arc<Model>,
    options: &ModelsOptions,
    task: EmbedTask,
    room: Room,
) -> Result<(Runs, Ready), LoadError> {
    let ModelsOptions { engine, device, scheduler, .. } = options;
    let device = device(engine)?;
    let trained = model.config().context_length;
    let options = EmbedOptions {
        device: engine.device,
        threads: engine.threads,
        backends: engine.backends.clone(),
        task,
        longest: engine.context.map(|context| context.min(trained)),
        rows: engine.chunk,
        fuse: engine.fuse,
        ..EmbedOptions::default()
    };
    let bytes = bytes_of(&plan_texts(&model, device.capabilities(), &options)?.0.memory, room)?;
    let embedder = Embedder::on_device(model, device, &options)?;
    let (queue, worker) = TextQueue::new(embedder, task, scheduler.queue);
    let context = queue.longest();
    Ok((Runs::Texts(Box::new(worker)), Ready { work: Work::Texts(queue), context, bytes }))
}

/// While one is held, the model stays.
#[derive(Debug)]
pub struct Lease(Arc<Loaded>);

impl Lease {
    pub(super) fn new(loaded: &Arc<Loaded>) -> Lease {
        loaded.users.fetch_add(1, Ordering::AcqRel);
        Lease(loaded.clone())
    }

    pub(super) fn is_of(&self, loaded: &Arc<Loaded>) -> bool {
        Arc::ptr_eq(&self.0, loaded)
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        Lease::new(&self.0)
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.0.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
