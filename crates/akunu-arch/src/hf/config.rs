//! `config.json` → [`ModelConfig`], with transformers' defaults for what it leaves out.

use std::collections::HashSet;
use std::ops::Range;

use akunu_format::hf::{CONFIG, Json, Quantisation, wrong};
use akunu_format::{FormatError, TensorInfo, printable};

use super::rope;
use crate::facts::Fact;
use crate::{
    Activation, Card, EncoderFacts, ExpertFacts, HfKind, LatentFacts, MambaFacts, ModelConfig, Router,
    Sliding, Source, SuggestedSampling, Window, WindowPattern,
};

/// The language model's part of a configuration, read by the rules of its card.
pub(super) struct Fields<'a> {
    pub(super) text: Json<'a>,
    pub(super) card: &'static Card,
    pub(super) kind: &'static HfKind,
}

impl<'a> Fields<'a> {
    /// Multimodal configurations contain the language model's part as a nested object.
    pub(super) fn of(root: &Json<'a>) -> Result<Fields<'a>, FormatError> {
        let model_type = root
            .str("model_type")?
            .ok_or_else(|| FormatError::MissingKey { key: "model_type".to_string(), place: CONFIG })?;
        // Several variants may be nested in the same kind; if the nested object does not name its own, the first one is
        // used.
        let nested = || Card::kinds().filter(|(_, kind)| kind.nested_in == Some(model_type));
        if let Some(first) = nested().next() {
            let text = root.object("text_config")?.unwrap_or_else(|| root.clone());
            let stated = text.str("model_type")?;
            let (card, kind) = nested().find(|(_, kind)| Some(kind.model_type) == stated).unwrap_or(first);
            return Ok(Fields { text, card, kind });
        }
        let with_experts = root.usize("num_local_experts")?.is_none_or(|count| count > 0);
        let layer_types = layer_type_names(root)?.unwrap_or_default();
        let found = Card::find_kind(model_type, with_experts, &layer_types);
        let (card, kind) = found.ok_or_else(|| unknown_kind(root, model_type))?;
        Ok(Fields { text: root.clone(), card, kind })
    }

    /// The field that states a fact; if none is present, the first candidate.
    pub(super) fn key(&self, fact: Fact) -> &'static str {
        let keys = self.card.rule(fact).map_or(&[][..], |rule| rule.hf);
        let stated = keys.iter().find(|key| self.text.get(key).is_some());
        let mentioned = || keys.iter().find(|key| self.text.mentions(key));
        stated.or_else(mentioned).or(keys.first()).copied().unwrap_or_default()
    }

    /// Converts the field's number to the fact.
    fn formed(&self, fact: Fact, number: f64) -> f64 {
        self.card.rule(fact).map_or(number, |rule| rule.hf_form.fact(number))
    }

    /// The value in the file, without defaults.
    pub(super) fn stated(&self, fact: Fact) -> Result<Option<f64>, FormatError> {
        Ok(self.text.f64(self.key(fact))?.map(|number| self.formed(fact, number)))
    }

    pub(super) fn number(&self, fact: Fact) -> Result<Option<f64>, FormatError> {
        Ok(self.stated(fact)?.or(self.kind.default(fact).map(|number| self.formed(fact, number))))
    }

    /// The same, except that `null` means "none" and only absence means the default.
    fn number_unless_null(&self, fact: Fact) -> Result<Option<f64>, FormatError> {
        if self.text.mentions(self.key(fact)) { self.stated(fact) } else { self.number(fact) }
    }

    /// A boolean fact.
    fn flag(&self, fact: Fact) -> Result<bool, FormatError> {
        let default = self.kind.default(fact).is_some_and(|number| number != 0.0);
        Ok(self.text.bool(self.key(fact))?.unwrap_or(default))
    }

    pub(super) fn count(&self, fact: Fact) -> Result<Option<usize>, FormatError> {
        let default = self.kind.default(fact).map(|number| number as usize);
        Ok(self.per_layer(self.key(fact))?.or(default))
    }

