//! RoPE settings in `config.json`: `rope_theta` with `rope_scaling`, or transformers 5's `rope_parameters`, either flat
//! or one object per layer type.

use akunu_format::hf::{CONFIG, Json, wrong};
use akunu_format::{FormatError, printable};

use super::config::Fields;
use crate::facts::Fact;
use crate::{QueryScaling, Rope, RopeFactors, RopeScaling};

pub(super) fn rope(fields: &Fields<'_>, head_dim: usize, context: usize) -> Result<Rope, FormatError> {
    let text = &fields.text;
    // Sliding-window layers have a separate base even if the file does not state it.
    let two_bases = fields.kind.default(Fact::LocalRopeBase).is_some();
    let parameters = parameters(text)?;
    let nested = |kind: &str| parameters.as_ref().map_or(Ok(None), |all| all.object(kind));
    let (full, sliding) = (nested("full_attention")?, nested("sliding_attention")?);
    let is_nested = full.is_some() || sliding.is_some();
    let flat = if is_nested { full } else { parameters };

    let base = theta(flat.as_ref())?.or(fields.number(Fact::RopeBase)?).unwrap_or(ROPE_BASE);
    let base = base * raised(flat.as_ref(), head_dim)?;
    let default = fields.kind.rope_scaling;
    let scaling = flat.as_ref().map_or(Ok(default), |one| scaling(one, text, context))?;
    let local_base = match &sliding {
        Some(sliding) => local_base(sliding, fields, base, scaling, two_bases, context)?,
        None if two_bases => fields.number(Fact::LocalRopeBase)?,
        None => None,
    };
    let part_key = fields.key(Fact::PartialRotaryFactor);
    let stated = flat.as_ref().map_or(Ok(None), |one| one.f64("partial_rotary_factor"))?;
    let part_stated = stated.is_some();
    let part = match stated {
        None => fields.number(Fact::PartialRotaryFactor)?.unwrap_or(1.0),
        Some(part) => part,
    };
    if !(0.0..=1.0).contains(&part) {
        return Err(wrong(part_key, format!("{part} is not between 0 and 1")));
    }
    let factors = match (scaling, &flat) {
        (RopeScaling::LongRope { .. }, Some(one)) => Some(factors(one)?),
        _ => None,
    };
    let query_scaling = query_scaling(fields, flat.as_ref(), context)?;
    let dims = match fields.count(Fact::RopeDims)? {
        Some(stated) if !part_stated => stated,
        _ => (head_dim as f64 * part) as usize,
    };
    if dims == 0 && fields.card.rotary {
        let problem = format!("{part} of heads of {head_dim} are 0 dimensions, which cannot be rotated");
        return Err(wrong(part_key, problem));
    }
    Ok(Rope { dims, base, local_base, scaling, query_scaling, factors })
}

/// Stated among the settings of RoPE, or, with a step of their own, beside them.
fn query_scaling(
    fields: &Fields<'_>,
    parameters: Option<&Json<'_>>,
    context: usize,
) -> Result<Option<QueryScaling>, FormatError> {
    const SWITCH: &str = "attn_temperature_tuning";
    let text = &fields.text;
    let (rate, step) = match (fields.count(Fact::QueryScalingStep)?, parameters) {
        (Some(step), _) => {
            // Some files have a number here.
            let is_off = match text.get(SWITCH) {
                Some(serde_json::Value::Number(number)) => number.as_f64() == Some(0.0),
                _ => text.bool(SWITCH)? == Some(false),
            };
            (fields.number(Fact::QueryScaling)?.filter(|_| !is_off), step)
        }
        (None, Some(one)) => {
            (one.f64(fields.key(Fact::QueryScaling))?, original_context(one, text, context)?)
        }
        (None, None) => (None, 0),
    };
    Ok(rate.filter(|&rate| rate != 0.0).map(|rate| QueryScaling { rate, step }))
}

fn parameters<'a>(text: &Json<'a>) -> Result<Option<Json<'a>>, FormatError> {
    match text.object("rope_parameters")? {
        Some(parameters) => Ok(Some(parameters)),
        None => text.object("rope_scaling"),
    }
}

/// [`crate::LatentFacts::growth`]; 0 without YaRN.
pub(super) fn score_growth(text: &Json<'_>) -> Result<f64, FormatError> {
    let Some(parameters) = parameters(text)? else { return Ok(0.0) };
    let is_yarn = parameters.str(kind_key(&parameters))? == Some("yarn");
    Ok(if is_yarn { parameters.f64("mscale_all_dim")?.unwrap_or(0.0) } else { 0.0 })
}

/// RoPE base if neither the file nor the card states one.
const ROPE_BASE: f64 = 10_000.0;

fn theta(parameters: Option<&Json<'_>>) -> Result<Option<f64>, FormatError> {
    parameters.map_or(Ok(None), |one| one.f64("rope_theta"))
}

