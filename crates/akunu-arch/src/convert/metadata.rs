//! GGUF metadata for a converted model.

use akunu_format::{Array, FormatError, Metadata, Value};

use super::embedding;
use crate::facts::{Fact, SIGMOID, SOFTMAX};
use crate::gguf::config::{ALIGNMENT_HEADS, MULTILINGUAL, further_layers};
use crate::names::layer_and_part;
use crate::tensors::{Kind, Part};
use crate::{
    ACTIVATIONS, Activation, Card, ModelConfig, RopeScaling, RopeStyle, Scores, Source, WeightProvider,
    Window, WindowPattern, llama3_kept,
};

const TOKENIZER: &str = "tokenizer.";

/// Keys that describe the file rather than the model.
const OF_THE_FILE: [&str; 5] =
    ["general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"];

/// The card whose conventions the new file follows.
pub(super) fn card(config: &ModelConfig) -> &'static Card {
    Card::find(&config.architecture).unwrap_or(&Card::PLAIN)
}

/// All keys of the new file. `vocabulary`: metadata to take the vocabulary from, for models without GGUF metadata.
pub(super) fn metadata(
    weights: &dyn WeightProvider,
    file_type: u32,
    vocabulary: Option<&Metadata>,
) -> Result<Metadata, FormatError> {
    let mut out = Metadata::default();
    match weights.metadata() {
        Some(own) => {
            copy(own, &mut out, |key| {
                !OF_THE_FILE.contains(&key) && (vocabulary.is_none() || !key.starts_with(TOKENIZER))
            });
            without_further_layers(weights.config(), &mut out)?;
        }
        None => describe(weights, vocabulary.is_none(), &mut out)?,
    }
    if let Some(vocabulary) = vocabulary {
        check_vocabulary(vocabulary, weights.config())?;
        copy(vocabulary, &mut out, |key| key.starts_with(TOKENIZER));
    }
    if let Some((key, value)) = embedding::token_types(weights) {
        out.insert(key, value);
    }
    out.insert("general.file_type", Value::U32(file_type));
    out.insert("general.quantization_version", Value::U32(2));
    Ok(out)
}

/// Layers that are not loaded are not converted, so the new file does not count them.
fn without_further_layers(config: &ModelConfig, out: &mut Metadata) -> Result<(), FormatError> {
    if further_layers(out)? > 0 {
        let mut keys = Keys { architecture: &config.architecture, card: card(config), out };
        keys.number(keys.card.gguf_key(Fact::LayerCount), config.layer_count)?;
        keys.number(keys.card.gguf_key(Fact::FurtherLayers), 0)?;
    }
    Ok(())
}

fn copy(from: &Metadata, to: &mut Metadata, wanted: impl Fn(&str) -> bool) {
    for (key, value) in from.iter().filter(|(key, _)| wanted(key)) {
        to.insert(key, value.clone());
    }
}

fn check_vocabulary(vocabulary: &Metadata, config: &ModelConfig) -> Result<(), FormatError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let place = "vocabulary's file";
    let tokens = vocabulary
        .strings(TOKENS)?
        .ok_or_else(|| FormatError::MissingKey { key: TOKENS.to_string(), place })?
        .len();
    if tokens == config.vocab_size {
        return Ok(());
    }
    let problem = format!(
        "it has {tokens} tokens, but the model has {}: it belongs to another model",
        config.vocab_size
    );
    Err(FormatError::Config { key: TOKENS.to_string(), place, problem })
}

/// Writes keys prefixed with the architecture's name.
pub(super) struct Keys<'a> {
    architecture: &'a str,
    pub(super) card: &'static Card,
    pub(super) out: &'a mut Metadata,
}

impl Keys<'_> {
    pub(super) fn put(&mut self, key: &str, value: Value) {
        self.out.insert(format!("{}.{key}", self.architecture), value);
    }

    pub(super) fn number(&mut self, key: &str, value: usize) -> Result<(), FormatError> {
        let number = u32::try_from(value)
            .map_err(|_| FormatError::key(key, format!("{value} is too large for a GGUF file")))?;
        self.put(key, Value::U32(number));
        Ok(())
    }

    fn float(&mut self, key: &str, value: f64) {
        self.put(key, Value::F32(value as f32));
    }
}

