//! `akunu inspect`: the contents of a model file.

mod contents;

use std::collections::BTreeMap;

use akunu::embed::default_longest;
use akunu::{Model, ModelConfig, Pooling, TensorInfo};
use akunu_arch::{RopeScaling, Source, WindowPattern};
use akunu_format::Value;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::args::ModelArg;
use crate::failure::Failure;
use crate::grid::{Grid, facts, grouped};
use crate::hub;
use crate::output::{self, Output};

/// Shows the configuration, vocabulary and tensor types of a model
///
/// Of other files it shows what can be read, and why they cannot be run: vocabularies, unknown architectures and types,
/// importance matrices and single parts of split models (GGUF), SafeTensors files and folders without config.json,
/// tokenizer.json, tokenizer.model, config.json.
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Lists all tensors
    #[arg(long)]
    tensors: bool,
    /// Lists all metadata keys (GGUF only); long arrays with their length
    #[arg(long)]
    metadata: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct InspectReport<'a> {
    model: &'a str,
    format: &'static str,
    name: Option<&'a str>,
    architecture: &'a str,
    supported: bool,
    parameters: u64,
    bytes: u64,
    bits_per_weight: f64,
    dtypes: BTreeMap<&'static str, Share>,
    vocab_size: usize,
    vocabulary: Option<String>,
    context_length: usize,
    hidden_size: usize,
    layer_count: usize,
    ffn_size: usize,
    head_count: usize,
    kv_head_count: usize,
    head_dim: usize,
    norm_epsilon: f32,
    /// Only for models with RoPE.
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_base: Option<f64>,
    rope_local_base: Option<f64>,
    rope_dims: usize,
    rope_scaling: String,
    /// Parts of the file that are not run, such as a vision encoder.
    left_out: Option<String>,
    window: Option<usize>,
    tied_embeddings: bool,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    /// Only for embedding models and rerankers.
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Texts<'a>>,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    suggested_sampling: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Tensor<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Serialize)]
struct Texts<'a> {
    /// Pooling type; `None` if the files do not state one.
    pooling: Option<&'static str>,
    /// Whether attention is bidirectional.
    sees_whole_text: bool,
    /// Default maximum text length in tokens.
    longest: usize,
    /// Number of scores of the classifier.
    classifier: Option<usize>,
    prompts: BTreeMap<&'a str, &'a str>,
    default_prompt: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Share {
    tensors: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Tensor<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    bytes: usize,
}

pub fn run(args: &InspectArgs, out: &mut Output) -> Result<(), Failure> {
    let path = args.model.path().map(hub::resolve).transpose()?;
    let model = match (super::open(path.as_deref(), false), &path) {
        (Err(failure), Some(path)) => return contents::run(args, path, failure, out),
        (opened, _) => opened?,
    };
    let mut report = report(&model);
    if args.tensors {
        report.tensors = Some(tensors(&model));
    }
    if args.metadata {
        report.metadata = Some(metadata(&model));
    }
    if args.json {
        return out.json(&report);
    }
    let width = output::width();
    out.listing(&facts(&lines(&report, model.config()), width))?;
    if let Some(tensors) = &report.tensors {
        let mut grid = Grid::new().text("tensor").word("type").word("shape").number("bytes");
        for tensor in tensors {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let (name, dtype) = (tensor.name.to_string(), tensor.dtype.to_string());
            grid.row([name, dtype, shape.join(" × "), grouped(tensor.bytes as u64)]);
        }
        out.text("\n")?;
        out.listing(&grid.render(width))?;
    }
    report.metadata.as_ref().map_or(Ok(()), |metadata| print_metadata(metadata, out))
}

fn print_metadata(
    metadata: &serde_json::Map<String, serde_json::Value>,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut grid = Grid::new().word("key").text("value");
    for (key, value) in metadata {
        grid.row([key.clone(), value.to_string()]);
    }
    out.text("\n")?;
    out.listing(&grid.render(output::width().or(Some(160))))
}

