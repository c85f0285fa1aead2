//! Lists and describes models.

use std::path::Path;
use std::time::SystemTime;

use akunu::Model;
use akunu::chat::{CallMarks, ChatTemplates, Tags};
use akunu_arch::Source;
use akunu_format::{TensorInfo, Value};
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use crate::app::{App, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::models::{Kind, ModelSpec, blocking};
use crate::refusal::Refusal;
use crate::timestamp::timestamp;

pub(super) async fn tags(State(app): State<App>) -> Response {
    let mut list = Vec::new();
    for (spec, _) in app.models().list() {
        let kind = app.models().kind(spec).await;
        for name in std::iter::once(&spec.name).chain(&spec.aliases) {
            let mut model = json!({ "name": name, "model": name, "details": { "format": format(spec) } });
            if let Some((bytes, changed)) = spec.path.as_deref().and_then(size_and_time) {
                model["size"] = bytes.into();
                model["modified_at"] = timestamp(changed).into();
            }
            if let Some(kind) = kind {
                model["capabilities"] = json!([kind.capability()]);
            }
            list.push(model);
        }
    }
    json(&json!({ "models": list }))
}

fn format(spec: &ModelSpec) -> &'static str {
    match spec.path.as_deref() {
        Some(path) if path.is_dir() || path.extension().is_some_and(|end| end == "safetensors") => {
            "safetensors"
        }
        _ => "gguf",
    }
}

/// The size and modification time of a file, or of the weights in a folder.
fn size_and_time(path: &Path) -> Option<(u64, SystemTime)> {
    let about = path.metadata().ok()?;
    let bytes = match about.is_dir() {
        false => about.len(),
        true => {
            let files = path.read_dir().ok()?.flatten().map(|entry| entry.path());
            let weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
            weights.filter_map(|path| Some(path.metadata().ok()?.len())).sum()
        }
    };
    Some((bytes, about.modified().ok()?))
}

/// Describes a model from its files, without loading weights.
pub(super) async fn show(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let spec = app.models().spec(Some(super::model(&fields)?))?.clone();
    let shown = blocking(move || {
        let model = spec.open(false)?;
        Ok::<Json, Refusal>(describe(&spec, &model, app.models().kind_of(&model)))
    });
    Ok(json(&shown.await??))
}

fn describe(spec: &ModelSpec, model: &Model, kind: Kind) -> Json {
    let (config, tensors) = (model.config(), model.weights().tensors());
    let elements = |tensor: &TensorInfo| tensor.shape.iter().map(|&n| n as u64).product::<u64>();
    let largest = tensors.iter().max_by_key(|tensor| elements(tensor));
    let template = template(spec, model).unwrap_or_default();
    let has_reasoning = template.contains(Tags::of_template(&template).close);
    let generates = kind == Kind::Generates;
    let capabilities = [
        (kind.capability(), true),
        ("tools", generates && CallMarks::of_template(&template).is_some()),
        ("thinking", generates && has_reasoning),
    ];
    let mut shown = json!({
        "modelfile": format!("FROM {}\n", spec.name),
        "parameters": "",
        "template": template,
        "details": {
            "parent_model": "",
            "format": match config.source {
                Source::Gguf => "gguf",
                Source::Ggml => "ggml",
                Source::HuggingFace => "safetensors",
            },
            "family": config.architecture,
            "families": [config.architecture],
            "parameter_size": short(tensors.iter().map(elements).sum()),
            "quantization_level": largest.map_or("", |tensor| tensor.dtype.name()),
        },
        "model_info": info(model),
        "capabilities": capabilities.iter().filter(|(_, has)| *has).map(|(name, _)| name).collect::<Vec<_>>(),
    });
    if let Some((_, changed)) = spec.path.as_deref().and_then(size_and_time) {
        shown["modified_at"] = timestamp(changed).into();
    }
    shown
}

fn template(spec: &ModelSpec, model: &Model) -> Option<String> {
    let templates = ChatTemplates::find(model.metadata(), spec.path.as_deref()).ok()?;
    let template = templates.template(None, &**model.tokenizer().ok()?).ok()?;
    Some(template.source().to_string())
}

/// `1.2B`
fn short(parameters: u64) -> String {
    let (size, unit) = match parameters {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        _ => (1e3, "K"),
    };
    format!("{:.1}{unit}", parameters as f64 / size)
}

/// The metadata of the file; arrays are null, as in Ollama.
fn info(model: &Model) -> Json {
    let value = |value: &Value| match value {
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(_) => Json::Null,
        integer => integer.to_i128().and_then(|v| i64::try_from(v).ok()).map_or(Json::Null, Json::from),
    };
    let config = model.config();
    let mut info: Map<String, Json> = match model.metadata() {
        Some(metadata) => metadata.iter().map(|(key, v)| (key.to_string(), value(v))).collect(),
        None => Map::new(),
    };
    // Files other than GGUF lack these keys, which clients rely on.
    let key = |name: &str| format!("{}.{name}", config.architecture);
    info.entry("general.architecture").or_insert_with(|| config.architecture.as_str().into());
    for (name, number) in [
        ("context_length", config.context_length),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layer_count),
    ] {
        info.entry(key(name)).or_insert_with(|| number.into());
    }
    Json::Object(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_abbreviated() {
        assert_eq!([999, 1_240_000, 70_553_000_000].map(short), ["1.0K", "1.2M", "70.6B"]);
    }
}
