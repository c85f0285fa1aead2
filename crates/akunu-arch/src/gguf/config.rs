//! GGUF metadata → [`ModelConfig`].

use akunu_format::{Array, FormatError, Metadata, TensorInfo, Value, printable};

use super::embedding::embedding_facts;
use crate::facts::{Fact, SIGMOID, SOFTMAX};
use crate::{
    ACTIVATIONS, Activation, Card, EncoderFacts, ExpertFacts, GroupRank, LatentFacts, MambaFacts,
    ModelConfig, QueryScaling, Rope, RopeFactors, RopeScaling, Router, Scores, Source, SuggestedSampling,
    Window, WindowPattern,
};

const PLACE: &str = "GGUF metadata";
const ARCHITECTURE: &str = "general.architecture";

/// RoPE base if neither the file nor the card states one.
const ROPE_BASE: f64 = 10_000.0;

/// Keys of models that transcribe, which this engine alone writes.
pub(crate) const ALIGNMENT_HEADS: &str = "alignment_heads";
pub(crate) const MULTILINGUAL: &str = "multilingual";

/// Reads keys prefixed with the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    architecture: &'a str,
    pub(super) card: &'static Card,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The key that states a fact; if none is present, the first candidate.
    pub(super) fn of(&self, fact: Fact) -> &'static str {
        let keys = self.card.rule(fact).map_or(&[][..], |rule| rule.gguf);
        let stated = keys.iter().find(|key| self.metadata.get(&self.name(key)).is_some());
        stated.or(keys.first()).copied().unwrap_or_default()
    }

    /// Default of a fact that the file does not state.
    fn default(&self, fact: Fact) -> Result<Option<f64>, FormatError> {
        let of_chunks = self.card.chunked && matches!(fact, Fact::UnrotatedEvery | Fact::QueryScaling);
        // A file without chunks is one of a model with RoPE in all layers.
        if of_chunks && self.usize(self.of(Fact::WindowSize))? == Some(0) {
            return Ok(None);
        }
        Ok(self.card.gguf_default(fact))
    }

    fn count(&self, fact: Fact) -> Result<Option<usize>, FormatError> {
        let default = self.default(fact)?.map(|value| value as usize);
        Ok(self.usize(self.of(fact))?.or(default))
    }

    fn number(&self, fact: Fact) -> Result<Option<f64>, FormatError> {
        let stated = self.f64(self.of(fact))?.map(|number| match self.card.rule(fact) {
            Some(rule) if number != 0.0 => rule.gguf_form.fact(number),
            _ => number,
        });
        Ok(stated.or(self.default(fact)?))
    }

    pub(super) fn usize(&self, key: &str) -> Result<Option<usize>, FormatError> {
        // The format specifies its own keys as u32, which fits into usize everywhere.
        Ok(self.metadata.u32(&self.name(key))?.map(|v| v as usize))
    }

    fn required(&self, fact: Fact) -> Result<usize, FormatError> {
        self.count(fact)?.ok_or_else(|| self.missing(fact))
    }

    fn missing(&self, fact: Fact) -> FormatError {
        FormatError::MissingKey { key: self.name(self.of(fact)), place: PLACE }
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        self.metadata.f32(&self.name(key))
    }

    fn f64(&self, key: &str) -> Result<Option<f64>, FormatError> {
        Ok(self.f32(key)?.map(f64::from))
    }

    /// A positive number; zero and absence mean that the feature is off.
    fn nonzero(&self, key: &str) -> Result<Option<f32>, FormatError> {
        Ok(self.f32(key)?.filter(|&v| v != 0.0))
    }

    /// The same for a fact.
    fn nonzero_fact(&self, fact: Fact) -> Result<Option<f32>, FormatError> {
        Ok(self.number(fact)?.filter(|&v| v != 0.0).map(|v| v as f32))
    }

    /// A multiplier; 1, zero and absence mean none.
    fn scale(&self, fact: Fact) -> Result<Option<f32>, FormatError> {
        Ok(self.nonzero_fact(fact)?.filter(|&scale| scale != 1.0))
    }

    /// A boolean fact.
    fn flag(&self, fact: Fact) -> Result<bool, FormatError> {
        let default = self.card.gguf_default(fact).is_some_and(|number| number != 0.0);
        match self.of(fact) {
            "" => Ok(default),
            key => Ok(self.metadata.bool(&self.name(key))?.unwrap_or(default)),
        }
    }

    /// Whether a rule of the card reads the key.
    fn reads(&self, key: &str) -> bool {
        self.card.facts.iter().flat_map(|list| list.iter()).any(|rule| rule.gguf.contains(&key))
    }

    /// A number, or an array with the same number for every layer.
    fn per_layer(&self, fact: Fact, layers: usize) -> Result<Option<usize>, FormatError> {
        let name = self.name(self.of(fact));
        if !matches!(self.metadata.get(&name), Some(Value::Array(_))) {
            return self.count(fact);
        }
        let values = self.metadata.i32s(&name)?.unwrap_or_default();
        if values.len() < layers {
            let problem = format!("it has {} entries for {layers} layers", values.len());
            return Err(FormatError::key(&name, problem));
        }
        let values = &values[..layers];
        let Some(&first) = values.first() else { return Ok(None) };
        if values.iter().any(|&v| v != first) {
            return Err(FormatError::unsupported(&name, "differs from layer to layer"));
        }
        usize::try_from(first)
            .map(Some)
            .map_err(|_| FormatError::key(&name, format!("{first} is out of range")))
    }

    pub(super) fn unsupported(&self, key: &str, asks: impl Into<String>) -> FormatError {
        FormatError::unsupported(&self.name(key), asks)
    }
}

