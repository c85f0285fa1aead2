//! The thread that a model's engine lives on. A device belongs to one thread; callers of many threads send it jobs and wait, and
//! it does them in turn.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::{Engine, EngineOptions, Session};

use crate::boundary::{Failure, Status, check_not_in_callback};

/// What lives on the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) engine: Engine,
    sessions: BTreeMap<usize, SessionState>,
    /// The session whose last token gave the engine's latest logits, if nothing has happened to it since.
    pub(crate) fresh: Option<usize>,
}

/// A session, as the thread has it.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) session: Session,
    /// The latest tokens of its text, as far as they have not been through the model.
    pub(crate) tail: Vec<u32>,
}

impl Worker {
    /// A session and the engine for it. What is done with them makes other logits, or none.
    pub(crate) fn held(&mut self, number: usize) -> Result<(&mut Engine, &mut SessionState), Failure> {
        self.fresh = None;
        let held = self.sessions.get_mut(&number);
        Ok((&mut self.engine, held.ok_or_else(session_freed)?))
    }

    pub(crate) fn add(&mut self, number: usize) -> Result<(), Failure> {
        let session = self.engine.session()?;
        self.sessions.insert(number, SessionState { session, tail: Vec::new() });
        Ok(())
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.fresh = self.fresh.filter(|&fresh| fresh != number);
        self.sessions.remove(&number);
    }

    pub(crate) fn tokens(&self, number: usize) -> Result<Vec<u32>, Failure> {
        let held = self.sessions.get(&number).ok_or_else(session_freed)?;
        Ok(held.session.tokens().to_vec())
    }

    /// The logits after a session's last token.
    pub(crate) fn logits(&mut self, number: usize) -> Result<Vec<f32>, Failure> {
        if self.fresh != Some(number) {
            let (engine, held) = self.held(number)?;
            let tokens = held.session.tokens().to_vec();
            if tokens.is_empty() {
                return Err(Failure::argument("the session is empty: nothing has logits there"));
            }
            engine.prefill(&mut held.session, &tokens)?;
            self.fresh = Some(number);
        }
        Ok(self.engine.last_logits()?.to_vec())
    }

    /// Makes `to` begin with the first `count` tokens of `from`, and hold no more.
    pub(crate) fn copy(&mut self, from: usize, to: usize, count: usize) -> Result<(), Failure> {
        self.fresh = None;
        let mut target = self.sessions.remove(&to).ok_or_else(session_freed)?;
        let copied = match self.sessions.get(&from) {
            Some(source) => Ok(self.engine.copy_prefix(&source.session, &mut target.session, count)),
            None => Err(session_freed()),
        };
        target.tail.clear();
        self.sessions.insert(to, target);
        Ok(copied??)
    }
}

fn freed(what: &str) -> Failure {
    Failure::new(Status::Handle, format!("the {what} was freed meanwhile"))
}

fn session_freed() -> Failure {
    freed("session")
}

type Task = Box<dyn FnOnce(&mut Worker) + Send>;

enum Job {
    Run(Task),
    Close,
}

/// The other threads' side.
#[derive(Debug)]
pub(crate) struct Post {
    jobs: Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    running: Mutex<Running>,
}

/// Generations that are under way or waiting, by session, and how to end them.
#[derive(Debug, Default)]
struct Running {
    cancels: Vec<(usize, Arc<AtomicBool>)>,
    closing: bool,
}

