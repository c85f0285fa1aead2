//! The thread that owns a model's engine. A device may be used from one thread only, so other threads queue jobs for it and
//! wait for the results.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::chat::{ChatFormat, Responder};
use akunu::{Engine, EngineOptions, Generated, OnLoad, Session};
use serde_json::Value as Json;

use crate::boundary::{Failure, Status, check_not_in_callback};
use crate::loading::{Serve, Watcher, load_on_thread};

/// What the engine's thread owns.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) engine: Engine,
    sessions: BTreeMap<usize, SessionState>,
    /// The session that the engine's latest logits belong to, if it has not changed since.
    pub(crate) fresh: Option<usize>,
    /// By the template's name.
    pub(crate) chat_formats: BTreeMap<Option<String>, Arc<ChatFormat>>,
}

/// The engine's side of a session.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) session: Session,
    /// The last tokens of its text, which the model has not processed yet.
    pub(crate) pending: Vec<u32>,
    /// By the template's name.
    pub(crate) responders: BTreeMap<Option<String>, Responder>,
    /// The latest answer.
    pub(crate) message: Option<Json>,
}

/// Generates with `generate`, and keeps as `pending` what the model has not processed of the prompt and the generated
/// tokens. A call that was refused leaves the text as it was, the last token included.
pub(crate) fn keep_pending<T>(
    session: &mut Session,
    pending: &mut Vec<u32>,
    prompt: &[u32],
    generate: impl FnOnce(&mut Session) -> Result<T, akunu::Error>,
    generated: impl FnOnce(&T) -> &Generated,
) -> Result<T, Failure> {
    let before = session.tokens().to_vec();
    match generate(session) {
        Ok(result) => {
            let Generated { ids, dropped, .. } = generated(&result);
            let text = prompt.iter().chain(ids);
            *pending = text.skip(dropped + session.len()).copied().collect();
            Ok(result)
        }
        Err(error) => {
            if session.tokens() != before {
                pending.clear();
            }
            Err(error.into())
        }
    }
}

impl Worker {
    fn new(engine: Engine) -> Worker {
        Worker { engine, sessions: BTreeMap::new(), fresh: None, chat_formats: BTreeMap::new() }
    }

    /// The engine and a session to change. The engine's latest logits are no longer the session's afterwards.
    pub(crate) fn session(&mut self, number: usize) -> Result<(&mut Engine, &mut SessionState), Failure> {
        self.fresh = None;
        let state = self.sessions.get_mut(&number);
        Ok((&mut self.engine, state.ok_or_else(session_freed)?))
    }

    pub(crate) fn add(&mut self, number: usize) -> Result<(), Failure> {
        let session = self.engine.session()?;
        self.sessions.insert(
            number,
            SessionState { session, pending: Vec::new(), responders: BTreeMap::new(), message: None },
        );
        Ok(())
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.fresh = self.fresh.filter(|&fresh| fresh != number);
        self.sessions.remove(&number);
    }

    pub(crate) fn tokens(&self, number: usize) -> Result<Vec<u32>, Failure> {
        let state = self.sessions.get(&number).ok_or_else(session_freed)?;
        Ok(state.session.tokens().to_vec())
    }

    /// The logits after a session's last token.
    pub(crate) fn logits(&mut self, number: usize) -> Result<Vec<f32>, Failure> {
        if self.fresh != Some(number) {
            let (engine, state) = self.session(number)?;
            let tokens = state.session.tokens().to_vec();
            if tokens.is_empty() {
                return Err(Failure::argument("the session is empty, so it has no logits: prefill it first"));
            }
            engine.prefill(&mut state.session, &tokens)?;
            self.fresh = Some(number);
        }
        Ok(self.engine.last_logits()?.to_vec())
    }

    /// Makes the first `count` tokens of `from` the whole content of `to`.
    pub(crate) fn copy(&mut self, from: usize, to: usize, count: usize) -> Result<(), Failure> {
        self.fresh = None;
        let mut target = self.sessions.remove(&to).ok_or_else(session_freed)?;
        let copied = match self.sessions.get(&from) {
            Some(source) => Ok(self.engine.copy_prefix(&source.session, &mut target.session, count)),
            None => Err(session_freed()),
        };
        target.pending.clear();
        self.sessions.insert(to, target);
        Ok(copied??)
    }
}

pub(crate) fn freed(what: &str) -> Failure {
    Failure::new(Status::Handle, format!("the {what} was freed during the call"))
}

fn session_freed() -> Failure {
    freed("session")
}

type Task = Box<dyn FnOnce(&mut Worker) + Send>;

enum Job {
    Run(Task),
    Close,
}

/// The callers' side of an engine's thread.
#[derive(Debug)]
pub(crate) struct EngineQueue {
    jobs: Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    running: Mutex<Running>,
}

/// The cancellation flags of running and queued generations, with their sessions.
#[derive(Debug, Default)]
struct Running {
    cancels: Vec<(usize, Arc<AtomicBool>)>,
    closing: bool,
}

