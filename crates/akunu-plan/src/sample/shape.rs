//! What depends on the shape of a row's distribution: the temperature by its entropy, and limits that may exclude the most
//! probable tokens.

use super::{Settings, inverse_temperature, part_of, scaled, share};
use crate::random::{ln, philox, weight};

/// Differences of logits in sums of surprise, in parts of 1. The sums of 2²² tokens fit into 64 bits.
const SURPRISE_STEPS: f32 = 4096.0;
/// The same in sums of squares, and their maximum.
const SIGMA_STEPS: f32 = 256.0;
const SIGMA_MAX: f32 = 1_048_575.0;
/// The weight of the most probable token is 2³¹.
const UNIT: f32 = 1.0 / 2_147_483_648.0;
/// No token's block has this number in the draws of a position.
const XTC_BLOCK: u32 = u32::MAX;

/// The inverse temperature by the entropy of the logits before scaling, relative to the largest that so many tokens can have.
pub fn scale_by_entropy(settings: &Settings, logits: &[f32]) -> f32 {
    let (mut count, mut sums) = (0u32, Sums::default());
    for below in below(logits, best_of(logits)) {
        count += 1;
        sums.add(below);
    }
    let entropy = sums.mean_surprise() + ln(sums.weight as f32 * UNIT);
    let relative = if count > 1 { entropy / ln(count as f32) } else { 0.0 };
    let temperature = settings.coolest + settings.span * power(relative.min(1.0), settings.exponent);
    // 0 is the lowest temperature here, and not greedy.
    inverse_temperature(temperature.max(f32::MIN_POSITIVE))
}

/// The least scaled logit within [`Settings::top_n_sigma`] standard deviations of the best, for the logits before scaling
/// and the inverse temperature.
pub fn sigma_floor(settings: &Settings, logits: &[f32], inverse_temperature: f32) -> f32 {
    if settings.top_n_sigma == 0.0 {
        return f32::NEG_INFINITY;
    }
    let best = best_of(logits);
    let (mut count, mut sum, mut squares) = (0u32, 0u64, 0u64);
    for below in below(logits, best) {
        let steps = (-below * SIGMA_STEPS).min(SIGMA_MAX) as u64;
        (count, sum, squares) = (count + 1, sum + steps, squares + steps * steps);
    }
    let mean = sum as f32 / count as f32;
    let variance = squares as f32 / count as f32 - mean * mean;
    let reach = settings.top_n_sigma * root(variance) * (1.0 / SIGMA_STEPS);
    scaled(best - reach, inverse_temperature)
}

/// The bounds of the scaled logits that typical-p and XTC keep of `kept`, which other limits keep; `draw` is the position.
/// `kept` is reordered.
pub fn narrow(settings: &Settings, kept: &mut [f32], best: f32, draw: u64) -> (f32, f32) {
    let (mut least, mut most) = (f32::NEG_INFINITY, f32::INFINITY);
    if settings.typical_p < u32::MAX {
        (least, most) = typical(kept, best, settings.typical_p);
    }
    if settings.xtc_probability > 0 && xtc_is_drawn(settings, draw) {
        let weights = || kept.iter().filter(|x| (least..=most).contains(*x)).map(|x| (*x, share(*x - best)));
        let enough = part_of(weights().map(|(_, weight)| weight).sum(), settings.xtc_threshold);
        let choices = || weights().filter(|(_, weight)| *weight >= enough).map(|(x, _)| x);
        if choices().nth(1).is_some() {
            most = choices().fold(most, f32::min);
        }
    }
    (least, most)
}

/// The smallest range around the mean surprise that has a part of the weight.
fn typical(kept: &mut [f32], best: f32, part: u32) -> (f32, f32) {
    let mut sums = Sums::default();
    kept.iter().for_each(|x| sums.add(x - best));
    let mean = sums.mean_surprise();
    let shift = |x: f32| ((best - x) - mean).abs();
    kept.sort_unstable_by(|a, b| shift(*a).total_cmp(&shift(*b)));
    let (enough, mut reached, mut reach) = (part_of(sums.weight, part), 0, 0.0);
    for x in kept.iter() {
        if reached >= enough {
            break;
        }
        (reached, reach) = (reached + share(x - best), shift(*x));
    }
    let inside = || kept.iter().copied().filter(|x| shift(*x) <= reach);
    (inside().fold(f32::INFINITY, f32::min), inside().fold(f32::NEG_INFINITY, f32::max))
}

fn xtc_is_drawn(settings: &Settings, draw: u64) -> bool {
    let bits = philox([XTC_BLOCK, draw as u32, (draw >> 32) as u32, 0], settings.seed)[0];
    settings.xtc_probability == u32::MAX || bits < settings.xtc_probability
}

/// The differences of all logits that are not −∞ to the best: 0 or less.
fn below(logits: &[f32], best: f32) -> impl Iterator<Item = f32> {
    let bounded = logits.iter().map(|logit| scaled(*logit, 1.0));
    bounded.filter(|logit| *logit > f32::NEG_INFINITY).map(move |logit| logit - best)
}

fn best_of(logits: &[f32]) -> f32 {
    logits.iter().map(|logit| scaled(*logit, 1.0)).fold(f32::NEG_INFINITY, f32::max)
}

/// Sums over tokens of their weights, and of these times their differences to the best.
#[derive(Default)]
struct Sums {
    weight: u64,
    surprise: u64,
}

impl Sums {
    fn add(&mut self, below: f32) {
        let weight = share(below);
        self.weight += weight;
        // Tokens without weight may be any distance away.
        self.surprise += if weight > 0 { weight * (-below * SURPRISE_STEPS) as u64 } else { 0 };
    }

    /// The mean difference to the best: the mean surprise is that and the best token's surprise.
    fn mean_surprise(&self) -> f32 {
        self.surprise as f32 / self.weight as f32 * (1.0 / SURPRISE_STEPS)
    }
}

/// `base` to the power of `exponent`, for a base from 0 to 1 and an exponent of at least 0.
fn power(base: f32, exponent: f32) -> f32 {
    if base < f32::MIN_POSITIVE {
        return if exponent == 0.0 { 1.0 } else { 0.0 };
    }
    weight((exponent * ln(base)).min(0.0)) as f32 * UNIT
}

/// The square root by Newton's method, 0 for what is not positive.
fn root(square: f32) -> f32 {
    if square < f32::MIN_POSITIVE {
        return 0.0;
    }
    let mut root = f32::from_bits((square.to_bits() >> 1) + 0x1fc0_0000);
    for _ in 0..4 {
        root = 0.5 * (root + square / root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certain_token_stays_certain() {
        let settings = Settings { span: 2.0, exponent: 1.0, ..Settings::default() };
        assert_eq!(scale_by_entropy(&settings, &[0.0, 60.0, -1.0]), inverse_temperature(1e-30));
        assert_eq!(scale_by_entropy(&settings, &[f32::NEG_INFINITY, 1.0]), inverse_temperature(1e-30));
    }

    #[test]
    fn roots_and_powers_agree_with_the_library() {
        for i in 1..100_000 {
            let x = i as f32 * i as f32 * 1.37e-3;
            assert!((root(x) - x.sqrt()).abs() <= 2e-7 * x.sqrt(), "√{x} is {}", root(x));
        }
        assert_eq!([0.0, -1.0, 1e-40].map(root), [0.0; 3]);
        for i in 0..1000 {
            let (base, exponent) = (i as f32 / 999.0, (i % 37) as f32 / 10.0);
            let exact = base.powf(exponent);
            assert!((power(base, exponent) - exact).abs() < 1e-6, "{base}^{exponent}");
        }
    }
}
