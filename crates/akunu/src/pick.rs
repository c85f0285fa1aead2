//! Sampling of tokens from logits, on the device or on the host. The tokens are the same.

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
        let samples = choices.iter().any(|choice| choice.sampler.is_some());
        let picking = choices.iter_mut().map(|choice| {
            let Choice { sampler, history } = choice;
            sampler.as_deref_mut().map(|sampler| (sampler, *history))
        });
        let picked = self.find(samples, picking)?;
        for (row, choice) in choices.iter_mut().enumerate() {
            let id = self.pick_row(row, picked, choice.sampler.as_deref_mut(), choice.history)?;
            self.found[row] = id;
        }
        Ok(&self.found[..count])
    }

    /// Lets the device sample for the rows of the last pass with logits: all of them (true), or else only greedily (false).
    /// `samples` says whether any of `picking` has a sampler that the device may support.
    fn find<'a>(
        &mut self,
        samples: bool,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let prepared = samples && self.prepare_picks(picking)?;
        if prepared {
            self.device.replay(self.loaded.replays[PassKind::Pick], picks(&self.rows, &self.asking))?;
            self.device.wait()?;
        }
        self.find_prepared(prepared)
    }

    /// Starts sampling behind the pass that runs.
    pub(crate) fn start_picks(&mut self) -> Result<(), Error> {
        Ok(self.device.follow(self.loaded.replays[PassKind::Pick], picks(&self.rows, &self.asking))?)
    }

    /// Uploads what the device needs to sample for all rows that ask for logits, greedily for those without a sampler. Devices queue
    /// the copy while the pass runs. False if the host must sample for all rows; it also does for those whose settings the device
    /// does not support.
    pub(crate) fn prepare_picks<'a>(
        &mut self,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let Some(buffer) = self.records(PassKind::Pick) else { return Ok(false) };
        let table = &self.plan.tables[PassKind::Pick];
        let fed =
            matches!(self.plan.tables.kind_for(self.rows.len()), PassKind::Prefill | PassKind::SmallPrefill);
        if self.asking.len() > table.logit_rows || !fed {
            return Ok(false);
        }
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

    /// The tokens after all rows with logits, as the first of `found`: sampled if the device did that, or else, or if it found none
    /// for one of the rows, the most probable ones. Whether they were sampled.
    pub(crate) fn find_prepared(&mut self, prepared: bool) -> Result<bool, Error> {
        let picked = prepared && self.read_picks()?;
        if !picked {
            self.find_best()?;
        }
        Ok(picked)
    }

    /// The token after one row; `picked` is the result of [`Engine::find_prepared`].
    pub(crate) fn pick_row(
        &mut self,
        row: usize,
        picked: bool,
        sampler: Option<&mut Sampler>,
        history: &[u32],
    ) -> Result<u32, Error> {
        match sampler.filter(|sampler| !picked || !sampler.is_recorded(history)) {
            Some(sampler) => sampler.pick(self.logits_of(row)?, history),
            None if self.found[row] == u32::MAX => {
                Err(Error::NotFinite { position: history.len().saturating_sub(1) })
            }
            None => Ok(self.found[row]),
        }
    }

    /// Reads the sampled tokens. False if there is none for one of the rows.
    fn read_picks(&mut self) -> Result<bool, Error> {
        let (count, table) = (self.asking.len(), &self.plan.tables[PassKind::Pick]);
        let (buffer, offset) = (table.io.tokens.index(), table.logit_rows * size_of::<u32>());
        let found = bytemuck::cast_slice_mut(&mut self.found[..count]);
        self.device.download(self.loaded.buffers[buffer], offset as u64, found)?;
        Ok(self.found[..count].iter().all(|&id| id != u32::MAX))
    }
}

fn picks<'a>(rows: &'a [Row], asking: &'a [u32]) -> Submission<'a> {
    Submission { entries: Entries::Rows(rows), logit_rows: asking, steps: 1, stop: &[], cancel: None }
}
