//! Logits, by an engine of their own on a thread of its own. It is loaded when they are first asked for.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::{Engine, EngineOptions, Model};
use akunu_server::{ModelSpec, ModelsOptions};

/// Logits of all positions, and the size of the vocabulary.
type Outcome = Result<(Vec<f32>, usize), String>;

struct Job {
    ids: Vec<u32>,
    all: bool,
    done: Sender<Outcome>,
}

pub(crate) struct Logits {
    spec: Option<ModelSpec>,
    options: EngineOptions,
    /// `None`: not asked for yet, or closed.
    thread: Mutex<Option<(Sender<Job>, JoinHandle<()>)>>,
}

/// Rows of logits in a pass.
const ROWS: usize = 16;

impl Logits {
    pub(crate) fn new(models: &ModelsOptions) -> Logits {
        let options = EngineOptions { slots: 1, logit_rows: ROWS, kv_memory: None, ..models.engine.clone() };
        Logits { spec: models.models.first().cloned(), options, thread: Mutex::new(None) }
    }

    /// Begins to compute logits. The sender of the result is dropped if the engine ends before.
    pub(crate) fn begin(&self, ids: Vec<u32>, all: bool) -> Receiver<Outcome> {
        let (done, receiver) = channel();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none()
            && let Some(spec) = self.spec.clone()
        {
            let (sender, jobs) = channel();
            let options = self.options.clone();
            let running = std::thread::Builder::new()
                .name("akunu-logits".into())
                .spawn(move || run(&spec, &options, &jobs));
            match running {
                Ok(running) => *thread = Some((sender, running)),
                Err(error) => {
                    let _ = done.send(Err(format!("cannot start a thread: {error}")));
                    return receiver;
                }
            }
        }
        if let Some((sender, _)) = &*thread {
            let _ = sender.send(Job { ids, all, done });
        }
        receiver
    }

    pub(crate) fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, running)) = thread {
            drop(sender);
            // A panic there has been its job's.
            let _ = running.join();
        }
    }
}

fn load(spec: &ModelSpec, options: &EngineOptions) -> Result<(Arc<Model>, Engine), akunu::Error> {
    let model = Arc::new(spec.open(false)?);
    Ok((model.clone(), Engine::new(model, options)?))
}

fn run(spec: &ModelSpec, options: &EngineOptions, jobs: &Receiver<Job>) {
    let mut loaded = load(spec, options).map_err(|error| error.to_string());
    while let Ok(Job { ids, all, done }) = jobs.recv() {
        let outcome = match &mut loaded {
            Ok((model, engine)) => {
                let logits = engine.logits(&ids, all, None).map_err(|error| error.to_string());
                logits.map(|logits| (logits, model.config().vocab_size))
            }
            Err(error) => Err(error.clone()),
        };
        // The caller may have been interrupted.
        let _ = done.send(outcome);
    }
}
