//! Samplers that llama.cpp's server and Ollama know beyond OpenAI's settings, under their names.

use akunu::{Model, Sampling};

use crate::fields::Fields;
use crate::refusal::Refusal;

/// DRY looks for each of its texts in each token.
const MAX_BREAKERS: usize = 16;
const MAX_BREAKER_BYTES: usize = 64;

/// What a request sets; `None`: off, or the default of the sampler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samplers {
    pub top_n_sigma: Option<f32>,
    pub typical_p: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dynatemp_range: Option<f32>,
    pub dynatemp_exponent: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    pub dry_allowed_length: Option<usize>,
    /// In tokens; `None`: the whole context.
    pub dry_last_n: Option<usize>,
    pub dry_breakers: Option<Vec<String>>,
    /// 0: off.
    pub mirostat_tau: f32,
    pub mirostat_eta: Option<f32>,
}

impl Samplers {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Samplers, Refusal> {
        let tau = fields.number("mirostat_tau", 0.01..=100.0)?.unwrap_or(Sampling::MIROSTAT_TAU);
        let mirostat_tau = match fields.whole("mirostat")? {
            None | Some(0) => 0.0,
            Some(2) => tau,
            Some(_) => return Err(fields.refuse("mirostat", "0 or 2: version 1 is not supported")),
        };
        let dry_last_n = match fields.whole("dry_penalty_last_n")? {
            Some(-1) => None,
            _ => fields.count("dry_penalty_last_n", 0..=usize::MAX)?,
        };
        Ok(Samplers {
            // Others write -1 for "off".
            top_n_sigma: fields.number("top_n_sigma", -1.0..=1000.0)?.map(|n| n.max(0.0)),
            typical_p: fields.number("typical_p", 0.0..=1.0)?,
            xtc_probability: fields.number("xtc_probability", 0.0..=1.0)?,
            xtc_threshold: fields.number("xtc_threshold", 0.0..=1.0)?,
            dynatemp_range: fields.number("dynatemp_range", 0.0..=100.0)?,
            dynatemp_exponent: fields.number("dynatemp_exponent", 0.0..=100.0)?,
            dry_multiplier: fields.number("dry_multiplier", 0.0..=100.0)?,
            dry_base: fields.number("dry_base", 1.0..=100.0)?,
            dry_allowed_length: fields.count("dry_allowed_length", 0..=usize::MAX)?,
            dry_last_n,
            dry_breakers: breakers(fields)?,
            mirostat_tau,
            mirostat_eta: fields.number("mirostat_eta", 0.0..=10.0)?,
        })
    }

    /// Takes what is not set from others.
    pub(crate) fn fill(&mut self, others: &Samplers) {
        fn fill<T: Clone>(own: &mut Option<T>, other: &Option<T>) {
            if own.is_none() {
                own.clone_from(other);
            }
        }
        fill(&mut self.top_n_sigma, &others.top_n_sigma);
        fill(&mut self.typical_p, &others.typical_p);
        fill(&mut self.xtc_probability, &others.xtc_probability);
        fill(&mut self.xtc_threshold, &others.xtc_threshold);
        fill(&mut self.dynatemp_range, &others.dynatemp_range);
        fill(&mut self.dynatemp_exponent, &others.dynatemp_exponent);
        fill(&mut self.dry_multiplier, &others.dry_multiplier);
        fill(&mut self.dry_base, &others.dry_base);
        fill(&mut self.dry_allowed_length, &others.dry_allowed_length);
        fill(&mut self.dry_last_n, &others.dry_last_n);
        fill(&mut self.dry_breakers, &others.dry_breakers);
        fill(&mut self.mirostat_eta, &others.mirostat_eta);
        if self.mirostat_tau == 0.0 {
            self.mirostat_tau = others.mirostat_tau;
        }
    }

    /// The settings on top of others.
    pub(crate) fn over(&self, sampling: Sampling, model: &Model) -> Sampling {
        let breakers = self.dry_breakers.as_ref().filter(|_| self.dry_multiplier.is_some_and(|by| by > 0.0));
        Sampling {
            top_n_sigma: self.top_n_sigma.unwrap_or(sampling.top_n_sigma),
            typical_p: self.typical_p.unwrap_or(sampling.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(sampling.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(sampling.xtc_threshold),
            dynatemp_range: self.dynatemp_range.unwrap_or(sampling.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.unwrap_or(sampling.dynatemp_exponent),
            dry_multiplier: self.dry_multiplier.unwrap_or(sampling.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(sampling.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(sampling.dry_allowed_length),
            dry_last_n: self.dry_last_n.unwrap_or(sampling.dry_last_n),
            dry_breakers: breakers.map(|texts| model.breakers(texts)),
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta.unwrap_or(sampling.mirostat_eta),
            ..sampling
        }
    }
}

fn breakers(fields: &Fields<'_>) -> Result<Option<Vec<String>>, Refusal> {
    const NAME: &str = "dry_sequence_breakers";
    if fields.get(NAME).is_none() {
        return Ok(None);
    }
    let texts = fields.texts(NAME)?;
    let fits = |text: &String| (1..=MAX_BREAKER_BYTES).contains(&text.len());
    if texts.len() > MAX_BREAKERS || !texts.iter().all(fits) {
        let expected = format!(
            "at most {MAX_BREAKERS} texts, none of them empty or longer than {MAX_BREAKER_BYTES} bytes"
        );
        return Err(fields.refuse(NAME, expected));
    }
    Ok(Some(texts))
}
