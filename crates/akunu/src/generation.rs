//! The state of one generation: sampling, output, and when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::constraint::Cursor;
use crate::output::{OnPiece, Output};
use crate::{Engine, Error, FinishReason, GenerateOptions, Overflow, Sampler, Session, Timings};

#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) output: Output,
    /// `None`: greedy.
    pub(crate) sampler: Option<Sampler>,
    /// A grammar's state follows the text while the device runs the next pass.
    follows_later: bool,
    overflow: Overflow,
    cancel: Option<Arc<AtomicBool>>,
    /// Steps of the next submission, before limits.
    chain: usize,
    /// Tokens discarded by shifting.
    dropped: usize,
    /// Tokens of the prompt that were in the session already.
    pub(crate) reused: usize,
    start: Instant,
    prompt_read: Option<Instant>,
    first_token: Option<Instant>,
}

impl Generation {
    pub(crate) fn new(
        engine: &Engine,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation, Error> {
        let start = Instant::now();
        engine.check_options(options)?;
        let output = Output::new(engine.model(), prompt, options, engine.context());
        let constraint = options.constraint.as_ref();
        let cursor = constraint
            .map(|constraint| Cursor::new(constraint, prompt.len(), output.endings(), engine.samples()));
        let sampler = match options.sampling.is_plain_greedy() && cursor.is_none() {
            true => None,
            false => Some(engine.sampler(&options.sampling)?.held_to(cursor)),
        };
        Ok(Generation {
            output,
            sampler,
            follows_later: engine.samples(),
            overflow: options.overflow,
            cancel: options.cancel.clone(),
            chain: 1,
            dropped: 0,
            reused: 0,
            start,
            prompt_read: None,
            first_token: None,
        })
    }

    /// Called after the prefill. Ends the generation if no token was requested.
    pub(crate) fn prompt_is_read(&mut self) -> Option<FinishReason> {
        self.prompt_read = Some(Instant::now());
        (self.output.left() == 0).then_some(FinishReason::MaxTokens)
    }

    pub(crate) fn has_read_prompt(&self) -> bool {
        self.prompt_read.is_some()
    }

    /// The token sampled after a row of the last pass; `picked`: the device has sampled.
    pub(crate) fn pick(&mut self, engine: &mut Engine, row: usize, picked: bool) -> Result<u32, Error> {
        engine.pick_row(row, picked, self.sampler.as_mut(), self.output.history())
    }

    /// Whether the next token can be sampled: the grammar's mask is known. Waits for it until `deadline`.
    pub(crate) fn can_pick(&mut self, deadline: Instant) -> bool {
        self.sampler.as_mut().is_none_or(|sampler| sampler.is_ready(self.output.history(), deadline))
    }

    /// Requests the mask of the next token, which threads compute while the device runs.
    pub(crate) fn request_mask(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            sampler.request_mask(self.output.history());
        }
    }

    /// Ends the text if its grammar is known to allow no more tokens.
    pub(crate) fn complete(&mut self, on_piece: OnPiece<'_>) -> Option<FinishReason> {
        self.sampler.as_ref().filter(|sampler| sampler.is_known_over())?;
        self.output.flush(on_piece);
        Some(FinishReason::Complete)
    }

    /// The token sampled from logits that were kept.
    pub(crate) fn pick_from(&mut self, logits: &[f32]) -> Result<u32, Error> {
        match &mut self.sampler {
            Some(sampler) => sampler.pick(logits, self.output.history()),
            None => Err(Error::NoLogits),
        }
    }

    /// Adds a token; returns a reason if it is the last.
    pub(crate) fn take(&mut self, id: u32, on_piece: OnPiece<'_>) -> Option<FinishReason> {
        self.first_token.get_or_insert_with(Instant::now);
        let finish = self.output.take(id, on_piece);
        if !matches!(finish, None | Some(FinishReason::MaxTokens)) {
            return finish;
        }
        let follows_now = |sampler: &&mut Sampler| !self.follows_later && !sampler.is_slow();
        let sampler = self.sampler.as_mut().filter(|sampler| finish.is_some() || follows_now(sampler));
        let Some(sampler) = sampler else { return finish };
        sampler.is_over(self.output.history());
        self.complete(on_piece).or(finish)
    }

