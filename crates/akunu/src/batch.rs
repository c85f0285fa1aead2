//! One step of several sequences at once.

use akunu_plan::Submission;
use akunu_plan::sample::{Settings, record_words};

use crate::{Engine, Error, Sampler, Session};

impl Engine {
    /// Decodes one token of each of several sessions in one pass: feeds `tokens[i]` to `sessions[i]`, and gives the ids that
    /// follow. The engine has to be made for as many (`slots`, `logit_rows`); the bits are those that each session gets alone.
    pub fn decode_batch(&mut self, sessions: &mut [Session], tokens: &[u32]) -> Result<&[u32], Error> {
        let count = sessions.len();
        check_count("the number of tokens", tokens.len(), count)?;
        self.batch_pass(sessions, tokens.iter().copied())?;
        self.find_best()?;
        if let Some(index) = self.found[..count].iter().position(|&id| id == u32::MAX) {
            return Err(Error::NotFinite { position: sessions[index].len() });
        }
        for (session, &token) in sessions.iter_mut().zip(tokens) {
            session.tokens.push(token);
        }
        Ok(&self.found[..count])
    }

    /// As [`Engine::decode_batch`], but that `samplers[i]` picks what follows `histories[i]`, whose last token is fed to
    /// `sessions[i]`. The tokens are those that each would get alone.
    pub fn sample_batch(
        &mut self,
        sessions: &mut [Session],
        samplers: &mut [Sampler],
        histories: &[&[u32]],
    ) -> Result<&[u32], Error> {
        let count = sessions.len();
        check_count("the number of samplers", samplers.len(), count)?;
        check_count("the number of histories", histories.len(), count)?;
        if histories.iter().any(|history| history.is_empty()) {
            return Err(Error::EmptyPrompt);
        }
        let last = |history: &&[u32]| history[history.len() - 1];
        self.batch_pass(sessions, histories.iter().map(last))?;
        let picking = samplers.iter_mut().zip(histories);
        if !self.find_picks(picking.map(|(sampler, history)| Some((sampler, *history))))? {
            for (row, (sampler, history)) in samplers.iter_mut().zip(histories).enumerate() {
                let id = sampler.pick(self.logits_of(row)?, history)?;
                self.found[row] = id;
            }
        }
        for (session, history) in sessions.iter_mut().zip(histories) {
            session.tokens.push(last(history));
        }
        Ok(&self.found[..count])
    }

    /// One pass over a row of each session. Its logits are there afterwards; the sessions are as they were.
    fn batch_pass(&mut self, sessions: &[Session], tokens: impl Iterator<Item = u32>) -> Result<(), Error> {
        let (count, most) = (sessions.len(), self.plan().tables.prefill.logit_rows);
        if count == 0 || count > most {
            return Err(Error::Setting {
                name: "the number of sequences",
                value: count.to_string(),
                expected: "from 1 to the engine's logit rows",
            });
        }
        self.begin_pass();
        for (index, (session, token)) in sessions.iter().zip(tokens).enumerate() {
            self.check_step(session, token, index)?;
            self.add_rows(session, &[token], 0);
        }
        self.run_pass()
    }

    /// Has the device pick for the rows of the last pass that asked, if it can for all: with a sampler what follows its history,
    /// without one the best token. They are the first of `found`; false where one of them is the host's to find.
    pub(crate) fn find_picks<'a>(
        &mut self,
        picking: impl Iterator<Item = Option<(&'a mut Sampler, &'a [u32])>>,
    ) -> Result<bool, Error> {
        let (Some(sampled), Some(loaded)) = (&self.plan.tables.sampled, self.loaded.sampled) else {
            return Ok(false);
        };
        let (count, table) = (self.asking.len(), &sampled.pick);
        if count > table.logit_rows || self.last.is_none_or(|pass| pass.decode) {
            return Ok(false);
        }
        let stride = record_words(table.steps) * size_of::<u32>();
        let greedy = Settings::default();
        for (row, picking) in picking.enumerate() {
            let record = match picking {
                None => Some(bytemuck::cast_slice(bytemuck::bytes_of(&greedy))),
                Some((sampler, history)) => sampler.record(history),
            };
            let Some(record) = record else { return Ok(false) };
            let offset = (row * stride) as u64;
            self.device.upload(loaded.pick_records, offset, bytemuck::cast_slice(record))?;
        }
        let submission =
            Submission { rows: &self.rows, logit_rows: &self.asking, steps: 1, stop: &[], cancel: None };
        self.device.replay(loaded.pick, submission)?;
        self.device.wait()?;
        let (buffer, offset) = (table.io.tokens.index(), table.logit_rows * size_of::<u32>());
        let found = bytemuck::cast_slice_mut(&mut self.found[..count]);
        self.device.download(self.loaded.buffers[buffer], offset as u64, found)?;
        Ok(self.found[..count].iter().all(|&id| id != u32::MAX))
    }
}

fn check_count(name: &'static str, found: usize, wanted: usize) -> Result<(), Error> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::Setting { name, value: found.to_string(), expected: "one for each sequence" })
}
