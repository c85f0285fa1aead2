//! Decodes several windows of audio side by side, and again at higher temperatures where a text is poor.

use std::sync::atomic::{AtomicBool, Ordering};

use super::rules::{self, Scored};
use super::search::{Copied, Ended, Method, Search, Seed};
use super::{TranscribeOptions, Transcriber};
use crate::pass::Feed;
use crate::{Error, Session};

/// A window whose encoder's states are in the cache.
#[derive(Clone, Debug)]
pub(super) struct Window<'a> {
    /// Which of the windows that are decoded together.
    pub number: usize,
    /// The tokens before the first that is sampled.
    pub prompt: Vec<u32>,
    /// Where in the prompt `<|startoftranscript|>` is.
    pub start: usize,
    pub with_timestamps: bool,
    /// The index of its first frame.
    pub frame: u64,
    pub options: &'a TranscribeOptions,
    pub cancel: &'a AtomicBool,
}

#[derive(Clone, Debug)]
pub(super) struct Decoded {
    pub tokens: Vec<u32>,
    pub mean_log_probability: f64,
    pub no_speech: f64,
    pub temperature: f32,
    pub compression: f64,
}

impl Decoded {
    /// Whether it should be decoded again at a higher temperature.
    fn is_poor(&self, options: &TranscribeOptions) -> bool {
        let is_loop = options.compression.is_some_and(|most| self.compression > f64::from(most));
        let is_improbable =
            options.log_probability.is_some_and(|least| self.mean_log_probability < f64::from(least));
        (is_loop || is_improbable) && !self.is_silence(options)
    }

    /// Whether the model takes the window for silence.
    pub fn is_silence(&self, options: &TranscribeOptions) -> bool {
        let certain =
            options.log_probability.is_some_and(|least| self.mean_log_probability > f64::from(least));
        options.no_speech.is_some_and(|most| self.no_speech > f64::from(most)) && !certain
    }
}

/// A search in the slots of a window.
struct Attempt<'a, 'b> {
    window: &'a Window<'b>,
    search: Search,
    no_speech: f64,
}

impl Attempt<'_, '_> {
    fn is_cancelled(&self) -> bool {
        self.window.cancel.load(Ordering::Relaxed)
    }
}

/// A row of a pass: the last token of a text.
struct Step {
    slot: usize,
    token: u32,
    attempt: usize,
    live: usize,
}