    /// The sampler, which a device may follow, and the tokens so far. `None`: greedy, or the mask of a grammar is not known at
    /// `deadline`, or there is none.
    pub(crate) fn picking(&mut self, deadline: Instant) -> Option<(&mut Sampler, &[u32])> {
        let (sampler, history) = (self.sampler.as_mut()?, self.output.history());
        (sampler.is_ready(history, deadline) && !sampler.is_known_over()).then_some((sampler, history))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed))
    }

    /// The token to process next, which is the last one added.
    pub(crate) fn next(&self) -> Option<u32> {
        self.output.history().last().copied()
    }

    /// Checks for cancellation and for room in the context, before the next token is processed.
    pub(crate) fn make_ready(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
    ) -> Result<Option<FinishReason>, Error> {
        if self.is_cancelled() {
            return Ok(Some(FinishReason::Cancelled));
        }
        let context = engine.context();
        if session.len() < context {
            return Ok(None);
        }
        if self.sampler.as_mut().is_some_and(|sampler| sampler.is_over(self.output.history())) {
            return Ok(Some(FinishReason::Complete));
        }
        match self.overflow {
            Overflow::Error => Err(Error::ContextFull { context }),
            Overflow::Stop => Ok(Some(FinishReason::ContextFull)),
            Overflow::Shift { keep } => {
                let len = session.len();
                let discard = (len - keep).div_ceil(2).min(engine.most_discarded(len, keep));
                engine.shift(session, keep, discard)?;
                self.dropped += discard;
                Ok(None)
            }
        }
    }

    /// Whether a grammar constrains the text.
    pub(crate) fn is_held(&self) -> bool {
        self.sampler.as_ref().is_some_and(Sampler::is_held)
    }

    /// Decodes a chain from the next token. Returns the number of sampled ids, which are the first of the engine's `found`; 0 if
    /// cancelled.
    pub(crate) fn chain(&mut self, engine: &mut Engine, session: &mut Session) -> Result<usize, Error> {
        let room = engine.context() - session.len();
        let limit = room.min(self.output.left()).min(engine.chain_limit());
        let (steps, cancel) = (self.chain.min(limit), self.cancel.as_deref());
        let (history, endings) = (self.output.history(), self.output.endings());
        let found = engine.chain(session, history, self.sampler.as_mut(), steps, endings, cancel)?;
        let found = found.len();
        self.chain = (self.chain * 2).min(engine.plan().tables.decode().steps);
        Ok(found)
    }

    /// Starts the pass of the next token, by a device that samples.
    pub(crate) fn start_held(&mut self, engine: &mut Engine, session: &mut Session) -> Result<(), Error> {
        engine.start_held(session, self.output.history(), self.output.endings())?;
        self.request_mask();
        Ok(())
    }

    /// The token after that pass. The mask is known.
    pub(crate) fn pick_held(&mut self, engine: &mut Engine, session: &mut Session) -> Result<u32, Error> {
        let sampler = self.sampler.as_mut().ok_or(Error::NoLogits)?;
        let (output, goes_on) = (&self.output, self.output.left() > 1);
        engine.pick_held(session, output.history(), sampler, output.endings(), goes_on)
    }

    /// Decodes the next token, for its logits. False: cancelled.
    pub(crate) fn decode(&mut self, engine: &mut Engine, session: &mut Session) -> Result<bool, Error> {
        engine.decode(session, self.output.history(), self.cancel.as_deref())
    }

    /// Sends text that is held back, and truncates the session to the end of the text, which a chain may have passed.
    pub(crate) fn end(
        &mut self,
        session: &mut Session,
        result: Result<&FinishReason, &Error>,
        on_piece: OnPiece<'_>,
    ) {
        if !matches!(result, Ok(FinishReason::Callback | FinishReason::StopString(_))) {
            self.output.flush(on_piece);
        }
        session.truncate(self.output.history().len() - self.dropped);
    }

    /// How many of the session's first tokens have the same keys and values as after a prefill. Shifted tokens do not.
    pub(crate) fn exact(&self, session: &Session) -> usize {
        match self.overflow {
            Overflow::Shift { keep } if self.dropped > 0 => keep,
            _ => session.len(),
        }
    }

    /// Timings so far.
    pub(crate) fn timings(&self) -> Timings {
        let now = Instant::now();
        let since_start = |at: Option<Instant>| (at.unwrap_or(now) - self.start).as_secs_f64();
        let prompt_s = since_start(self.prompt_read);
        Timings {
            prompt_tokens: self.output.prompt().len(),
            reused_tokens: self.reused,
            prompt_s,
            generated_tokens: self.output.ids().len(),
            generate_s: since_start(None) - prompt_s,
            ttft_s: since_start(self.first_token),
        }
    }

    /// Tokens discarded by shifting.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped
    }
}
