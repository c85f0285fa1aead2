//! How the next token is picked from the logits.
//!
//! In this order: logit biases; penalties; temperature; top-k; top-p; min-p; then one draw, as [`crate::random`] defines
//! it. Everything is f32 arithmetic in a fixed order and nothing comes from the platform's mathematics library, so that
//! the same logits, settings, seed and position give the same token everywhere.

use std::cmp::Ordering;

use akunu_format::SuggestedSampling;

use crate::Error;
use crate::random::{Draws, GUMBEL_MAX, exp, ln};

/// The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: always the best token.
    pub temperature: f32,
    /// Only the k best; 0: all.
    pub top_k: usize,
    /// Only the fewest best whose probabilities reach this; 1: all.
    pub top_p: f32,
    /// Only those at least this times as probable as the best; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens among the last `repeat_last_n`; 1: off.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence among the last `repeat_last_n`; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once if there is an occurrence; 0: off.
    pub presence_penalty: f32,
    /// Tokens, the prompt's included, that the penalties look back at.
    pub repeat_last_n: usize,
    /// Added to the logits of these ids; −∞ rules one out.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same tokens on every run, thread count and chunking.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// What a model's makers suggest, and `otherwise` where they suggest nothing. Temperature, top-k, top-p and min-p are one
    /// suggestion: of these, what they leave out is off.
    pub fn suggested(by: &SuggestedSampling, otherwise: &Sampling) -> Sampling {
        let mut sampling = otherwise.clone();
        if by.temperature.is_some() || by.top_k.is_some() || by.top_p.is_some() || by.min_p.is_some() {
            sampling.temperature = by.temperature.unwrap_or(1.0);
            sampling.top_k = by.top_k.unwrap_or(0);
            sampling.top_p = by.top_p.unwrap_or(1.0);
            sampling.min_p = by.min_p.unwrap_or(0.0);
        }
        sampling.repeat_penalty = by.repeat_penalty.unwrap_or(sampling.repeat_penalty);
        sampling.repeat_last_n = by.repeat_last_n.unwrap_or(sampling.repeat_last_n);
        sampling
    }

    /// Whether the best token of the raw logits is what is asked for: then a device can decode whole chains.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && self.logit_bias.is_empty() && !self.has_penalties()
    }

    fn has_penalties(&self) -> bool {
        let off = self.repeat_penalty == 1.0 && self.frequency_penalty == 0.0 && self.presence_penalty == 0.0;
        !off && self.repeat_last_n > 0
    }

    /// Refuses settings that make no sense, for a vocabulary of this size.
    pub fn check(&self, vocab: usize) -> Result<(), Error> {
        let refuse =
            |name, value: f32, expected| Err(Error::Setting { name, value: value.to_string(), expected });
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", self.temperature, "0 (greedy) or a positive number");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refuse("top-p", self.top_p, "a number from 0 to 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min-p", self.min_p, "a number from 0 to 1");
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite()) {
            return refuse("repeat penalty", self.repeat_penalty, "a positive number (1 is off)");
        }
        if !self.frequency_penalty.is_finite() {
            return refuse("frequency penalty", self.frequency_penalty, "a number (0 is off)");
        }
        if !self.presence_penalty.is_finite() {
            return refuse("presence penalty", self.presence_penalty, "a number (0 is off)");
        }
        for (index, &(id, bias)) in self.logit_bias.iter().enumerate() {
            if id as usize >= vocab {
                return Err(Error::TokenOutsideVocabulary { id, index, vocab, place: "logit bias" });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return refuse("logit bias", bias, "a number, or -inf to rule a token out");
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// A logit; after the temperature, less the largest one.
    logit: f32,
    id: u32,
}

/// Better first; the lower id first among equals.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Picks tokens. All of its memory is taken when it is made: picking allocates nothing.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    candidates: Vec<Candidate>,
    /// Occurrences by id, zero between picks.
    counts: Vec<u32>,
}

impl Sampler {
    /// Refuses settings that make no sense.
    pub fn new(sampling: &Sampling, vocab: usize) -> Result<Sampler, Error> {
        sampling.check(vocab)?;
        let counts = if sampling.has_penalties() { vec![0; vocab] } else { Vec::new() };
        Ok(Sampler { sampling: sampling.clone(), candidates: Vec::with_capacity(vocab), counts })
    }

