//! A request in a slot.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::logprobs::logprob;
use super::prefixes::Awaited;
use super::request::{Event, Finished, Job, Listener, OnEvent, TokenLogprob, catch_panic, send_last_event};
use super::scoring::Scoring;
use super::slots::Need;
use crate::generation::Generation;
use crate::{Engine, Error, FinishReason, Piece, Session};

/// The tokens of answers count for their owners in blocks of so many, when a block begins.
pub(super) const COUNTED: usize = 16;

pub(super) struct Active<'a> {
    pub(super) generation: Generation,
    on_event: Listener<'a>,
    /// Number of most probable alternatives to report with each token.
    logprobs: Option<usize>,
    /// Log probabilities of the tokens since the previous piece.
    unsent: Vec<TokenLogprob>,
    /// That of the token that ended the text.
    ending: Option<TokenLogprob>,
    /// Its number in the order of admission.
    pub(super) number: u64,
    submitted: Instant,
    pub(super) priority: i32,
    pub(super) owner: u64,
    /// Passes that it sat out, or that were of no use to it, because a mask of its grammar was not known.
    pub(super) waited: usize,
    /// Tokens of the answer that were counted for the owner, beside the first [`COUNTED`].
    counted: usize,
    pub(super) salt: u64,
    pub(super) need: Need,
    /// The positions that it has blocks for, or a promise of them.
    pub(super) promised: usize,
    /// Its text has reached them, and there are no more yet: it sits out passes until there are.
    pub(super) is_paused: bool,
    /// The slot holds only a prefix of the prompt.
    pub(super) is_prepared: bool,
    /// What it waits for before that.
    pub(super) awaited: Option<Awaited>,
    /// The log probabilities of its prompt, if requested.
    pub(super) scoring: Option<Scoring>,
    /// Tokens of the prompt to process in this step.
    pub(super) share: usize,
    /// The grammar's mask was not known after the last pass: the next token is sampled from `kept` when it is.
    pub(super) is_waiting: bool,
    /// The logits of the last row, while it waits.
    kept: Vec<f32>,
    /// The index of its row among the rows with logits of this pass.
    pub(super) logits_index: Option<usize>,
    /// The grammar's mask was not known when the device got the masks of this pass.
    pub(super) is_late: bool,
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
        match catch_panic(|| Generation::new(engine, &request.prompt, &request.options)) {
            Err(error) => Err((on_event, error)),
            Ok(generation) => Ok(Active {
                number,
                submitted,
                priority: request.priority,
                owner: request.owner,
                salt: request.salt,
                need: Need::of(engine, &request),
                is_prepared: false,
                scoring: request.prompt_logprobs.map(Scoring::new),
                ..Active::prepared(generation, request.options.logprobs, on_event)
            }),
        }
    }

    /// A request whose slot holds a prefix of its prompt already.
    pub(super) fn prepared(
        generation: Generation,
        logprobs: Option<usize>,
        on_event: Listener<'a>,
    ) -> Active<'a> {
        Active {
            generation,
            on_event,
            logprobs,
            unsent: Vec::new(),
            ending: None,
            number: 1,
            submitted: Instant::now(),
            priority: 0,
            owner: 0,
            waited: 0,
            counted: 0,
            salt: 0,
            need: Need::default(),
            promised: 0,
            is_paused: false,
            is_prepared: true,
            awaited: None,
            scoring: None,
            share: 0,
            is_waiting: false,
            kept: Vec::new(),
            logits_index: None,
            is_late: false,
            last_token: None,
        }
    }

    /// Sends [`Event::Started`].
    pub(super) fn start(&mut self) -> Result<Option<FinishReason>, Error> {
        let event = Event::Started { waited: self.submitted.elapsed() };
        let flow = catch_panic(|| Ok((self.on_event)(event)))?;
        Ok(flow.is_break().then_some(FinishReason::Callback))
    }

    /// Whether it may be decoded in chains when it is alone. A chain keeps the logits of its last step only. With a grammar, chains
    /// of one step are for devices that sample; others run while the mask is computed.
    pub(super) fn can_chain(&self, engine: &Engine) -> bool {
        self.logprobs.is_none() && (engine.rewinds() && engine.samples() || !self.generation.is_held())
    }

    pub(super) fn prompt(&self) -> &[u32] {
        self.generation.output.prompt()
    }

    /// Whether others may share its tokens.
    pub(super) fn shares(&self) -> bool {
        !self.need.shifts && self.scoring.is_none()
    }

    /// Whether it has tokens to score, with so many in its slot: all but the last one.
    pub(super) fn is_scoring(&self, in_slot: usize) -> bool {
        // A shifted context may have fewer tokens than the prompt had.
        self.scoring.is_some() && !self.is_running() && in_slot + 1 < self.prompt().len()
    }

    /// The tokens of the answer that begun blocks of [`COUNTED`] add to those counted for its owner. A pass that it waited for a mask
    /// counts as a token, for it kept the slot from others.
    pub(super) fn uncounted(&mut self) -> usize {
        let begun = (self.generation.output.ids().len() + self.waited) / COUNTED * COUNTED;
        let new = begun.saturating_sub(self.counted);
        self.counted += new;
        new
    }

    /// Whether it has read its prompt.
    pub(super) fn is_running(&self) -> bool {
        self.generation.has_read_prompt()
    }

    /// Whether it has no row in a pass although it has read its prompt.
    pub(super) fn sits_out(&self) -> bool {
        self.is_waiting || self.is_paused
    }

    /// Adds the tokens of a chain.
    pub(super) fn take_all(&mut self, found: &[u32]) -> Result<Option<FinishReason>, Error> {
        catch_panic(|| Ok(self.take(found)))
    }

    /// Samples and adds the token after its row of the last pass; `picked`: the device has sampled for all rows. If the mask of its
    /// grammar is not known at `deadline`, it keeps the logits, and waits.
    pub(super) fn take_next(
        &mut self,
        engine: &mut Engine,
        row: usize,
        picked: bool,
        deadline: Instant,
    ) -> Result<Option<FinishReason>, Error> {
        if !self.generation.can_pick(deadline) {
            self.wait_for_mask(engine, row)?;
            return Ok(None);
        }
        catch_panic(|| {
            if let Some(finish) = self.complete() {
                return Ok(Some(finish));
            }
            let id = self.generation.pick(engine, row, picked)?;
            if let Some(best) = self.logprobs {
                self.keep(logprob(engine.logits_of(row)?, id, best));
            }
            Ok(self.take(&[id]))
        })
    }

    /// Keeps the logits of its row of the last pass until the mask is known.
    pub(super) fn wait_for_mask(&mut self, engine: &mut Engine, row: usize) -> Result<(), Error> {
        self.kept.clear();
        self.kept.extend_from_slice(engine.logits_of(row)?);
        self.is_waiting = true;
        Ok(())
    }

    /// Samples and adds a token from the kept logits, if the mask is known at `deadline`.
    pub(super) fn take_kept(&mut self, deadline: Instant) -> Result<Option<FinishReason>, Error> {
        if !self.generation.can_pick(deadline) {
            return Ok(None);
        }
        self.is_waiting = false;
        catch_panic(|| {
            if let Some(finish) = self.complete() {
                return Ok(Some(finish));
            }
            let id = self.generation.pick_from(&self.kept)?;
            if let Some(best) = self.logprobs {
                self.keep(logprob(&self.kept, id, best));
            }
            Ok(self.take(&[id]))
        })
    }

    /// Runs a step of an answer in a grammar, alone on a device that samples, and adds its token. False, if its mask is not known
    /// at `deadline`: the next call continues.
    pub(super) fn take_held(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        deadline: Instant,
    ) -> Result<(bool, Option<FinishReason>), Error> {
        self.generation.start_held(engine, session)?;
        if !self.generation.can_pick(deadline) {
            return Ok((false, None));
        }
        catch_panic(|| {
            if let Some(finish) = self.complete() {
                return Ok((true, Some(finish)));
            }
            let id = self.generation.pick_held(engine, session)?;
            Ok((true, self.take(&[id])))
        })
    }

    /// Keeps a log probability for the next piece, or for the last event.
    fn keep(&mut self, of_token: TokenLogprob) {
        match self.generation.output.endings().contains(&of_token.id) {
            true => self.ending = Some(of_token),
            false => self.unsent.push(of_token),
        }
    }

    fn complete(&mut self) -> Option<FinishReason> {
        let Active { generation, on_event, unsent, .. } = self;
        generation.complete(&mut |piece| send_piece(on_event, piece, unsent))
    }

    /// Adds the tokens of a step, up to the last one of the text.
    fn take(&mut self, found: &[u32]) -> Option<FinishReason> {
        let Active { generation, on_event, unsent, .. } = self;
        let mut on_piece = |piece: Piece<'_>| send_piece(on_event, piece, unsent);
        let finish = found.iter().find_map(|&id| generation.take(id, &mut on_piece));
        finish.or_else(|| on_event(Event::StepEnd).is_break().then_some(FinishReason::Callback))
    }

    /// The time since the previous token.
    pub(super) fn stall(&mut self, now: Instant) -> Duration {
        let last = self.last_token.replace(now).unwrap_or(now);
        now - last
    }

    /// Sends the last event; returns whether the request succeeded. With `forgets_shifted` the session keeps only tokens whose keys and
    /// values are the same as after a prefill.
    pub(super) fn end(
        self,
        session: &mut Session,
        result: Result<FinishReason, Error>,
        forgets_shifted: bool,
    ) -> bool {
        let Active { mut generation, mut on_event, mut unsent, ending, scoring, .. } = self;
        // A listener that panicked gets only `Failed`.
        let flushed = match &result {
            Err(Error::Panicked { .. }) => Ok(()),
            _ => catch_panic(|| {
                generation.end(session, result.as_ref(), &mut |piece| {
                    send_piece(&mut on_event, piece, &mut unsent)
                });
                Ok(())
            }),
        };
        if forgets_shifted {
            session.truncate(generation.exact(session));
        }
        let (timings, dropped) = (generation.timings(), generation.dropped());
        let result = flushed.and(result);
        let is_ok = result.is_ok();
        let prompt_logprobs = scoring.map_or_else(Vec::new, |scoring| scoring.scores);
        send_last_event(
            on_event,
            result.map(|finish| Finished { finish, dropped, timings, prompt_logprobs, ending }),
        );
        is_ok
    }
}

fn send_piece(
    on_event: &mut Listener<'_>,
    piece: Piece<'_>,
    logprobs: &mut Vec<TokenLogprob>,
) -> ControlFlow<()> {
    let flow = on_event(Event::Piece { text: piece.text, ids: piece.ids, logprobs });
    logprobs.clear();
    flow
}