/// What the base is multiplied by where "dynamic" scaling has an `alpha`, which applies to contexts of any length.
fn raised(parameters: Option<&Json<'_>>, head_dim: usize) -> Result<f64, FormatError> {
    let Some(one) = parameters.filter(|one| one.str(kind_key(one)).is_ok_and(|kind| kind == Some("dynamic")))
    else {
        return Ok(1.0);
    };
    let alpha = one.f64("alpha")?.filter(|&alpha| alpha != 0.0);
    let dim = head_dim as f64;
    Ok(alpha.map_or(1.0, |alpha| alpha.powf(dim / (dim - 2.0))))
}

/// The RoPE base of sliding-window layers; `None` if it is the same as in the others.
fn local_base(
    sliding: &Json<'_>,
    fields: &Fields<'_>,
    base: f64,
    full_scaling: RopeScaling,
    two_bases: bool,
    context: usize,
) -> Result<Option<f64>, FormatError> {
    let text = &fields.text;
    let default =
        if two_bases { fields.number(Fact::LocalRopeBase)? } else { fields.stated(Fact::RopeBase)? };
    let local = theta(Some(sliding))?.or(default).unwrap_or(base);
    let local_scaling = scaling(sliding, text, context)?;
    match local_scaling {
        RopeScaling::None if full_scaling == RopeScaling::None && local == base && !two_bases => Ok(None),
        RopeScaling::None => Ok(Some(local)),
        same if same == full_scaling && local == base => Ok(None),
        _ => Err(sliding.unsupported("rope_type", "asks for separate scaling in sliding-window layers")),
    }
}

fn kind_key(one: &Json<'_>) -> &'static str {
    if one.get("rope_type").is_some() { "rope_type" } else { "type" }
}

fn scaling(one: &Json<'_>, text: &Json<'_>, context: usize) -> Result<RopeScaling, FormatError> {
    let key = kind_key(one);
    let factor = || one.f64("factor")?.ok_or_else(|| missing(one, "factor"));
    match one.str(key)?.unwrap_or("default") {
        // "dynamic" has no effect within the trained context length.
        "default" | "dynamic" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: one.f64("low_freq_factor")?.ok_or_else(|| missing(one, "low_freq_factor"))?,
            high_freq_factor: one.f64("high_freq_factor")?.ok_or_else(|| missing(one, "high_freq_factor"))?,
            original_context: original_context(one, text, context)?,
        }),
        "yarn" => yarn(one, text, context),
        // `su` is the old name in Phi 3.
        "longrope" | "su" => longrope(one, text, context),
        other => Err(one.unsupported(key, format!("is {}", printable(other)))),
    }
}

fn missing(one: &Json<'_>, key: &str) -> FormatError {
    FormatError::MissingKey { key: one.full(key), place: CONFIG }
}

fn original_context(one: &Json<'_>, text: &Json<'_>, context: usize) -> Result<usize, FormatError> {
    const KEY: &str = "original_max_position_embeddings";
    Ok(text.usize(KEY)?.or(one.usize(KEY)?).unwrap_or(context))
}

fn factors(one: &Json<'_>) -> Result<RopeFactors, FormatError> {
    let list = |key: &str| one.f64s(key)?.ok_or_else(|| missing(one, key));
    Ok(RopeFactors { short: list("short_factor")?, long: list("long_factor")? })
}

fn longrope(one: &Json<'_>, text: &Json<'_>, context: usize) -> Result<RopeScaling, FormatError> {
    let original_context = original_context(one, text, context)?;
    let factor = one.f64("factor")?.unwrap_or(context as f64 / original_context as f64);
    let grown = || (1.0 + factor.ln() / (original_context as f64).ln()).sqrt();
    let of_both = [one.f64("short_mscale")?, one.f64("long_mscale")?];
    if of_both[0] != of_both[1] {
        return Err(one.unsupported("long_mscale", "differs from `short_mscale`"));
    }
    let attention_factor = match one.f64("attention_factor")?.or(of_both[0]) {
        Some(stated) => stated,
        None if factor <= 1.0 => 1.0,
        None => grown(),
    };
    Ok(RopeScaling::LongRope { original_context, attention_factor })
}

fn yarn(one: &Json<'_>, text: &Json<'_>, context: usize) -> Result<RopeScaling, FormatError> {
    let original_context = original_context(one, text, context)?;
    let factor = one.f64("factor")?.unwrap_or(context as f64 / original_context as f64);
    // Zero means "not set", as in transformers.
    let set = |key: &str| one.f64(key).map(|value| value.filter(|&value| value != 0.0));
    let growth = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let attention_factor = match (one.f64("attention_factor")?, set("mscale")?, set("mscale_all_dim")?) {
        (Some(stated), _, _) => Some(stated),
        (None, Some(mscale), Some(all)) => Some(growth(mscale) / growth(all)),
        // The formula that `None` stands for would give less than 1 here.
        _ if factor < 1.0 => Some(1.0),
        _ => None,
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: set("beta_fast")?.unwrap_or(32.0),
        beta_slow: set("beta_slow")?.unwrap_or(1.0),
        attention_factor,
        exact_ramp: one.bool("truncate")? == Some(false),
    })
}
