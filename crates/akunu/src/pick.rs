//! Sampling of tokens from logits, on the device or on the host. The tokens are the same.

use akunu_plan::sample::{Settings, record_words};
use akunu_plan::{Entries, PassKind, Submission};

use crate::pass::LastPass;
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
    pub(crate) fn find<'a>(
        &mut self,
        samples: bool,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let picked = samples && self.find_picks(picking)?;
        if !picked {
            self.find_best()?;
        }
        Ok(picked)
    }

    /// The token after one row; `picked` is the result of [`Engine::find`].
    pub(crate) fn pick_row(
        &mut self,
        row: usize,
        picked: bool,
        sampler: Option<&mut Sampler>,
        history: &[u32],
    ) -> Result<u32, Error> {
        match sampler.filter(|sampler| !picked || sampler.is_held()) {
            Some(sampler) => sampler.pick(self.logits_of(row)?, history),
            None if self.found[row] == u32::MAX => {
                Err(Error::NotFinite { position: history.len().saturating_sub(1) })
            }
            None => Ok(self.found[row]),
        }
    }

    /// Lets the device sample for all rows, greedily for those without a sampler. The ids are the first of `found`. False if
    /// the host must sample for one of them.
    fn find_picks<'a>(
        &mut self,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let Some(records) = self.records(PassKind::Pick) else { return Ok(false) };
        let (count, table) = (self.asking.len(), &self.plan.tables[PassKind::Pick]);
        let fed = |pass: LastPass| matches!(pass.kind, PassKind::Prefill | PassKind::SmallPrefill);
        if count > table.logit_rows || !self.last.is_some_and(fed) {
            return Ok(false);
        }
        let stride = record_words(table.steps) * size_of::<u32>();
        let greedy = Settings::default();
        for (row, picking) in picking.enumerate() {
            // The host samples with a grammar, so the device's result for this row is not used.
            let record = match picking.filter(|(sampler, _)| !sampler.is_held()) {
                None => Some(bytemuck::cast_slice(bytemuck::bytes_of(&greedy))),
                Some((sampler, history)) => sampler.record(history),
            };
            let Some(record) = record else { return Ok(false) };
            let offset = (row * stride) as u64;
            self.device.upload(records, offset, bytemuck::cast_slice(record))?;
        }
        let submission = Submission {
            entries: Entries::Rows(&self.rows),
            logit_rows: &self.asking,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        self.device.replay(self.loaded.replays[PassKind::Pick], submission)?;
        self.device.wait()?;
        let (buffer, offset) = (table.io.tokens.index(), table.logit_rows * size_of::<u32>());
        let found = bytemuck::cast_slice_mut(&mut self.found[..count]);
        self.device.download(self.loaded.buffers[buffer], offset as u64, found)?;
        Ok(self.found[..count].iter().all(|&id| id != u32::MAX))
    }
}
