//! Many requests, one engine.
//!
//! ```text
//! any thread: Handle::submit ─▶ queue ─▶ slots ─▶ one pass a step, on the engine's thread ─▶ events, on that thread
//! ```
//!
//! Whoever submits gives a function that hears of the request. It is called on the engine's thread, so it hands on what it hears
//! and returns at once. `docs/serving.md` says how it works and what is promised.

mod active;
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
use handle::{Latch, Station, Work};
use pace::Pace;
use queue::Queue;
use request::Job;
use slots::Slot;
use step::Reading;

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
    /// Dropped first: who hears that all is over, as the rest is dropped, finds nobody here who still takes requests.
    _latch: Latch,
    engine: Engine,
    slots: Vec<Slot>,
    queue: Queue<Job>,
    station: Station,
    pace: Pace,
    stats: Stats,
    /// Tokens of requests that have ended.
    generated: u64,

    // Kept from step to step, so that a step allocates nothing.
    arrived: Vec<Job>,
    reading: Vec<Reading>,
}

impl Scheduler {
    /// Takes all slots of an engine, which has to give as many rows of logits as it has slots (see [`crate::EngineOptions::batching`]).
    pub fn new(mut engine: Engine, options: &SchedulerOptions) -> Result<(Scheduler, Handle), Error> {
        let (slots, logit_rows) = (engine.plan().options.slots, engine.plan().tables.prefill.logit_rows);
        if logit_rows < slots {
            return Err(Error::Setting {
                name: "the number of logit rows",
                value: logit_rows.to_string(),
                expected: "at least the number of slots, and so do the chunk and the context",
            });
        }
        let taken: Vec<Slot> =
            (0..slots).map(|_| engine.session().map(Slot::new)).collect::<Result<_, Error>>()?;
        let stats = Stats { slots, kv_capacity: slots * engine.context(), ..Stats::default() };
        let (station, handle) = Station::new(slots, options.queue, stats);
        let scheduler = Scheduler {
            _latch: station.latch(),
            engine,
            slots: taken,
            queue: Queue::default(),
            station,
            pace: Pace::new(options.stall),
            stats,
            generated: 0,
            arrived: Vec::new(),
            reading: Vec::with_capacity(slots),
        };
        Ok((scheduler, handle))
    }

    /// Serves requests on this thread until every handle is dropped, or one has closed it, and nothing is left to do.
    pub fn run(mut self) -> Engine {
        loop {
            let idle = self.queue.is_empty() && self.slots.iter().all(|slot| slot.active.is_none());
            match self.station.next(idle, &mut self.arrived) {
                Work::Step => self.step(),
                Work::CancelAll => self.cancel_all(),
                Work::None => return self.engine,
            }
        }
    }
}