    /// The token that follows `history` (the prompt and what was generated so far), where the model gave `logits`. The
    /// draw is the one for the position `history.len()`.
    pub fn pick(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, Error> {
        if logits.iter().any(|l| !l.is_finite()) {
            return Err(Error::NotFinite { position: history.len().saturating_sub(1) });
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0..).map(|(&logit, id)| Candidate { logit, id }));
        for &(id, bias) in &self.sampling.logit_bias {
            self.candidates[id as usize].logit += bias;
        }
        if self.sampling.has_penalties() {
            self.penalise(history);
        }
        let best = self.best()?;
        if self.sampling.temperature == 0.0 {
            return Ok(best.id);
        }
        self.scale(best.logit);
        self.keep_likely();
        Ok(self.draw(history.len() as u64))
    }

    fn penalise(&mut self, history: &[u32]) {
        let recent = &history[history.len().saturating_sub(self.sampling.repeat_last_n)..];
        for &id in recent {
            self.counts[id as usize] += 1;
        }
        for &id in recent {
            // Taking the count marks the id as done, and leaves the table zero for the next pick.
            let count = std::mem::take(&mut self.counts[id as usize]);
            if count == 0 {
                continue;
            }
            let logit = &mut self.candidates[id as usize].logit;
            let penalty = self.sampling.repeat_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit -= count as f32 * self.sampling.frequency_penalty + self.sampling.presence_penalty;
        }
    }

    /// The first of the largest logits.
    fn best(&self) -> Result<Candidate, Error> {
        let mut best = Candidate { logit: f32::NEG_INFINITY, id: u32::MAX };
        for &candidate in &self.candidates {
            if candidate.logit > best.logit {
                best = candidate;
            }
        }
        if best.id == u32::MAX || !best.logit.is_finite() { Err(Error::NothingToPick) } else { Ok(best) }
    }

    /// `(logit − max) / temperature`: the largest becomes 0, so that no temperature overflows.
    fn scale(&mut self, max: f32) {
        let temperature = self.sampling.temperature;
        for candidate in &mut self.candidates {
            candidate.logit = (candidate.logit - max) / temperature;
        }
    }

    /// Top-k, top-p and min-p. Afterwards the candidates are best first, unless none of the first two was asked for.
    fn keep_likely(&mut self) {
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let mut sorted = 0;
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, better);
            self.candidates.truncate(top_k);
            self.candidates.sort_unstable_by(better);
            sorted = top_k;
        }
        if top_p < 1.0 {
            self.keep_top_p(f64::from(top_p), sorted);
        }
        if min_p > 0.0 {
            let least = ln(min_p.max(f32::MIN_POSITIVE));
            self.candidates.retain(|c| c.logit >= least);
        }
    }

    /// The first `sorted` candidates are best first already: all of them, or none.
    fn keep_top_p(&mut self, top_p: f64, mut sorted: usize) {
        let weight = |c: &Candidate| exp(f64::from(c.logit));
        let wanted = top_p * self.candidates.iter().map(weight).sum::<f64>();
        let mut reached = 0.0;
        let mut kept = 0;
        while kept < self.candidates.len() {
            if kept == sorted {
                // Most of the weight is usually in few tokens: sort no more than twice as many as are needed.
                let more = sorted.max(64).min(self.candidates.len() - sorted);
                let rest = &mut self.candidates[sorted..];
                if more < rest.len() {
                    rest.select_nth_unstable_by(more - 1, better);
                }
                rest[..more].sort_unstable_by(better);
                sorted += more;
            }
            reached += weight(&self.candidates[kept]);
            kept += 1;
            if reached >= wanted {
                break;
            }
        }
        self.candidates.truncate(kept);
    }

    fn draw(&self, position: u64) -> u32 {
        let mut draws = Draws::new(self.sampling.seed, position);
        let mut best = Candidate { logit: f32::NEG_INFINITY, id: u32::MAX };
        for candidate in &self.candidates {
            // No draw could lift it over the best so far; rounding is monotone, so skipping changes nothing.
            if candidate.logit + GUMBEL_MAX < best.logit {
                continue;
            }
            let logit = candidate.logit + draws.gumbel(candidate.id);
            if logit > best.logit || (logit == best.logit && candidate.id < best.id) {
                best = Candidate { logit, id: candidate.id };
            }
        }
        best.id
    }
}
