//! Mirostat 2: a limit of the tokens' surprise that is adjusted so that the mean surprise of the text comes near a target.

use crate::random::ln;

/// The weight of the most probable token is 2³¹.
const UNIT: f32 = 1.0 / 2_147_483_648.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Mirostat {
    tau: f32,
    eta: f32,
    /// The position that was sampled last, and the limit before and after it, in bits.
    position: usize,
    before: f32,
    after: f32,
}

impl Mirostat {
    pub(super) fn new(tau: f32, eta: f32) -> Mirostat {
        let first = 2.0 * tau;
        Mirostat { tau, eta, position: usize::MAX, before: first, after: first }
    }

    /// The least difference to the best token that the limit keeps, where `total` is the sum of all weights. The same position
    /// again has the same limit again.
    pub(super) fn least_below(&mut self, position: usize, total: u64) -> f32 {
        if position != self.position {
            (self.position, self.before) = (position, self.after);
        }
        (ln(total as f32 * UNIT) - self.before * std::f32::consts::LN_2).min(0.0)
    }

    /// Adjusts the limit by the surprise of the token that was sampled, `below` the best, among those that are kept.
    pub(super) fn observe(&mut self, below: f32, total_kept: u64) {
        let surprise = (ln(total_kept as f32 * UNIT) - below) * std::f32::consts::LOG2_E;
        self.after = self.before - self.eta * (surprise - self.tau);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Sampler, Sampling};

    /// Against the definition in f64: what is kept, and that the mean surprise is the target.
    #[test]
    fn the_mean_surprise_comes_near_the_target() {
        let logits: Vec<f32> = (1..2000).map(|rank| -1.1 * (rank as f32).ln()).collect();
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let probabilities: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp() / total).collect();
        for tau in [1.0, 3.0, 5.0] {
            let sampling = Sampling { temperature: 1.0, mirostat_tau: tau, seed: 3, ..Sampling::default() };
            let mut sampler = Sampler::new(&sampling, logits.len()).unwrap_or_else(|error| panic!("{error}"));
            let (mut sum, count) = (0.0, 3000);
            let history = vec![0; count];
            for position in 0..count {
                let [first, again] = [(), ()].map(|()| {
                    sampler.pick(&logits, &history[..position]).unwrap_or_else(|error| panic!("{error}"))
                });
                assert_eq!(first, again);
                let limit = sampler.mirostat.map_or(0.0, |mirostat| f64::from(mirostat.before));
                let surprise = |p: f64| -p.log2();
                let p = probabilities[first as usize];
                assert!(first == 0 || surprise(p) <= limit + 1e-4, "{p} beyond {limit} bits");
                let kept = probabilities.iter().filter(|p| surprise(**p) <= limit).sum::<f64>();
                sum += surprise(p / kept.max(probabilities[0]));
            }
            let mean = sum / count as f64;
            assert!((mean - f64::from(tau)).abs() < 0.1, "{mean} bits for {tau}");
        }
    }
}
