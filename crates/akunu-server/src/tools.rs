//! Tokenization and chat templates, without running the model: `/tokenize`, `/detokenize`, `/apply-template`.

use akunu_tokenizer::EncodeOptions;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use serde_json::{Value as Json, json};

use crate::app::{App, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::models::{Lease, blocking};
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::start::render;

pub const PROTOCOL: Protocol = Protocol { routes, owns: |_| false, error: openai::error };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/tokenize", post(tokenize)),
        ("/detokenize", post(detokenize)),
        ("/apply-template", post(apply_template)),
    ]
}

async fn lease(app: &App, fields: &Fields<'_>) -> Result<Lease, Refusal> {
    app.models().get(fields.text("model")?).await
}

fn missing(name: &str, what: &str) -> Refusal {
    Refusal::invalid(format!("'{name}' is missing: give {what}"))
        .param(name)
        .code("missing_required_parameter")
}

async fn tokenize(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let content = fields.text("content")?.ok_or_else(|| missing("content", "a string"))?.to_string();
    let options = EncodeOptions {
        add_special: fields.flag("add_special")?.unwrap_or(false),
        parse_special: fields.flag("parse_special")?.unwrap_or(true),
    };
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let lease = lease(&app, &fields).await?;
    let answer = blocking(move || {
        let tokenizer = lease.model().tokenizer()?;
        let ids = tokenizer.encode(&content, options).map_err(akunu::Error::from)?;
        let count = ids.len();
        let tokens: Vec<Json> = match with_pieces {
            false => ids.into_iter().map(Json::from).collect(),
            true => {
                let piece = |id| json!({ "id": id, "piece": tokenizer.token_text(id) });
                ids.into_iter().map(piece).collect()
            }
        };
        Ok::<_, Refusal>(json!({ "tokens": tokens, "count": count }))
    });
    Ok(json(&answer.await??))
}

async fn detokenize(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let tokens = fields.list("tokens")?.ok_or_else(|| missing("tokens", "a list of token ids"))?;
    let id = |value: &Json| u32::try_from(value.as_u64()?).ok();
    let ids: Option<Vec<u32>> = tokens.iter().map(id).collect();
    let ids = ids.ok_or_else(|| fields.refuse("tokens", "a list of token ids"))?;
    let lease = lease(&app, &fields).await?;
    let vocab = lease.model().config().vocab_size;
    if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        return Err(Refusal::invalid(format!(
            "token id {id} (number {index}) is outside the vocabulary of {vocab} ids"
        ))
        .param("tokens")
        .code("invalid_value"));
    }
    let text = blocking(move || lease.model().decode(&ids)).await??;
    Ok(json(&json!({ "content": text })))
}

async fn apply_template(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let conversation = openai::conversation_of(&fields)?;
    let lease = lease(&app, &fields).await?;
    let rendered = blocking(move || render(&conversation, &lease)).await??;
    Ok(json(&json!({ "prompt": rendered.text })))
}