/// `factors`: LongRoPE factors, which GGUF files store as tensors.
pub(crate) fn model_config(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    factors: Option<RopeFactors>,
) -> Result<ModelConfig, FormatError> {
    let architecture = metadata
        .str(ARCHITECTURE)?
        .ok_or_else(|| FormatError::MissingKey { key: ARCHITECTURE.to_string(), place: PLACE })?;
    let known = Card::find(architecture);
    let keys = Keys { metadata, architecture, card: known.unwrap_or(&Card::PLAIN) };
    refuse_unsupported(&keys)?;
    match read(&keys, tensors, factors) {
        // Unknown architecture: the key may be missing because the model has no such property.
        Err(FormatError::MissingKey { key, .. }) if known.is_none() => {
            let asks = format!("is {} (without `{key}`)", printable(architecture));
            Err(FormatError::unsupported(ARCHITECTURE, asks))
        }
        other => other,
    }
}

/// Rejects keys that change the computation in a way that is not supported.
fn refuse_unsupported(keys: &Keys<'_>) -> Result<(), FormatError> {
    let reads_experts = keys.card.rule(Fact::ExpertCount).is_some();
    if let Some(count) = keys.usize("expert_count")?.filter(|&count| count > 0 && !reads_experts) {
        return Err(keys.unsupported("expert_count", format!("asks for a mixture of {count} experts")));
    }
    for scale in ["logit_scale", "residual_scale", "embedding_scale"] {
        if keys.reads(scale) {
            continue;
        }
        if let Some(value) = keys.nonzero(scale)?.filter(|&value| value != 1.0) {
            return Err(keys.unsupported(scale, format!("is {value}")));
        }
    }
    let reads_states = keys.card.rule(Fact::StateSize).is_some();
    if keys.usize("ssm.state_size")?.is_some_and(|size| size > 0 && !reads_states) {
        return Err(keys.unsupported("ssm.state_size", "asks for Mamba layers"));
    }
    let sections = keys.name("rope.dimension_sections");
    if keys.metadata.get(&sections).is_some() {
        return Err(FormatError::unsupported(&sections, "asks for positions in several dimensions"));
    }
    Ok(())
}

