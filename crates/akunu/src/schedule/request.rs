//! Requests to the scheduler, and their events.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{Error, FinishReason, GenerateOptions, Timings};

/// A request to generate text.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// `cancel` is checked before each step.
    pub options: GenerateOptions,
    /// Requests with a lower value get a slot first; the default is 0. The HTTP API and its keys use the same order.
    pub priority: i32,
    /// The owner. Owners that always have requests get equally many tokens, however many requests each has.
    pub owner: u64,
    /// Cached prefixes are reused only by requests of the same salt, since their reuse can be measured.
    pub salt: u64,
    /// Also find the log probabilities of the prompt's tokens, with this many alternatives. Nothing of the
    /// prompt is then reused.
    pub prompt_logprobs: Option<usize>,
}

/// A token and its log probability: the natural logarithm of its probability before temperature, limits and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    /// The most probable tokens in its place, descending, and by id among equals.
    pub top: Vec<(u32, f32)>,
}

/// An event of a request. The order is: at most one `Started`, any number of `Piece`s and `StepEnd`s, and one `Finished` or
/// `Failed`.
#[derive(Debug)]
pub enum Event<'a> {
    /// The request has a slot.
    Started {
        waited: Duration,
    },
    Piece {
        /// Whole characters.
        text: &'a str,
        /// The ids since the previous piece.
        ids: &'a [u32],
        /// One for each of `ids`, if requested.
        logprobs: &'a [TokenLogprob],
    },
    /// The next piece takes a pass. A callback that passes pieces on to another thread may keep them until this event or
    /// the last one, so that it wakes that thread once for all tokens of a chain.
    StepEnd,
    Finished(Finished),
    Failed(Error),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub finish: FinishReason,
    /// Tokens discarded by shifting.
    pub dropped: usize,
    /// From the time that the request got a slot; all 0 if it never had one.
    pub timings: Timings,
    /// Those of the prompt's tokens after the first, if requested; fewer if the request ended before it had
    /// read its prompt.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// That of the token that ended the text, which is in no piece, if log probabilities are requested.
    pub ending: Option<TokenLogprob>,
}

/// The callback for the events of a request, called on the engine's thread. `Break` ends the request; `Finished` is still sent. A panic
/// ends it with `Failed`, and does not affect other requests.
pub type OnEvent = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + Send>;

/// As [`OnEvent`], for a request that stays on its thread.
pub(super) type Listener<'a> = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a>;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the queue is full: {waiting} requests are waiting")]
    QueueFull { waiting: usize },
    /// Waiting does not help.
    #[error("{requests} requests at once are more than the {limit} that slots and queue hold together")]
    TooMany { requests: usize, limit: usize },
    #[error(
        "the request would wait {:.0} s for its turn, and {:.0} s is the limit", expected.as_secs_f64().ceil(),
        deadline.as_secs_f64()
    )]
    TooLate { expected: Duration, deadline: Duration },
    #[error("the engine is shutting down")]
    Closed,
}

/// A waiting request.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) on_event: OnEvent,
    pub(super) submitted: Instant,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Job {
    pub(super) fn is_cancelled(&self) -> bool {
        self.request.options.cancel.as_ref().is_some_and(|c| c.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Sends the last event of a request that never had a slot.
    pub(super) fn end(self, result: Result<FinishReason, Error>) {
        send_last_event(
            self.on_event,
            result.map(|finish| Finished {
                finish,
                dropped: 0,
                timings: Timings::default(),
                prompt_logprobs: Vec::new(),
                ending: None,
            }),
        );
    }
}

/// Sends the last event of a request.
pub(super) fn send_last_event(mut on_event: Listener<'_>, result: Result<Finished, Error>) {
    let _ = catch_panic(move || {
        let _ = match result {
            Ok(finished) => on_event(Event::Finished(finished)),
            Err(error) => on_event(Event::Failed(error)),
        };
        Ok(())
    });
}

/// Runs code of one request, and turns a panic into an error.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Panicked { message: message.unwrap_or_else(|| "no message".into()) })
    })
}