    /// A number, or a list with the same number for every layer.
    fn per_layer(&self, key: &str) -> Result<Option<usize>, FormatError> {
        if !self.text.get(key).is_some_and(serde_json::Value::is_array) {
            return self.text.usize(key);
        }
        let all = self.text.f64s(key)?.unwrap_or_default();
        let Some(&first) = all.first() else { return Ok(None) };
        if all.iter().any(|&number| number != first) {
            return Err(self.text.unsupported(key, "differs from layer to layer"));
        }
        if first < 0.0 || first.fract() != 0.0 {
            return Err(wrong(&self.text.full(key), format!("{first} is not a count")));
        }
        Ok(Some(first as usize))
    }

    /// The layers after the last one, which predict further tokens.
    pub(super) fn further_layers(&self) -> Result<Range<usize>, FormatError> {
        let first = self.required(Fact::LayerCount)?;
        let count = match self.card.rule(Fact::FurtherLayers) {
            Some(_) => self.count(Fact::FurtherLayers)?.unwrap_or(0),
            None => 0,
        };
        Ok(first..first.saturating_add(count))
    }

    fn count_unless_null(&self, fact: Fact) -> Result<Option<usize>, FormatError> {
        let key = self.key(fact);
        if self.text.mentions(key) { self.text.usize(key) } else { self.count(fact) }
    }

    fn required(&self, fact: Fact) -> Result<usize, FormatError> {
        self.count(fact)?.ok_or_else(|| self.missing(fact))
    }

    fn missing(&self, fact: Fact) -> FormatError {
        FormatError::MissingKey { key: self.text.full(self.key(fact)), place: CONFIG }
    }

    /// If the weights contradict a default size, the configuration lacks a field. Reports the missing field instead of
    /// a wrong shape.
    fn refuse_missing_field(
        &self,
        facts: &[Fact],
        size: usize,
        found: Option<usize>,
    ) -> Result<(), FormatError> {
        let lost = facts.iter().map(|fact| self.key(*fact)).find(|key| !self.text.mentions(key));
        match (lost, found) {
            (Some(key), Some(found)) if found != size => {
                let problem = format!(
                    "it is missing, and what is assumed instead makes {size} of what is {found} in the weights: take \
                     the {CONFIG} that was published with them"
                );
                Err(wrong(&self.text.full(key), problem))
            }
            _ => Ok(()),
        }
    }
}

fn unknown_kind(root: &Json<'_>, model_type: &str) -> FormatError {
    let known: Vec<&str> = Card::kinds().map(|(_, kind)| kind.model_type).collect();
    let asks = format!("is {} (and not one of {})", printable(model_type), known.join(", "));
    root.unsupported("model_type", asks)
}

/// Rejects models that need another computation or another way to read weights, from the configuration alone.
pub(super) fn refuse_unsupported(root: &Json<'_>) -> Result<(), FormatError> {
    if let Some(Quantisation::Mxfp4) = Quantisation::of(root)?
        && Fields::of(root)?.card.stacked_experts.is_empty()
    {
        let asks =
            "asks for MXFP4 in a family whose files do not have it (take the original, or a GGUF file)";
        return Err(root.unsupported("quantization_config", asks));
    }
    if root.get("compression_config").is_some() {
        let asks = "shows that this is a quantised checkpoint (take the original, or a GGUF file)";
        return Err(root.unsupported("compression_config", asks));
    }
    let text = Fields::of(root)?.text;
    let reads_experts = Fields::of(root)?.kind.default(Fact::ExpertCount).is_some();
    for key in ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"] {
        if let Some(count) = text.usize(key)?.filter(|&count| count > 0 && !reads_experts) {
            return Err(text.unsupported(key, format!("asks for a mixture of {count} experts")));
        }
    }
    if text.bool("is_encoder_decoder")? == Some(true) && !Fields::of(root)?.card.hears {
        return Err(text.unsupported("is_encoder_decoder", "asks for an encoder beside the decoder"));
    }
    refuse_layers(&Fields::of(root)?)?;
    for (key, expected) in Fields::of(root)?.kind.expected {
        if let Some(other) = text.str(key)?.filter(|value| value != expected) {
            return Err(text.unsupported(key, format!("is {} (and not {expected})", printable(other))));
        }
    }
    for (key, expected) in Fields::of(root)?.kind.expected_numbers {
        if let Some(other) = text.f64(key)?.filter(|value| value != expected) {
            return Err(text.unsupported(key, format!("is {other} (and not {expected})")));
        }
    }
    for (key, refused) in Fields::of(root)?.kind.refused {
        if text.bool(key)? == Some(*refused) {
            return Err(text.unsupported(key, format!("is {refused}")));
        }
    }
    // "vision" means bidirectional attention between image tokens only, which does not affect texts.
    match text.get(BIDIRECTIONAL) {
        None | Some(serde_json::Value::Bool(_)) => Ok(()),
        Some(_) => {
            Err(text.unsupported(BIDIRECTIONAL, "asks for attention in both directions to some tokens"))
        }
    }
}

