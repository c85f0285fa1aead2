//! The times of words: a pass over the text of a window that shows which audio each token attends to.

use akunu_plan::PassKind;

use super::Transcriber;
use super::align::{Scores, first_frames};
use super::job::Job;
use super::words::{Timed, Token, assign, probability, words};
use crate::pass::LastPass;
use crate::{Engine, Error, Session};

impl Transcriber {
    /// Finds the words of segments, and corrects the segments' times by them. `text` has the tokens of all segments, which
    /// were decoded in a window with this number; `positions`: how many of the window's have audio.
    pub(super) fn find_words(
        &mut self,
        number: usize,
        job: &Job,
        text: &[u32],
        positions: usize,
        segments: &mut [Timed],
        (offset, last_speech): (f64, &mut f64),
    ) -> Result<(), Error> {
        let mut ids = vec![self.tokens.start];
        ids.extend(self.language_and_task(job));
        let first = ids.len();
        ids.push(self.tokens.no_timestamps);
        ids.extend(text);
        ids.push(self.tokens.end);
        let vocab = self.engine.vocab_size();
        let session = &mut self.sessions[number * self.beams];
        let found = self.engine.align(session, &ids)?;
        if found.logits.iter().any(|logit| !logit.is_finite()) {
            return Err(Error::NotFinite { position: first });
        }
        let begins = first_frames(found.scores(), positions, first..ids.len() - 1)?;
        let probabilities = found.logits.chunks_exact(vocab).skip(first).zip(text);
        let tokens: Vec<Token<'_>> = probabilities
            .map(|(logits, &id)| Token {
                id,
                bytes: self.tokenizer.token_bytes(id).unwrap_or_default(),
                probability: probability(logits, self.tokens.end, id),
            })
            .collect();
        let language = job.language().map_or("en", |language| &self.tokens.languages[language].0);
        assign(words(&tokens, language, &begins), segments, offset, last_speech);
        Ok(())
    }
}

/// The result of a pass for the times of words.
struct Aligned {
    scores: Vec<f32>,
    heads: usize,
    positions: usize,
    logits: Vec<f32>,
}

impl Aligned {
    fn scores(&self) -> Scores<'_> {
        Scores { values: &self.scores, heads: self.heads, positions: self.positions }
    }
}

impl Engine {
    /// Runs tokens in a session, which begins anew.
    fn align(&mut self, session: &mut Session, ids: &[u32]) -> Result<Aligned, Error> {
        session.clear();
        self.check_feed(session, ids, 0)?;
        let kind = PassKind::Align;
        let table = self.plan.tables.get(kind).ok_or(Error::NoWordTimes)?;
        let buffer = table.io.scores.ok_or(Error::NoWordTimes)?;
        let (most, buffer) = (table.rows.min(table.logit_rows), self.loaded.buffers[buffer.index()]);
        let (heads, positions) =
            (self.plan.aligned_heads, self.plan.config.encoder.map_or(0, |encoder| encoder.positions));
        let mut found = Aligned { scores: Vec::new(), heads, positions, logits: Vec::new() };
        for part in ids.chunks(most) {
            self.reserve(session, part.len())?;
            self.begin_pass();
            self.add_rows(session, part, 0);
            self.run_rows(kind)?;
            self.last = Some(LastPass { kind, logit_rows: part.len() });
            self.append_logits(&mut found.logits)?;
            let start = found.scores.len();
            crate::memory::grow("the scores of a window", &mut found.scores, part.len() * heads * positions)?;
            found.scores.resize(start + part.len() * heads * positions, 0.0);
            self.device.download(buffer, 0, bytemuck::cast_slice_mut(&mut found.scores[start..]))?;
            session.extend(part);
        }
        Ok(found)
    }
}
