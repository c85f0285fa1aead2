//! RoPE frequencies, computed once when a model is planned.

use akunu_arch::{RopeScaling, llama3_kept};

/// The contents of a RoPE table: pair i is rotated by `position · frequencies[i]`, and cos and sin are multiplied by
/// `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// `dims / 2` values in f32, as used by all devices.
    pub values: Vec<f32>,
    pub magnitude: f32,
}

/// `factors` divide the individual frequencies (GGUF's `rope_freqs` tensor, or those of [`Rope::factors`] for the
/// planned context).
///
/// [`Rope::factors`]: akunu_arch::Rope::factors
pub fn frequencies(dims: usize, base: f64, scaling: RopeScaling, factors: Option<&[f64]>) -> Frequencies {
    let mut values: Vec<f64> = (0..dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims as f64)).collect();
    let mut magnitude = 1.0;
    match scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => values.iter_mut().for_each(|f| *f /= factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            for f in &mut values {
                // Number of turns over the original context: few turns mean a long wavelength.
                let turns = original_context as f64 * *f / std::f64::consts::TAU;
                let keep = llama3_kept(turns, [low_freq_factor, high_freq_factor]);
                *f = keep * *f + (1.0 - keep) * *f / factor;
            }
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            exact_ramp,
        } => {
            let (mut low, mut high) = yarn_ramp(dims, base, original_context, beta_fast, beta_slow);
            if !exact_ramp {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
            for (i, f) in values.iter_mut().enumerate() {
                let stretch = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                *f = (1.0 - stretch) * *f + stretch * *f / factor;
            }
            magnitude = attention_factor.unwrap_or(if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 });
        }
        RopeScaling::LongRope { attention_factor, .. } => magnitude = attention_factor,
    }
    if let Some(factors) = factors {
        values.iter_mut().zip(factors).for_each(|(f, &factor)| *f /= factor);
    }
    Frequencies { values: values.into_iter().map(|f| f as f32).collect(), magnitude: magnitude as f32 }
}

/// The range of pairs in which YaRN blends between the original and the scaled frequency: from `beta_fast` to
/// `beta_slow` turns over the original context.
fn yarn_ramp(dims: usize, base: f64, context: usize, beta_fast: f64, beta_slow: f64) -> (f64, f64) {
    let pair_of = |turns: f64| {
        dims as f64 * (context as f64 / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
    };
    (pair_of(beta_fast), pair_of(beta_slow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_frequencies_fall_from_one_by_the_base() {
        let f = frequencies(4, 10_000.0, RopeScaling::None, None);
        assert_eq!(f.values, [1.0, 0.01]);
        assert_eq!(f.magnitude, 1.0);
    }

    #[test]
    fn linear_scaling_divides_and_factors_divide_further() {
        let f = frequencies(4, 10_000.0, RopeScaling::Linear { factor: 4.0 }, Some(&[1.0, 2.0]));
        assert_eq!(f.values, [0.25, 0.00125]);
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let plain = frequencies(128, 500_000.0, RopeScaling::None, None).values;
        let scaled = frequencies(128, 500_000.0, scaling, None).values;
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn yarn_keeps_fast_pairs_stretches_slow_ones_and_raises_the_magnitude() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            exact_ramp: false,
        };
        let plain = frequencies(128, 1e6, RopeScaling::None, None).values;
        let scaled = frequencies(128, 1e6, scaling, None);
        assert_eq!(scaled.values[0], plain[0]);
        assert_eq!(scaled.values[63], plain[63] / 4.0);
        assert!((scaled.magnitude - 1.138_629_4).abs() < 1e-6);
    }
}