/// Rejects layers of other types than the supported ones.
fn refuse_layers(fields: &Fields<'_>) -> Result<(), FormatError> {
    let Fields { text, kind, .. } = fields;
    if kind.layer_types.is_empty() {
        return Ok(());
    }
    let names = layer_type_names(text)?
        .ok_or_else(|| FormatError::MissingKey { key: text.full(LAYER_TYPES), place: CONFIG })?;
    let layer_count = fields.required(Fact::LayerCount)?;
    match names.iter().find(|name| !kind.layer_types.contains(name)) {
        None if names.len() != layer_count => Err(wrong_count(&names, layer_count)),
        None => Ok(()),
        Some(other) => Err(text.unsupported(LAYER_TYPES, format!("asks for {} layers", printable(other)))),
    }
}

/// The types of all layers, if the file lists them.
fn layer_type_names<'a>(text: &Json<'a>) -> Result<Option<Vec<&'a str>>, FormatError> {
    match text.strings(LAYER_TYPES)? {
        None => text.strings("layers_block_type"),
        names => Ok(names),
    }
}

fn wrong_count(names: &[&str], layer_count: usize) -> FormatError {
    wrong(LAYER_TYPES, format!("it has {} entries for {layer_count} layers", names.len()))
}

const LAYER_TYPES: &str = "layer_types";
const GENERATION: &str = "generation_config.json";
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