fn report(model: &Model) -> InspectReport<'_> {
    let config = model.config();
    let tensors = model.weights().tensors();
    let parameters: u64 = tensors.iter().map(elements).sum();
    let bytes: u64 = tensors.iter().map(|t| t.stored_bytes() as u64).sum();
    let mut dtypes: BTreeMap<&'static str, Share> = BTreeMap::new();
    for tensor in tensors {
        let share = dtypes.entry(tensor.dtype.name()).or_default();
        share.tensors += 1;
        share.bytes += tensor.stored_bytes() as u64;
    }
    let text = |key: &str| model.metadata().and_then(|m| m.str(key).ok().flatten());
    InspectReport {
        model: model.name(),
        format: match config.source {
            Source::Gguf => "GGUF",
            Source::Ggml => "GGML",
            Source::HuggingFace => config.packed_as.unwrap_or("SafeTensors"),
        },
        name: config.name.as_deref(),
        architecture: &config.architecture,
        supported: akunu_plan::Card::find(&config.architecture).is_some(),
        parameters,
        bytes,
        bits_per_weight: bytes as f64 * 8.0 / parameters.max(1) as f64,
        dtypes,
        vocab_size: config.vocab_size,
        vocabulary: match text("tokenizer.ggml.model") {
            Some(kind) => Some(kind.to_string()),
            None => model.tokenizer().ok().map(|tokenizer| tokenizer.describe()),
        },
        context_length: config.context_length,
        hidden_size: config.hidden_size,
        layer_count: config.layer_count,
        ffn_size: config.ffn_size,
        head_count: config.head_count,
        kv_head_count: config.kv_head_count,
        head_dim: config.head_dim,
        norm_epsilon: config.norm_epsilon,
        rope_base: has_rope(config).then_some(config.rope.base),
        rope_local_base: config.rope.local_base,
        rope_dims: config.rope.dims,
        left_out: config.left_out.clone(),
        rope_scaling: rope_scaling(config, model.weights().tensor("rope_freqs.weight").is_some()),
        window: config.window.as_ref().map(|w| w.size),
        tied_embeddings: model.weights().tensor("output.weight").is_none(),
        bos_id: config.bos_id,
        eos_ids: model.eos_ids().to_vec(),
        texts: model.text_task().map(|_| texts(model)),
        suggested_sampling: suggested_sampling(config),
        tensors: None,
        metadata: None,
    }
}

fn texts(model: &Model) -> Texts<'_> {
    let config = model.config();
    let facts = &config.embedding;
    let classifier = model.weights().tensor("cls.output.weight");
    Texts {
        pooling: facts.pooling.map(Pooling::name),
        sees_whole_text: config.bidirectional,
        longest: default_longest(config),
        classifier: classifier.and_then(|tensor| tensor.shape.first().copied()),
        prompts: facts.prompts.iter().map(|(name, text)| (&name[..], &text[..])).collect(),
        default_prompt: facts.default_prompt.as_deref(),
    }
}