fn read(
    keys: &Keys<'_>,
    tensors: &[TensorInfo],
    factors: Option<RopeFactors>,
) -> Result<ModelConfig, FormatError> {
    let layer_count = layer_count(keys)?;
    let hidden_size = keys.required(Fact::HiddenSize)?;
    crate::config::check_layer_count(layer_count, PLACE, tensors)?;
    let head_count =
        keys.per_layer(Fact::HeadCount, layer_count)?.ok_or_else(|| keys.missing(Fact::HeadCount))?;
    let (kv_head_count, recurrent) = kv_heads(keys, layer_count)?;
    let kv_head_count = kv_head_count.unwrap_or(head_count);
    let latent = latent(keys)?;
    let head_dim = match latent {
        Some(latent) => latent.size.saturating_add(keys.required(Fact::RopeDims)?),
        None => head_dim(keys, hidden_size, head_count)?,
    };
    let context_length = keys.required(Fact::ContextLength)?;
    let ffn_size = keys.per_layer(Fact::FfnSize, layer_count)?.ok_or_else(|| keys.missing(Fact::FfnSize))?;
    let experts = experts(keys, ffn_size)?;
    let mut config = ModelConfig {
        architecture: keys.architecture.to_string(),
        source: Source::Gguf,
        name: keys.metadata.str("general.name")?.map(str::to_string),
        vocab_size: crate::config::vocab_size(tensors)?,
        context_length,
        hidden_size,
        layer_count,
        ffn_size,
        head_count,
        kv_head_count: if latent.is_some() { 1 } else { kv_head_count },
        head_dim,
        norm_epsilon: keys.number(Fact::NormEpsilon)?.ok_or_else(|| keys.missing(Fact::NormEpsilon))? as f32,
        rope: rope(keys, head_dim, context_length, factors)?,
        window: window(keys, layer_count)?,
        unrotated: unrotated(keys, layer_count)?,
        normed_heads: normed_heads(keys, experts.map_or(0, |experts| experts.count))?,
        embedding_scale: keys.scale(Fact::EmbeddingScale)?,
        residual_scale: keys.scale(Fact::ResidualScale)?,
        logit_scale: keys.scale(Fact::LogitScale)?,
        parallel: keys.flag(Fact::Parallel)?,
        attention_scale: attention_scale(keys, hidden_size, head_count, layer_count)?,
        attention_soft_cap: keys.nonzero_fact(Fact::AttentionSoftCap)?,
        logit_soft_cap: keys.nonzero_fact(Fact::LogitSoftCap)?,
        activation: activation(keys)?,
        bidirectional: bidirectional(keys)?,
        embedding: embedding_facts(keys, tensors)?,
        experts,
        latent,
        encoder: encoder(keys)?,
        mamba: if recurrent.is_empty() { None } else { Some(mamba(keys)?) },
        recurrent,
        alignment_heads: alignment_heads(keys)?,
        left_out: None,
        packed_as: None,
        fp8_activations: false,
        sampling: sampling(keys.metadata)?,
        eos_ids: eos_ids(keys.metadata)?,
        bos_id: keys.metadata.u32("tokenizer.ggml.bos_token_id")?,
    };
    config.forget_other_heads();
    config.check(PLACE, tensors)?;
    Ok(config)
}

/// The number of heads of keys and values, and which layers have a state instead: those that have 0, in families that have such
/// layers. The list is empty if no layer has one.
fn kv_heads(keys: &Keys<'_>, layers: usize) -> Result<(Option<usize>, Vec<bool>), FormatError> {
    let name = keys.name(keys.of(Fact::KvHeadCount));
    let is_list = matches!(keys.metadata.get(&name), Some(Value::Array(_)));
    if !is_list || keys.card.rule(Fact::StateSize).is_none() {
        return Ok((keys.per_layer(Fact::KvHeadCount, layers)?, Vec::new()));
    }
    let counts = keys.metadata.i32s(&name)?.unwrap_or_default();
    if counts.len() != layers {
        let problem = format!("it has {} entries for {layers} layers", counts.len());
        return Err(FormatError::key(&name, problem));
    }
    let mut others = counts.iter().filter(|count| **count != 0);
    let count = others.next().copied();
    if others.any(|other| Some(*other) != count) {
        return Err(FormatError::unsupported(&name, "differs from layer to layer"));
    }
    let count = count.map(usize::try_from).transpose();
    let count = count.map_err(|_| FormatError::key(&name, "a negative number is out of range"))?;
    let recurrent: Vec<bool> = counts.iter().map(|count| *count == 0).collect();
    Ok((count, if recurrent.contains(&true) { recurrent } else { Vec::new() }))
}