pub(super) fn model_config(
    root: &Json<'_>,
    generation: Option<&Json<'_>>,
    name: Option<String>,
    tensors: &[TensorInfo],
) -> Result<ModelConfig, FormatError> {
    let fields = Fields::of(root)?;
    let text = &fields.text;
    let hidden_size = fields.required(Fact::HiddenSize)?;
    let layer_count = fields.required(Fact::LayerCount)?;
    let head_count = fields.required(Fact::HeadCount)?;
    fields.refuse_missing_field(&[Fact::HiddenSize], hidden_size, cols(tensors, "token_embd.weight"))?;
    fields.refuse_missing_field(&[Fact::LayerCount], layer_count, layers(tensors))?;
    // Per-layer lists are allocated below, so limit them by what the file can contain.
    if layer_count > tensors.len() {
        let problem = format!("{layer_count} layers, but the file has only {} tensors", tensors.len());
        return Err(wrong(fields.key(Fact::LayerCount), problem));
    }
    let experts = experts(&fields, ffn_size(&fields, hidden_size)?)?;
    let ffn_size = match fields.card.shared_alone && experts.is_none() {
        true => fields.required(Fact::SharedFfnSize)?,
        false => ffn_size(&fields, hidden_size)?,
    };
    let context_length = fields.required(Fact::ContextLength)?.saturating_sub(padding_positions(&fields)?);
    let latent = latent(&fields)?;
    let head_dim = match &latent {
        Some(latent) => latent.size.saturating_add(fields.required(Fact::RopeDims)?),
        None => head_dim(&fields, hidden_size, head_count)?,
    };
    let mut rope = rope::rope(&fields, head_dim, context_length)?;
    if !fields.card.rotary {
        rope.dims = 0;
    }
    let quantisation = Quantisation::of(root)?;
    let mut config = ModelConfig {
        architecture: match fields.kind.with_experts {
            Some(_) => fields.card.gguf_name().to_string(),
            None => fields.kind.model_type.to_string(),
        },
        source: Source::HuggingFace,
        name,
        vocab_size: crate::config::vocab_size(tensors)?,
        context_length,
        hidden_size,
        layer_count,
        ffn_size,
        head_count,
        kv_head_count: if latent.is_some() { 1 } else { kv_head_count(&fields, head_count)? },
        head_dim,
        norm_epsilon: fields.number(Fact::NormEpsilon)?.ok_or_else(|| fields.missing(Fact::NormEpsilon))?
            as f32,
        rope,
        window: window(&fields, layer_count)?,
        unrotated: unrotated(&fields, layer_count)?,
        normed_heads: fields.flag(Fact::NormedHeads)?,
        embedding_scale: scale(&fields, Fact::EmbeddingScale)?,
        residual_scale: scale(&fields, Fact::ResidualScale)?,
        logit_scale: scale(&fields, Fact::LogitScale)?,
        parallel: fields.flag(Fact::Parallel)?,
        attention_scale: fields.number(Fact::AttentionScale)?.map(|scale| scale as f32),
        attention_soft_cap: fields.number_unless_null(Fact::AttentionSoftCap)?.map(|cap| cap as f32),
        logit_soft_cap: fields.number_unless_null(Fact::LogitSoftCap)?.map(|cap| cap as f32),
        activation: Some(activation(&fields)?),
        bidirectional: fields.card.bidirectional || text.bool(BIDIRECTIONAL)? == Some(true),
        embedding: super::classifier::classifier_facts(&fields, tensors)?,
        experts,
        latent,
        encoder: encoder(&fields, generation)?,
        mamba: mamba(&fields, hidden_size)?,
        recurrent: recurrent(&fields)?,
        alignment_heads: generation
            .map_or(Ok(Vec::new()), |generation| alignment_heads(&fields, generation))?,
        left_out: None,
        packed_as: quantisation.as_ref().map(Quantisation::name),
        fp8_activations: quantisation.as_ref().is_some_and(Quantisation::has_fp8_activations),
        sampling: generation.map_or(Ok(SuggestedSampling::default()), sampling)?,
        eos_ids: eos_ids(&[Some(text), Some(root), generation])?,
        bos_id: text.ids("bos_token_id")?.first().or(root.ids("bos_token_id")?.first()).copied(),
    };
    config.forget_other_heads();
    config.check(CONFIG, tensors)?;
    fields.refuse_missing_field(&[Fact::FfnSize], config.ffn_size, cols(tensors, "blk.0.ffn_down.weight"))?;
    // Absent sizes are derived from present ones, so only one of these can be wrong because it is absent.
    let values = config.latent.map_or(config.head_dim, |latent| latent.values);
    let (q, kv) = (config.head_count * values, config.kv_head_count * config.head_dim);
    fields.refuse_missing_field(
        &[Fact::HeadCount, Fact::HeadDim],
        q,
        cols(tensors, "blk.0.attn_output.weight"),
    )?;
    fields.refuse_missing_field(
        &[Fact::HeadCount, Fact::KvHeadCount],
        kv,
        rows(tensors, "blk.0.attn_k.weight"),
    )?;
    Ok(config)
}

/// Which layers have a state; empty if the variant has no such layers.
fn recurrent(fields: &Fields<'_>) -> Result<Vec<bool>, FormatError> {
    let types = fields.kind.recurrent_types;
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let names = layer_type_names(&fields.text)?.unwrap_or_default();
    Ok(names.iter().map(|name| types.contains(name)).collect())
}

fn mamba(fields: &Fields<'_>, hidden_size: usize) -> Result<Option<MambaFacts>, FormatError> {
    if fields.kind.recurrent_types.is_empty() {
        return Ok(None);
    }
    let (heads, expansion) = (fields.required(Fact::StateHeads)?, fields.required(Fact::StateExpansion)?);
    let inner = hidden_size.saturating_mul(expansion);
    let key = fields.key(Fact::StateHeadDim);
    // "auto" is what remains for a head.
    let stated = match fields.text.str(key) {
        Ok(Some("auto")) => None,
        _ => fields.text.usize(key)?,
    };
    let head_dim = stated.or_else(|| inner.checked_div(heads)).unwrap_or(0);
    if heads.checked_mul(head_dim) != Some(inner) {
        let problem =
            format!("{heads} heads of {head_dim} are not {expansion} times the hidden size {hidden_size}");
        return Err(wrong(&fields.text.full(key), problem));
    }
    const LIMITS: &str = "time_step_limit";
    if let Some(limits) = fields.text.get(LIMITS) {
        // transformers writes infinity so.
        let infinity = serde_json::json!({"__float__": "Infinity"});
        let is_open = match limits.as_array().map(Vec::as_slice) {
            Some([least, most]) => least.as_f64() == Some(0.0) && (most.is_null() || *most == infinity),
            _ => false,
        };
        if !is_open {
            return Err(fields.text.unsupported(LIMITS, "limits the steps of states"));
        }
    }
    Ok(Some(MambaFacts {
        taps: fields.required(Fact::StateTaps)?,
        state_size: fields.required(Fact::StateSize)?,
        groups: fields.required(Fact::StateGroups)?,
        heads,
        head_dim,
    }))
}

