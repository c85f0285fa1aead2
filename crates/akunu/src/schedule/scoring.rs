//! Log probabilities of prompts.
//!
//! The tokens of such a prompt need logits for each of its rows, of which a pass has few. So they are
//! processed in passes of their own, one in each step, except the last token, which is processed with other
//! requests and predicts the answer.

use std::time::Instant;

use super::TokenLogprob;
use super::batch::Batch;
use super::logprobs::logprob;
use super::slots::Slot;
use crate::Engine;

/// The log probabilities of a prompt so far.
#[derive(Clone, Debug)]
pub(super) struct Scoring {
    /// Number of most probable alternatives to report with each token.
    best: usize,
    pub(super) scores: Vec<TokenLogprob>,
}

impl Scoring {
    pub(super) fn new(best: usize) -> Scoring {
        Scoring { best, scores: Vec::new() }
    }
}

impl Batch<'_> {
    /// The oldest request with tokens of its prompt to score, beside its last one.
    pub(super) fn to_score(&self) -> Option<usize> {
        let numbered = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let active = slot.active.as_ref()?;
            active.is_scoring(slot.session.len()).then_some((active.number, index))
        });
        numbered.min().map(|(_, index)| index)
    }

    /// Processes the next tokens of a prompt, beside `running` streams, and takes the log probabilities of
    /// those that follow.
    pub(super) fn score(&mut self, engine: &mut Engine, index: usize, running: usize) {
        let Slot { session, active: Some(active) } = &mut self.slots[index] else { return };
        let table = engine.plan().tables.prefill();
        let most = table.rows.min(table.logit_rows).min(self.score_pace.chunk(running));
        // Nothing of it is reused: logits are found only where tokens are processed.
        active.is_prepared = true;
        let (start, end) = (session.len(), active.prompt().len() - 1);
        let end = end.min(start + most);
        let began = Instant::now();
        session.publish();
        if let Err(error) = engine.reserve(session, end - start) {
            return self.end(index, Err(error));
        }
        engine.begin_pass();
        engine.add_rows(session, &active.prompt()[start..end], 0);
        if let Err(error) = engine.run_pass() {
            // The content of the slot is unknown.
            session.clear();
            return self.end(index, Err(error));
        }
        let scored = active.score(engine, start, end);
        session.extend(&active.prompt()[start..end]);
        self.stats.prompt_tokens += (end - start) as u64;
        self.score_pace.record(end - start, began.elapsed());
        self.settle(index, scored.map(|()| None));
    }
}

impl super::active::Active<'_> {
    /// Takes the log probabilities of the tokens after those of the last pass, which are from `start` to
    /// `end` of the prompt.
    fn score(&mut self, engine: &mut Engine, start: usize, end: usize) -> Result<(), crate::Error> {
        let Some(mut scoring) = self.scoring.take() else { return Ok(()) };
        for (row, position) in (start..end).enumerate() {
            let id = self.prompt()[position + 1];
            let logits = engine.logits_of(row)?;
            if !logits.iter().all(|logit| logit.is_finite() || *logit == f32::NEG_INFINITY) {
                return Err(crate::Error::NotFinite { position });
            }
            scoring.scores.push(logprob(logits, id, scoring.best));
        }
        self.scoring = Some(scoring);
        Ok(())
    }
}