fn mamba(keys: &Keys<'_>) -> Result<MambaFacts, FormatError> {
    let (heads, inner) = (keys.required(Fact::StateHeads)?, keys.required(Fact::StateInner)?);
    if heads == 0 || !inner.is_multiple_of(heads) {
        let problem = format!("{inner} elements of {heads} heads");
        return Err(FormatError::key(&keys.name(keys.of(Fact::StateInner)), problem));
    }
    Ok(MambaFacts {
        taps: keys.required(Fact::StateTaps)?,
        state_size: keys.required(Fact::StateSize)?,
        groups: keys.required(Fact::StateGroups)?,
        heads,
        head_dim: inner / heads,
    })
}

/// Without those that predict further tokens.
fn layer_count(keys: &Keys<'_>) -> Result<usize, FormatError> {
    let (all, further) = (keys.required(Fact::LayerCount)?, further_layers(keys.metadata)?);
    all.checked_sub(further).ok_or_else(|| {
        let problem = format!("{further} of {all} layers");
        FormatError::key(&keys.name(keys.of(Fact::FurtherLayers)), problem)
    })
}

/// Older files have the sizes of keys and values under the keys that are those of the cache now.
fn latent(keys: &Keys<'_>) -> Result<Option<LatentFacts>, FormatError> {
    if keys.card.rule(Fact::LatentSize).is_none() {
        return Ok(None);
    }
    let size = |now: Fact, before: Fact| match keys.count(now)? {
        Some(size) => Ok::<_, FormatError>(size),
        None => keys.required(before),
    };
    let (key, rope) = (size(Fact::KeySize, Fact::HeadDim)?, keys.required(Fact::RopeDims)?);
    let plain = key.checked_sub(rope).ok_or_else(|| {
        let problem = format!("{rope} of {key} elements of keys");
        FormatError::key(&keys.name(keys.of(Fact::RopeDims)), problem)
    })?;
    Ok(Some(LatentFacts {
        size: keys.required(Fact::LatentSize)?,
        plain,
        values: size(Fact::ValueSize, Fact::ValueHeadDim)?,
        query_rank: keys.count(Fact::QueryRank)?.filter(|&rank| rank > 0),
        growth: keys.number(Fact::YarnLogMultiplier)?.unwrap_or(0.0),
    }))
}

fn experts(keys: &Keys<'_>, ffn_size: usize) -> Result<Option<ExpertFacts>, FormatError> {
    let Some(count) = keys.count(Fact::ExpertCount)?.filter(|&count| count > 0) else { return Ok(None) };
    if keys.count(Fact::ExpertsEvery)? == Some(0) {
        let name = keys.name(keys.of(Fact::ExpertsEvery));
        return Err(FormatError::key(&name, "0 is not a valid interval of layers"));
    }
    let ffn_size = keys.count(Fact::ExpertFfnSize)?.unwrap_or(ffn_size);
    let (shared, shared_size) = (keys.count(Fact::SharedExperts)?, keys.count(Fact::SharedFfnSize)?);
    // 0 groups are no groups.
    let groups = |fact| Ok::<_, FormatError>(keys.count(fact)?.filter(|&groups| groups > 0).unwrap_or(1));
    Ok(Some(ExpertFacts {
        count,
        used: keys.required(Fact::ExpertsUsed)?,
        ffn_size,
        shared_ffn_size: ExpertFacts::shared_size(shared_size, shared, ffn_size),
        normalised: keys.flag(Fact::NormalisedShares)?,
        scale: keys.scale(Fact::ShareScale)?.unwrap_or(1.0),
        groups: [groups(Fact::ExpertGroups)?, groups(Fact::ExpertGroupsUsed)?],
        router: router(keys)?,
    }))
}

fn router(keys: &Keys<'_>) -> Result<Router, FormatError> {
    let own = keys.card.router;
    let scores = match keys.count(Fact::Scores)? {
        None | Some(0) => own.scores,
        Some(SOFTMAX) => Scores::Softmax,
        Some(SIGMOID) => Scores::Sigmoid,
        Some(other) => return Err(keys.unsupported(keys.of(Fact::Scores), format!("is {other}"))),
    };
    let tolerance = keys.number(Fact::RouterJitter)?.map_or(own.tolerance, |jitter| 2.0 * jitter as f32);
    // Files do not say how groups are ranked; models with other scores than their family's rank them as others do.
    let rank = match scores {
        Scores::Sigmoid => GroupRank::TwoBest,
        Scores::Softmax | Scores::SparseMixer => GroupRank::Best,
    };
    Ok(Router { scores, tolerance, rank: if scores == own.scores { own.rank } else { rank }, ..own })
}

