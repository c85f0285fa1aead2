//! Tokenization and chat templates, without running the model: `/tokenize`, `/detokenize`, `/apply-template`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use akunu_tokenizer::EncodeOptions;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use http_body::Frame;
use serde_json::{Value as Json, json};

use crate::app::{App, json};
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::memory::Charge;
use crate::models::Lease;
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::start::{check_text, render};

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

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
    let memory = app.memory().clone();
    let tokenizing = blocking(move || {
        let _charge = check_text(&content, &lease, &memory)?;
        let tokenizer = lease.model().tokenizer()?;
        let ids = tokenizer.encode(&content, options).map_err(akunu::Error::from)?;
        Ok::<_, Refusal>((tokenizer.clone(), ids))
    });
    let (tokenizer, ids) = tokenizing.await??;
    let end = format!("],\"count\":{}}}", ids.len());
    let tokens = ids.into_iter().enumerate().map(move |(index, id)| {
        let token = match with_pieces {
            true => json!({ "id": id, "piece": tokenizer.token_text(id) }),
            false => id.into(),
        };
        format!("{}{token}", if index > 0 { "," } else { "" })
    });
    let parts = std::iter::once("{\"tokens\":[".to_string()).chain(tokens).chain(std::iter::once(end));
    let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((kind, Body::new(Parts(parts))).into_response())
}

/// A body that is written while it is sent.
struct Parts<I>(I);

/// Bytes of a frame, about.
const FRAME: usize = 16 << 10;

impl<I: Iterator<Item = String> + Unpin> http_body::Body for Parts<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut text = String::new();
        while text.len() < FRAME {
            let Some(part) = self.0.next() else { break };
            text.push_str(&part);
        }
        let frame = (!text.is_empty()).then(|| Ok(Frame::data(text.into())));
        Poll::Ready(frame)
    }
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
    let memory = app.memory().clone();
    let written = blocking(move || {
        let tokenizer = lease.model().tokenizer()?;
        let bytes = ids.iter().filter_map(|id| tokenizer.token_text(*id)).map(str::len);
        let charge = Charge::new(&memory);
        // The text, its copy as JSON, and the answer, in which a byte may take six.
        charge.take(bytes.fold(0, usize::saturating_add).saturating_mul(8))?;
        Ok::<_, Refusal>(json(&json!({ "content": lease.model().decode(&ids)? })))
    });
    written.await?
}

async fn apply_template(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let mut conversation = openai::conversation_of(&fields)?;
    openai::choose_tool(&fields, &mut conversation)?;
    if let Some(variant) = app.models().variant(fields.text("model")?) {
        variant.begin(&mut conversation);
    }
    let lease = lease(&app, &fields).await?;
    let turn = app.models().writing([&conversation].into_iter()).await?;
    let write = move || {
        let _turn = turn;
        render(&conversation, &lease)
    };
    let rendered = blocking(write).await??;
    Ok(json(&json!({ "prompt": rendered.text })))
}
