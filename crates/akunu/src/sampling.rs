//! Sampling settings, and the host's sampler.
//!
//! [`akunu_plan::sample`] is the definition, which devices implement too: the same logits, settings, seed and position give the same
//! token everywhere.

use std::time::Instant;

use akunu_arch::SuggestedSampling;
use akunu_plan::sample::{self, Records, Settings, fraction, part_of, share};

use crate::Error;
use crate::constraint::Cursor;
use crate::memory::{grow, reserved};
use crate::random::{Draws, GUMBEL_MAX, gumbel, gumbel_bound, ln};

mod mirostat;
mod repetition;
mod suffixes;

use mirostat::Mirostat;
pub use repetition::Breakers;
use repetition::Repetition;

/// The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// Keep the k most probable tokens, and ties with the last of them; 0: all.
    pub top_k: usize,
    /// Keep the smallest set of most probable tokens whose probabilities sum to this, and ties with the last of them; 1: all.
    /// Probabilities are over the whole vocabulary, independent of other limits.
    pub top_p: f32,
    /// Keep tokens whose probability is at least this fraction of the highest; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens among the last `repeat_last_n`; 1: off.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence among the last `repeat_last_n`; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once if there is an occurrence; 0: off.
    pub presence_penalty: f32,
    /// The window of the penalties, in tokens, including the prompt.
    pub repeat_last_n: usize,
    /// Added to the logits of these ids; −∞ excludes a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Keep tokens whose logit is at most this many standard deviations of all logits below the highest; 0: all.
    pub top_n_sigma: f32,
    /// Of the tokens that the limits above keep, keep those whose surprise is nearest to the mean surprise, until their
    /// probabilities sum to this; 1: all.
    pub typical_p: f32,
    /// How often, from 0 to 1, all top choices but the least probable one are excluded ("exclude top choices"); 0: off.
    pub xtc_probability: f32,
    /// The least probability of a top choice, among the tokens that all other limits keep.
    pub xtc_threshold: f32,
    /// Dynamic temperature: from `temperature` less this, where one token is certain, to `temperature` and this, where all are
    /// equally probable; 0: off.
    pub dynatemp_range: f32,
    /// The power of the entropy, relative to its maximum, by which the dynamic temperature rises.
    pub dynatemp_exponent: f32,
    /// DRY ("don't repeat yourself"): what is subtracted from the logit of a token that would extend a repetition of
    /// `dry_allowed_length` tokens; 0: off.
    pub dry_multiplier: f32,
    /// Multiplies that for each further token of the repetition.
    pub dry_base: f32,
    pub dry_allowed_length: usize,
    /// How many tokens are searched for repetitions, including the prompt.
    pub dry_last_n: usize,
    /// Tokens that repetitions do not reach across. `None`: those of [`crate::Model::default_breakers`] for the samplers
    /// of an engine, none for [`Sampler::new`].
    pub dry_breakers: Option<Breakers>,
    /// Mirostat 2: the mean surprise of the tokens in bits, which a limit of each token's surprise is adjusted to; 0: off.
    pub mirostat_tau: f32,
    /// How fast it is adjusted.
    pub mirostat_eta: f32,
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
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: usize::MAX,
            dry_breakers: None,
            mirostat_tau: 0.0,
            mirostat_eta: 0.1,
            seed: 0,
        }
    }
}

impl Sampling {
    /// The mean surprise that mirostat comes near where no other is given.
    pub const MIROSTAT_TAU: f32 = 5.0;

    /// The texts of DRY's breakers where no others are given.
    pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

    /// The settings that a model's files suggest, or `otherwise` where they suggest none. If they suggest any of temperature, top-k,
    /// top-p and min-p, the others of these are off.
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