/// The number of layers after the last one, which predict further tokens.
pub(crate) fn further_layers(metadata: &Metadata) -> Result<usize, FormatError> {
    let Some(architecture) = metadata.str(ARCHITECTURE)? else { return Ok(0) };
    let Some(card) = Card::find(architecture) else { return Ok(0) };
    let keys = Keys { metadata, architecture, card };
    Ok(if card.rule(Fact::FurtherLayers).is_some() {
        keys.count(Fact::FurtherLayers)?.unwrap_or(0)
    } else {
        0
    })
}

fn encoder(keys: &Keys<'_>) -> Result<Option<EncoderFacts>, FormatError> {
    if !keys.card.hears {
        return Ok(None);
    }
    Ok(Some(EncoderFacts {
        layer_count: keys.required(Fact::EncoderLayerCount)?,
        head_count: keys.required(Fact::EncoderHeadCount)?,
        ffn_size: keys.required(Fact::EncoderFfnSize)?,
        positions: keys.required(Fact::EncoderPositions)?,
        bands: keys.required(Fact::MelBands)?,
        multilingual: keys.metadata.bool(&keys.name(MULTILINGUAL))?,
    }))
}

/// Pairs of layer and head, one after the other.
fn alignment_heads(keys: &Keys<'_>) -> Result<Vec<[usize; 2]>, FormatError> {
    let name = keys.name(ALIGNMENT_HEADS);
    let numbers = keys.metadata.i32s(&name)?.filter(|_| keys.card.hears).unwrap_or_default();
    let mut heads = Vec::with_capacity(numbers.len() / 2);
    for pair in numbers.chunks(2) {
        let &[layer, head] = pair else {
            let problem = format!("it has {} numbers, which are not pairs of layer and head", numbers.len());
            return Err(FormatError::key(&name, problem));
        };
        let number = |number: i32| {
            usize::try_from(number)
                .map_err(|_| FormatError::key(&name, format!("{number} in the array is out of range")))
        };
        heads.push([number(layer)?, number(head)?]);
    }
    Ok(heads)
}

/// Only a few families state it.
fn activation(keys: &Keys<'_>) -> Result<Option<Activation>, FormatError> {
    const KEY: &str = "hidden_activation";
    let Some(name) = keys.metadata.str(&keys.name(KEY))? else { return Ok(None) };
    let found = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, activation)| Some(*activation))
        .ok_or_else(|| keys.unsupported(KEY, format!("is {}", printable(name))))
}

fn bidirectional(keys: &Keys<'_>) -> Result<bool, FormatError> {
    let stated = keys.metadata.bool(&keys.name("attention.causal"))?.map(|causal| !causal);
    let named = keys.card.bidirectional || keys.card.bidirectional_names.contains(&keys.architecture);
    Ok(stated.unwrap_or(named))
}

fn head_dim(keys: &Keys<'_>, hidden_size: usize, head_count: usize) -> Result<usize, FormatError> {
    let even_share = || {
        hidden_size.checked_div(head_count).ok_or_else(|| {
            FormatError::key(
                &keys.name(keys.of(Fact::HeadCount)),
                "a model without attention heads cannot be run",
            )
        })
    };
    let key = keys.count(Fact::HeadDim)?.map_or_else(even_share, Ok)?;
    let value = keys.count(Fact::ValueHeadDim)?.unwrap_or(key);
    if key != value {
        let asks = format!("is {value}, but the size of key heads is {key}");
        return Err(keys.unsupported(keys.of(Fact::ValueHeadDim), asks));
    }
    Ok(key)
}

