//! Describes a model from its files, without loading weights.

use std::sync::Arc;

use akunu::Model;
use akunu_format::Value;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::models::{details, tagged};
use crate::app::{App, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::models::{Facts, ModelSpec, Variant};
use crate::refusal::{Reason, Refusal};
use crate::timestamp::timestamp;

pub(super) async fn show(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let name = super::model(&fields)?;
    let spec = app.models().spec(Some(name)).await?;
    let variant = app.models().variant(Some(name));
    let facts = app.models().facts(&spec).await;
    let unreadable = || Refusal::new(Reason::Unavailable, "the model's files cannot be read");
    let facts = facts.ok_or_else(unreadable)?;
    let (of, of_app) = (spec.clone(), app.clone());
    let facts = facts.of_variant(variant.as_deref());
    let describe = move |model: &Model| {
        let template = of_app.models().chat_template(&of, variant.as_deref(), model);
        let template = template.map_or(String::new(), |template| template.source().into());
        describe(&of, model, &facts, variant, &template)
    };
    let shown = app.models().look(&spec, describe).await?;
    Ok(json(&shown))
}

fn describe(
    spec: &ModelSpec,
    model: &Model,
    facts: &Facts,
    variant: Option<Arc<Variant>>,
    template: &str,
) -> Json {
    let parameters = parameters(model, variant.as_deref());
    let settings = variant.as_deref().map(|variant| &variant.settings);
    let system = settings.and_then(|settings| settings.system.as_deref());
    let license = license(model, variant.as_deref());
    let mut modelfile = format!("FROM {}\n", variant.as_deref().map_or(&spec.name, |variant| &variant.of));
    let mut block = |name: &str, text: &str| modelfile.push_str(&format!("{name} \"\"\"{text}\"\"\"\n"));
    if !template.is_empty() {
        block("TEMPLATE", template);
    }
    if let Some(system) = system {
        block("SYSTEM", system);
    }
    for (name, value) in &parameters {
        modelfile.push_str(&format!("PARAMETER {name} {value}\n"));
    }
    let lines = parameters.iter().map(|(name, value)| format!("{name:<30} {value}"));
    let mut shown = json!({
        "modelfile": modelfile,
        "parameters": lines.collect::<Vec<_>>().join("\n"),
        "template": template,
        "details": details(facts),
        "model_info": info(model, facts),
        "capabilities": facts.capabilities(),
    });
    if let Some(variant) = &variant {
        shown["details"]["parent_model"] = tagged(&variant.of).into();
        shown["modified_at"] = timestamp(variant.created).into();
        if !variant.settings.messages.is_empty() {
            shown["messages"] = variant.settings.messages.as_slice().into();
        }
    } else if let Some(changed) = spec.changed() {
        shown["modified_at"] = timestamp(changed).into();
    }
    for (name, text) in [("system", system.map(str::to_string)), ("license", license)] {
        if let Some(text) = text {
            shown[name] = text.into();
        }
    }
    shown
}

/// What the model's files suggest, and what a variant sets instead, as in a Modelfile.
fn parameters(model: &Model, variant: Option<&Variant>) -> Vec<(String, String)> {
    let suggested = &model.config().sampling;
    let mut all: Map<String, Json> = Map::new();
    let number = |number: f32| number.to_string().parse::<f64>().map_or(Json::Null, Json::from);
    for (name, value) in [
        ("temperature", suggested.temperature.map(number)),
        ("top_k", suggested.top_k.map(Json::from)),
        ("top_p", suggested.top_p.map(number)),
        ("min_p", suggested.min_p.map(number)),
        ("repeat_penalty", suggested.repeat_penalty.map(number)),
        ("repeat_last_n", suggested.repeat_last_n.map(Json::from)),
    ] {
        all.extend(value.map(|value| (name.to_string(), value)));
    }
    if let Some(variant) = variant {
        all.extend(variant.settings.parameters.clone());
    }
    let lines = all.into_iter().flat_map(|(name, value)| match value {
        Json::Array(values) => values.into_iter().map(|value| (name.clone(), value.to_string())).collect(),
        value => vec![(name, value.to_string())],
    });
    lines.collect()
}

fn license(model: &Model, variant: Option<&Variant>) -> Option<String> {
    let own = variant.map(|variant| variant.settings.license.join("\n")).filter(|text| !text.is_empty());
    let of_file = || match model.metadata()?.get("general.license")? {
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    own.or_else(of_file)
}

/// The metadata of the file; arrays are null, as in Ollama.
fn info(model: &Model, facts: &Facts) -> Json {
    let mut info: Map<String, Json> = match model.metadata() {
        Some(metadata) => metadata.iter().map(|(key, v)| (key.to_string(), json_of(v))).collect(),
        None => Map::new(),
    };
    // Files other than GGUF lack these keys, which clients rely on.
    let config = model.config();
    let key = |name: &str| format!("{}.{name}", config.architecture);
    info.entry("general.architecture").or_insert_with(|| config.architecture.as_str().into());
    info.entry("general.parameter_count").or_insert_with(|| facts.parameters.into());
    for (name, number) in [
        ("context_length", config.context_length),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layer_count),
    ] {
        info.entry(key(name)).or_insert_with(|| number.into());
    }
    Json::Object(info)
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(_) => Json::Null,
        integer => integer.to_i128().and_then(|v| i64::try_from(v).ok()).map_or(Json::Null, Json::from),
    }
}
