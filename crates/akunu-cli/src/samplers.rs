//! Options of the samplers that llama.cpp has beyond the usual ones, under the names that they have there.

use akunu::{Model, Sampling};
use clap::Args;

use crate::args;

/// Stands for no texts in `--dry-sequence-breaker`.
const NO_BREAKERS: &str = "none";

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "More samplers (all off by default)")]
pub struct SamplerArgs {
    /// Top-n-sigma: only tokens whose logit is at most N standard deviations below the highest; 0: all
    #[arg(long, alias = "top-nsigma", value_name = "N", value_parser = top_n_sigma, allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,
    /// Typical-p: only the tokens nearest to the mean surprise, with this total probability; 1: all
    #[arg(long, alias = "typical", value_name = "P", allow_negative_numbers = true)]
    pub typical_p: Option<f32>,
    /// XTC: how often the most likely tokens are excluded, from 0 to 1
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub xtc_probability: Option<f32>,
    /// XTC: tokens with at least this probability are excluded, except the least likely of them [default: 0.1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub xtc_threshold: Option<f32>,
    /// Dynamic temperature: from --temp minus X to --temp plus X, higher where the model is less certain
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub dynatemp_range: Option<f32>,
    /// Dynamic temperature: the power of the relative entropy by which it rises [default: 1]
    #[arg(long, alias = "dynatemp-exponent", value_name = "X", allow_negative_numbers = true)]
    pub dynatemp_exp: Option<f32>,
    /// DRY: what is subtracted from the logit of a token that would continue a repetition; 0: off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub dry_multiplier: Option<f32>,
    /// DRY: multiplies that for each token by which the repetition is longer [default: 1.75]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub dry_base: Option<f32>,
    /// DRY: the shortest repetition that counts, in tokens [default: 2]
    #[arg(long, value_name = "N", value_parser = args::count_or_zero, allow_negative_numbers = true)]
    pub dry_allowed_length: Option<usize>,
    /// DRY: how many recent tokens are searched for repetitions; -1: all [default: -1]
    #[arg(long, value_name = "N", value_parser = last_n, allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<usize>,
    /// DRY: repetitions end at tokens with this text, in which \n is a line break; may be repeated; none: at no text
    /// [default: \n, :, " and *]
    #[arg(long, value_name = "TEXT", value_parser = breaker)]
    pub dry_sequence_breaker: Vec<String>,
    /// Mirostat: 2 adjusts a limit so that the mean surprise comes near --mirostat-ent; 0: off
    #[arg(long, value_name = "VERSION", value_parser = mirostat, allow_negative_numbers = true)]
    pub mirostat: Option<bool>,
    /// Mirostat: the mean surprise of a token, in bits (tau) [default: 5]
    #[arg(long, alias = "mirostat-tau", value_name = "BITS", value_parser = bits, allow_negative_numbers = true)]
    pub mirostat_ent: Option<f32>,
    /// Mirostat: how fast the limit is adjusted (eta) [default: 0.1]
    #[arg(long, alias = "mirostat-eta", value_name = "X", allow_negative_numbers = true)]
    pub mirostat_lr: Option<f32>,
}

impl SamplerArgs {
    /// The settings on top of others, but for the breakers.
    pub fn over(&self, sampling: Sampling) -> Sampling {
        let tau = self.mirostat_ent.unwrap_or(Sampling::MIROSTAT_TAU);
        Sampling {
            top_n_sigma: self.top_n_sigma.unwrap_or(sampling.top_n_sigma),
            typical_p: self.typical_p.unwrap_or(sampling.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(sampling.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(sampling.xtc_threshold),
            dynatemp_range: self.dynatemp_range.unwrap_or(sampling.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exp.unwrap_or(sampling.dynatemp_exponent),
            dry_multiplier: self.dry_multiplier.unwrap_or(sampling.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(sampling.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(sampling.dry_allowed_length),
            dry_last_n: self.dry_penalty_last_n.unwrap_or(sampling.dry_last_n),
            mirostat_tau: if self.mirostat == Some(true) { tau } else { 0.0 },
            mirostat_eta: self.mirostat_lr.unwrap_or(sampling.mirostat_eta),
            ..sampling
        }
    }

    /// As [`SamplerArgs::over`], with the model's tokens that contain the texts of breakers.
    pub fn over_for(&self, sampling: Sampling, model: &Model) -> Sampling {
        let sampling = self.over(sampling);
        let is_needed = sampling.dry_multiplier > 0.0 && !self.dry_sequence_breaker.is_empty();
        Sampling { dry_breakers: is_needed.then(|| model.breakers(&self.breakers())), ..sampling }
    }

    /// The texts of breakers.
    pub fn breakers(&self) -> Vec<&str> {
        match &self.dry_sequence_breaker[..] {
            [] => Sampling::BREAKERS.to_vec(),
            given => given.iter().map(String::as_str).filter(|text| *text != NO_BREAKERS).collect(),
        }
    }
}

fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "invalid float literal".to_string())
}

/// llama.cpp writes -1 for "off".
fn top_n_sigma(text: &str) -> Result<f32, String> {
    number(text).map(|n| if n == -1.0 { 0.0 } else { n })
}

fn last_n(text: &str) -> Result<usize, String> {
    if text == "-1" { Ok(usize::MAX) } else { args::count_or_zero(text) }
}

fn mirostat(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "2" => Ok(true),
        _ => Err("it must be 0 or 2: version 1 is not supported".to_string()),
    }
}

fn bits(text: &str) -> Result<f32, String> {
    match number(text)? {
        bits if bits > 0.0 && bits.is_finite() => Ok(bits),
        _ => Err("it must be a positive number".to_string()),
    }
}

/// Shells make it hard to write a line break.
fn breaker(text: &str) -> Result<String, String> {
    let text = text.replace("\\n", "\n").replace("\\t", "\t");
    if text.is_empty() { Err("it must not be empty".to_string()) } else { Ok(text) }
}
