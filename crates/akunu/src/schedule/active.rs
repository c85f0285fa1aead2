//! A request that has a slot.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::logprobs::logprob;
use super::request::{Event, Finished, Job, OnEvent, TokenLogprob, guarded, last_event};
use crate::generation::Generation;
use crate::{Engine, Error, FinishReason, Piece, Session};

pub(super) struct Active {
    pub(super) generation: Generation,
    on_event: OnEvent,
    /// How many best ones are wanted with each token.
    logprobs: Option<usize>,
    /// Those of the tokens since the last piece.
    unsent: Vec<TokenLogprob>,
    /// Its place in the order in which requests got slots.
    pub(super) number: u64,
    submitted: Instant,
    /// The slot holds nothing but the beginning of its prompt.
    pub(super) placed: bool,
    /// Tokens of the prompt that are to be fed in this step.
    pub(super) share: usize,
    /// Which of the rows that ask in this pass is its own.
    pub(super) asked: Option<usize>,
    last_token: Option<Instant>,
}

impl std::fmt::Debug for Active {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Active {
    pub(super) fn new(engine: &Engine, job: Job, number: u64) -> Result<Active, (OnEvent, Error)> {
        let Job { request, on_event, submitted } = job;
        match guarded(|| Generation::new(engine, &request.prompt, &request.options)) {
            Err(error) => Err((on_event, error)),
            Ok(generation) => Ok(Active {
                generation,
                on_event,
                logprobs: request.logprobs,
                unsent: Vec::new(),
                number,
                submitted,
                placed: false,
                share: 0,
                asked: None,
                last_token: None,
            }),
        }
    }

    /// Says that it has a slot.
    pub(super) fn start(&mut self) -> Result<Option<FinishReason>, Error> {
        let event = Event::Started { waited: self.submitted.elapsed() };
        let flow = guarded(|| Ok((self.on_event)(event)))?;
        Ok(flow.is_break().then_some(FinishReason::Callback))
    }

    /// Whether its tokens come in chains when it is alone. A chain leaves the logits of its last step only.
    pub(super) fn chains(&self) -> bool {
        self.logprobs.is_none()
    }

    pub(super) fn prompt(&self) -> &[u32] {
        self.generation.output.prompt()
    }

    pub(super) fn is_running(&self) -> bool {
        self.generation.has_read_prompt()
    }

    /// Takes the tokens that a chain found.
    pub(super) fn take_all(&mut self, found: &[u32]) -> Result<Option<FinishReason>, Error> {
        guarded(|| Ok(found.iter().find_map(|&id| self.take(id))))
    }

    /// Takes what follows by its row of the last pass; `picked` says that the device has picked for all rows.
    pub(super) fn take_next(
        &mut self,
        engine: &mut Engine,
        row: usize,
        picked: bool,
    ) -> Result<Option<FinishReason>, Error> {
        guarded(|| {
            let picked = picked && !self.generation.is_held();
            let id = if picked { engine.found[row] } else { self.generation.pick(engine, row)? };
            if let Some(best) = self.logprobs.filter(|_| !self.generation.output.endings().contains(&id)) {
                self.unsent.push(logprob(engine.logits_of(row)?, id, best));
            }
            Ok(self.take(id))
        })
    }

    fn take(&mut self, id: u32) -> Option<FinishReason> {
        let Active { generation, on_event, unsent, .. } = self;
        generation.take(id, &mut |piece| tell(on_event, piece, unsent))
    }

    /// A token came: how long after the last one?
    pub(super) fn stall(&mut self, now: Instant) -> Duration {
        let last = self.last_token.replace(now).unwrap_or(now);
        now - last
    }

    /// Says how it ended, and gives whether that was without an error. The session then holds nothing that is not exactly what its
    /// tokens say.
    pub(super) fn end(self, session: &mut Session, result: Result<FinishReason, Error>) -> bool {
        let Active { mut generation, mut on_event, mut unsent, .. } = self;
        // A listener that panicked hears nothing but that.
        let flushed = match &result {
            Err(Error::Panicked { .. }) => Ok(()),
            _ => guarded(|| {
                generation
                    .end(session, result.as_ref(), &mut |piece| tell(&mut on_event, piece, &mut unsent));
                Ok(())
            }),
        };
        session.truncate(generation.exact(session));
        let timings = generation.timings();
        let result = flushed.and(result);
        let well = result.is_ok();
        last_event(on_event, result.map(|finish| Finished { finish, timings }));
        well
    }
}

fn tell(on_event: &mut OnEvent, piece: Piece<'_>, logprobs: &mut Vec<TokenLogprob>) -> ControlFlow<()> {
    let flow = on_event(Event::Piece { text: piece.text, ids: piece.ids, logprobs });
    logprobs.clear();
    flow
}