fn describe(
    weights: &dyn WeightProvider,
    without_vocabulary: bool,
    out: &mut Metadata,
) -> Result<(), FormatError> {
    let config = weights.config();
    refuse_unrepresentable(config)?;
    let card = card(config);
    // A model of an unknown family keeps its name.
    let named = match config.bidirectional && !card.bidirectional {
        true => card.bidirectional_names.first(),
        false => card.names.first(),
    };
    let architecture = named.copied().unwrap_or(&config.architecture);
    out.insert("general.architecture", Value::String(architecture.to_string()));
    out.insert("general.type", Value::String("model".to_string()));
    if let Some(name) = &config.name {
        out.insert("general.name", Value::String(name.clone()));
    }
    let mut keys = Keys { architecture, card, out };
    keys.number("vocab_size", config.vocab_size)?;
    for (fact, value) in [
        (Fact::ContextLength, config.context_length),
        (Fact::HiddenSize, config.hidden_size),
        (Fact::LayerCount, config.layer_count),
        (Fact::FfnSize, config.ffn_size),
        (Fact::HeadCount, config.head_count),
        (Fact::HeadDim, config.head_dim),
        // Of the cache, where it is latent.
        (Fact::ValueHeadDim, config.latent.map_or(config.head_dim, |latent| latent.size)),
    ] {
        keys.number(keys.card.gguf_key(fact), value)?;
    }
    kv_heads(config, &mut keys)?;
    for (fact, value) in [
        (Fact::NormEpsilon, Some(config.norm_epsilon)),
        (Fact::AttentionScale, config.attention_scale),
        (Fact::AttentionSoftCap, config.attention_soft_cap),
        (Fact::LogitSoftCap, config.logit_soft_cap),
        (Fact::EmbeddingScale, config.embedding_scale),
        (Fact::ResidualScale, config.residual_scale),
        (Fact::LogitScale, config.logit_scale),
    ] {
        if let (Some(value), Some(rule)) = (value, keys.card.rule(fact)) {
            let field = rule.gguf_form.field(f64::from(value));
            keys.float(keys.card.gguf_key(fact), field);
        }
    }
    if keys.card.rule(Fact::Parallel).is_some() {
        keys.put(keys.card.gguf_key(Fact::Parallel), Value::Bool(config.parallel));
    }
    if let Some(latent) = config.latent {
        for (fact, value) in [
            (Fact::QueryRank, latent.query_rank),
            (Fact::LatentSize, Some(latent.size)),
            (Fact::KeySize, Some(latent.plain + config.rope.dims)),
            (Fact::ValueSize, Some(latent.values)),
        ] {
            if let Some(value) = value {
                keys.number(keys.card.gguf_key(fact), value)?;
            }
        }
    }
    experts(weights, &mut keys)?;
    if let Some(encoder) = config.encoder {
        for (fact, value) in [
            (Fact::EncoderPositions, encoder.positions),
            (Fact::EncoderLayerCount, encoder.layer_count),
            (Fact::EncoderFfnSize, encoder.ffn_size),
            (Fact::EncoderHeadCount, encoder.head_count),
            (Fact::MelBands, encoder.bands),
        ] {
            keys.number(keys.card.gguf_key(fact), value)?;
        }
        listening(config, &mut keys);
    }
    activation(config, &mut keys);
    if config.bidirectional {
        keys.put("attention.causal", Value::Bool(false));
    }
    embedding::describe(weights, &mut keys)?;
    if card.rotary {
        rope(config, &mut keys)?;
    }
    window(config, &mut keys)?;
    sampling(config, out);
    if without_vocabulary {
        special_ids(config, out);
    }
    Ok(())
}

/// Layers with a state have no heads of keys and values.
fn kv_heads(config: &ModelConfig, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let key = keys.card.gguf_key(Fact::KvHeadCount);
    let Some(mamba) = config.mamba else { return keys.number(key, config.kv_head_count) };
    let count = |layer| if config.is_recurrent(layer) { 0 } else { config.kv_head_count as i32 };
    keys.put(key, Value::Array(Array::I32((0..config.layer_count).map(count).collect())));
    for (fact, value) in [
        (Fact::StateTaps, mamba.taps),
        (Fact::StateSize, mamba.state_size),
        (Fact::StateGroups, mamba.groups),
        (Fact::StateHeads, mamba.heads),
        (Fact::StateInner, mamba.inner()),
    ] {
        keys.number(keys.card.gguf_key(fact), value)?;
    }
    Ok(())
}

