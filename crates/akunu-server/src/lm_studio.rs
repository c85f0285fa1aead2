//! The list of models of LM Studio's older API, by which clients learn their contexts: `/api/v0/models`.

use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use serde_json::{Value as Json, json};

use crate::app::{App, PathParameter, json};
use crate::models::{Facts, Kind, Lease, ModelSpec};
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::Refusal;

pub const PROTOCOL: Protocol = Protocol {
    routes,
    owns: |path| path.starts_with("/api/v0/"),
    error: openai::error,
    needs_json_type: true,
};

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/api/v0/models", get(models)), ("/api/v0/models/{*name}", get(model))]
}

async fn models(State(app): State<App>) -> Response {
    app.models().refresh().await;
    let mut list = Vec::new();
    for (spec, lease) in app.models().list() {
        let facts = app.models().facts(&spec).await;
        let names = std::iter::once(&spec.name).chain(&spec.aliases);
        list.extend(names.map(|name| describe(name, &spec, facts.as_deref(), lease.as_ref())));
    }
    json(&json!({ "object": "list", "data": list }))
}

async fn model(State(app): State<App>, PathParameter(name): PathParameter) -> Result<Response, Refusal> {
    let spec = app.models().spec(Some(&name)).await?;
    let lease = app.models().list().into_iter().find(|(other, _)| other.name == spec.name);
    let lease = lease.and_then(|(_, lease)| lease);
    let variant = app.models().variant(Some(&name));
    let facts = app.models().facts(&spec).await.map(|facts| facts.of_variant(variant.as_deref()));
    Ok(json(&describe(&name, &spec, facts.as_ref(), lease.as_ref())))
}

fn describe(name: &str, spec: &ModelSpec, facts: Option<&Facts>, lease: Option<&Lease>) -> Json {
    let publisher = spec.name.strip_prefix("hf:").and_then(|name| name.split('/').next());
    let mut model = json!({
        "id": name,
        "object": "model",
        "publisher": publisher.unwrap_or("akunu"),
        "state": if lease.is_some() { "loaded" } else { "not-loaded" },
    });
    if let Some(facts) = facts {
        model["type"] = match facts.kind {
            Kind::Generates => "llm",
            Kind::Embeds(_) | Kind::Scores => "embeddings",
            Kind::Transcribes => "transcription",
        }
        .into();
        model["arch"] = facts.family.as_str().into();
        model["compatibility_type"] = facts.format.into();
        model["quantization"] = facts.quantisation.into();
        model["max_context_length"] = facts.trained_context.into();
        let tools: &[&str] = if facts.has_tools { &["tool_use"] } else { &[] };
        model["capabilities"] = tools.into();
    }
    if let Some(lease) = lease {
        model["loaded_context_length"] = lease.context().into();
    }
    model
}
