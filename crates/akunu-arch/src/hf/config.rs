//! `config.json` → [`ModelConfig`], with transformers' defaults for what it leaves out.

use akunu_format::hf::{CONFIG, Json, Quantisation, wrong};
use akunu_format::{FormatError, TensorInfo, printable};

use super::rope;
use crate::{Activation, ModelConfig, Source, SuggestedSampling, Window, WindowPattern};

/// How a kind of model says which layers slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sliding {
    Never,
    /// All layers, if a size is given.
    All,
    /// If `use_sliding_window` says so, the layers from `max_window_layers` on.
    OnRequest,
    /// All but every n-th.
    Pattern(usize),
}

/// What transformers assumes where a configuration says nothing. Files from the hub do leave things out:
/// multimodal Gemma 3's `text_config` has no head count, for one.
struct Defaults {
    model_type: &'static str,
    hidden_size: usize,
    ffn_size: usize,
    layers: usize,
    heads: usize,
    /// `None`: as many as query heads.
    kv_heads: Option<usize>,
    /// `None`: the hidden size's even share.
    head_dim: Option<usize>,
    context: usize,
    epsilon: f64,
    window: Option<usize>,
    sliding: Sliding,
    /// Attention's and the logits'.
    soft_caps: (Option<f64>, Option<f64>),
    /// Scores are divided by the root of `query_pre_attn_scalar`, 256 where absent.
    scalar: bool,
    /// The configuration calls it `hidden_activation`, and tanh-GELU is the default.
    gemma: bool,
}

const LLAMA: Defaults = Defaults {
    model_type: "llama",
    hidden_size: 4096,
    ffn_size: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    epsilon: 1e-6,
    window: None,
    sliding: Sliding::Never,
    soft_caps: (None, None),
    scalar: false,
    gemma: false,
};

const KINDS: [Defaults; 8] = [
    LLAMA,
    Defaults {
        model_type: "mistral",
        ffn_size: 14336,
        kv_heads: Some(8),
        context: 131_072,
        window: Some(4096),
        sliding: Sliding::All,
        ..LLAMA
    },
    QWEN2,
    Defaults { model_type: "qwen3", head_dim: Some(128), ..QWEN2 },
    Defaults {
        model_type: "gemma",
        hidden_size: 3072,
        ffn_size: 24576,
        layers: 28,
        heads: 16,
        kv_heads: Some(16),
        head_dim: Some(256),
        context: 8192,
        gemma: true,
        ..LLAMA
    },
    GEMMA2,
    Defaults {
        model_type: "gemma3_text",
        context: 131_072,
        soft_caps: (None, None),
        sliding: Sliding::Pattern(6),
        ..GEMMA2
    },
    Defaults {
        model_type: "phi3",
        hidden_size: 3072,
        ffn_size: 8192,
        context: 4096,
        epsilon: 1e-5,
        sliding: Sliding::All,
        ..LLAMA
    },
];

const QWEN2: Defaults = Defaults {
    model_type: "qwen2",
    ffn_size: 22016,
    kv_heads: Some(32),
    context: 32768,
    window: Some(4096),
    sliding: Sliding::OnRequest,
    ..LLAMA
};

const GEMMA2: Defaults = Defaults {
    model_type: "gemma2",
    hidden_size: 2304,
    ffn_size: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 8192,
    epsilon: 1e-6,
    window: Some(4096),
    sliding: Sliding::Pattern(2),
    soft_caps: (Some(50.0), Some(30.0)),
    scalar: true,
    gemma: true,
};

/// The language model's part of the configuration: multimodal Gemma 3 nests it.
fn text<'a>(root: &Json<'a>) -> Result<(Json<'a>, &'static Defaults), FormatError> {
    let kind = root
        .str("model_type")?
        .ok_or_else(|| FormatError::MissingKey { key: "model_type".to_string(), place: CONFIG })?;
    let find = |name: &str| KINDS.iter().find(|defaults| defaults.model_type == name);
    if kind == "gemma3" {
        let nested = root.object("text_config")?.unwrap_or_else(|| root.clone());
        return find("gemma3_text")
            .map(|defaults| (nested, defaults))
            .ok_or_else(|| unknown_kind(root, kind));
    }
    let defaults = find(kind).ok_or_else(|| unknown_kind(root, kind))?;
    Ok((root.clone(), defaults))
}

