//! Which tokens may follow: what no transcript has in it, and where timestamps have to be.

use std::ops::Range;

use akunu_tokenizer::SpeechTokens;

/// The latest first timestamp, in steps: 1 second.
const LATEST_FIRST: u32 = 50;

#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Tokens that are never sampled.
    pub suppressed: Vec<u32>,
    /// Tokens that a text does not begin with: a space alone.
    pub blank: Vec<u32>,
    pub end: u32,
    no_timestamps: u32,
    timestamps: Range<u32>,
}

/// Logits after the rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored<'a> {
    logits: &'a [f32],
    /// The logarithm of the sum of their exponentials.
    normaliser: f64,
}

impl Rules {
    /// `suppressed`: what no transcript should have in it, without control tokens.
    pub fn new(tokens: &SpeechTokens, suppressed: &[u32], blank: Vec<u32>) -> Rules {
        let control =
            [tokens.transcribe, tokens.translate, tokens.previous, tokens.start_of_lm, tokens.no_speech];
        let mut suppressed: Vec<u32> = suppressed.to_vec();
        suppressed.extend(control.into_iter().flatten());
        suppressed.push(tokens.start);
        suppressed.sort_unstable();
        suppressed.dedup();
        Rules {
            suppressed,
            blank,
            end: tokens.end,
            no_timestamps: tokens.no_timestamps,
            timestamps: tokens.timestamps.clone(),
        }
    }

    /// Applies the rules for the token after those that were `sampled`. `None`: the logits are not finite.
    pub fn apply<'a>(
        &self,
        logits: &'a mut [f32],
        sampled: &[u32],
        with_timestamps: bool,
    ) -> Option<Scored<'a>> {
        exclude(logits, self.timestamps.end..u32::MAX);
        let single =
            self.suppressed.iter().chain(sampled.is_empty().then_some(&self.blank).into_iter().flatten());
        for &id in single {
            exclude(logits, id..id + 1);
        }
        if sampled.is_empty() {
            exclude(logits, self.end..self.end + 1);
        }
        if !with_timestamps {
            let normaliser = log_sum(logits)?;
            return Some(Scored { logits, normaliser });
        }
        exclude(logits, self.no_timestamps..self.no_timestamps + 1);
        self.keep_pairs(logits, sampled);
        let first = self.timestamps.start;
        if sampled.is_empty() {
            exclude(logits, 0..first);
            exclude(logits, first + LATEST_FIRST + 1..u32::MAX);
        }
        // A timestamp is sampled where all of them together are more probable than any text.
        let (text, timestamps) = logits.split_at((first as usize).min(logits.len()));
        let (text_sum, timestamp_sum) = (log_sum_or_none(text)?, log_sum_or_none(timestamps)?);
        let best_text = largest(text)?;
        let normaliser = if timestamp_sum > f64::from(best_text) {
            exclude(logits, 0..first);
            timestamp_sum
        } else {
            let most = text_sum.max(timestamp_sum);
            most + ((text_sum - most).exp() + (timestamp_sum - most).exp()).ln()
        };
        normaliser.is_finite().then_some(Scored { logits, normaliser })
    }

    /// Timestamps come in pairs, except before the end, and do not decrease.
    fn keep_pairs(&self, logits: &mut [f32], sampled: &[u32]) {
        let first = self.timestamps.start;
        let is_timestamp = |back: usize| sampled.iter().rev().nth(back).map(|&id| id >= first);
        let last = is_timestamp(0) == Some(true);
        let before = is_timestamp(1) != Some(false);
        if last && before {
            exclude(logits, first..u32::MAX);
        } else if last {
            exclude(logits, 0..self.end);
        }
        if let Some(&latest) = sampled.iter().rev().find(|&&id| id >= first) {
            // A text between two timestamps takes time.
            let least = if last && !before { latest } else { latest + 1 };
            exclude(logits, first..least);
        }
    }
}

impl Scored<'_> {
    pub fn log_probability(&self, token: u32) -> f64 {
        f64::from(self.logits[token as usize]) - self.normaliser
    }

    /// The first of the most probable tokens.
    pub fn most_probable(&self) -> u32 {
        let mut best = 0;
        for (id, &logit) in self.logits.iter().enumerate() {
            if logit > self.logits[best] {
                best = id;
            }
        }
        best as u32
    }

    /// The most probable tokens, best first.
    pub fn top(&self, count: usize) -> Vec<u32> {
        let mut top: Vec<u32> = Vec::with_capacity(count + 1);
        let mut least = f32::NEG_INFINITY;
        for (id, &logit) in self.logits.iter().enumerate() {
            if top.len() == count && logit <= least {
                continue;
            }
            let place = top.partition_point(|&other| self.logits[other as usize] >= logit);
            top.insert(place, id as u32);
            top.truncate(count);
            least = self.logits[top[top.len() - 1] as usize];
        }
        top
    }

    /// The token at this share, from 0 to 1, of the sum of all probabilities at a temperature.
    pub fn sample(&self, temperature: f32, share: f64) -> u32 {
        let best = self.most_probable();
        let most = self.logits[best as usize];
        let weight = |logit: f32| (f64::from(logit - most) / f64::from(temperature)).exp();
        let sum: f64 = self.logits.iter().map(|&logit| weight(logit)).sum();
        let mut left = share * sum;
        for (&logit, id) in self.logits.iter().zip(0..) {
            left -= weight(logit);
            if left < 0.0 {
                return id;
            }
        }
        best
    }
}

fn exclude(logits: &mut [f32], ids: Range<u32>) {
    let end = (ids.end as usize).min(logits.len());
    let start = (ids.start as usize).min(end);
    logits[start..end].fill(f32::NEG_INFINITY);
}

/// The probability of one token, from logits without rules.
pub(super) fn probability(logits: &[f32], token: u32) -> Option<f64> {
    Some((f64::from(*logits.get(token as usize)?) - log_sum(logits)?).exp())
}

/// `None` if a logit is not a number or is infinite.
fn largest(logits: &[f32]) -> Option<f32> {
    let mut most = f32::NEG_INFINITY;
    let mut sound = true;
    for &logit in logits {
        sound &= logit < f32::INFINITY;
        most = most.max(logit);
    }
    sound.then_some(most)
}

/// The logarithm of the sum of exponentials. `None`: not finite.
fn log_sum(logits: &[f32]) -> Option<f64> {
    log_sum_or_none(logits).filter(|sum| sum.is_finite())
}

/// As [`log_sum`], and −∞ where all are excluded.
fn log_sum_or_none(logits: &[f32]) -> Option<f64> {
    let most = largest(logits)?;
    if most == f32::NEG_INFINITY {
        return Some(f64::NEG_INFINITY);
    }
    let mut sum = 0.0;
    for part in logits.chunks(64) {
        let mut lanes = [0.0f32; 8];
        for group in part.chunks(8) {
            for (lane, &logit) in lanes.iter_mut().zip(group) {
                *lane += exp(logit - most);
            }
        }
        sum += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
    }
    Some(f64::from(most) + sum.ln())
}

/// e to the power of a number that is not positive, to 1e-7 of the result: without branches, so that compilers
/// vectorise loops of it.
#[inline]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.max(-87.0);
    let n = x * std::f32::consts::LOG2_E + ROUND - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = series.iter().fold(0.0, |sum, factor| sum * r + factor);
    power * f32::from_bits(((n as i32 + 127) << 23) as u32)
}