impl Transcriber {
    /// The best text of each window.
    pub(super) fn decode(&mut self, windows: &[Window<'_>]) -> Result<Vec<Decoded>, Error> {
        let mut found: Vec<Option<Decoded>> = vec![None; windows.len()];
        let most = windows.iter().map(|window| window.options.temperatures.len()).max().unwrap_or(0);
        for number in 0..most {
            let is_due = |(i, window): &(usize, &Window<'_>)| {
                let poor = found[*i].as_ref().is_none_or(|decoded| decoded.is_poor(window.options));
                number < window.options.temperatures.len() && poor && !window.cancel.load(Ordering::Relaxed)
            };
            let due: Vec<(usize, &Window<'_>)> = windows.iter().enumerate().filter(is_due).collect();
            let attempts = due.iter().map(|&(_, window)| {
                let method = method(window, number);
                let longest = longest_text(self.engine.context(), window.prompt.len());
                Attempt { window, search: Search::new(method, self.rules.end, longest), no_speech: 0.0 }
            });
            let mut attempts: Vec<Attempt<'_, '_>> = attempts.collect();
            self.run(&mut attempts)?;
            for (attempt, (i, window)) in attempts.into_iter().zip(due) {
                let no_speech = attempt.no_speech;
                // Without a result it was cancelled.
                if let Some(ended) = attempt.search.result() {
                    found[i] = Some(self.decoded(ended, no_speech, window.options.temperatures[number])?);
                }
            }
        }
        let none = || Decoded {
            tokens: Vec::new(),
            mean_log_probability: 0.0,
            no_speech: 0.0,
            temperature: 0.0,
            compression: 0.0,
        };
        Ok(found.into_iter().map(|decoded| decoded.unwrap_or_else(none)).collect())
    }

    fn decoded(&self, ended: Ended, no_speech: f64, temperature: f32) -> Result<Decoded, Error> {
        let text = self.text(&ended.tokens)?;
        Ok(Decoded {
            mean_log_probability: ended.mean_log_probability(),
            tokens: ended.tokens,
            no_speech,
            temperature,
            compression: compression(text.trim()),
        })
    }

    fn run(&mut self, attempts: &mut [Attempt<'_, '_>]) -> Result<(), Error> {
        self.begin(attempts)?;
        loop {
            let mut steps: Vec<Step> = Vec::new();
            for (attempt, of) in attempts.iter().enumerate().filter(|(_, attempt)| !attempt.is_cancelled()) {
                let first = of.window.number * self.beams;
                steps.extend(of.search.live().iter().enumerate().map(|(live, text)| Step {
                    slot: first + text.slot,
                    token: text.tokens.last().copied().unwrap_or(of.window.prompt[0]),
                    attempt,
                    live,
                }));
            }
            if steps.is_empty() {
                return Ok(());
            }
            steps.sort_unstable_by_key(|step| step.slot);
            self.run_steps(&steps)?;
            // The rows of an attempt are to be in the order of its texts.
            let mut order: Vec<usize> = (0..steps.len()).collect();
            order.sort_unstable_by_key(|&row| (steps[row].attempt, steps[row].live));
            self.advance(attempts, &order.iter().map(|&row| (steps[row].attempt, row)).collect::<Vec<_>>())?;
        }
    }

    /// Processes the prompts, and samples the first tokens.
    fn begin(&mut self, attempts: &mut [Attempt<'_, '_>]) -> Result<(), Error> {
        let (rows, logit_rows) = {
            let table = self.engine.plan().tables.prefill();
            (table.rows, table.logit_rows)
        };
        let mut from = 0;
        while from < attempts.len() {
            let (mut to, mut fed, mut asking) = (from, 0, 0);
            while to < attempts.len() {
                let window = attempts[to].window;
                fed += window.prompt.len();
                asking += window.prompt.len() - window.start;
                if to > from && (fed > rows || asking > logit_rows) {
                    break;
                }
                to += 1;
            }
            let group = &mut attempts[from..to];
            let prompts: Vec<(usize, &[u32], usize)> = group
                .iter()
                .map(|attempt| {
                    let Window { number, prompt, start, .. } = attempt.window;
                    (number * self.beams, &prompt[..], prompt.len() - start)
                })
                .collect();
            self.feed(&prompts)?;
            let mut first = 0;
            let mut last_rows = Vec::with_capacity(group.len());
            let vocab = self.engine.vocab_size();
            for (i, attempt) in group.iter_mut().enumerate() {
                let at_start = &self.logits[first * vocab..][..vocab];
                let no_speech = self.tokens.no_speech.map(|id| rules::probability(at_start, id));
                attempt.no_speech = match no_speech {
                    Some(None) => return Err(Error::NotFinite { position: attempt.window.start }),
                    Some(Some(probability)) => probability,
                    None => 0.0,
                };
                first += attempt.window.prompt.len() - attempt.window.start;
                last_rows.push((i, first - 1));
            }
            self.advance(group, &last_rows)?;
            from = to;
        }
        Ok(())
    }

    /// Runs tokens in slots, whose sessions begin anew; the logits of the last ones of each are then in `self.logits`.
    pub(super) fn feed(&mut self, prompts: &[(usize, &[u32], usize)]) -> Result<(), Error> {
        let mut feeds: Vec<Feed<'_>> = Vec::with_capacity(prompts.len());
        for (slot, session) in self.sessions.iter_mut().enumerate() {
            if let Some(&(_, ids, logits)) = prompts.iter().find(|(of, ..)| *of == slot) {
                session.clear();
                feeds.push(Feed { session, ids, logits });
            }
        }
        self.engine.pass(&mut feeds)?;
        self.logits.clear();
        self.engine.append_logits(&mut self.logits)
    }

    fn run_steps(&mut self, steps: &[Step]) -> Result<(), Error> {
        let mut feeds: Vec<Feed<'_>> = Vec::with_capacity(steps.len());
        let mut next = steps.iter().peekable();
        for (slot, session) in self.sessions.iter_mut().enumerate() {
            if let Some(step) = next.next_if(|step| step.slot == slot) {
                feeds.push(Feed { session, ids: std::slice::from_ref(&step.token), logits: 1 });
            }
        }
        self.engine.pass(&mut feeds)?;
        self.logits.clear();
        self.engine.append_logits(&mut self.logits)
    }

    /// Extends the texts of attempts by the rows of logits that are theirs: (attempt, row), ascending in the attempts.
    fn advance(&mut self, attempts: &mut [Attempt<'_, '_>], rows: &[(usize, usize)]) -> Result<(), Error> {
        let vocab = self.engine.vocab_size();
        let mut logits: Vec<Option<&mut [f32]>> = self.logits.chunks_exact_mut(vocab).map(Some).collect();
        let mut copied: Vec<(usize, Copied)> = Vec::new();
        for part in rows.chunk_by(|a, b| a.0 == b.0) {
            let attempt = &mut attempts[part[0].0];
            let with_timestamps = attempt.window.with_timestamps;
            let position = attempt.window.prompt.len();
            let mut scored: Vec<Scored<'_>> = Vec::with_capacity(part.len());
            for ((_, row), live) in part.iter().zip(attempt.search.live()) {
                let Some(logits) = logits[*row].take() else { continue };
                let row = self.rules.apply(logits, &live.tokens, with_timestamps);
                scored.push(row.ok_or(Error::NotFinite { position: position + live.tokens.len() })?);
            }
            let first = attempt.window.number * self.beams;
            copied.extend(attempt.search.advance(&scored).into_iter().map(|copied| (first, copied)));
        }
        for (first, Copied { from, to }) in copied {
            if let Ok([from, to]) = self.sessions.get_disjoint_mut([first + from, first + to]) {
                let from: &Session = from;
                self.engine.copy_prefix(from, to, from.len())?;
            }
        }
        Ok(())
    }

    /// The language of windows whose states are in the cache, with its probability among all languages.
    pub(super) fn languages_of(&mut self, numbers: &[usize]) -> Result<Vec<(usize, f64)>, Error> {
        let start = [self.tokens.start];
        let prompts: Vec<(usize, &[u32], usize)> =
            numbers.iter().map(|number| (number * self.beams, &start[..], 1)).collect();
        self.feed(&prompts)?;
        let vocab = self.engine.vocab_size();
        let mut found = Vec::with_capacity(numbers.len());
        for row in 0..numbers.len() {
            let logits = &self.logits[row * vocab..][..vocab];
            let of: Vec<f32> = self.tokens.languages.iter().map(|(_, id)| logits[*id as usize]).collect();
            let best = (0..of.len()).max_by(|&a, &b| of[a].total_cmp(&of[b])).unwrap_or(0);
            let probability = rules::probability(&of, best as u32);
            found.push((best, probability.ok_or(Error::NotFinite { position: 0 })?));
        }
        Ok(found)
    }
}

/// The most tokens of a text: half of the context at most, and what the prompt leaves. The last of them is not processed.
pub(super) fn longest_text(context: usize, prompt: usize) -> usize {
    (context / 2).min((context + 1).saturating_sub(prompt)).max(1)
}

fn method(window: &Window<'_>, number: usize) -> Method {
    let options = window.options;
    let temperature = options.temperatures[number];
    if temperature > 0.0 {
        let draws = Seed { seed: options.seed, frame: window.frame, attempt: number as u32 };
        return Method::Sample { count: options.best_of, temperature, draws };
    }
    match options.beams {
        1 => Method::Greedy,
        width => Method::Beams { width, patience: options.patience },
    }
}

/// How many times shorter a text gets by compression: high for a text that repeats itself.
fn compression(text: &str) -> f64 {
    const LEVEL: u8 = 6;
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), LEVEL);
    text.len() as f64 / compressed.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths are those of Python's `zlib.compress`.
    #[test]
    fn repetitions_compress_as_by_zlib() {
        let speech = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for \
                      your country. ";
        let fox = "The fox went down to the river and looked at the water for a long time, but there was nothing in it. ";
        for (text, compressed) in [
            (speech.to_string(), 79.0),
            (speech.repeat(3), 86.0),
            (fox.repeat(4), 92.0),
            (format!("{speech}{fox}").repeat(2), 142.0),
            (format!("{fox}{}", "I know. ".repeat(10)), 93.0),
        ] {
            assert_eq!(compression(&text), text.len() as f64 / compressed);
        }
        assert_eq!(compression(""), 0.0);
    }
}
