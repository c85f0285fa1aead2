//! `/v1/rerank` of Jina's and Cohere's APIs, and Cohere's `/v2/rerank`. Responses have the fields of both.

use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use serde_json::{Value as Json, json};

use crate::app::{App, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::openai::new_id;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::texts::{self, RankJob, exact};

pub const PROTOCOL: Protocol = Protocol {
    routes,
    owns: |path| matches!(path, "/v1/rerank" | "/v2/rerank"),
    error,
    needs_json_type: true,
};

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/v1/rerank", post(rerank)), ("/v2/rerank", post(rerank))]
}

/// Cohere's clients read `message`, and Jina's `detail`.
fn error(refusal: &Refusal) -> Json {
    json!({ "message": refusal.message, "detail": refusal.message })
}

async fn rerank(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::RERANK.check(&fields)?;
    let query = fields.text("query")?.ok_or_else(|| texts::missing("query", "give a string"))?;
    let documents = texts::documents(&fields, "documents")?;
    let with_documents = fields.flag("return_documents")?.unwrap_or(false);
    let top_n = fields.count("top_n", 1..=usize::MAX)?.unwrap_or(usize::MAX);
    let model = fields.text("model")?.map(str::to_string);
    let job = RankJob {
        model: model.clone(),
        query: query.to_string(),
        documents: documents.clone(),
        field: "documents",
        truncate: fields.flag("truncate")?.unwrap_or(false),
        document_tokens: fields.count("max_tokens_per_doc", 1..=usize::MAX)?,
    };
    let ranked = app.rank(job).await?;
    let results = ranked.order().into_iter().take(top_n).map(|index| {
        let score = exact(ranked.scores[index].relevance);
        let mut result = json!({ "index": index, "relevance_score": score });
        if with_documents {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    });
    let response = json(&json!({
        "id": new_id("rerank"),
        "object": "list",
        "model": model.as_ref().unwrap_or(&ranked.model),
        "results": results.collect::<Vec<_>>(),
        "usage": { "prompt_tokens": ranked.tokens, "total_tokens": ranked.tokens },
        "meta": { "billed_units": { "search_units": 1 }, "tokens": { "input_tokens": ranked.tokens } },
    }));
    Ok(warnings.on(response))
}