fn experts(fields: &Fields<'_>, ffn_size: usize) -> Result<Option<ExpertFacts>, FormatError> {
    // Dense variants of a family have no default.
    if fields.kind.default(Fact::ExpertCount).is_none() {
        return Ok(None);
    }
    let Some(count) = fields.count(Fact::ExpertCount)?.filter(|&count| count > 0) else { return Ok(None) };
    if fields.count(Fact::ExpertsEvery)? == Some(0) {
        return Err(wrong(
            &fields.text.full(fields.key(Fact::ExpertsEvery)),
            "0 is not a valid interval of layers".to_string(),
        ));
    }
    let ffn_size = fields.count(Fact::ExpertFfnSize)?.unwrap_or(ffn_size);
    let (shared, shared_size) = (fields.count(Fact::SharedExperts)?, fields.count(Fact::SharedFfnSize)?);
    let own = fields.kind.router.unwrap_or(fields.card.router);
    let groups =
        [fields.count(Fact::ExpertGroups)?.unwrap_or(1), fields.count(Fact::ExpertGroupsUsed)?.unwrap_or(1)];
    let method = fields.kind.ungrouped.map_or(Ok(None), |(field, _)| fields.text.str(field))?;
    let is_ungrouped = |(_, values): (_, &[&str])| method.is_some_and(|method| values.contains(&method));
    let tolerance = fields.number(Fact::RouterJitter)?.map_or(own.tolerance, |jitter| 2.0 * jitter as f32);
    Ok(Some(ExpertFacts {
        count,
        used: fields.required(Fact::ExpertsUsed)?,
        ffn_size,
        shared_ffn_size: ExpertFacts::shared_size(shared_size, shared, ffn_size),
        normalised: fields.flag(Fact::NormalisedShares)?,
        scale: fields.number(Fact::ShareScale)?.unwrap_or(1.0) as f32,
        groups: if fields.kind.ungrouped.is_some_and(is_ungrouped) { [1, 1] } else { groups },
        router: Router { tolerance, ..own },
    }))
}

fn latent(fields: &Fields<'_>) -> Result<Option<LatentFacts>, FormatError> {
    if fields.card.rule(Fact::LatentSize).is_none() {
        return Ok(None);
    }
    Ok(Some(LatentFacts {
        size: fields.required(Fact::LatentSize)?,
        plain: fields.required(Fact::PlainKeySize)?,
        values: fields.required(Fact::ValueSize)?,
        query_rank: fields.count_unless_null(Fact::QueryRank)?,
        growth: rope::score_growth(&fields.text)?,
    }))
}

fn encoder(fields: &Fields<'_>, generation: Option<&Json<'_>>) -> Result<Option<EncoderFacts>, FormatError> {
    if !fields.card.hears {
        return Ok(None);
    }
    Ok(Some(EncoderFacts {
        layer_count: fields.required(Fact::EncoderLayerCount)?,
        head_count: fields.required(Fact::EncoderHeadCount)?,
        ffn_size: fields.required(Fact::EncoderFfnSize)?,
        positions: fields.required(Fact::EncoderPositions)?,
        bands: fields.required(Fact::MelBands)?,
        multilingual: generation.map_or(Ok(None), |generation| generation.bool("is_multilingual"))?,
    }))
}

/// A list of pairs of layer and head.
fn alignment_heads(fields: &Fields<'_>, generation: &Json<'_>) -> Result<Vec<[usize; 2]>, FormatError> {
    const KEY: &str = "alignment_heads";
    if !fields.card.hears {
        return Ok(Vec::new());
    }
    let Some(value) = generation.get(KEY) else { return Ok(Vec::new()) };
    serde_json::from_value(value.clone()).map_err(|_| FormatError::Config {
        key: KEY.to_string(),
        place: GENERATION,
        problem: "it should be a list of pairs of layer and head".to_string(),
    })
}