/// Keys that readers of the family do not know are left out where the file would say what they assume.
fn experts(weights: &dyn WeightProvider, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let config = weights.config();
    let Some(experts) = config.experts else { return Ok(()) };
    let shared = experts.shared_ffn_size.unwrap_or(0);
    let (first, every) = layers_with_experts(weights);
    let ([groups, used], scores) = (experts.groups, experts.router.scores);
    for (fact, value) in [
        (Fact::ExpertCount, Some(experts.count)),
        (Fact::ExpertsUsed, Some(experts.used)),
        (Fact::ExpertFfnSize, Some(experts.ffn_size)),
        (Fact::SharedFfnSize, experts.shared_ffn_size),
        (Fact::SharedExperts, shared.is_multiple_of(experts.ffn_size).then_some(shared / experts.ffn_size)),
        (Fact::ExpertGroups, (groups > 1).then_some(groups)),
        (Fact::ExpertGroupsUsed, (groups > 1).then_some(used)),
        (Fact::Scores, scores_number(keys.card, scores)),
        (Fact::DenseLayers, Some(first)),
        (Fact::ExpertsEvery, Some(every)),
    ] {
        if let (Some(value), Some(_)) = (value, keys.card.rule(fact)) {
            keys.number(keys.card.gguf_key(fact), value)?;
        }
    }
    // Readers of families with sigmoids want it stated.
    if experts.scale != 1.0 || scores_number(keys.card, scores).is_some() {
        keys.float(keys.card.gguf_key(Fact::ShareScale), experts.scale.into());
    }
    if scores == Scores::SparseMixer {
        keys.float(keys.card.gguf_key(Fact::RouterJitter), f64::from(experts.router.tolerance) / 2.0);
    }
    let assumed = keys.card.gguf_default(Fact::NormalisedShares) == Some(1.0);
    if experts.normalised != assumed {
        keys.put(keys.card.gguf_key(Fact::NormalisedShares), Value::Bool(experts.normalised));
    }
    Ok(())
}

/// Stated for sigmoids, and where models of a family have different scores.
fn scores_number(card: &Card, scores: Scores) -> Option<usize> {
    let differ = card.hf.iter().any(|kind| kind.router.is_some());
    match scores {
        Scores::Sigmoid => Some(SIGMOID),
        Scores::Softmax if differ => Some(SOFTMAX),
        Scores::Softmax | Scores::SparseMixer => None,
    }
}

/// The first layer with a router, and every which layer from there on has one.
fn layers_with_experts(weights: &dyn WeightProvider) -> (usize, usize) {
    let has_router = |layer: &usize| weights.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
    let mut layers = (0..weights.config().layer_count).filter(has_router);
    let first = layers.next().unwrap_or(0);
    (first, layers.next().map_or(1, |second| second - first))
}

/// Rejects facts that have no GGUF key and are implied by the architecture's name.
fn refuse_unrepresentable(config: &ModelConfig) -> Result<(), FormatError> {
    let card = card(config);
    // Other engines do not distinguish the two forms of GELU; this engine reads the key.
    let is_gelu = |activation| matches!(activation, Activation::GeluErf | Activation::GeluTanh);
    let sayable = |other| other == card.activation || is_gelu(other) && is_gelu(card.activation);
    if let Some(other) = config.activation.filter(|&other| !sayable(other) && !card.states_activation) {
        let asks = format!("is {other:?}, which a GGUF file of this architecture cannot say");
        return Err(FormatError::unsupported("hidden_act", asks));
    }
    if card.gguf_default(Fact::LocalRopeBase).is_some() && config.rope.local_base.is_none() {
        let asks = "are the same in sliding-window layers, which a GGUF file of this architecture cannot say";
        return Err(FormatError::unsupported("rope_parameters", asks));
    }
    Ok(())
}

/// What a model that transcribes states beside its shape.
fn listening(config: &ModelConfig, keys: &mut Keys<'_>) {
    keys.put(MULTILINGUAL, Value::Bool(config.multilingual()));
    if !config.alignment_heads.is_empty() {
        let numbers = config.alignment_heads.iter().flatten().map(|&number| number as u32).collect();
        keys.put(ALIGNMENT_HEADS, Value::Array(Array::U32(numbers)));
    }
}

/// Written if files of the family always state it, or if it differs from the family's default.
fn activation(config: &ModelConfig, keys: &mut Keys<'_>) {
    let Some(activation) = config.activation else { return };
    if keys.card.states_activation || activation != keys.card.activation {
        let name = ACTIVATIONS.iter().find(|(_, known)| *known == activation).map(|(name, _)| *name);
        keys.put("hidden_activation", Value::String(name.unwrap_or_default().to_string()));
    }
}

