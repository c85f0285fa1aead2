//! How a token is picked from a row's logits: the definition, which host, reference device and GPUs meet to the bit.
//!
//! Each token's logit gets its bias, then its penalties, and is scaled by the temperature: `x`, in f32. Every limit looks at the whole
//! vocabulary and at no order of equals, so that none has to sort. A token is kept if
//!
//! - top-k: fewer than k tokens are better than it,
//! - top-p: the better ones weigh less than p of all together, in whole numbers ([`crate::random::weight`]),
//! - min-p: `x − best ≥ ln(min p)`;
//!
//! the best ones always are. Equal tokens stand or fall together. Of the tokens kept the one with the largest
//! `x + gumbel` is picked ([`crate::random`]), the lowest id among equals.
//!
//! Operations are single f32 ones, rounded to nearest even, never contracted.

use bytemuck::{Pod, Zeroable};

use crate::random::weight;

/// The most tokens that penalties look back at on a device.
pub const WINDOW: usize = 1024;
/// The most biases on a device.
pub const BIASES: usize = 1024;

/// Words of one row's record in device memory: [`Settings`], as many (id, f32) of biases as they say, each id once, then as many latest
/// tokens as they say, behind which each step writes the token that it found.
pub fn record_words(steps: usize) -> usize {
    size_of::<Settings>() / 4 + 2 * BIASES + WINDOW + steps
}

/// How one row's tokens are picked, as a device reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Settings {
    /// 0: greedy, and nothing is scaled, limited or drawn.
    pub inverse_temperature: f32,
    /// 0: all.
    pub top_k: u32,
    /// Of 2³²; `u32::MAX`: all.
    pub top_p: u32,
    /// Its logarithm; −∞: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once.
    pub presence_penalty: f32,
    /// Tokens that penalties look back at; 0: none.
    pub window: u32,
    /// (id, bias) in the record.
    pub biases: u32,
    /// Latest tokens in the record.
    pub recent: u32,
    /// Low word first.
    pub seed: [u32; 2],
    /// The draw of a submission's first step, low word first; each step takes the next.
    pub draw: [u32; 2],
    pub unused: [u32; 2],
}

impl Default for Settings {
    /// Greedy.
    fn default() -> Settings {
        Settings { top_p: u32::MAX, min_p: f32::NEG_INFINITY, repeat_penalty: 1.0, ..Settings::zeroed() }
    }
}

/// Beyond these a temperature changes nothing that f32 could tell.
const INVERSE_TEMPERATURES: (f32, f32) = (1.0 / 1_048_576.0, 1_048_576.0);

/// What [`Settings::inverse_temperature`] is for a temperature; 0 is greedy.
pub fn inverse_temperature(temperature: f32) -> f32 {
    let (least, most) = INVERSE_TEMPERATURES;
    if temperature == 0.0 { 0.0 } else { (1.0 / temperature).clamp(least, most) }
}

/// What [`Settings::top_p`] is for a probability.
pub fn top_p(p: f32) -> u32 {
    if p < 1.0 { (f64::from(p) * 4_294_967_296.0) as u32 } else { u32::MAX }
}

impl Settings {
    pub fn is_greedy(&self) -> bool {
        self.inverse_temperature == 0.0
    }

    /// Whether any token may be ruled out by a limit.
    pub fn is_limited(&self) -> bool {
        !self.is_greedy() && (self.top_k > 0 || self.top_p < u32::MAX || self.min_p > f32::NEG_INFINITY)
    }

    /// A logit, its bias added, of a token that occurs `count` times in the window, at least once.
    pub fn penalised(&self, logit: f32, count: u32) -> f32 {
        let penalty = self.repeat_penalty;
        let logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        logit - (count as f32 * self.frequency_penalty + self.presence_penalty)
    }

    /// A finite number, or −∞, which is never picked.
    pub fn scaled(&self, logit: f32) -> f32 {
        let x = if self.is_greedy() { logit } else { logit * self.inverse_temperature };
        match x.is_nan() {
            true => f32::NEG_INFINITY,
            false => x.min(f32::MAX),
        }
    }

    /// What better tokens have to weigh for one to be left out, where all weigh `total`.
    pub fn enough(&self, total: u64) -> u64 {
        let p = u64::from(self.top_p);
        ((total >> 32) * p + (((total & 0xffff_ffff) * p) >> 32)).max(1)
    }

    /// Whether a limit leaves a token in that is `below` the best (0 or less), where `better` tokens are better and
    /// weigh `weight` of `total`.
    pub fn keeps(&self, below: f32, better: u32, weight: u64, total: u64) -> bool {
        (self.top_k == 0 || better < self.top_k)
            && (self.top_p == u32::MAX || weight < self.enough(total))
            && below >= self.min_p
    }
}

/// A token's share in the sums of top-p, `below` the best (0 or less).
pub fn share(below: f32) -> u64 {
    weight(below).into()
}

const _: () = assert!(size_of::<Settings>() == 64);