fn unknown_kind(root: &Json<'_>, kind: &str) -> FormatError {
    let known: Vec<&str> = KINDS.iter().map(|defaults| defaults.model_type).collect();
    root.unsupported("model_type", format!("is {} (and not one of {})", printable(kind), known.join(", ")))
}

/// What needs another computation or another way to read the weights, told from the configuration alone.
pub(super) fn refuse_unsupported(root: &Json<'_>) -> Result<(), FormatError> {
    Quantisation::of(root)?;
    if root.get("compression_config").is_some() {
        let asks = "says that this is a quantised checkpoint (take the original, or a GGUF file)";
        return Err(root.unsupported("compression_config", asks));
    }
    let (text, _) = text(root)?;
    for key in ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"] {
        if let Some(count) = text.usize(key)?.filter(|&count| count > 0) {
            return Err(text.unsupported(key, format!("asks for a mixture of {count} experts")));
        }
    }
    if text.bool("is_encoder_decoder")? == Some(true) {
        return Err(text.unsupported("is_encoder_decoder", "asks for an encoder"));
    }
    match text.get("use_bidirectional_attention") {
        None | Some(serde_json::Value::Bool(false)) => Ok(()),
        Some(_) => {
            Err(text.unsupported("use_bidirectional_attention", "asks for attention in both directions"))
        }
    }
}

/// A multimodal checkpoint with its other halves in it: refused by what they are for, not by a tensor's name.
pub(super) fn refuse_images<'a>(
    root: &Json<'_>,
    mut names: impl Iterator<Item = &'a str>,
) -> Result<(), FormatError> {
    let parts = ["vision_tower.", "multi_modal_projector."];
    match names.find(|name| parts.iter().any(|part| name.contains(part))) {
        None => Ok(()),
        Some(name) => {
            let asks = format!("asks for image input (tensor {} and others)", printable(name));
            Err(root.unsupported("vision_config", asks))
        }
    }
}

