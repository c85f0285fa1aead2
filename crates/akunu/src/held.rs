//! Decoding of an answer in a grammar, by a device that samples.
//!
//! The mask of a token is computed while the pass of the token before it runs. The choice and the next pass are
//! submitted together, so the device does not wait for the host to learn which token it has chosen.

use akunu_plan::{Entries, PassKind, Row, Submission};

use crate::pass::LastPass;
use crate::{Engine, Error, Sampler, Session};

fn submission<'a>(row: &'a Row, stop: &'a [u32]) -> Submission<'a> {
    let entries = Entries::Rows(std::slice::from_ref(row));
    Submission { entries, logit_rows: &[0], steps: 1, stop, cancel: None }
}

impl Engine {
    /// Starts the pass for the last token of `history`, unless it was submitted with the choice of that token. None is
    /// submitted after a token of `stop`.
    pub(crate) fn start_held(
        &mut self,
        session: &mut Session,
        history: &[u32],
        stop: &[u32],
    ) -> Result<(), Error> {
        let &token = history.last().ok_or(Error::EmptyPrompt)?;
        self.check_feed(session, &[token], 0)?;
        // The pass of the next token may follow before the host knows that token.
        self.reserve(session, 2.min(self.context() - session.len()))?;
        let row = Row::causal(token, session.len() as u32, self.start_of(session));
        if self.ahead != Some(row) {
            self.ahead = None;
            let replayed =
                self.device.replay(self.loaded.replays[PassKind::HeldDecode], submission(&row, stop));
            replayed.inspect_err(|_| session.unreserve())?;
            self.ahead = Some(row);
        }
        Ok(())
    }

    /// The token after `history`, whose last token's pass was started by [`Engine::start_held`]; the session then holds
    /// that token. `goes_on`: the pass of the chosen token follows at once, unless it is in `stop`.
    pub(crate) fn pick_held(
        &mut self,
        session: &mut Session,
        history: &[u32],
        sampler: &mut Sampler,
        stop: &[u32],
        goes_on: bool,
    ) -> Result<u32, Error> {
        let row = self.ahead.take().ok_or(Error::NoLogits)?;
        self.last = Some(LastPass { kind: PassKind::HeldDecode, logit_rows: 1 });
        let goes_on = goes_on && session.len() + 1 < self.context() && self.is_undivided();
        let id = match self.upload_record(PassKind::HeldPick, sampler, history)? {
            true => self.pick_on_device(&row, stop, goes_on)?,
            false => sampler.pick(self.last_logits()?, history)?,
        };
        if id == u32::MAX {
            let finite = self.last_logits()?.iter().all(|logit| logit.is_finite());
            return Err(if finite {
                Error::NothingToPick
            } else {
                Error::NotFinite { position: session.len() }
            });
        }
        session.extend(&[row.token]);
        Ok(id)
    }

    /// Whether one device runs a whole pass, so that the host need not know its token.
    fn is_undivided(&self) -> bool {
        self.plan.options.host.is_nothing() && self.plan.options.stages.is_empty()
    }

    fn pick_on_device(&mut self, row: &Row, stop: &[u32], goes_on: bool) -> Result<u32, Error> {
        self.device.follow(self.loaded.replays[PassKind::HeldPick], submission(row, stop))?;
        if goes_on {
            // The device replaces the token.
            self.device.follow(self.loaded.replays[PassKind::HeldDecode], submission(&row.next(0), stop))?;
        }
        let mut ids = [0; 2];
        let tokens = self.loaded.buffers[self.plan.tables[PassKind::HeldPick].io.tokens.index()];
        let bytes = bytemuck::bytes_of_mut(&mut ids);
        // Looking at what is there before the last submission would miss the choice if nothing follows it.
        match goes_on {
            true => self.device.peek(tokens, bytes)?,
            false => self.device.download(tokens, 0, bytes)?,
        }
        let [_, id] = ids;
        self.ahead = (goes_on && id != u32::MAX && !stop.contains(&id)).then(|| row.next(id));
        Ok(id)
    }
}
