//! Passes over rows of one or several sequences, and their results: logits, and the most probable tokens.

use akunu_plan::{DeviceBuffer, DispatchTable, Entries, PassKind, Row, Submission};

use crate::prompt::check_id;
use crate::{Engine, Error, Session};

/// The last pass, and the number of its rows with logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPass {
    pub(crate) kind: PassKind,
    pub(crate) logit_rows: usize,
}

/// The tokens of one session in a pass.
#[derive(Debug)]
pub struct Feed<'a> {
    pub session: &'a mut Session,
    /// The tokens to process after those of the session.
    pub ids: &'a [u32],
    /// How many of the last rows compute logits.
    pub logits: usize,
}

impl Engine {
    /// Runs a pass over the rows of one or several sessions, together at most as many as the prefill table has. The sessions then
    /// hold the tokens; after an error they are unchanged. [`Engine::pick`] samples the next tokens. The bits of a row do not
    /// depend on the other rows of the pass.
    pub fn pass(&mut self, feeds: &mut [Feed<'_>]) -> Result<(), Error> {
        let prefill = self.plan.tables.prefill();
        let refuse =
            |name, value: usize, expected| Err(Error::Setting { name, value: value.to_string(), expected });
        let rows: usize = feeds.iter().map(|feed| feed.ids.len()).sum();
        if rows == 0 || rows > prefill.rows {
            return refuse("the number of rows of a pass", rows, "from 1 to the rows of the prefill table");
        }
        let asking: usize = feeds.iter().map(|feed| feed.logits).sum();
        if asking > prefill.logit_rows {
            return refuse("the number of rows that give logits", asking, "at most the engine's logit rows");
        }
        if let Some(feed) = feeds.iter().find(|feed| feed.logits > feed.ids.len()) {
            return refuse("the number of rows that give logits", feed.logits, "at most the rows fed");
        }
        let mut index = 0;
        for feed in &*feeds {
            self.check_feed(feed.session, feed.ids, index)?;
            index += feed.ids.len();
        }
        let ran = self.run_feeds(feeds);
        for feed in feeds {
            match ran {
                Ok(()) => feed.session.extend(feed.ids),
                Err(_) => feed.session.unreserve(),
            }
        }
        ran
    }

    fn run_feeds(&mut self, feeds: &mut [Feed<'_>]) -> Result<(), Error> {
        for feed in &mut *feeds {
            self.reserve(feed.session, feed.ids.len())?;
        }
        self.begin_pass();
        for feed in &*feeds {
            self.add_rows(feed.session, feed.ids, feed.ids.len() - feed.logits);
        }
        self.run_pass()
    }

    /// Checks ids to be processed, the first of which is number `index` of the pass, and their session.
    pub(crate) fn check_feed(&self, session: &Session, ids: &[u32], index: usize) -> Result<(), Error> {
        self.check_own(session)?;
        ids.iter().zip(index..).try_for_each(|(&id, index)| check_id(id, index, self.vocab_size()))?;
        if session.len() + ids.len() > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        Ok(())
    }

    pub(crate) fn begin_pass(&mut self) {
        self.rows.clear();
        self.asking.clear();
    }

    /// Adds rows of a session to the next pass; those from `first_logits` on compute logits. Does not change the session: it
    /// holds `ids` only after the pass has run, and their positions are reserved already.
    pub(crate) fn add_rows(&mut self, session: &Session, ids: &[u32], first_logits: usize) {
        let (first, next) = (self.rows.len(), session.len() as u32);
        let start = self.start_of(session);
        self.rows.extend(ids.iter().zip(next..).map(|(&id, position)| Row::causal(id, position, start)));
        self.asking.extend((first + first_logits) as u32..self.rows.len() as u32);
    }

    /// The logical position in the KV cache at which a session's slot begins.
    pub(crate) fn start_of(&self, session: &Session) -> u32 {
        self.plan.slot_start(session.slot)
    }

    /// Runs the rows that were added.
    pub(crate) fn run_pass(&mut self) -> Result<(), Error> {
        self.start_pass(false)?;
        self.finish_pass()
    }

    /// Runs the rows that were added in a pass of this kind.
    pub(crate) fn run_rows(&mut self, kind: PassKind) -> Result<(), Error> {
        self.submit_rows(kind)?;
        self.device.wait()?;
        Ok(())
    }

    /// Submits the rows that were added. `samples`: none of those that ask for logits is greedy, so that a device that samples
    /// need not find the most probable token of a single row.
    pub(crate) fn start_pass(&mut self, samples: bool) -> Result<(), Error> {
        self.pass_kind = match self.plan.tables.kind_for(self.rows.len()) {
            PassKind::Decode if samples && self.samples() && !self.asking.is_empty() => PassKind::HeldDecode,
            kind => kind,
        };
        self.submit_rows(self.pass_kind)
    }

    fn submit_rows(&mut self, kind: PassKind) -> Result<(), Error> {
        let submission = Submission {
            entries: Entries::Rows(&self.rows),
            logit_rows: &self.asking,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        self.ahead = None;
        Ok(self.device.replay(self.loaded.replays[kind], submission)?)
    }

    /// Waits for the rows that were submitted.
    pub(crate) fn finish_pass(&mut self) -> Result<(), Error> {
        self.device.wait()?;
        if !self.asking.is_empty() {
            self.last = Some(LastPass { kind: self.pass_kind, logit_rows: self.asking.len() });
        }
        Ok(())
    }

    pub(crate) fn last_pass(&self) -> Result<(LastPass, &DispatchTable), Error> {
        let pass = self.last.ok_or(Error::NoLogits)?;
        Ok((pass, &self.plan.tables[pass.kind]))
    }

    /// Whether the device can sample.
    pub(crate) fn samples(&self) -> bool {
        self.records(PassKind::SampledDecode).is_some()
    }

    /// Whether a row that was processed may be processed again: not where it has changed a state.
    pub(crate) fn rewinds(&self) -> bool {
        !self.plan.cache.windows.is_some_and(|windows| windows.are_states)
    }

    /// The buffer of sampling records for a kind of pass; `None` if the device does not sample.
    pub(crate) fn records(&self, kind: PassKind) -> Option<DeviceBuffer> {
        let records = self.plan.tables.get(kind)?.io.records?;
        Some(self.loaded.buffers[records.index()])
    }

    /// The logits of the last row that has any.
    pub fn last_logits(&mut self) -> Result<&[f32], Error> {
        let row = self.last_asking()?;
        self.logits_of(row)
    }

    /// The index of the last row with logits, among those with logits.
    pub(crate) fn last_asking(&self) -> Result<usize, Error> {
        Ok(self.last_pass()?.0.logit_rows - 1)
    }

    /// The logits of one of the rows with logits.
    pub(crate) fn logits_of(&mut self, row: usize) -> Result<&[f32], Error> {
        let buffer = self.loaded.buffers[self.last_pass()?.1.io.logits.index()];
        let offset = row * self.logits.len() * size_of::<f32>();
        self.device.download(buffer, offset as u64, bytemuck::cast_slice_mut(&mut self.logits))?;
        Ok(&self.logits)
    }

    /// Appends the logits of all rows of the last pass that have any.
    pub(crate) fn append_logits(&mut self, to: &mut Vec<f32>) -> Result<(), Error> {
        let (pass, table) = self.last_pass()?;
        let buffer = self.loaded.buffers[table.io.logits.index()];
        let start = to.len();
        to.resize(start + pass.logit_rows * self.vocab_size(), 0.0);
        Ok(self.device.download(buffer, 0, bytemuck::cast_slice_mut(&mut to[start..]))?)
    }

    /// The most probable token after each row with logits, as the first of `found`. `u32::MAX` if the logits are not finite.
    pub(crate) fn find_best(&mut self) -> Result<(), Error> {
        let (pass, table) = self.last_pass()?;
        // Entry 0 is not used: the ids of a step follow those of the step before.
        let (buffer, offset) = (table.io.tokens.index(), table.logit_rows * size_of::<u32>());
        let found = bytemuck::cast_slice_mut(&mut self.found[..pass.logit_rows]);
        Ok(self.device.download(self.loaded.buffers[buffer], offset as u64, found)?)
    }
}