fn rope(config: &ModelConfig, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.number(keys.card.gguf_key(Fact::RopeDims), config.rope.dims)?;
    keys.float(keys.card.gguf_key(Fact::RopeBase), config.rope.base);
    if let Some(base) = config.rope.local_base {
        keys.float(keys.card.gguf_key(Fact::LocalRopeBase), base);
    }
    let assumes_growth = keys.card.gguf_default(Fact::QueryScaling).is_some();
    let rate = config.rope.query_scaling.map(|growth| growth.rate);
    if let Some(rate) = rate.or(assumes_growth.then_some(0.0)) {
        keys.float(keys.card.gguf_key(Fact::QueryScaling), rate);
    }
    if let (Some(growth), Some(_)) = (config.rope.query_scaling, keys.card.rule(Fact::QueryScalingStep)) {
        keys.number(keys.card.gguf_key(Fact::QueryScalingStep), growth.step)?;
    }
    if keys.card.rule(Fact::NormedHeads).is_some() {
        keys.put(keys.card.gguf_key(Fact::NormedHeads), Value::Bool(config.normed_heads));
    }
    unrotated(config, keys)?;
    let kind = |kind: &str| Value::String(kind.to_string());
    match config.rope.scaling {
        // Llama 3's scaling is written as a tensor: see `llama3_factors`.
        RopeScaling::None | RopeScaling::Llama3 { .. } => {}
        RopeScaling::Linear { factor } => {
            keys.put("rope.scaling.type", kind("linear"));
            keys.float("rope.scaling.factor", factor);
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            exact_ramp,
        } => {
            keys.put("rope.scaling.type", kind("yarn"));
            keys.float("rope.scaling.factor", factor);
            keys.number("rope.scaling.original_context_length", original_context)?;
            keys.float("rope.scaling.yarn_beta_fast", beta_fast);
            keys.float("rope.scaling.yarn_beta_slow", beta_slow);
            // For some families, readers divide by the value that YaRN derives from the factor.
            let divides = keys.card.rule(Fact::YarnLogMultiplier).is_some() && config.latent.is_none();
            if let (Some(latent), Some(rule)) = (config.latent, keys.card.rule(Fact::YarnLogMultiplier)) {
                if latent.growth != 0.0 {
                    let multiplier = rule.gguf_form.field(latent.growth);
                    keys.float(keys.card.gguf_key(Fact::YarnLogMultiplier), multiplier);
                }
                let own = attention_factor.unwrap_or(0.1 * factor.ln() + 1.0);
                if own != 1.0 {
                    keys.float("rope.scaling.attn_factor", own);
                }
            } else if divides && attention_factor == Some(1.0) {
                keys.float(keys.card.gguf_key(Fact::YarnLogMultiplier), 1.0);
            } else if let Some(stated) = attention_factor {
                // Readers multiply this by the value that YaRN derives from the factor.
                keys.float("rope.scaling.attn_factor", stated / (0.1 * factor.ln() + 1.0));
            }
            let assumed = keys.card.gguf_default(Fact::YarnExactRamp) == Some(1.0);
            if exact_ramp != assumed {
                keys.put(keys.card.gguf_key(Fact::YarnExactRamp), Value::Bool(exact_ramp));
            }
        }
        // Its factors are written as tensors.
        RopeScaling::LongRope { original_context, attention_factor } => {
            keys.number("rope.scaling.original_context_length", original_context)?;
            keys.float("rope.scaling.attn_factor", attention_factor);
        }
    }
    Ok(())
}

/// Written if it is not what readers assume.
fn unrotated(config: &ModelConfig, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let rotates: Vec<bool> = (0..config.layer_count).map(|layer| config.rotates(layer)).collect();
    if keys.card.rule(Fact::Rotates).is_some() && !rotates.contains(&true) {
        keys.put(keys.card.gguf_key(Fact::Rotates), Value::Bool(false));
        return Ok(());
    }
    let every = match rotates.contains(&false) {
        true => full_every(&rotates),
        false => Some(0),
    };
    let assumed = match keys.card.chunked && config.window.is_none() {
        // Readers assume that models without chunks have RoPE in all layers.
        true => 0,
        false => keys.card.gguf_default(Fact::UnrotatedEvery).map_or(0, |every| every as usize),
    };
    match every {
        Some(every) if every == assumed => Ok(()),
        // Too few layers for the assumed interval.
        Some(0) if assumed > config.layer_count => Ok(()),
        Some(every) if keys.card.rule(Fact::UnrotatedEvery).is_some() => {
            keys.number(keys.card.gguf_key(Fact::UnrotatedEvery), every)
        }
        _ => {
            let asks = "asks for layers without RoPE that a GGUF file of this architecture cannot say";
            Err(FormatError::unsupported("no_rope_layers", asks))
        }
    }
}