fn rope(
    keys: &Keys<'_>,
    head_dim: usize,
    context_length: usize,
    factors: Option<RopeFactors>,
) -> Result<Rope, FormatError> {
    let base = keys.number(Fact::RopeBase)?.unwrap_or(ROPE_BASE);
    let always_local = keys.card.gguf_default(Fact::LocalRopeBase).is_some();
    let local = keys.number(Fact::LocalRopeBase)?;
    let dims = if keys.card.rotary { keys.count(Fact::RopeDims)?.unwrap_or(head_dim) } else { 0 };
    if keys.card.rotary && dims == 0 {
        let key = keys.name(keys.of(Fact::RopeDims));
        return Err(FormatError::key(
            &key,
            "0 dimensions cannot be rotated: convert the original model again",
        ));
    }
    Ok(Rope {
        dims,
        base,
        local_base: local.filter(|&local| local != base || always_local),
        scaling: rope_scaling(keys, context_length, factors.is_some())?,
        query_scaling: match keys.nonzero_fact(Fact::QueryScaling)? {
            Some(rate) => Some(QueryScaling {
                rate: f64::from(rate),
                step: match keys.count(Fact::QueryScalingStep)? {
                    Some(step) => step,
                    None => keys.usize("rope.scaling.original_context_length")?.unwrap_or(context_length),
                },
            }),
            None => None,
        },
        factors,
    })
}

