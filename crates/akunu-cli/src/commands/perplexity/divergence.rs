//! Statistics of how far a model's predictions are from those of a base model.

use serde::Serialize;

/// A number and its standard error, which is not defined for a single token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub uncertainty: Option<f64>,
}

impl Estimate {
    /// The mean of independent samples.
    fn mean(samples: &[f64]) -> Estimate {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let uncertainty = (samples.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Estimate { value: mean, uncertainty }
    }

    /// A function of an estimate: `slope` is its derivative at the value.
    fn map(self, value: f64, slope: f64) -> Estimate {
        Estimate { value, uncertainty: self.uncertainty.map(|u| u * slope.abs()).filter(|u| u.is_finite()) }
    }

    fn exp(self) -> Estimate {
        self.map(self.value.exp(), self.value.exp())
    }

    fn sqrt(self) -> Estimate {
        self.map(self.value.sqrt(), 0.5 / self.value.sqrt())
    }

    fn times(self, factor: f64) -> Estimate {
        self.map(self.value * factor, factor)
    }

    /// `1.234567 ± 0.012345`.
    pub fn show(self, digits: usize) -> String {
        match self.uncertainty {
            Some(uncertainty) => format!("{:.digits$} ± {uncertainty:.digits$}", self.value),
            None => format!("{:.digits$}", self.value),
        }
    }
}

/// What is known of each scored token.
#[derive(Debug, Default)]
pub struct Samples {
    divergences: Vec<f64>,
    same_top: Vec<f64>,
    /// ln p of the text's token.
    base: Vec<f64>,
    model: Vec<f64>,
}

/// The output of `perplexity --kl --json`. Divergences are in nats, Δp and shares in percent.
#[derive(Debug, Serialize)]
pub struct DivergenceReport {
    pub tokens: usize,
    pub perplexity: Estimate,
    pub base_perplexity: Estimate,
    /// The model's perplexity over the base's.
    pub perplexity_ratio: Estimate,
    /// Kullback–Leibler divergence of the model from the base.
    pub kl_mean: Estimate,
    pub kl_median: f64,
    pub kl_99: f64,
    pub kl_max: f64,
    /// Share of tokens for which both have the same most likely token.
    pub same_top: Estimate,
    /// Δp: the probability of the text's token in the model, minus that in the base.
    pub delta_p_mean: Estimate,
    pub delta_p_rms: Estimate,
}

impl Samples {
    pub fn add(&mut self, divergence: f64, same_top: bool, base_log_p: f64, log_p: f64) {
        self.divergences.push(divergence);
        self.same_top.push(f64::from(u8::from(same_top)));
        self.base.push(base_log_p);
        self.model.push(log_p);
    }

    pub fn report(mut self) -> DivergenceReport {
        let pairs = || self.model.iter().zip(&self.base);
        let delta: Vec<f64> = pairs().map(|(model, base)| 100.0 * (model.exp() - base.exp())).collect();
        let squares: Vec<f64> = delta.iter().map(|delta| delta * delta).collect();
        let ln_ratio: Vec<f64> = pairs().map(|(model, base)| base - model).collect();
        let nll = |log_p: &[f64]| log_p.iter().map(|log_p| -log_p).collect::<Vec<f64>>();
        let kl_mean = Estimate::mean(&self.divergences);
        self.divergences.sort_by(f64::total_cmp);
        DivergenceReport {
            tokens: self.model.len(),
            perplexity: Estimate::mean(&nll(&self.model)).exp(),
            base_perplexity: Estimate::mean(&nll(&self.base)).exp(),
            perplexity_ratio: Estimate::mean(&ln_ratio).exp(),
            kl_mean,
            kl_median: quantile(&self.divergences, 0.5),
            kl_99: quantile(&self.divergences, 0.99),
            kl_max: quantile(&self.divergences, 1.0),
            same_top: Estimate::mean(&self.same_top).times(100.0),
            delta_p_mean: Estimate::mean(&delta),
            delta_p_rms: Estimate::mean(&squares).sqrt(),
        }
    }
}

impl DivergenceReport {
    /// Names and values for a listing.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("tokens", self.tokens.to_string()),
            ("perplexity", self.perplexity.show(4)),
            ("base's perplexity", self.base_perplexity.show(4)),
            ("ratio", self.perplexity_ratio.show(6)),
            ("mean KL divergence", self.kl_mean.show(6)),
            ("median", format!("{:.6}", self.kl_median)),
            ("99%", format!("{:.6}", self.kl_99)),
            ("maximum", format!("{:.6}", self.kl_max)),
            ("same top token", format!("{} %", self.same_top.show(3))),
            ("mean Δp", format!("{} %", self.delta_p_mean.show(3))),
            ("RMS Δp", format!("{} %", self.delta_p_rms.show(3))),
        ]
    }
}

/// Of sorted numbers, with linear interpolation between neighbours.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * sorted.len().saturating_sub(1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(low), sorted.get(high)) {
        (Some(a), Some(_)) if low == high => *a,
        (Some(a), Some(b)) => a + (b - a) * (place - low as f64),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_standard_errors_and_functions_of_them_propagated_ones() {
        let mean = Estimate::mean(&[1.0, 2.0, 3.0, 6.0]);
        // The sum of squared distances is 14: 14 / 3 / 4.
        assert_eq!(mean, Estimate { value: 3.0, uncertainty: Some((14.0f64 / 12.0).sqrt()) });
        assert_eq!(Estimate::mean(&[5.0]), Estimate { value: 5.0, uncertainty: None });
        assert_eq!(mean.exp().uncertainty, Some((14.0f64 / 12.0).sqrt() * 3f64.exp()));
        let zero = Estimate::mean(&[0.0, 0.0]);
        assert_eq!(zero.sqrt(), Estimate { value: 0.0, uncertainty: None }, "no slope at 0");
    }

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.0, 0.5, 0.75, 1.0].map(|part| quantile(&sorted, part)), [1.0, 3.0, 5.0, 8.0]);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(quantile(&[1.0, f64::INFINITY], 1.0), f64::INFINITY);
    }

    #[test]
    fn a_report_compares_probabilities_of_the_text() {
        let mut samples = Samples::default();
        samples.add(0.5, true, 0.5f64.ln(), 0.25f64.ln());
        samples.add(0.1, false, 0.5f64.ln(), 0.5f64.ln());
        let report = samples.report();
        assert_eq!((report.tokens, report.kl_mean.value, report.kl_max), (2, 0.3, 0.5));
        assert!((report.perplexity_ratio.value - 2f64.sqrt()).abs() < 1e-12);
        assert!((report.base_perplexity.value - 2.0).abs() < 1e-12);
        assert_eq!(report.same_top, Estimate { value: 50.0, uncertainty: Some(50.0) });
        assert!((report.delta_p_mean.value + 12.5).abs() < 1e-12);
        assert!((report.delta_p_rms.value - (625.0f64 / 2.0).sqrt()).abs() < 1e-12);
    }
}