fn matrix<'t>(tensors: &'t [TensorInfo], name: &str) -> Option<&'t TensorInfo> {
    tensors.iter().find(|tensor| tensor.name == name && tensor.shape.len() == 2)
}

fn cols(tensors: &[TensorInfo], name: &str) -> Option<usize> {
    matrix(tensors, name).map(TensorInfo::cols)
}

fn rows(tensors: &[TensorInfo], name: &str) -> Option<usize> {
    matrix(tensors, name).map(TensorInfo::rows)
}

fn layers(tensors: &[TensorInfo]) -> Option<usize> {
    let number = |tensor: &TensorInfo| tensor.name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
    tensors.iter().filter_map(number).max().map(|last: usize| last.saturating_add(1))
}

fn head_dim(fields: &Fields<'_>, hidden_size: usize, head_count: usize) -> Result<usize, FormatError> {
    if let Some(stated) = fields.count(Fact::HeadDim)? {
        return Ok(stated);
    }
    match hidden_size.checked_div(head_count) {
        Some(share) if share * head_count == hidden_size => Ok(share),
        _ => Err(wrong(
            fields.key(Fact::HeadCount),
            format!("{head_count} do not divide a hidden size of {hidden_size}"),
        )),
    }
}

/// Rows for padding at the beginning of the table of learned positions.
pub(super) fn padding_positions(fields: &Fields<'_>) -> Result<usize, FormatError> {
    Ok(match fields.kind.padded_positions {
        true => fields.text.usize("pad_token_id")?.unwrap_or(1).saturating_add(1),
        false => 0,
    })
}

fn ffn_size(fields: &Fields<'_>, hidden_size: usize) -> Result<usize, FormatError> {
    let share = || Some(fields.kind.ffn_ratio?.saturating_mul(hidden_size));
    fields.count(Fact::FfnSize)?.or_else(share).ok_or_else(|| fields.missing(Fact::FfnSize))
}

fn kv_head_count(fields: &Fields<'_>, head_count: usize) -> Result<usize, FormatError> {
    if let Some([one, grouped]) = fields.kind.one_kv_head
        && fields.text.bool(one)? == Some(true)
        && fields.text.bool(grouped)? != Some(true)
    {
        return Ok(1);
    }
    Ok(fields.count_unless_null(Fact::KvHeadCount)?.unwrap_or(head_count))
}

fn activation(fields: &Fields<'_>) -> Result<Activation, FormatError> {
    let Fields { text, card, kind } = fields;
    for key in kind.activation_fields {
        let Some(name) = text.str(key)? else { continue };
        let mut names = kind.activation_names.iter().flat_map(|list| list.iter());
        let found = names.find(|(known, _)| *known == name);
        return found
            .map(|(_, activation)| *activation)
            .ok_or_else(|| text.unsupported(key, format!("is {}", printable(name))));
    }
    Ok(card.activation)
}

fn window(fields: &Fields<'_>, layer_count: usize) -> Result<Option<Window>, FormatError> {
    let text = &fields.text;
    let Some(size) = fields.count_unless_null(Fact::WindowSize)? else { return Ok(None) };
    let listed = layer_types(fields, layer_count)?;
    let pattern = match fields.kind.sliding {
        Sliding::Never => return Ok(None),
        Sliding::All if listed.is_some() => {
            return Err(text.unsupported(
                LAYER_TYPES,
                format!("asks for sliding windows in some layers of a {}", fields.kind.model_type),
            ));
        }
        Sliding::All => WindowPattern::Layers(vec![true; layer_count]),
        Sliding::Listed => WindowPattern::Layers(listed.unwrap_or_else(|| vec![true; layer_count])),
        Sliding::OnRequest if text.bool("use_sliding_window")? != Some(true) => return Ok(None),
        Sliding::OnRequest | Sliding::From(_) => {
            let default = if let Sliding::From(first) = fields.kind.sliding { first } else { 28 };
            let first = text.usize("max_window_layers")?.unwrap_or(default);
            let slides = listed.unwrap_or_else(|| (0..layer_count).map(|i| i >= first).collect());
            WindowPattern::Layers(slides)
        }
        Sliding::Pattern(every) => match listed {
            Some(slides) => WindowPattern::Layers(slides),
            None => WindowPattern::FullEvery(pattern(text)?.unwrap_or(every)),
        },
        Sliding::Rotated => WindowPattern::Layers(match (listed, unrotated(fields, layer_count)?) {
            (Some(slides), _) => slides,
            (None, unrotated) if unrotated.is_empty() => vec![true; layer_count],
            (None, unrotated) => unrotated.into_iter().map(|unrotated| !unrotated).collect(),
        }),
    };
    if size == 0 {
        return Err(wrong(
            fields.key(Fact::WindowSize),
            "a window must have at least 1 position".to_string(),
        ));
    }
    let anywhere = !matches!(&pattern, WindowPattern::Layers(slides) if !slides.contains(&true));
    Ok(anywhere.then_some(Window { size, pattern }))
}

