//! What is asked of a scheduler, and what it answers.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{Error, FinishReason, GenerateOptions, Timings};

/// What somebody wants generated.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// `cancel` is looked at before each step.
    pub options: GenerateOptions,
    /// For each token its log probability and those of so many best ones at its place.
    pub logprobs: Option<usize>,
    /// Requests of a lower priority get a slot before those of a higher one, down to [`i32::MIN`]; the usual is 0. This is the
    /// order of the HTTP API and of its keys as well, so the number is handed on as it comes.
    pub priority: i32,
    /// Whose it is: owners take turns, however many requests each of them has waiting.
    pub owner: u64,
}

/// A token, and how probable it was: natural logarithms of the probabilities before temperature, limits and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    /// The best at that place, falling; of equals the lowest id first.
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
    /// Tokens that were shifted out of the slot.
    pub dropped: usize,
    /// From the moment that it had a slot; all 0 where it never had one.
    pub timings: Timings,
}

/// Hears of a request, on the engine's thread. `Break` ends the request: it hears `Finished` yet, and no more. A panic ends it too,
/// with `Failed`, and does nothing to others.
pub type OnEvent = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + Send>;

/// As [`OnEvent`], of a request that stays on its thread.
pub(super) type Listener<'a> = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a>;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{waiting} requests wait already")]
    QueueFull { waiting: usize },
    #[error("the engine takes no more requests")]
    Closed,
}

/// A request on its way to a slot.
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

    /// Says that it came to nothing.
    pub(super) fn end(self, result: Result<FinishReason, Error>) {
        last_event(
            self.on_event,
            result.map(|finish| Finished { finish, dropped: 0, timings: Timings::default() }),
        );
    }
}

/// Tells the end of a request.
pub(super) fn last_event(mut on_event: Listener<'_>, result: Result<Finished, Error>) {
    let _ = guarded(move || {
        let _ = match result {
            Ok(finished) => on_event(Event::Finished(finished)),
            Err(error) => on_event(Event::Failed(error)),
        };
        Ok(())
    });
}

/// Does what one request wants. A panic there is that request's error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Panicked { message: message.unwrap_or_else(|| "no message".into()) })
    })
}