fn suggested_sampling(config: &ModelConfig) -> serde_json::Map<String, serde_json::Value> {
    let of = &config.sampling;
    let all = [
        ("temperature", of.temperature.map(|v| json!(v))),
        ("top_k", of.top_k.map(|v| json!(v))),
        ("top_p", of.top_p.map(|v| json!(v))),
        ("min_p", of.min_p.map(|v| json!(v))),
        ("repeat_penalty", of.repeat_penalty.map(|v| json!(v))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}

fn elements(tensor: &TensorInfo) -> u64 {
    tensor.shape.iter().map(|&n| n as u64).product()
}

fn rope_scaling(config: &ModelConfig, frequency_factors: bool) -> String {
    match config.rope.scaling {
        RopeScaling::None if frequency_factors => "factors from the file (Llama 3)".to_string(),
        RopeScaling::None => "none".to_string(),
        RopeScaling::Linear { factor } => format!("linear, ×{factor}"),
        RopeScaling::Llama3 { factor, original_context, .. } => {
            format!("Llama 3, ×{factor} beyond {original_context}")
        }
        RopeScaling::Yarn { factor, original_context, .. } => {
            format!("YaRN, ×{factor} beyond {original_context}")
        }
        RopeScaling::LongRope { original_context, .. } => {
            format!("LongRoPE, different factors beyond {original_context}")
        }
    }
}

fn lines(report: &InspectReport<'_>, config: &ModelConfig) -> Vec<(&'static str, String)> {
    let dtypes: Vec<String> = report
        .dtypes
        .iter()
        .map(|(name, s)| format!("{name} {} ({} tensors)", akunu::human(s.bytes), s.tensors))
        .collect();
    let supported = if report.supported { "" } else { " (not supported)" };
    let mut lines = vec![("model", format!("{} ({})", report.model, report.format))];
    lines.extend(report.name.map(|name| ("name", name.to_string())));
    lines.extend([
        ("architecture", format!("{}{supported}", report.architecture)),
        ("parameters", grouped(report.parameters)),
        (
            "weights",
            format!("{}, {:.2} bits a parameter", akunu::human(report.bytes), report.bits_per_weight),
        ),
        ("types", dtypes.join(", ")),
        ("vocabulary", format!("{} ids, {}", grouped(report.vocab_size as u64), vocabulary(report))),
        ("context", format!("{} positions", grouped(report.context_length as u64))),
        ("layers", report.layer_count.to_string()),
        ("hidden", format!("{}, feed-forward {}", report.hidden_size, report.ffn_size)),
        (
            "heads",
            match config.latent {
                Some(latent) => {
                    format!("{}, over latent vectors of {}", report.head_count, latent.size)
                }
                None => format!(
                    "{} of {}, {} for keys and values",
                    report.head_count, report.head_dim, report.kv_head_count
                ),
            },
        ),
    ]);
    lines.extend(config.mamba.map(|mamba| {
        let (count, of) =
            (config.recurrent.iter().filter(|recurrent| **recurrent).count(), report.layer_count);
        let sizes =
            format!("{} heads of {} with {} elements each", mamba.heads, mamba.head_dim, mamba.state_size);
        ("states", format!("{sizes}, in {count} of {of} layers"))
    }));
    lines.extend(report.rope_base.map(|base| ("rope", rope(report, base))));
    lines.extend(report.window.map(|size| {
        ("window", format!("{}{size} positions in {}", chunks_of(config), window_layers(config)))
    }));
    lines.extend(config.attention_soft_cap.map(|cap| ("attention cap", cap.to_string())));
    lines.extend(config.logit_soft_cap.map(|cap| ("logit cap", cap.to_string())));
    lines.extend(report.left_out.clone().map(|part| ("left out", part)));
    match &report.texts {
        Some(texts) => lines.extend(text_lines(texts)),
        None => lines.extend(generation_lines(report)),
    }
    lines
}

/// Lines for an embedding model or reranker.
fn text_lines(texts: &Texts<'_>) -> Vec<(&'static str, String)> {
    let mut lines = vec![match texts.sees_whole_text {
        true => ("attention", "bidirectional".to_string()),
        false => ("attention", "causal".to_string()),
    }];
    match texts.classifier {
        Some(1) => lines.push(("classifier", "one score for a query and a document (akunu rerank)".into())),
        Some(labels) => lines.push(("classifier", format!("{labels} scores"))),
        None => lines.push((
            "pooling",
            texts.pooling.unwrap_or("not stated by the model's files; mean is used").into(),
        )),
    }
    lines.push(("longest text", format!("{} tokens by default (-c)", grouped(texts.longest as u64))));
    for (name, prompt) in &texts.prompts {
        let usual = if texts.default_prompt == Some(name) { " (added to texts by default)" } else { "" };
        lines.push(("prompt", format!("{name}{usual}: {prompt:?}")));
    }
    lines
}

fn generation_lines(report: &InspectReport<'_>) -> Vec<(&'static str, String)> {
    let tied = if report.tied_embeddings { "tied to the embedding" } else { "a separate matrix" };
    let mut lines = vec![("output", tied.to_string())];
    lines.extend(report.bos_id.map(|id| ("begin of text", id.to_string())));
    if !report.eos_ids.is_empty() {
        lines.push(("end of text", crate::ids::listed(&report.eos_ids)));
    }
    if !report.suggested_sampling.is_empty() {
        let all = report.suggested_sampling.iter().map(|(name, value)| format!("{name} {value}"));
        lines.push(("sampling", all.collect::<Vec<_>>().join(", ")));
    }
    lines
}

fn vocabulary(report: &InspectReport<'_>) -> String {
    match (&report.vocabulary, report.format) {
        (Some(kind), _) => kind.clone(),
        (None, "GGUF") => "none in the file".to_string(),
        (None, _) => "no vocabulary".to_string(),
    }
}

fn has_rope(config: &ModelConfig) -> bool {
    let card = akunu_plan::Card::find(&config.architecture);
    config.rope.dims > 0 && card.is_none_or(|card| card.rotary)
}

fn rope(report: &InspectReport<'_>, base: f64) -> String {
    let mut text = format!("base {base}");
    if let Some(local) = report.rope_local_base {
        text.push_str(&format!(", {local} in sliding-window layers"));
    }
    if report.rope_dims != report.head_dim {
        text.push_str(&format!(", {} of {} dimensions", report.rope_dims, report.head_dim));
    }
    if report.rope_scaling != "none" {
        text.push_str(&format!(", scaling {}", report.rope_scaling));
    }
    text
}

/// Whether windows are chunks.
fn chunks_of(config: &ModelConfig) -> &'static str {
    let arch = akunu_plan::Card::find(&config.architecture);
    if arch.is_some_and(|card| card.chunked) { "chunks of " } else { "" }
}

fn window_layers(config: &ModelConfig) -> String {
    let Some(arch) = akunu_plan::Card::find(&config.architecture) else {
        return match config.window.as_ref().map(|w| &w.pattern) {
            Some(WindowPattern::FullEvery(n)) => format!("all layers except every {n}th"),
            _ => "some layers".to_string(),
        };
    };
    let sliding = (0..config.layer_count).filter(|&l| arch.layer_window(config, l).is_some()).count();
    format!("{sliding} of {} layers", config.layer_count)
}

fn tensors(model: &Model) -> Vec<Tensor<'_>> {
    let all = model.weights().tensors().iter();
    all.map(|t| Tensor { name: &t.name, dtype: t.dtype.name(), shape: &t.shape, bytes: t.stored_bytes() })
        .collect()
}

fn metadata(model: &Model) -> serde_json::Map<String, serde_json::Value> {
    let entries = model.metadata().into_iter().flat_map(|m| m.iter());
    entries.map(|(key, value)| (key.to_string(), metadata_value(value))).collect()
}

fn metadata_value(value: &Value) -> serde_json::Value {
    match value {
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(array) => json!(format!("{} × {}", array.len(), array.element_name())),
        integer => match integer.to_i128().and_then(|v| i64::try_from(v).ok()) {
            Some(v) => json!(v),
            None => json!(integer.to_i128().map(|v| v.to_string())),
        },
    }
}