/// A multiplier; 1 means none.
fn scale(fields: &Fields<'_>, fact: Fact) -> Result<Option<f32>, FormatError> {
    Ok(fields.number(fact)?.filter(|&scale| scale != 1.0).map(|scale| scale as f32))
}

/// One entry per layer: true if RoPE is not applied. Empty if RoPE is applied in all layers.
fn unrotated(fields: &Fields<'_>, layer_count: usize) -> Result<Vec<bool>, FormatError> {
    const LIST: &str = "no_rope_layers";
    if let Some((field, value)) = fields.kind.rotates_if
        && fields.text.str(field)? != Some(value)
    {
        return Ok(vec![true; layer_count]);
    }
    let Some(every) = fields.count(Fact::UnrotatedEvery)?.filter(|&every| every > 0) else {
        return Ok(vec![]);
    };
    // An entry of this list is 1 if RoPE is applied.
    match fields.text.ids(LIST)? {
        stated if stated.is_empty() => Ok((1..=layer_count).map(|n| n.is_multiple_of(every)).collect()),
        stated if stated.len() == layer_count => Ok(stated.into_iter().map(|rotates| rotates == 0).collect()),
        stated => Err(wrong(LIST, format!("it has {} entries for {layer_count} layers", stated.len()))),
    }
}

fn pattern(text: &Json<'_>) -> Result<Option<usize>, FormatError> {
    for key in ["sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"] {
        match text.usize(key)? {
            Some(0) => return Err(wrong(key, "0 is not a valid interval of layers".to_string())),
            None => {}
            stated => return Ok(stated),
        }
    }
    Ok(None)
}

/// One entry per layer: whether it uses a sliding window.
fn layer_types(fields: &Fields<'_>, layer_count: usize) -> Result<Option<Vec<bool>>, FormatError> {
    let text = &fields.text;
    let windowed = if fields.card.chunked { "chunked_attention" } else { "sliding_attention" };
    let Some(names) = text.strings(LAYER_TYPES)? else { return Ok(None) };
    if names.len() != layer_count {
        return Err(wrong_count(&names, layer_count));
    }
    let slides = names.into_iter().map(|name| match name {
        name if name == windowed => Ok(true),
        "full_attention" => Ok(false),
        other => Err(text.unsupported(LAYER_TYPES, format!("asks for {}", printable(other)))),
    });
    slides.collect::<Result<_, _>>().map(Some)
}

/// `generation_config.json`, interpreted as transformers does: if `do_sample` is present, it decides.
fn sampling(generation: &Json<'_>) -> Result<SuggestedSampling, FormatError> {
    let number = |key: &str| Ok::<_, FormatError>(generation.f64(key)?.map(|value| value as f32));
    let stated = number("temperature")?;
    let temperature = match generation.bool("do_sample")? {
        Some(false) => Some(0.0),
        Some(true) => stated.or(Some(1.0)),
        None => stated,
    };
    let repeat_penalty = number("repetition_penalty")?;
    let suggested = SuggestedSampling {
        temperature,
        // Some files use −1 for "all".
        top_k: generation.f64("top_k")?.map(|k| k.max(0.0) as usize),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repeat_penalty,
        repeat_last_n: repeat_penalty.map(|_| usize::MAX),
    };
    suggested.checked(GENERATION)
}

fn eos_ids(places: &[Option<&Json<'_>>]) -> Result<Vec<u32>, FormatError> {
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for place in places.iter().flatten() {
        all.extend(place.ids("eos_token_id")?.into_iter().filter(|&id| known.insert(id)));
    }
    Ok(all)
}