    /// Whether the settings select the most probable token of the raw logits.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0
            && self.logit_bias.is_empty()
            && !self.has_penalties()
            && self.dry_multiplier == 0.0
    }

    fn has_penalties(&self) -> bool {
        let off = self.repeat_penalty == 1.0 && self.frequency_penalty == 0.0 && self.presence_penalty == 0.0;
        !off && self.repeat_last_n > 0
    }

    /// Checks the settings for a vocabulary of this size.
    pub fn check(&self, vocab: usize) -> Result<(), Error> {
        let refuse =
            |name, value: f32, expected| Err(Error::Setting { name, value: value.to_string(), expected });
        const NOT_NEGATIVE: &str = "0 or a positive number";
        const PART: &str = "a number from 0 to 1";
        let is_not_negative = |value: f32| value >= 0.0 && value.is_finite();
        let is_part = |value: f32| (0.0..=1.0).contains(&value);
        let checks = [
            (
                "temperature",
                self.temperature,
                is_not_negative(self.temperature),
                "0 (greedy) or a positive number",
            ),
            ("top-p", self.top_p, is_part(self.top_p), PART),
            ("min-p", self.min_p, is_part(self.min_p), PART),
            (
                "repeat penalty",
                self.repeat_penalty,
                self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite(),
                "a positive number (1 is off)",
            ),
            (
                "frequency penalty",
                self.frequency_penalty,
                self.frequency_penalty.is_finite(),
                "a number (0 is off)",
            ),
            (
                "presence penalty",
                self.presence_penalty,
                self.presence_penalty.is_finite(),
                "a number (0 is off)",
            ),
            (
                "top-n-sigma",
                self.top_n_sigma,
                is_not_negative(self.top_n_sigma),
                "0 (off) or a positive number",
            ),
            ("typical-p", self.typical_p, is_part(self.typical_p), PART),
            ("XTC probability", self.xtc_probability, is_part(self.xtc_probability), PART),
            ("XTC threshold", self.xtc_threshold, is_part(self.xtc_threshold), PART),
            (
                "dynamic temperature range",
                self.dynatemp_range,
                is_not_negative(self.dynatemp_range),
                NOT_NEGATIVE,
            ),
            (
                "dynamic temperature exponent",
                self.dynatemp_exponent,
                is_not_negative(self.dynatemp_exponent),
                NOT_NEGATIVE,
            ),
            (
                "DRY multiplier",
                self.dry_multiplier,
                is_not_negative(self.dry_multiplier),
                "0 (off) or a positive number",
            ),
            ("DRY base", self.dry_base, self.dry_base >= 1.0 && self.dry_base.is_finite(), "1 or more"),
            (
                "mirostat tau",
                self.mirostat_tau,
                is_not_negative(self.mirostat_tau),
                "0 (off) or a positive number",
            ),
            ("mirostat eta", self.mirostat_eta, is_not_negative(self.mirostat_eta), NOT_NEGATIVE),
        ];
        if let Some((name, value, _, expected)) = checks.into_iter().find(|(_, _, holds, _)| !holds) {
            return refuse(name, value, expected);
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

/// What a sampler's memory is called in errors.
const WORKING_MEMORY: &str = "the sampler's working memory";

/// Samples tokens on the host. Allocates only when created, but for DRY, whose tables grow with the text.
///
/// A sampler is for one text: the history of a call is that of the call before, with more tokens or none, or less of
/// it.
#[derive(Debug)]
pub struct Sampler {
    settings: Settings,
    /// The window of the penalties; 0 if there are none.
    window: usize,
    /// Each id once, ascending.
    biases: Vec<(u32, f32)>,
    seed: u64,
    /// The scaled logits, by id.
    scaled: Vec<f32>,
    /// The same, partially sorted for limits.
    ordered: Vec<f32>,
    /// Occurrences by id; zero between calls.
    counts: Vec<u32>,
    repetition: Option<Repetition>,
    /// `biases`, with what is subtracted for repetitions.
    edited: Vec<(u32, f32)>,
    mirostat: Option<Mirostat>,
    /// The length of the history for which a device has the settings, or for which the token was found early.
    recorded: Option<usize>,
    vocab: usize,
    /// The grammar's state.
    cursor: Option<Cursor>,
}

impl Sampler {
    /// Checks the settings, and takes all memory that sampling needs.
    pub fn new(sampling: &Sampling, vocab: usize) -> Result<Sampler, Error> {
        sampling.check(vocab)?;
        let window = if sampling.has_penalties() { sampling.repeat_last_n } else { 0 };
        let mut biases = sampling.logit_bias.clone();
        biases.sort_by_key(|bias| bias.0);
        add_equal(&mut biases);
        let min_p = sampling.min_p;
        let halves = |v: u64| [v as u32, (v >> 32) as u32];
        let settings = Settings {
            inverse_temperature: sample::inverse_temperature(sampling.temperature),
            top_k: u32::try_from(sampling.top_k).unwrap_or(0),
            top_p: fraction(sampling.top_p),
            min_p: if min_p > 0.0 { ln(min_p.max(f32::MIN_POSITIVE)) } else { f32::NEG_INFINITY },
            repeat_penalty: sampling.repeat_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            window: u32::try_from(window).unwrap_or(u32::MAX),
            seed: halves(sampling.seed),
            coolest: (sampling.temperature - sampling.dynatemp_range).max(0.0),
            span: dynamic_span(sampling),
            exponent: sampling.dynatemp_exponent,
            top_n_sigma: sampling.top_n_sigma,
            typical_p: fraction(sampling.typical_p),
            xtc_threshold: fraction(sampling.xtc_threshold),
            xtc_probability: fraction(sampling.xtc_probability),
            ..Settings::default()
        };
        let needs_order = settings.is_limited() || settings.is_shaped();
        let counted = if window > 0 { vocab } else { 0 };
        let mut counts = reserved(WORKING_MEMORY, counted)?;
        counts.resize(counted, 0);
        Ok(Sampler {
            settings,
            window,
            seed: sampling.seed,
            scaled: reserved(WORKING_MEMORY, vocab)?,
            ordered: reserved(WORKING_MEMORY, if needs_order { vocab } else { 0 })?,
            counts,
            repetition: (sampling.dry_multiplier > 0.0).then(|| Repetition::new(sampling)),
            edited: Vec::new(),
            mirostat: (sampling.mirostat_tau > 0.0 && !settings.is_greedy())
                .then(|| Mirostat::new(sampling.mirostat_tau, sampling.mirostat_eta)),
            recorded: None,
            vocab,
            biases,
            cursor: None,
        })
    }

    /// Whether each token's settings depend on the tokens before, so that a device cannot sample several in a row.
    pub(crate) fn is_stepwise(&self) -> bool {
        self.repetition.is_some()
    }

    pub(crate) fn held_to(self, cursor: Option<Cursor>) -> Sampler {
        Sampler { cursor, ..self }
    }

    /// Whether a grammar constrains the text.
    pub(crate) fn is_held(&self) -> bool {
        self.cursor.is_some()
    }

    /// Requests the grammar's mask of the token after `history`.
    pub(crate) fn request_mask(&mut self, history: &[u32]) {
        if let Some(cursor) = &mut self.cursor {
            cursor.request(history);
        }
    }

    /// Whether the grammar's mask of the token after `history` is known, or why there is none. Waits for it until `deadline`.
    pub(crate) fn is_ready(&mut self, history: &[u32], deadline: Instant) -> bool {
        self.cursor.as_mut().is_none_or(|cursor| cursor.is_ready(history, deadline))
    }

    /// Whether the text is known to be complete according to the grammar: at the latest when the next mask would be.
    pub(crate) fn is_known_over(&self) -> bool {
        self.cursor.as_ref().is_some_and(Cursor::is_known_over)
    }

    /// Whether another thread should tell the grammar of a token, since it may take milliseconds.
    pub(crate) fn is_slow(&self) -> bool {
        self.cursor.as_ref().is_some_and(Cursor::is_slow)
    }

    /// Whether the text is complete according to the grammar.
    pub(crate) fn is_over(&mut self, history: &[u32]) -> bool {
        self.cursor.as_mut().is_some_and(|cursor| cursor.is_over(history))
    }

    /// Adds a row to the records with which a device samples the tokens after `history` as [`Sampler::pick`] does. False if the
    /// settings are not supported, or there is no mask. Waits for the mask of a grammar if it is not known yet.
    pub(crate) fn record(&mut self, history: &[u32], to: &mut Records) -> bool {
        self.recorded = None;
        if self.window > sample::WINDOW || self.mirostat.is_some() {
            return false;
        }
        // An error is found again where the host samples.
        if self.edit(history).is_err() || self.edited.len() > sample::BIASES {
            return false;
        }
        let mask = match self.cursor.as_mut().map(|cursor| cursor.allowed(history, self.vocab)) {
            None => None,
            Some(Ok(mask)) => Some(mask),
            Some(Err(_)) => return false,
        };
        let draw = history.len() as u64;
        let settings = Settings { draw: [draw as u32, (draw >> 32) as u32], ..self.settings };
        let recent = &history[history.len().saturating_sub(self.window)..];
        to.push(&settings, mask, &self.edited, recent);
        self.recorded = Some(history.len());
        true
    }

    /// Whether a device samples the token after `history`, or it was found early.
    pub(crate) fn is_recorded(&self, history: &[u32]) -> bool {
        self.recorded == Some(history.len())
    }

    /// Samples the token after `history` (the prompt and the tokens generated so far), from `logits`. The
    /// draw is that of position `history.len()`. Waits for the mask of a grammar if it is not known yet.
    pub fn pick(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, Error> {
        if logits.iter().any(|l| !l.is_finite()) {
            return Err(Error::NotFinite { position: history.len().saturating_sub(1) });
        }
        self.edit(history)?;
        self.scaled.clear();
        self.scaled.extend_from_slice(logits);
        for &(id, bias) in &self.edited {
            self.scaled[id as usize] += bias;
        }
        if let Some(cursor) = &mut self.cursor {
            cursor.rule_out(history, &mut self.scaled)?;
        }
        self.penalise(history);
        let (scale, floor) = self.scale();
        self.scaled.iter_mut().for_each(|logit| *logit = sample::scaled(*logit, scale));
        let best = self.scaled.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return Err(Error::NothingToPick);
        }
        if self.settings.is_greedy() {
            let first = self.scaled.iter().position(|x| *x == best);
            return Ok(first.map_or(0, |id| id as u32));
        }
        let kept = self.kept(best, floor, history.len());
        let picked = self.draw(best, &kept, history.len() as u64);
        if let Some(mirostat) = &mut self.mirostat {
            let is_kept = |x: &&f32| kept.keeps(**x, best);
            let total = self.scaled.iter().filter(is_kept).map(|x| share(*x - best)).sum();
            mirostat.observe(self.scaled[picked as usize] - best, total);
        }
        Ok(picked)
    }

    /// As [`Sampler::pick`], before the token is needed; [`Sampler::is_recorded`] says afterwards whether it was found.
    /// `u32::MAX` if not: the error is found again when the token is needed.
    pub(crate) fn pick_early(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        let found = self.pick(logits, history);
        self.recorded = found.is_ok().then_some(history.len());
        found.unwrap_or(u32::MAX)
    }

    /// The biases of the token after `history`.
    fn edit(&mut self, history: &[u32]) -> Result<(), Error> {
        self.edited.clear();
        grow(WORKING_MEMORY, &mut self.edited, self.biases.len())?;
        self.edited.extend_from_slice(&self.biases);
        if let Some(repetition) = &mut self.repetition {
            repetition.add_to(history, &mut self.edited)?;
            self.edited.sort_unstable_by_key(|bias| bias.0);
            add_equal(&mut self.edited);
        }
        Ok(())
    }

    /// The inverse temperature, and the least scaled logit within top-n-sigma.
    fn scale(&self) -> (f32, f32) {
        let settings = &self.settings;
        if settings.is_greedy() {
            return (1.0, f32::NEG_INFINITY);
        }
        let scale = match settings.span > 0.0 {
            true => sample::scale_by_entropy(settings, &self.scaled),
            false => settings.inverse_temperature,
        };
        (scale, sample::sigma_floor(settings, &self.scaled, scale))
    }

    /// What all limits keep.
    fn kept(&mut self, best: f32, floor: f32, position: usize) -> Kept {
        let mut kept = Kept {
            least: self.least(best).max(floor),
            most: f32::INFINITY,
            least_below: self.settings.min_p,
        };
        if let Some(mirostat) = &mut self.mirostat {
            let total = self.scaled.iter().map(|x| share(x - best)).sum();
            kept.least_below = kept.least_below.max(mirostat.least_below(position, total));
        }
        if self.settings.is_shaped() {
            let values = self.scaled.iter().copied().filter(|x| kept.keeps(*x, best));
            self.ordered.clear();
            self.ordered.extend(values);
            let (least, most) = sample::narrow(&self.settings, &mut self.ordered, best, position as u64);
            (kept.least, kept.most) = (kept.least.max(least), most);
        }
        kept
    }

    fn penalise(&mut self, history: &[u32]) {
        let recent = &history[history.len().saturating_sub(self.window)..];
        for &id in recent {
            self.counts[id as usize] += 1;
        }
        for &id in recent {
            // Taking the count marks the id as done, and resets the table for the next call.
            let count = std::mem::take(&mut self.counts[id as usize]);
            if count > 0 {
                let logit = &mut self.scaled[id as usize];
                *logit = self.settings.penalised(*logit, count);
            }
        }
    }

    /// The minimum scaled logit that top-k and top-p keep.
    fn least(&mut self, best: f32) -> f32 {
        let Settings { top_k, top_p, .. } = self.settings;
        let (top_k, mut least, mut sorted) = (top_k as usize, f32::NEG_INFINITY, 0);
        if top_k == 0 && top_p == u32::MAX {
            return least;
        }
        self.ordered.clear();
        self.ordered.extend_from_slice(&self.scaled);
        if top_k > 0 && top_k < self.ordered.len() {
            self.ordered.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            self.ordered.truncate(top_k);
            least = self.ordered[top_k - 1];
            if top_p < u32::MAX {
                self.ordered.sort_unstable_by(|a, b| b.total_cmp(a));
                sorted = top_k;
            }
        }
        if top_p < u32::MAX {
            let total = self.scaled.iter().map(|x| share(x - best)).sum();
            least = least.max(self.least_of_top_p(best, part_of(total, top_p), sorted));
        }
        least
    }

    /// The first `sorted` candidates are in descending order already: all of them, or none.
    fn least_of_top_p(&mut self, best: f32, enough: u64, mut sorted: usize) -> f32 {
        let (mut reached, mut kept) = (0, 0);
        while kept < self.ordered.len() && reached < enough {
            if kept == sorted {
                // Most of the probability is usually in few tokens, so the sorted part is doubled as needed.
                let more = sorted.max(64).min(self.ordered.len() - sorted);
                let rest = &mut self.ordered[sorted..];
                if more < rest.len() {
                    rest.select_nth_unstable_by(more - 1, |a, b| b.total_cmp(a));
                }
                rest[..more].sort_unstable_by(|a, b| b.total_cmp(a));
                sorted += more;
            }
            reached += share(self.ordered[kept] - best);
            kept += 1;
        }
        self.ordered[kept - 1]
    }

    fn draw(&self, best: f32, kept: &Kept, position: u64) -> u32 {
        let mut draws = Draws::new(self.seed, position);
        let (mut most, mut winner) = (f32::NEG_INFINITY, 0);
        for (&x, id) in self.scaled.iter().zip(0..) {
            // In the first case no draw can exceed the maximum so far, and in the last case this one cannot. Rounding is
            // monotone, so skipping is exact.
            if x + GUMBEL_MAX < most || !kept.keeps(x, best) {
                continue;
            }
            let bits = draws.bits(id);
            if x + gumbel_bound(bits) < most {
                continue;
            }
            let score = x + gumbel(bits);
            if score > most {
                (most, winner) = (score, id);
            }
        }
        winner
    }
}

/// Adds the biases of equal ids, which are sorted.
fn add_equal(biases: &mut Vec<(u32, f32)>) {
    biases.dedup_by(|next, first| {
        let again = next.0 == first.0;
        first.1 += if again { next.1 } else { 0.0 };
        again
    });
}

/// What the limits keep, by the scaled logits.
#[derive(Clone, Copy, Debug)]
struct Kept {
    least: f32,
    most: f32,
    /// The least difference to the best: 0 or less.
    least_below: f32,
}

impl Kept {
    fn keeps(&self, x: f32, best: f32) -> bool {
        x >= self.least && x <= self.most && x - best >= self.least_below
    }
}

/// How much warmer the dynamic temperature is where all tokens are equally probable than where one is certain.
fn dynamic_span(sampling: &Sampling) -> f32 {
    let &Sampling { temperature, dynatemp_range: range, .. } = sampling;
    // Finite, so that a product with 0 is 0.
    let span = (temperature + range - (temperature - range).max(0.0)).min(f32::MAX);
    if range > 0.0 { span } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_for_devices_are_complete() {
        let sampling = Sampling {
            temperature: 0.5,
            top_p: 0.25,
            presence_penalty: 1.0,
            repeat_last_n: 3,
            logit_bias: vec![(2, 1.0), (0, -1.0), (2, 0.5)],
            seed: 1 << 32 | 7,
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(&sampling, 10).unwrap_or_else(|error| panic!("{error}"));
        let mut records = Records::default();
        for length in [1, 3, 500] {
            let history: Vec<u32> = (0..length).map(|i| i % 10).collect();
            records.clear(2, 1);
            assert!(sampler.record(&history, &mut records) && sampler.is_recorded(&history));
            let (head, rest) = records.words().split_at(46);
            let settings: Settings = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&head[..23]));
            assert_eq!((settings.inverse_temperature, settings.top_p), (2.0, 1 << 30));
            assert_eq!((settings.seed, settings.draw), ([7, 1], [length, 0]));
            assert_eq!((settings.biases, settings.recent), (2, length.min(3)));
            assert_eq!(rest[..4], [0, (-1.0f32).to_bits(), 2, 1.5f32.to_bits()]);
            assert_eq!((settings.masked, settings.place), (0, 46));
            let recent = &history[history.len().saturating_sub(3)..];
            assert_eq!(rest[4..], [recent, &[0]].concat());
        }
        let far = Sampling { repeat_last_n: sample::WINDOW + 1, ..sampling };
        let mut sampler = Sampler::new(&far, 10).unwrap_or_else(|error| panic!("{error}"));
        assert!(!sampler.record(&[1], &mut records) && !sampler.is_recorded(&[1]));
    }
}
