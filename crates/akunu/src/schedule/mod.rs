//! Many requests, one engine.
//!
//! ```text
//! any thread: Handle::submit ─▶ queue ─▶ Scheduler::run, on the engine's thread ─▶ events, on that thread
//! ```
//!
//! Whoever submits gives a function that hears of the request. It is called on the engine's thread, so it hands on what it hears
//! and returns at once.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::{Engine, Error, FinishReason, GenerateOptions, Session, Timings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Requests that may wait. One more is [`Refused::QueueFull`].
    pub queue: usize,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions { queue: 256 }
    }
}

/// What somebody wants generated.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// `cancel` is looked at before each step.
    pub options: GenerateOptions,
    /// For each token its log probability and those of so many best ones at its place.
    pub logprobs: Option<usize>,
    /// Higher ones are begun first.
    pub priority: i32,
    /// Whose it is: owners take turns, however many requests each of them has waiting.
    pub owner: u64,
}

/// A token, and how probable it was: natural logarithms of the probabilities before temperature, limits and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    /// The best at that place, falling.
    pub top: Vec<(u32, f32)>,
}

/// What becomes of a request, in this order: at most one `Started`, any number of `Piece`s, one `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event<'a> {
    /// It has a slot.
    Started {
        waited: Duration,
    },
    Piece {
        /// Whole characters.
        text: &'a str,
        /// The ids decoded since the last piece.
        ids: &'a [u32],
        /// One for each of `ids`, where they were asked for.
        logprobs: &'a [TokenLogprob],
    },
    Finished(Finished),
    Failed(Error),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub finish: FinishReason,
    pub timings: Timings,
}

pub type OnEvent = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + Send>;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{waiting} requests wait already")]
    QueueFull { waiting: usize },
    #[error("the engine takes no more requests")]
    Closed,
}

/// A request on its way to the engine.
struct Job {
    request: Request,
    on_event: OnEvent,
    submitted: Instant,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("request", &self.request).finish_non_exhaustive()
    }
}

/// Where requests are handed in. Clones are the same place; the scheduler runs until all of them are dropped.
#[derive(Clone, Debug)]
pub struct Handle {
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

impl Handle {
    pub fn submit(&self, request: Request, on_event: OnEvent) -> Result<(), Refused> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = match waiting < self.most {
            true => self
                .jobs
                .send(Job { request, on_event, submitted: Instant::now() })
                .map_err(|_| Refused::Closed),
            false => Err(Refused::QueueFull { waiting }),
        };
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }
}

/// The engine and what waits for it.
#[derive(Debug)]
pub struct Scheduler {
    engine: Engine,
    session: Session,
    jobs: Receiver<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Scheduler {
    pub fn new(mut engine: Engine, options: &SchedulerOptions) -> Result<(Scheduler, Handle), Error> {
        let (sender, jobs) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let handle = Handle { jobs: sender, waiting: waiting.clone(), most: options.queue };
        let session = engine.session()?;
        Ok((Scheduler { engine, session, jobs, waiting }, handle))
    }

    /// Serves requests on this thread until every handle is dropped and nothing is left to do.
    pub fn run(mut self) -> Engine {
        while let Ok(job) = self.jobs.recv() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.serve(job);
        }
        self.engine
    }

    fn serve(&mut self, job: Job) {
        let Job { request, mut on_event, submitted } = job;
        if on_event(Event::Started { waited: submitted.elapsed() }).is_break() {
            return;
        }
        let generated =
            self.engine.generate(&mut self.session, &request.prompt, &request.options, &mut |piece| {
                on_event(Event::Piece { text: piece.text, ids: piece.ids, logprobs: &[] })
            });
        let _ = match generated {
            Ok(done) => on_event(Event::Finished(Finished { finish: done.finish, timings: done.timings })),
            Err(error) => on_event(Event::Failed(error)),
        };
    }
}