impl Post {
    /// Makes the engine on a thread of its own, and asks it for what is `known` of it for good.
    pub(crate) fn open<T: Send + 'static>(
        model: Arc<akunu::Model>,
        options: EngineOptions,
        known: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<(Post, T), Failure> {
        let (jobs, queue) = channel();
        let (tell, told) = channel();
        let serve = move || match Engine::new(model, &options) {
            Err(error) => {
                let _ = tell.send(Err(Failure::from(error)));
            }
            Ok(engine) => {
                let _ = tell.send(Ok(known(&engine)));
                drop(tell);
                serve(Worker { engine, sessions: BTreeMap::new(), fresh: None }, &queue);
            }
        };
        let thread =
            std::thread::Builder::new().name("akunu-engine".into()).spawn(serve).map_err(|error| {
                Failure::new(Status::Memory, format!("no thread for the engine could be started: {error}"))
            })?;
        let known = told.recv().unwrap_or_else(|_| Err(broken()))?;
        let post = Post { jobs, thread: Mutex::new(Some(thread)), running: Mutex::new(Running::default()) };
        Ok((post, known))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread do something, and waits for what comes of it.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        check_not_in_callback()?;
        let (tell, told) = channel();
        self.send(Box::new(move |worker| {
            // Whoever asked waits for it.
            let _ = tell.send(task(worker));
        }))?;
        told.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    /// As [`Post::ask`], of a task that says things on the way, which `on_said` answers on this thread.
    pub(crate) fn converse<T: Send + 'static, S: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker, Say<'_, S>) -> Result<T, Failure> + Send + 'static,
        mut on_said: impl FnMut(S) -> ControlFlow<()>,
    ) -> Result<T, Failure> {
        check_not_in_callback()?;
        let (tell, told) = channel();
        let (answer, answers) = channel();
        self.send(Box::new(move |worker| {
            let say = |said: S| match tell.send(Event::Said(said)) {
                Ok(()) => answers.recv().unwrap_or(ControlFlow::Break(())),
                Err(_) => ControlFlow::Break(()),
            };
            let done = task(worker, &say);
            let _ = tell.send(Event::Done(done));
        }))?;
        loop {
            match told.recv() {
                Ok(Event::Said(said)) => {
                    let _ = answer.send(on_said(said));
                }
                Ok(Event::Done(done)) => return done,
                Err(_) => return Err(self.ended()),
            }
        }
    }

    fn send(&self, task: Task) -> Result<(), Failure> {
        self.jobs.send(Job::Run(task)).map_err(|_| self.ended())
    }

    /// Why the thread does not answer.
    fn ended(&self) -> Failure {
        match self.running().closing {
            true => freed("model"),
            false => broken(),
        }
    }

    /// Registers a session's generation, so that it can be cancelled.
    pub(crate) fn begin(&self, session: usize) -> Result<Arc<AtomicBool>, Failure> {
        let mut running = self.running();
        if running.closing {
            return Err(freed("model"));
        }
        let cancel = Arc::new(AtomicBool::new(false));
        running.cancels.push((session, cancel.clone()));
        Ok(cancel)
    }

    /// What [`Post::begin`] gave is over.
    pub(crate) fn end(&self, cancel: &Arc<AtomicBool>) {
        self.running().cancels.retain(|(_, other)| !Arc::ptr_eq(other, cancel));
    }

    /// Ends a session's generations soon, if any is under way or waits.
    pub(crate) fn cancel(&self, session: usize) {
        let running = self.running();
        let of_session = running.cancels.iter().filter(|(number, _)| *number == session);
        of_session.for_each(|(_, cancel)| cancel.store(true, Ordering::Relaxed));
    }

    /// Ends what is under way, and waits until the engine has given back what it had.
    pub(crate) fn close(&self) {
        let mut running = self.running();
        running.closing = true;
        running.cancels.iter().for_each(|(_, cancel)| cancel.store(true, Ordering::Relaxed));
        drop(running);
        let _ = self.jobs.send(Job::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that broke has told its callers.
        let _ = thread.map(JoinHandle::join);
    }
}

/// Says something to the thread that asked, and waits for its answer.
pub(crate) type Say<'a, S> = &'a dyn Fn(S) -> ControlFlow<()>;

enum Event<S, T> {
    Said(S),
    Done(Result<T, Failure>),
}

fn broken() -> Failure {
    let message =
        "a bug in Akunu: this model's engine broke down, and answers no more; free it and load it again";
    Failure::new(Status::Internal, message)
}

/// Until it is closed, or nobody can ask any more.
fn serve(mut worker: Worker, queue: &Receiver<Job>) {
    while let Ok(Job::Run(task)) = queue.recv() {
        task(&mut worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_broke_down_is_told_and_can_be_freed() {
        let model = Arc::new(akunu::Model::embedded().unwrap());
        let options = EngineOptions { device: akunu::DeviceChoice::Cpu, ..EngineOptions::default() };
        let (post, context) = Post::open(model, options, Engine::context).unwrap();
        assert_eq!(post.ask(|worker| Ok(worker.engine.context())).unwrap(), context);
        let told = post.ask(|_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(told.unwrap_err().status, Status::Internal);
        assert_eq!(post.ask(|_| Ok(())).unwrap_err().status, Status::Internal);
        post.close();
        assert_eq!(post.ask(|_| Ok(())).unwrap_err().status, Status::Handle);
        assert_eq!(post.begin(1).unwrap_err().status, Status::Handle);
    }
}
