//! Chains: several decode steps in one submission, each with the token sampled by the one before.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use akunu_plan::{Entries, PassKind, Row, Submission};

use crate::pass::LastPass;
use crate::{Engine, Error, Sampler, Session};

impl Engine {
    /// Runs up to `steps` decode steps in one submission. The first processes the last token of `history` (all tokens of the text),
    /// the others the token sampled before. Returns the sampled ids: fewer if one of them is in `stop`, or if `cancel` was set. The
    /// session then holds all of the text except the last id.
    ///
    /// Without a sampler, sampling is greedy. If the device does not support the sampler's settings, the host samples, and the chain
    /// is one step long. The tokens are the same.
    pub fn chain(
        &mut self,
        session: &mut Session,
        history: &[u32],
        mut sampler: Option<&mut Sampler>,
        steps: usize,
        stop: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<&[u32], Error> {
        let &token = history.last().ok_or(Error::EmptyPrompt)?;
        self.check_feed(session, &[token], 0)?;
        // `None`: the host samples.
        let kind = match sampler.as_deref_mut() {
            None => Some(PassKind::Decode),
            Some(sampler) => {
                let kind = PassKind::SampledDecode;
                self.upload_record(kind, sampler, history)?.then_some(kind)
            }
        };
        let steps = match kind {
            Some(_) if sampler.as_ref().is_some_and(|sampler| sampler.is_stepwise()) => 1,
            Some(_) => self.chain_steps(session, steps)?,
            None => 1,
        };
        let pass = (kind.unwrap_or(PassKind::Decode), token);
        let done = self.submit_chain(session, pass, steps, stop, cancel)?;
        if let Some(sampler) = sampler.as_deref_mut().filter(|_| done > 0 && kind.is_none()) {
            self.found[0] = sampler.pick(self.last_logits()?, history)?;
        }
        if let Some(step) = self.found[..done].iter().position(|&id| id == u32::MAX) {
            let finite = sampler.is_some() && self.last_logits()?.iter().all(|logit| logit.is_finite());
            let position = session.len() + step;
            return Err(if finite { Error::NothingToPick } else { Error::NotFinite { position } });
        }
        if done > 0 {
            session.tokens.push(token);
            session.extend(&self.found[..done - 1]);
            // A device may have processed more tokens than those up to the last one of a text.
            session.list.set_state(if done == steps { session.len() } else { 0 });
        }
        Ok(&self.found[..done])
    }

    /// Decodes the last token of `history`, without sampling the next. False: cancelled.
    pub(crate) fn decode(
        &mut self,
        session: &mut Session,
        history: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<bool, Error> {
        let &token = history.last().ok_or(Error::EmptyPrompt)?;
        self.check_feed(session, &[token], 0)?;
        let done = self.submit_chain(session, (PassKind::Decode, token), 1, &[], cancel)?;
        if done > 0 {
            session.extend(&[token]);
        }
        Ok(done > 0)
    }

    /// Uploads a sampler's settings for a submission of one row; false if the device does not support them.
    pub(crate) fn upload_record(
        &mut self,
        kind: PassKind,
        sampler: &mut Sampler,
        history: &[u32],
    ) -> Result<bool, Error> {
        let Some(buffer) = self.records(kind) else { return Ok(false) };
        self.sampling.clear(1, self.plan.tables[kind].steps);
        if !sampler.record(history, &mut self.sampling) {
            return Ok(false);
        }
        // The submissions that read it are over.
        self.device.upload_beside(buffer, 0, bytemuck::cast_slice(self.sampling.words()))?;
        Ok(true)
    }

    /// The maximum steps of a submission.
    fn chain_steps(&self, session: &Session, steps: usize) -> Result<usize, Error> {
        let steps = steps.clamp(1, self.plan.tables.decode().steps);
        if session.len() + steps > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        Ok(steps)
    }

    /// Submits a chain that decodes `token`. Returns the number of sampled ids, which are the first of `found`.
    fn submit_chain(
        &mut self,
        session: &mut Session,
        (kind, token): (PassKind, u32),
        steps: usize,
        stop: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<usize, Error> {
        self.reserve(session, steps)?;
        let row = Row::causal(token, session.len() as u32, self.start_of(session));
        let start = Instant::now();
        let submission = Submission { entries: Entries::Rows(&[row]), logit_rows: &[0], steps, stop, cancel };
        self.ahead = None;
        let replayed = self.device.replay(self.loaded.replays[kind], submission);
        let outcome = replayed.and_then(|()| self.device.wait()).inspect_err(|_| session.unreserve())?;
        let done = outcome.steps.min(steps);
        self.note_speed(start.elapsed(), done);
        if done > 0 {
            self.last = Some(LastPass { kind, logit_rows: 1 });
            let buffer = self.loaded.buffers[self.plan.tables[kind].io.tokens.index()];
            let found = bytemuck::cast_slice_mut(&mut self.found[..done]);
            self.device.download(buffer, size_of::<u32>() as u64, found)?;
        }
        Ok(done)
    }

    fn note_speed(&mut self, elapsed: Duration, steps: usize) {
        if steps == 0 {
            return;
        }
        let seconds = elapsed.as_secs_f64() / steps as f64;
        self.step_seconds = Some(self.step_seconds.map_or(seconds, |s| 0.75 * s + 0.25 * seconds));
    }

    /// The maximum steps of a chain that takes no longer than [`crate::EngineOptions::chain_time`], by the duration of the
    /// steps so far: at least 1, and 1 before the first step has been measured.
    pub fn chain_limit(&self) -> usize {
        let seconds = self.chain_time.as_secs_f64();
        self.step_seconds.map_or(1, |step| (seconds / step.max(1e-9)) as usize).max(1)
    }
}
