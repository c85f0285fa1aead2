//! `/api/embed` and the older `/api/embeddings`.

use std::time::Instant;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value as Json;

use super::{keep, model};
use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::refusal::Refusal;
use crate::texts::{self, EmbedJob, Embedded, write_vector, write_vectors};

pub(super) async fn embed(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let started = Instant::now();
    let fields = Fields::new(&body)?;
    field_table::OLLAMA_EMBED.check(&fields)?;
    let name = model(&fields)?.to_string();
    let keep = keep::read(&fields)?;
    let embedded = app.embed(job(&fields, &name, "input")?).await?;
    app.models().keep(&name, keep);
    let write = move || {
        let Embedded { vectors, tokens, load, .. } = embedded;
        let (total, load) = (started.elapsed().as_nanos(), load.as_nanos());
        format!(
            "{{\"model\":{},\"embeddings\":{},\"total_duration\":{total},\"load_duration\":{load},\
             \"prompt_eval_count\":{tokens}}}",
            Json::from(name),
            write_vectors(&vectors),
        )
    };
    Ok(respond(blocking(write).await?))
}

/// Embeds a single text.
pub(super) async fn embeddings(
    State(app): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    field_table::OLLAMA_EMBEDDINGS.check(&fields)?;
    let (name, keep) = (model(&fields)?, keep::read(&fields)?);
    let job = job(&fields, name, "prompt")?;
    if job.inputs.len() != 1 {
        return Err(fields.refuse("prompt", "one string, or the token ids of one text"));
    }
    let embedded = app.embed(job).await?;
    app.models().keep(name, keep);
    let mut text = String::from("{\"embedding\":");
    write_vector(embedded.vectors.first().map_or(&[][..], Vec::as_slice), &mut text);
    text.push('}');
    Ok(respond(text))
}

fn job(fields: &Fields<'_>, model: &str, input: &'static str) -> Result<EmbedJob, Refusal> {
    Ok(EmbedJob {
        model: Some(model.to_string()),
        inputs: texts::inputs(fields, input)?,
        field: input,
        prompt_name: None,
        // Ollama's default.
        truncate: fields.flag("truncate")?.unwrap_or(true),
        normalise: true,
        dimensions: fields.count("dimensions", 1..=usize::MAX)?,
    })
}

fn respond(text: String) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
