//! A request that has a slot.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::logprobs::logprob;
use super::request::{Event, Finished, Job, Listener, OnEvent, TokenLogprob, guarded, last_event};
use crate::generation::Generation;
use crate::{Engine, Error, FinishReason, Piece, Session};

pub(super) struct Active<'a> {
    pub(super) generation: Generation,
    on_event: Listener<'a>,
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

impl std::fmt::Debug for Active<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl<'a> Active<'a> {
    pub(super) fn new(engine: &Engine, job: Job, number: u64) -> Result<Active<'a>, (OnEvent, Error)> {
        let Job { request, on_event, submitted } = job;
        match guarded(|| Generation::new(engine, &request.prompt, &request.options)) {
            Err(error) => Err((on_event, error)),
            Ok(generation) => Ok(Active {
                logprobs: request.logprobs,
                number,
                submitted,
                placed: false,
                ..Active::placed(generation, on_event)
            }),
        }
    }

    /// A request whose slot holds the beginning of its prompt already.
    pub(super) fn placed(generation: Generation, on_event: Listener<'a>) -> Active<'a> {
        Active {
            generation,
            on_event,
            logprobs: None,
            unsent: Vec::new(),
            number: 1,
            submitted: Instant::now(),
            placed: true,
            share: 0,
            asked: None,
            last_token: None,
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
            let id = self.generation.pick(engine, row, picked)?;
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

    /// Says how it ended, and gives whether that was without an error. With `forgets_shifted` the session then holds nothing that is
    /// not exactly what its tokens say.
    pub(super) fn end(
        self,
        session: &mut Session,
        result: Result<FinishReason, Error>,
        forgets_shifted: bool,
    ) -> bool {
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
        if forgets_shifted {
            session.truncate(generation.exact(session));
        }
        let (timings, dropped) = (generation.timings(), generation.dropped());
        let result = flushed.and(result);
        let well = result.is_ok();
        last_event(on_event, result.map(|finish| Finished { finish, dropped, timings }));
        well
    }
}

fn tell(on_event: &mut Listener<'_>, piece: Piece<'_>, logprobs: &mut Vec<TokenLogprob>) -> ControlFlow<()> {
    let flow = on_event(Event::Piece { text: piece.text, ids: piece.ids, logprobs });
    logprobs.clear();
    flow
}
