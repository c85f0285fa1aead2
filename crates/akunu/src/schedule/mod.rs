//! Many requests, one engine.
//!
//! ```text
//! any thread: Handle::submit ─▶ queue ─▶ batch of slots ─▶ one pass a step, on the engine's thread ─▶ events, on that thread
//! ```
//!
//! Whoever submits gives a function that hears of the request. It is called on the engine's thread, so it hands on what it hears
//! and returns at once. `docs/serving.md` says how it works and what is promised.

mod active;
mod alone;
mod batch;
mod handle;
mod logprobs;
mod pace;
mod queue;
mod request;
mod slots;
mod stats;
mod step;

use std::time::Duration;

pub use handle::Handle;
pub use request::{Event, Finished, OnEvent, Refused, Request, TokenLogprob};
pub use stats::Stats;

use crate::{Engine, Error};
pub(crate) use alone::run_alone;
use batch::Batch;
use handle::{CloseOnDrop, Work, Worker};
use pace::Pace;
use queue::Queue;
use request::Job;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Requests that may wait for a slot. One more is [`Refused::QueueFull`].
    pub queue: usize,
    /// While tokens are generated, prompts are read in chunks that make a pass take no longer than this, or than twice what it takes
    /// without them.
    pub stall: Duration,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions { queue: 256, stall: Duration::from_millis(200) }
    }
}

/// The engine, who has its slots and who waits for one.
#[derive(Debug)]
pub struct Scheduler {
    /// Dropped first: a listener that is dropped with the rest, and submits something then, is refused.
    _close: CloseOnDrop,
    engine: Engine,
    batch: Batch<'static>,
    queue: Queue<Job>,
    worker: Worker,
    /// Kept from step to step, so that a step allocates nothing.
    arrived: Vec<Job>,
}

impl Scheduler {
    /// Takes all slots of an engine, which has to give as many rows of logits as it has slots (see [`crate::EngineOptions::batching`]).
    pub fn new(mut engine: Engine, options: &SchedulerOptions) -> Result<(Scheduler, Handle), Error> {
        let (slots, logit_rows) = (engine.plan().options.slots, engine.plan().tables.prefill().logit_rows);
        if logit_rows < slots {
            return Err(Error::Setting {
                name: "the number of logit rows",
                value: logit_rows.to_string(),
                expected: "at least the number of slots, and so do the chunk and the context",
            });
        }
        let sessions = (0..slots).map(|_| engine.session()).collect::<Result<_, Error>>()?;
        let batch = Batch::new(sessions, engine.context(), Pace::new(options.stall));
        let (worker, handle) = Worker::new(slots, options.queue, batch.stats);
        let scheduler = Scheduler {
            _close: worker.close_on_drop(),
            engine,
            batch,
            queue: Queue::default(),
            worker,
            arrived: Vec::new(),
        };
        Ok((scheduler, handle))
    }

    /// Serves requests on this thread until every handle is dropped, or one has closed it, and nothing is left to do.
    pub fn run(mut self) -> Engine {
        loop {
            match self.worker.next(self.is_idle(), &mut self.arrived) {
                Work::Step => self.step(),
                Work::CancelAll => self.cancel_all(),
                Work::None => return self.engine,
            }
        }
    }

    /// Serves on this thread what has been submitted, until nothing is left to do, and takes more requests afterwards.
    pub fn drain(&mut self) {
        loop {
            self.worker.take_arrived(&mut self.arrived);
            if self.is_idle() && self.arrived.is_empty() {
                return;
            }
            self.step();
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether no request is here but those that have just arrived.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.batch.is_idle()
    }
}
