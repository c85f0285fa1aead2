//! Sampling of tokens from logits, on the device or on the host. The tokens are the same.

use std::sync::{Mutex, PoisonError};

use akunu_plan::sample::Settings;
use akunu_plan::{Entries, PassKind, Row, Submission};

use crate::{Engine, Error, Sampler};

/// How the token after a row is sampled.
#[derive(Debug)]
pub struct Choice<'a> {
    /// `None`: greedy.
    pub sampler: Option<&'a mut Sampler>,
    /// All tokens of the text so far, up to that of the row.
    pub history: &'a [u32],
}

/// A row that the host samples on a device's threads.
#[derive(Debug)]
pub(crate) struct HostPick<'a> {
    row: usize,
    sampler: &'a mut Sampler,
    history: &'a [u32],
    /// `u32::MAX` before, and if there is none.
    found: u32,
}

impl Engine {
    /// Samples the token after each row of the last [`Engine::pass`] with logits, in the order of the rows. Not for use after
    /// [`Engine::chain`], which samples by itself.
    pub fn pick(&mut self, choices: &mut [Choice<'_>]) -> Result<&[u32], Error> {
        let count = self.last_asking()? + 1;
        if choices.len() != count {
            let value = choices.len().to_string();
            let expected = "one for each row of the last pass that asked for logits";
            return Err(Error::Setting { name: "the number of choices", value, expected });
        }
        let picked = self.find(choices)?;
        for (row, choice) in choices.iter_mut().enumerate() {
            let id = self.pick_row(row, picked, choice.sampler.as_deref_mut(), choice.history)?;
            self.found[row] = id;
        }
        Ok(&self.found[..count])
    }

    /// Finds the tokens after the rows of the last pass with logits: sampled, by the device or on its threads (true), or else the
    /// most probable ones.
    fn find(&mut self, choices: &mut [Choice<'_>]) -> Result<bool, Error> {
        let samples = choices.iter().any(|choice| choice.sampler.is_some());
        let prepared = samples && self.prepare_picks(picking(choices))?;
        if let Some(kind) = self.pick_kind().filter(|_| prepared) {
            self.device.replay(self.loaded.replays[kind], picks(&self.rows, &self.asking))?;
            self.device.wait()?;
        }
        self.find_prepared(prepared)?;
        Ok(prepared || self.pick_on_threads(picking(choices))?)
    }

    /// Starts sampling behind the pass that runs.
    pub(crate) fn start_picks(&mut self) -> Result<(), Error> {
        match self.pick_kind() {
            Some(kind) => {
                Ok(self.device.follow(self.loaded.replays[kind], picks(&self.rows, &self.asking))?)
            }
            None => Err(Error::NoLogits),
        }
    }

    /// The table that samples from the logits of the pass; `None`: they are those of a pass that chose by itself.
    fn pick_kind(&self) -> Option<PassKind> {
        match self.pass_kind {
            PassKind::Prefill
            | PassKind::MiddlePrefill
            | PassKind::SmallPrefill
            | PassKind::StreamedPrefill => Some(PassKind::Pick),
            PassKind::HeldDecode => Some(PassKind::HeldPick),
            _ => None,
        }
    }

    /// Uploads what the device needs to sample for all rows that ask for logits, greedily for those without a sampler. Devices queue
    /// the copy while the pass runs. The host samples for those rows alone whose settings the device does not support, and for all of
    /// them if this is false: the device does not sample, or the pass has chosen already ([`Engine::start_pass`]).
    pub(crate) fn prepare_picks<'a>(
        &mut self,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let Some(kind) = self.pick_kind() else { return Ok(false) };
        let Some(buffer) = self.records(kind) else { return Ok(false) };
        let table = &self.plan.tables[kind];
        self.sampling.clear(table.logit_rows, table.steps);
        for picking in picking {
            let Some((sampler, history)) = picking else {
                self.sampling.push(&Settings::default(), None, &[], &[]);
                continue;
            };
            if !sampler.record(history, &mut self.sampling) {
                self.sampling.push(&Settings::default(), None, &[], &[]);
            }
        }
        self.device.upload_beside(buffer, 0, bytemuck::cast_slice(self.sampling.words()))?;
        Ok(true)
    }

    /// The tokens after all rows with logits, as the first of `found`: sampled if the device did that, or else the most probable
    /// ones. `u32::MAX` if there is none.
    pub(crate) fn find_prepared(&mut self, picked: bool) -> Result<(), Error> {
        match picked {
            true => self.read_picks(),
            false => self.find_best(),
        }
    }

    /// Samples for rows whose logits the host can read in place, several at once, on the device's threads. Whether it did; the
    /// tokens are those of `found` then, as if the device had sampled.
    pub(crate) fn pick_on_threads<'a>(
        &mut self,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let (_, table) = self.last_pass()?;
        let (buffer, vocab) = (self.loaded.buffers[table.io.logits.index()], self.logits.len());
        let mut picks: Vec<Mutex<HostPick<'a>>> = emptied(std::mem::take(&mut self.picks));
        picks.extend(picking.enumerate().filter_map(|(row, picking)| {
            let (sampler, history) = picking?;
            Some(Mutex::new(HostPick { row, sampler, history, found: u32::MAX }))
        }));
        let pick = |index: usize, bytes: &[u8]| {
            // Each is locked once.
            let mut pick = picks[index].lock().unwrap_or_else(PoisonError::into_inner);
            let HostPick { row, sampler, history, found } = &mut *pick;
            *found = sampler.pick_early(&bytemuck::cast_slice(bytes)[*row * vocab..][..vocab], history);
        };
        let ran = picks.len() > 1 && self.device.on_threads(buffer, picks.len(), &pick)?;
        for pick in picks.iter_mut().filter(|_| ran) {
            let pick = pick.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.found[pick.row] = pick.found;
        }
        self.picks = emptied(picks);
        Ok(ran)
    }

