//! How a token is sampled from a row's logits: the definition, which host, reference device and GPUs implement
//! bit-exactly.
//!
//! Each token's logit gets its bias, then its penalties, and is scaled by the temperature: `x`, in f32; −∞ if a mask
//! excludes it. Every limit is
//! defined on the whole vocabulary without an order among equals, so that no sorting is necessary. A token is kept if
//!
//! - top-k: fewer than k tokens are better,
//! - top-p: the weights of the better tokens sum to less than p of the total, in integers ([`crate::random::weight`]),
//! - min-p: `x − best ≥ ln(min p)`,
//! - top-n-sigma: its logit is at most n standard deviations of all logits below the best;
//!
//! the best tokens are always kept. Equal tokens are kept or excluded together. Two limits are defined on the tokens that
//! these keep, and exclude the most probable ones, too ([`narrow`]): first typical-p, then XTC. Of the kept tokens the one
//! with the largest `x + gumbel` is selected ([`crate::random`]), the lowest id among equals.
//!
//! Operations are single f32 operations, rounded to nearest even, never contracted. Sums over tokens are integers.

mod shape;

pub use shape::{narrow, scale_by_entropy, sigma_floor};

use bytemuck::{Pod, Zeroable};

use crate::random::weight;

/// Maximum number of recent tokens that penalties apply to on a device.
pub const WINDOW: usize = 1024;
/// Maximum number of logit biases on a device.
pub const BIASES: usize = 1024;

const SETTINGS_WORDS: usize = size_of::<Settings>() / 4;

/// Size in 32-bit words of the mask of a vocabulary: a bit for each token, which tells whether it may be picked.
pub fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// The most 32-bit words that one row takes in device memory.
pub fn record_words(vocab: usize, steps: usize) -> usize {
    SETTINGS_WORDS + mask_words(vocab) + 2 * BIASES + WINDOW + steps
}

/// What a device reads to sample: first the [`Settings`] of all rows of its table, used or not. Then follow at
/// [`Settings::place`], for each row that has them: a mask, (id, f32) for each bias, with unique ids, and the recent
/// tokens, to which each step appends the token that it found.
#[derive(Clone, Debug, Default)]
pub struct Records {
    words: Vec<u32>,
    steps: usize,
    count: usize,
}

impl Records {
    /// Removes all rows, for a table with this many rows and steps.
    pub fn clear(&mut self, capacity: usize, steps: usize) {
        (self.steps, self.count) = (steps, 0);
        self.words.clear();
        self.words.resize(capacity * SETTINGS_WORDS, 0);
    }

    /// Adds a row. The counts and the place in `settings` are set here.
    pub fn push(&mut self, settings: &Settings, mask: Option<&[u32]>, biases: &[(u32, f32)], recent: &[u32]) {
        let settings = Settings {
            masked: u32::from(mask.is_some()),
            biases: biases.len() as u32,
            recent: recent.len() as u32,
            place: self.words.len() as u32,
            ..*settings
        };
        let head = &mut self.words[self.count * SETTINGS_WORDS..][..SETTINGS_WORDS];
        head.copy_from_slice(bytemuck::cast_slice(bytemuck::bytes_of(&settings)));
        self.words.extend_from_slice(mask.unwrap_or_default());
        self.words.extend(biases.iter().flat_map(|(id, bias)| [*id, bias.to_bits()]));
        self.words.extend_from_slice(recent);
        self.words.resize(self.words.len() + self.steps, 0);
        self.count += 1;
    }

    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

/// The sampling settings of one row, as a device reads them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Settings {
    /// 0 means greedy: no scaling, limits or draws.
    pub inverse_temperature: f32,
    /// 0 means all.
    pub top_k: u32,
    /// As a fraction of 2³²; `u32::MAX` means all.
    pub top_p: u32,
    /// Its logarithm; −∞ means all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once.
    pub presence_penalty: f32,
    /// Number of recent tokens that penalties apply to; 0 means none.
    pub window: u32,
    /// Number of (id, bias) pairs in the record.
    pub biases: u32,
    /// Number of recent tokens in the record.
    pub recent: u32,
    /// Low word first.
    pub seed: [u32; 2],
    /// The draw of a submission's first step, low word first; each step uses the next one.
    pub draw: [u32; 2],
    /// 1: only tokens of a mask may be picked.
    pub masked: u32,
    /// Where the row's other words begin, in 32-bit words from the start of the records.
    pub place: u32,
    /// Dynamic temperature: the temperature where one token is certain, how much is added to it where all are equally
    /// probable (0: off), and the exponent of the relative entropy between them.
    pub coolest: f32,
    pub span: f32,
    pub exponent: f32,
    /// 0 means all.
    pub top_n_sigma: f32,
    /// As a fraction of 2³²; `u32::MAX` means all.
    pub typical_p: u32,
    /// The least probability of a top choice for XTC, as a fraction of 2³².
    pub xtc_threshold: u32,
    /// How often XTC excludes top choices, as a fraction of 2³²; 0 means never, `u32::MAX` always.
    pub xtc_probability: u32,
}

