//! The API of Hugging Face's Text Embeddings Inference: `/embed`, `/rerank`, and `/` for both, which Hugging Face's client
//! uses with a base URL.

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde_json::{Value as Json, json};

use crate::app::{App, json};
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};
use crate::texts::{self, EmbedJob, RankJob, exact, write_vectors};

pub const PROTOCOL: Protocol = Protocol {
    routes,
    owns: |path| matches!(path, "/" | "/embed" | "/rerank"),
    error,
    needs_json_type: true,
};

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/", post(root)), ("/embed", post(embed)), ("/rerank", post(rerank))]
}

fn error(refusal: &Refusal) -> Json {
    let kind = match refusal.reason {
        Reason::TooMany => "overloaded",
        Reason::Unavailable => "unhealthy",
        Reason::Internal | Reason::Overdue => "backend",
        _ => "validation",
    };
    json!({ "error": refusal.message, "error_type": kind })
}

/// Dispatches by the fields of the request.
async fn root(state: State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    match body.get("texts") {
        Some(_) => rerank(state, JsonBody(body)).await,
        None => embed(state, JsonBody(body)).await,
    }
}

async fn embed(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::TEI_EMBED.check(&fields)?;
    let job = EmbedJob {
        model: fields.text("model")?.map(str::to_string),
        inputs: texts::inputs(&fields, "inputs")?,
        field: "inputs",
        prompt_name: fields.text("prompt_name")?.map(str::to_string),
        truncate: fields.flag("truncate")?.unwrap_or(false),
        normalise: fields.flag("normalize")?.unwrap_or(true),
        dimensions: fields.count("dimensions", 1..=usize::MAX)?,
    };
    let embedded = app.embed(job).await?;
    let mut response = blocking(move || write_vectors(&embedded.vectors)).await?.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(warnings.on(response))
}

async fn rerank(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::TEI_RERANK.check(&fields)?;
    let query = fields.text("query")?.ok_or_else(|| texts::missing("query", "give a string"))?;
    let documents = texts::documents(&fields, "texts")?;
    let is_raw = fields.flag("raw_scores")?.unwrap_or(false);
    let with_text = fields.flag("return_text")?.unwrap_or(false);
    let job = RankJob {
        model: fields.text("model")?.map(str::to_string),
        query: query.to_string(),
        documents: documents.clone(),
        field: "texts",
        truncate: fields.flag("truncate")?.unwrap_or(false),
        document_tokens: None,
    };
    let ranked = app.rank(job).await?;
    let results = ranked.order().into_iter().map(|index| {
        let score = ranked.scores[index];
        let mut result =
            json!({ "index": index, "score": exact(if is_raw { score.raw } else { score.relevance }) });
        if with_text {
            result["text"] = documents[index].as_str().into();
        }
        result
    });
    Ok(warnings.on(json(&results.collect::<Vec<_>>().into())))
}