impl EngineQueue {
    /// Starts a thread with an engine, and returns what `inspect` reads from it.
    pub(crate) fn open<T: Send + 'static>(
        model: Arc<akunu::Model>,
        options: EngineOptions,
        watcher: &Watcher,
        inspect: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<(EngineQueue, T), Failure> {
        let (jobs, queue) = channel();
        let load = move |on_load: OnLoad<'_>| {
            let engine = load_engine(model, &options, on_load)?;
            let inspected = inspect(&engine);
            let serve: Serve = Box::new(move || serve(Worker::new(engine), &queue));
            Ok((inspected, serve))
        };
        let (thread, inspected) = load_on_thread("akunu-engine", watcher, load, broken)?;
        let queue =
            EngineQueue { jobs, thread: Mutex::new(Some(thread)), running: Mutex::new(Running::default()) };
        Ok((queue, inspected))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task on the engine's thread, and waits for its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        check_not_in_callback()?;
        let (sender, receiver) = channel();
        self.send(Box::new(move |worker| {
            // The receiver waits below.
            let _ = sender.send(task(worker));
        }))?;
        receiver.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    /// As [`EngineQueue::run`], with a task that emits items while it runs. Each is passed to `on_emit` on this thread, and the task
    /// waits for its result.
    pub(crate) fn run_streaming<T: Send + 'static, S: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker, Emit<'_, S>) -> Result<T, Failure> + Send + 'static,
        mut on_emit: impl FnMut(S) -> ControlFlow<()>,
    ) -> Result<T, Failure> {
        check_not_in_callback()?;
        let (sender, receiver) = channel();
        let (flow_sender, flows) = channel();
        self.send(Box::new(move |worker| {
            let emit = |item: S| match sender.send(Event::Emitted(item)) {
                Ok(()) => flows.recv().unwrap_or(ControlFlow::Break(())),
                Err(_) => ControlFlow::Break(()),
            };
            let result = task(worker, &emit);
            let _ = sender.send(Event::Done(result));
        }))?;
        loop {
            match receiver.recv() {
                Ok(Event::Emitted(item)) => {
                    let _ = flow_sender.send(on_emit(item));
                }
                Ok(Event::Done(result)) => return result,
                Err(_) => return Err(self.ended()),
            }
        }
    }

    fn send(&self, task: Task) -> Result<(), Failure> {
        self.jobs.send(Job::Run(task)).map_err(|_| self.ended())
    }

    /// The error for a thread that has ended.
    fn ended(&self) -> Failure {
        match self.running().closing {
            true => freed("model"),
            false => broken(),
        }
    }

    /// Whether the model is being freed, or was.
    pub(crate) fn is_closing(&self) -> bool {
        self.running().closing
    }

    /// Registers a generation of a session, so that it can be cancelled.
    pub(crate) fn register(&self, session: usize) -> Result<Arc<AtomicBool>, Failure> {
        let mut running = self.running();
        if running.closing {
            return Err(freed("model"));
        }
        let cancel = Arc::new(AtomicBool::new(false));
        running.cancels.push((session, cancel.clone()));
        Ok(cancel)
    }

    /// Reverses [`EngineQueue::register`].
    pub(crate) fn unregister(&self, cancel: &Arc<AtomicBool>) {
        self.running().cancels.retain(|(_, other)| !Arc::ptr_eq(other, cancel));
    }

    /// Cancels the running and queued generations of a session.
    pub(crate) fn cancel(&self, session: usize) {
        let running = self.running();
        let of_session = running.cancels.iter().filter(|(number, _)| *number == session);
        of_session.for_each(|(_, cancel)| cancel.store(true, Ordering::Relaxed));
    }

    /// Cancels all generations, and waits until the engine is dropped.
    pub(crate) fn close(&self) {
        let mut running = self.running();
        running.closing = true;
        running.cancels.iter().for_each(|(_, cancel)| cancel.store(true, Ordering::Relaxed));
        drop(running);
        let _ = self.jobs.send(Job::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has failed its callers' requests already.
        let _ = thread.map(JoinHandle::join);
    }
}

/// Passes an item to the calling thread, and waits for its decision.
pub(crate) type Emit<'a, S> = &'a dyn Fn(S) -> ControlFlow<()>;

pub(crate) fn load_engine(
    model: Arc<akunu::Model>,
    options: &EngineOptions,
    on_load: OnLoad<'_>,
) -> Result<Engine, Failure> {
    let device = akunu::open_device(options.device, options.threads, &options.backends)?;
    Ok(Engine::load(model, device, options, on_load)?)
}

enum Event<S, T> {
    Emitted(S),
    Done(Result<T, Failure>),
}

pub(crate) fn broken() -> Failure {
    let message = "a bug in Akunu: the engine of this model panicked and cannot be used; free the model and load it again";
    Failure::new(Status::Internal, message)
}

/// Runs jobs until the queue is closed or dropped.
fn serve(mut worker: Worker, queue: &Receiver<Job>) {
    while let Ok(Job::Run(task)) = queue.recv() {
        task(&mut worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_panicked_gives_errors_and_can_be_freed() {
        let model = Arc::new(akunu::Model::embedded().unwrap());
        let options = EngineOptions { device: akunu::DeviceChoice::Cpu, ..EngineOptions::default() };
        let watcher = Watcher { on_progress: None, user: std::ptr::null_mut() };
        let (queue, context) = EngineQueue::open(model, options, &watcher, Engine::context).unwrap();
        assert_eq!(queue.run(|worker| Ok(worker.engine.context())).unwrap(), context);
        let result = queue.run(|_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(result.unwrap_err().status, Status::Internal);
        assert_eq!(queue.run(|_| Ok(())).unwrap_err().status, Status::Internal);
        queue.close();
        assert_eq!(queue.run(|_| Ok(())).unwrap_err().status, Status::Handle);
        assert_eq!(queue.register(1).unwrap_err().status, Status::Handle);
    }
}