    /// The token after one row; `picked`: the device has sampled. Where it found none, the host finds the reason.
    pub(crate) fn pick_row(
        &mut self,
        row: usize,
        picked: bool,
        sampler: Option<&mut Sampler>,
        history: &[u32],
    ) -> Result<u32, Error> {
        let found = self.found[row];
        let by_host = |sampler: &&mut Sampler| !picked || !sampler.is_recorded(history) || found == u32::MAX;
        match sampler.filter(by_host) {
            Some(sampler) => sampler.pick(self.logits_of(row)?, history),
            None if found == u32::MAX => Err(Error::NotFinite { position: history.len().saturating_sub(1) }),
            None => Ok(found),
        }
    }

    fn read_picks(&mut self) -> Result<(), Error> {
        let kind = self.pick_kind().ok_or(Error::NoLogits)?;
        let (count, table) = (self.asking.len(), &self.plan.tables[kind]);
        let (buffer, offset) = (table.io.tokens.index(), table.logit_rows * size_of::<u32>());
        let found = bytemuck::cast_slice_mut(&mut self.found[..count]);
        Ok(self.device.download(self.loaded.buffers[buffer], offset as u64, found)?)
    }
}

fn picking<'c>(choices: &'c mut [Choice<'_>]) -> impl Iterator<Item = Option<(&'c mut Sampler, &'c [u32])>> {
    choices.iter_mut().map(|Choice { sampler, history }| Some((sampler.as_deref_mut()?, *history)))
}

fn picks<'a>(rows: &'a [Row], asking: &'a [u32]) -> Submission<'a> {
    Submission { entries: Entries::Rows(rows), logit_rows: asking, steps: 1, stop: &[], cancel: None }
}

/// An empty vector in the memory of another: collecting reuses it.
fn emptied<T, U>(mut from: Vec<T>) -> Vec<U> {
    from.clear();
    from.into_iter().filter_map(|_| None).collect()
}