/// Divisors of the RoPE frequencies, as in GGUF's `rope_freqs.weight`: 1 for short wavelengths, the factor for long
/// ones, a ramp between.
pub(super) fn llama3_factors(config: &ModelConfig) -> Option<Vec<f32>> {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
        config.rope.scaling
    else {
        return None;
    };
    let dims = config.rope.dims;
    let one = |pair: usize| {
        let wavelength = std::f64::consts::TAU * config.rope.base.powf(2.0 * pair as f64 / dims as f64);
        let turns = original_context as f64 / wavelength;
        let keep = llama3_kept(turns, [low_freq_factor, high_freq_factor]);
        (1.0 / (keep + (1.0 - keep) / factor)) as f32
    };
    Some((0..dims / 2).map(one).collect())
}

fn window(config: &ModelConfig, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Some(Window { size, pattern }) = &config.window else {
        // Without the key, readers would use the family's default.
        let has_default = keys.card.gguf_default(Fact::WindowSize).is_some();
        return if has_default { keys.number(keys.card.gguf_key(Fact::WindowSize), 0) } else { Ok(()) };
    };
    keys.number(keys.card.gguf_key(Fact::WindowSize), *size)?;
    match pattern {
        WindowPattern::Unstated => {}
        WindowPattern::FullEvery(every) => keys.number(PATTERN, *every)?,
        WindowPattern::Layers(slides) => match full_every(slides) {
            Some(every) => keys.number(PATTERN, every)?,
            None => keys.put(PATTERN, Value::Array(Array::Bool(slides.clone()))),
        },
    }
    Ok(())
}

/// Returns n if every n-th layer uses full attention.
fn full_every(slides: &[bool]) -> Option<usize> {
    let every = slides.iter().position(|slides| !slides)? + 1;
    let regular = slides.iter().enumerate().all(|(i, &slides)| slides != (i + 1).is_multiple_of(every));
    regular.then_some(every)
}

/// Writes the keys that other converters copy from `generation_config.json`.
fn sampling(config: &ModelConfig, out: &mut Metadata) {
    let of = &config.sampling;
    let numbers = [
        ("temp", of.temperature),
        ("top_p", of.top_p),
        ("min_p", of.min_p),
        ("penalty_repeat", of.repeat_penalty),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            out.insert(format!("general.sampling.{key}"), Value::F32(value));
        }
    }
    for (key, value) in [("top_k", of.top_k), ("penalty_last_n", of.repeat_last_n)] {
        if let Some(value) = value {
            // −1 means all.
            let value = i32::try_from(value).unwrap_or(-1);
            out.insert(format!("general.sampling.{key}"), Value::I32(value));
        }
    }
}

/// Ids of the tokens that begin and end a text, for files without a vocabulary.
fn special_ids(config: &ModelConfig, out: &mut Metadata) {
    out.insert("tokenizer.ggml.model", Value::String("none".to_string()));
    if let Some(id) = config.bos_id {
        out.insert("tokenizer.ggml.bos_token_id", Value::U32(id));
    }
    for (kind, &id) in ["eos", "eot", "eom"].iter().zip(&config.eos_ids) {
        out.insert(format!("tokenizer.ggml.{kind}_token_id"), Value::U32(id));
    }
}

/// How a conversion treats a tensor, by the card's rules. Fused matrices are plain matrices.
fn kind(card: &Card, tensor: &str) -> Kind {
    let (part, name) = match layer_and_part(tensor) {
        Some((part, _, name)) => (part, name),
        None => (Part::Model, tensor.strip_suffix(".weight").unwrap_or(tensor)),
    };
    let rule = card.tensor_rules().find(|rule| rule.part == part && rule.name == name);
    rule.map_or(Kind::Matrix, |rule| rule.kind)
}

/// Whether rows of Q or K are permuted: GGUF files may use the interleaved RoPE layout where Hugging Face's use the
/// half-split one.
pub(super) fn permutes_rows(config: &ModelConfig, tensor: &str) -> bool {
    let card = card(config);
    config.source == Source::HuggingFace
        && card.hf_rope == RopeStyle::HalfSplit
        && card.gguf_rope == RopeStyle::Interleaved
        && kind(card, tensor) == Kind::Rotated
}

/// The offset that is added to a tensor: GGUF stores norm weights with the offset included.
pub(super) fn added(config: &ModelConfig, tensor: &str) -> f32 {
    let card = card(config);
    let is_norm = kind(card, tensor) == Kind::Norm && tensor.ends_with(".weight");
    if is_norm { card.norm_offset(config) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_are_regular_become_a_number() {
        assert_eq!(full_every(&[true, true, false, true, true, false, true]), Some(3));
        assert_eq!(full_every(&[false, false]), Some(1));
        assert_eq!(full_every(&[true, true, true]), None);
        assert_eq!(full_every(&[true, false, false]), None);
        assert_eq!(full_every(&[false, true]), None);
    }
}