impl Default for Settings {
    /// Greedy.
    fn default() -> Settings {
        Settings {
            top_p: u32::MAX,
            min_p: f32::NEG_INFINITY,
            repeat_penalty: 1.0,
            typical_p: u32::MAX,
            ..Settings::zeroed()
        }
    }
}

/// Beyond this range a temperature has no effect in f32.
const INVERSE_TEMPERATURES: (f32, f32) = (1.0 / 1_048_576.0, 1_048_576.0);

/// [`Settings::inverse_temperature`] for a temperature; 0 means greedy.
pub fn inverse_temperature(temperature: f32) -> f32 {
    let (least, most) = INVERSE_TEMPERATURES;
    if temperature == 0.0 { 0.0 } else { (1.0 / temperature).clamp(least, most) }
}

/// A probability as a fraction of 2³²; `u32::MAX` stands for 1.
pub fn fraction(p: f32) -> u32 {
    if p < 1.0 { (f64::from(p) * 4_294_967_296.0) as u32 } else { u32::MAX }
}

impl Settings {
    pub fn is_greedy(&self) -> bool {
        self.inverse_temperature == 0.0
    }

    /// Whether any of top-k, top-p and min-p may exclude a token.
    pub fn is_limited(&self) -> bool {
        !self.is_greedy() && (self.top_k > 0 || self.top_p < u32::MAX || self.min_p > f32::NEG_INFINITY)
    }

    /// Whether the temperature or a bound depends on all logits in ways that a device has to look at beforehand.
    pub fn is_shaped(&self) -> bool {
        let narrows = self.typical_p < u32::MAX || self.xtc_probability > 0;
        !self.is_greedy() && (self.span > 0.0 || self.top_n_sigma > 0.0 || narrows)
    }

    /// The penalised logit, after its bias, of a token that occurs `count` times in the window, at least once.
    pub fn penalised(&self, logit: f32, count: u32) -> f32 {
        let penalty = self.repeat_penalty;
        let logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        logit - (count as f32 * self.frequency_penalty + self.presence_penalty)
    }

    /// A finite number, or −∞, which is never selected.
    pub fn scaled(&self, logit: f32) -> f32 {
        scaled(logit, if self.is_greedy() { 1.0 } else { self.inverse_temperature })
    }

    /// Whether all limits keep a token that is `below` the best (0 or less), where `better` tokens are better and have
    /// the weight `weight` of `total`.
    pub fn keeps(&self, below: f32, better: u32, weight: u64, total: u64) -> bool {
        (self.top_k == 0 || better < self.top_k)
            && (self.top_p == u32::MAX || weight < part_of(total, self.top_p))
            && below >= self.min_p
    }
}

/// A logit times the inverse temperature: a finite number, or −∞, which is never selected.
pub fn scaled(logit: f32, inverse_temperature: f32) -> f32 {
    let x = logit * inverse_temperature;
    if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) }
}

/// A fraction of 2³² of a sum of weights, at least 1.
pub fn part_of(total: u64, fraction: u32) -> u64 {
    let p = u64::from(fraction);
    ((total >> 32) * p + (((total & 0xffff_ffff) * p) >> 32)).max(1)
}

/// A token's weight in the sums of top-p, `below` the best (0 or less).
pub fn share(below: f32) -> u64 {
    weight(below).into()
}

const _: () = assert!(size_of::<Settings>() == 92);