fn rope_scaling(
    keys: &Keys<'_>,
    context_length: usize,
    has_factors: bool,
) -> Result<RopeScaling, FormatError> {
    const TYPE: &str = "rope.scaling.type";
    let name = keys.name(TYPE);
    let factor = match keys.f64("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.f64("rope.scale_linear")?, // the name before there were other kinds
    };
    let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
    // An additional multiplier of cos and sin, besides the one that YaRN derives from the factor.
    let extra = keys.f64("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let kind = keys.metadata.str(&name)?.unwrap_or("linear");
    if has_factors {
        // There is no key for it: like llama.cpp, detect it by the tensors.
        if !(matches!(kind, "longrope" | "none") || kind == "linear" && factor == 1.0) {
            return Err(
                keys.unsupported(TYPE, format!("is {}, but the file has LongRoPE factors", printable(kind)))
            );
        }
        let original = keys.usize("rope.scaling.original_context_length")?;
        return Ok(RopeScaling::LongRope {
            original_context: original.unwrap_or(context_length),
            attention_factor: extra,
        });
    }
    let scaling = match kind {
        "none" => RopeScaling::None,
        "linear" if factor == 1.0 => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "yarn" => {
            refuse_yarn_variants(keys)?;
            return Ok(RopeScaling::Yarn {
                factor,
                original_context: keys
                    .usize("rope.scaling.original_context_length")?
                    .unwrap_or(context_length),
                beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: yarn_attention_factor(keys, factor, extra)?,
                exact_ramp: keys.flag(Fact::YarnExactRamp)?,
            });
        }
        other => return Err(keys.unsupported(TYPE, format!("is {}", printable(other)))),
    };
    if extra != 1.0 {
        return Err(keys.unsupported("rope.scaling.attn_factor", format!("is {extra} without YaRN")));
    }
    Ok(scaling)
}

/// `None` means the value that YaRN derives from the factor.
fn yarn_attention_factor(keys: &Keys<'_>, factor: f64, extra: f64) -> Result<Option<f64>, FormatError> {
    // With latent attention, the multiplier is one of scores.
    if keys.card.rule(Fact::LatentSize).is_some() {
        return Ok(Some(extra));
    }
    let own = 0.1 * factor.ln() + 1.0;
    let divisor = keys.nonzero_fact(Fact::YarnLogMultiplier)?;
    Ok(match divisor {
        Some(multiplier) => Some(extra * own / (0.1 * f64::from(multiplier) * factor.ln() + 1.0)),
        None => (extra != 1.0).then_some(extra * own),
    })
}

fn refuse_yarn_variants(keys: &Keys<'_>) -> Result<(), FormatError> {
    for (key, plain) in [
        ("rope.scaling.yarn_log_multiplier", 0.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", 1.0),
    ] {
        if keys.reads(key) {
            continue;
        }
        // A negative number means "not set".
        if let Some(value) = keys.f32(key)?.filter(|&value| value != plain && value >= 0.0) {
            return Err(keys.unsupported(key, format!("is {value}")));
        }
    }
    Ok(())
}

fn window(keys: &Keys<'_>, layer_count: usize) -> Result<Option<Window>, FormatError> {
    let Some(size) = keys.count(Fact::WindowSize)?.filter(|&size| size > 0) else { return Ok(None) };
    let name = keys.name("attention.sliding_window_pattern");
    let pattern = match keys.metadata.get(&name) {
        None => WindowPattern::Unstated,
        Some(Value::Array(array)) => {
            let slides: Option<Vec<bool>> = match array {
                Array::Bool(slides) => Some(slides.clone()),
                other => other.to_i128s().map(|all| all.into_iter().map(|v| v != 0).collect()),
            };
            let mut slides = slides
                .ok_or_else(|| FormatError::key(&name, "it is neither a number nor an array of bools"))?;
            if slides.len() < layer_count {
                let problem = format!("it has {} entries for {layer_count} layers", slides.len());
                return Err(FormatError::key(&name, problem));
            }
            slides.truncate(layer_count);
            WindowPattern::Layers(slides)
        }
        Some(_) => match keys.usize("attention.sliding_window_pattern")? {
            Some(0) => return Err(FormatError::key(&name, "0 is not a valid interval of layers")),
            Some(every) => WindowPattern::FullEvery(every),
            None => WindowPattern::Unstated,
        },
    };
    Ok(Some(Window { size, pattern }))
}

/// One entry per layer: true if RoPE is not applied. Empty if RoPE is applied in all layers.
fn unrotated(keys: &Keys<'_>, layer_count: usize) -> Result<Vec<bool>, FormatError> {
    if keys.card.rule(Fact::Rotates).is_some() && !keys.flag(Fact::Rotates)? {
        return Ok(vec![true; layer_count]);
    }
    let every = keys.count(Fact::UnrotatedEvery)?.filter(|&every| every > 0);
    Ok(every.map_or(vec![], |every| (1..=layer_count).map(|n| n.is_multiple_of(every)).collect()))
}

fn normed_heads(keys: &Keys<'_>, experts: usize) -> Result<bool, FormatError> {
    let Some(_) = keys.card.rule(Fact::NormedHeads) else { return Ok(false) };
    let stated = keys.metadata.bool(&keys.name(keys.of(Fact::NormedHeads)))?;
    Ok(stated.unwrap_or(!keys.card.unnormed_expert_counts.contains(&experts)))
}

/// Files rarely state it: some models are recognised by their layer count, as in llama.cpp.
fn attention_scale(
    keys: &Keys<'_>,
    hidden_size: usize,
    head_count: usize,
    layer_count: usize,
) -> Result<Option<f32>, FormatError> {
    if let Some(scale) = keys.nonzero_fact(Fact::AttentionScale)? {
        return Ok(Some(scale));
    }
    let by_hidden_size = keys.card.hidden_scale_depths.contains(&layer_count);
    Ok(by_hidden_size.then(|| 1.0 / ((hidden_size / head_count) as f32).sqrt()))
}

/// The keys that converters copy from `generation_config.json`.
fn sampling(metadata: &Metadata) -> Result<SuggestedSampling, FormatError> {
    let number = |key: &str| metadata.f32(&format!("general.sampling.{key}"));
    // Negative counts mean "all".
    let count = |key: &str| {
        let name = format!("general.sampling.{key}");
        let stated = metadata.get(&name).and_then(Value::to_i128);
        Ok::<_, FormatError>(match stated {
            Some(negative) if negative < 0 => Some(None),
            Some(_) => metadata.u32(&name)?.map(|count| Some(count as usize)),
            None => None,
        })
    };
    let suggested = SuggestedSampling {
        temperature: number("temp")?,
        top_k: count("top_k")?.map(|k| k.unwrap_or(0)),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repeat_penalty: number("penalty_repeat")?,
        repeat_last_n: count("penalty_last_n")?.map(|n| n.unwrap_or(usize::MAX)),
    };
    suggested.checked(PLACE)
}

fn eos_ids(metadata: &Metadata) -> Result<Vec<u32>, FormatError> {
    let mut ids = Vec::new();
    for kind in ["eos", "eot", "eom"] {
        if let Some(id) = metadata.u32(&format!("tokenizer.ggml.{kind}_token_id"))?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    Ok(ids)
}