pub(super) fn model_config(
    root: &Json<'_>,
    generation: Option<&Json<'_>>,
    name: Option<String>,
    tensors: &[TensorInfo],
) -> Result<ModelConfig, FormatError> {
    let (text, defaults) = text(root)?;
    let or = |key: &str, default: usize| Ok::<_, FormatError>(text.usize(key)?.unwrap_or(default));
    let hidden_size = or("hidden_size", defaults.hidden_size)?;
    let layer_count = or("num_hidden_layers", defaults.layers)?;
    let head_count = or("num_attention_heads", defaults.heads)?;
    refuse_lost(&text, &["hidden_size"], hidden_size, cols(tensors, "token_embd.weight"))?;
    refuse_lost(&text, &["num_hidden_layers"], layer_count, layers(tensors))?;
    // Lists of layers are made below: no longer than the file justifies.
    if layer_count > tensors.len() {
        let problem = format!("{layer_count} layers in a file of {} tensors", tensors.len());
        return Err(wrong("num_hidden_layers", problem));
    }
    let context_length = or("max_position_embeddings", defaults.context)?;
    let head_dim = head_dim(&text, defaults, hidden_size, head_count)?;
    let (attention_cap, logit_cap) = defaults.soft_caps;
    let config = ModelConfig {
        architecture: defaults.model_type.to_string(),
        source: Source::HuggingFace,
        name,
        vocab_size: crate::config::vocab_size(tensors)?,
        context_length,
        hidden_size,
        layer_count,
        ffn_size: or("intermediate_size", defaults.ffn_size)?,
        head_count,
        kv_head_count: kv_heads(&text, defaults, head_count)?,
        head_dim,
        norm_epsilon: text.f64("rms_norm_eps")?.unwrap_or(defaults.epsilon) as f32,
        rope: rope::rope(&text, defaults.model_type == "gemma3_text", head_dim, context_length)?,
        window: window(&text, defaults, layer_count)?,
        attention_scale: attention_scale(&text, defaults)?,
        attention_soft_cap: soft_cap(&text, "attn_logit_softcapping", attention_cap)?,
        logit_soft_cap: soft_cap(&text, "final_logit_softcapping", logit_cap)?,
        activation: Some(activation(&text, defaults)?),
        sampling: generation.map_or(Ok(SuggestedSampling::default()), sampling)?,
        eos_ids: eos_ids(&[Some(&text), Some(root), generation])?,
        bos_id: text.ids("bos_token_id")?.first().or(root.ids("bos_token_id")?.first()).copied(),
    };
    config.check(CONFIG, tensors)?;
    refuse_lost(&text, &["intermediate_size"], config.ffn_size, cols(tensors, "blk.0.ffn_down.weight"))?;
    // What is not stated is derived from what is, so only one of these can be wrong by its absence.
    let (heads, kv_heads) = ("num_attention_heads", "num_key_value_heads");
    let (q, kv) = (config.head_count * config.head_dim, config.kv_head_count * config.head_dim);
    refuse_lost(&text, &[heads, "head_dim"], q, cols(tensors, "blk.0.attn_output.weight"))?;
    refuse_lost(&text, &[heads, kv_heads], kv, rows(tensors, "blk.0.attn_k.weight"))?;
    Ok(config)
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

/// Where weights contradict what `size` is by default, the configuration has lost a field: said so, before a shape is
/// found wrong that nobody wrote.
fn refuse_lost(text: &Json<'_>, keys: &[&str], size: usize, found: Option<usize>) -> Result<(), FormatError> {
    let lost = keys.iter().find(|key| !text.mentions(key));
    match (lost, found) {
        (Some(key), Some(found)) if found != size => {
            let problem = format!(
                "it is missing, and what is assumed instead makes {size} of what is {found} in the weights: take the \
                 {CONFIG} that was published with them"
            );
            Err(wrong(&text.full(key), problem))
        }
        _ => Ok(()),
    }
}

fn head_dim(
    text: &Json<'_>,
    defaults: &Defaults,
    hidden_size: usize,
    head_count: usize,
) -> Result<usize, FormatError> {
    if let Some(stated) = text.usize("head_dim")?.or(defaults.head_dim) {
        return Ok(stated);
    }
    match hidden_size.checked_div(head_count) {
        Some(share) if share * head_count == hidden_size => Ok(share),
        _ => Err(wrong(
            "num_attention_heads",
            format!("{head_count} do not divide a hidden size of {hidden_size}"),
        )),
    }
}

/// `null` means as many as query heads, absence the kind's default.
fn kv_heads(text: &Json<'_>, defaults: &Defaults, head_count: usize) -> Result<usize, FormatError> {
    const KEY: &str = "num_key_value_heads";
    let default = if text.mentions(KEY) { None } else { defaults.kv_heads };
    Ok(text.usize(KEY)?.or(default).unwrap_or(head_count))
}

fn attention_scale(text: &Json<'_>, defaults: &Defaults) -> Result<Option<f32>, FormatError> {
    if !defaults.scalar {
        return Ok(None);
    }
    let scalar = text.f64("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(Some(scalar.powf(-0.5) as f32))
}

/// `null` turns a cap off; absence leaves the kind's default.
fn soft_cap(text: &Json<'_>, key: &str, default: Option<f64>) -> Result<Option<f32>, FormatError> {
    let default = if text.mentions(key) { None } else { default };
    Ok(text.f64(key)?.or(default).map(|cap| cap as f32))
}

fn activation(text: &Json<'_>, defaults: &Defaults) -> Result<Activation, FormatError> {
    let first_gemma = defaults.model_type == "gemma";
    let keys: &[&str] = match (first_gemma, defaults.gemma) {
        (true, _) => &["hidden_activation", "hidden_act"],
        (false, true) => &["hidden_activation"],
        (false, false) => &["hidden_act"],
    };
    for key in keys {
        let Some(name) = text.str(key)? else { continue };
        return match name {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
            // The first Gemma's files say `gelu` and mean this.
            "gelu" if first_gemma => Ok(Activation::GeluTanh),
            "gelu" => Ok(Activation::GeluErf),
            other => Err(text.unsupported(key, format!("is {}", printable(other)))),
        };
    }
    Ok(if defaults.gemma { Activation::GeluTanh } else { Activation::Silu })
}

fn window(text: &Json<'_>, defaults: &Defaults, layer_count: usize) -> Result<Option<Window>, FormatError> {
    const SIZE: &str = "sliding_window";
    let default = if text.mentions(SIZE) { None } else { defaults.window };
    let Some(size) = text.usize(SIZE)?.or(default) else { return Ok(None) };
    let listed = layer_types(text, layer_count)?;
    let pattern = match defaults.sliding {
        Sliding::Never => return Ok(None),
        Sliding::All if listed.is_some() => {
            return Err(text.unsupported(
                "layer_types",
                format!("asks some layers of a {} to slide", defaults.model_type),
            ));
        }
        Sliding::All => WindowPattern::Layers(vec![true; layer_count]),
        Sliding::OnRequest if text.bool("use_sliding_window")? != Some(true) => return Ok(None),
        Sliding::OnRequest => {
            let first = text.usize("max_window_layers")?.unwrap_or(28);
            let slides = listed.unwrap_or_else(|| (0..layer_count).map(|i| i >= first).collect());
            WindowPattern::Layers(slides)
        }
        Sliding::Pattern(every) => match listed {
            Some(slides) => WindowPattern::Layers(slides),
            None => WindowPattern::FullEvery(pattern(text)?.unwrap_or(every)),
        },
    };
    if size == 0 {
        return Err(wrong(SIZE, "a window of 0 positions sees nothing".to_string()));
    }
    let anywhere = !matches!(&pattern, WindowPattern::Layers(slides) if !slides.contains(&true));
    Ok(anywhere.then_some(Window { size, pattern }))
}

fn pattern(text: &Json<'_>) -> Result<Option<usize>, FormatError> {
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        match text.usize(key)? {
            Some(0) => return Err(wrong(key, "0 says nothing about any layer".to_string())),
            None => {}
            stated => return Ok(stated),
        }
    }
    Ok(None)
}

/// One entry a layer: does it slide?
fn layer_types(text: &Json<'_>, layer_count: usize) -> Result<Option<Vec<bool>>, FormatError> {
    const KEY: &str = "layer_types";
    let Some(names) = text.strings(KEY)? else { return Ok(None) };
    if names.len() != layer_count {
        return Err(wrong(KEY, format!("it has {} entries for {layer_count} layers", names.len())));
    }
    let slides = names.into_iter().map(|name| match name {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(text.unsupported(KEY, format!("asks for {}", printable(other)))),
    });
    slides.collect::<Result<_, _>>().map(Some)
}

/// `generation_config.json`, as transformers reads it: `do_sample` decides, if it is there.
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
        // Some write −1 for "all".
        top_k: generation.f64("top_k")?.map(|k| k.max(0.0) as usize),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repeat_penalty,
        repeat_last_n: repeat_penalty.map(|_| usize::MAX),
    };
    suggested.checked("generation_config.json")
}

fn eos_ids(places: &[Option<&Json<'_>>]) -> Result<Vec<u32>, FormatError> {
    let mut all = Vec::new();
    for place in places.iter().flatten() {
        for id in place.ids("eos_token_id")? {
            if !all.contains(&id) {
                all.push(id);
            }
        }
    }
    Ok(all)
}
