//! The scheduler: many requests on one engine.
//!
//! ```text
//! any thread: Handle::submit ─▶ queue ─▶ batch of slots ─▶ one pass a step, on the engine's thread ─▶ events, on that thread
//! ```
//!
//! Each request has a callback for its events. It is called on the engine's thread, so it should pass them on and return at once.
//! `docs/serving.md` describes the design and the guarantees.

mod active;
mod alone;
mod batch;
mod commands;
mod forecast;
mod handle;
mod logprobs;
mod pace;
mod prefixes;
mod queue;
mod request;
mod scoring;
mod slots;
mod stats;
mod step;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use commands::{OnFlush, OnSlot, SlotAction};
pub use handle::Handle;
pub use request::{Event, Finished, OnEvent, Refused, Request, TokenLogprob};
pub use stats::Stats;

use akunu_plan::InPlace;

use crate::{CacheEvent, Engine, Error};
pub(crate) use alone::run_alone;
use batch::Batch;
use commands::{Command, LastText};
use handle::{CloseOnDrop, Work, Worker};
use pace::Pace;
use queue::Queue;
use request::Job;

/// The default of [`SchedulerOptions::stall`].
pub const STALL: Duration = Duration::from_millis(200);
/// The same on devices with memory of their own, whose passes of some hundred rows take this long.
pub const STALL_ON_GPU: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Maximum number of requests waiting for a slot. Further ones are [`Refused::QueueFull`].
    pub queue: usize,
    /// While requests are decoded, prompts are processed in chunks, so that they prolong a pass by no more than this, or than the time
    /// that it takes without them. `None`: [`STALL_ON_GPU`] or [`STALL`].
    pub stall: Option<Duration>,
    /// Requests that are expected to wait longer than this for a slot are [`Refused::TooLate`]. `None`: none are.
    pub deadline: Option<Duration>,
    /// Remember the text of the last request in each slot, for [`Handle::change_slot`].
    pub keep_texts: bool,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions { queue: 256, stall: None, deadline: None, keep_texts: false }
    }
}

/// Called with what became known and unknown in the cache.
pub type OnCacheEvents = Box<dyn FnMut(Vec<CacheEvent>) + Send>;

struct OnCache(OnCacheEvents);

impl std::fmt::Debug for OnCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnCache")
    }
}

/// The engine, the batch of its slots, and the queue.
#[derive(Debug)]
pub struct Scheduler {
    /// Dropped first, so that submissions from destructors of listeners are refused.
    _close: CloseOnDrop,
    engine: Engine,
    batch: Batch<'static>,
    queue: Queue<Job>,
    worker: Worker,
    /// Reused between steps to avoid allocations.
    arrived: Vec<Job>,
    /// Commands whose slots have requests.
    commands: Vec<Command>,
    on_cache: Option<OnCache>,
}

impl Scheduler {
    /// Takes all slots of an engine, which must have at least as many rows of logits as slots (see [`crate::EngineOptions::batching`]).
    pub fn new(mut engine: Engine, options: &SchedulerOptions) -> Result<(Scheduler, Handle), Error> {
        let (slots, logit_rows) = (engine.plan().options.slots, engine.plan().tables.prefill().logit_rows);
        if logit_rows < slots {
            return Err(Error::Setting {
                name: "the number of logit rows",
                value: logit_rows.to_string(),
                expected: "at least the number of slots, and so must the chunk and the context",
            });
        }
        let sessions = (0..slots).map(|_| engine.session()).collect::<Result<_, Error>>()?;
        let cache = engine.plan().cache;
        let capacity = (cache.count * cache.block) as usize;
        let is_gpu = engine.device().capabilities().in_place == InPlace::Nothing;
        let stall = options.stall.unwrap_or(if is_gpu { STALL_ON_GPU } else { STALL });
        let mut batch = Batch::new(sessions, capacity, Pace::new(stall));
        batch.stats.kv_block = cache.block as usize;
        if options.keep_texts {
            batch.texts = vec![LastText::default(); slots];
        }
        let (worker, handle) = Worker::new(slots, options, batch.stats);
        let scheduler = Scheduler {
            _close: worker.close_on_drop(),
            engine,
            batch,
            queue: Queue::default(),
            worker,
            arrived: Vec::new(),
            commands: Vec::new(),
            on_cache: None,
        };
        Ok((scheduler, handle))
    }

    /// Reports from now on which full blocks of the cache become known and unknown, after each step and on the engine's
    /// thread. So `on_events` should pass them on and return at once.
    pub fn report_cache(&mut self, on_events: OnCacheEvents) {
        if let Some(slot) = self.batch.slots.first() {
            slot.session.pool.lock().blocks.log_events();
        }
        self.on_cache = Some(OnCache(on_events));
    }

    /// Runs on this thread until all handles are dropped, or one has closed the scheduler, and all requests have finished.
    pub fn run(mut self) -> Engine {
        loop {
            match self.worker.next(self.is_idle(), (&mut self.arrived, &mut self.commands)) {
                Work::Step => self.step(),
                Work::CancelAll => self.cancel_all(),
                Work::None => {
                    self.engine.end_tiers();
                    return self.engine;
                }
            }
        }
    }

    /// Runs on this thread until all submitted requests have finished. More may be submitted afterwards.
    pub fn drain(&mut self) {
        loop {
            self.worker.take_arrived((&mut self.arrived, &mut self.commands));
            if self.is_idle() && self.arrived.is_empty() && self.commands.is_empty() {
                return;
            }
            self.step();
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether there are no requests, except those not received yet.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.batch.is_idle()
    }
}
