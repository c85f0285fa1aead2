//! OpenAI's API: `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/embeddings`, `/v1/audio`, `/v1/models`; and
//! llama.cpp's `/infill`.

mod audio;
mod chat;
mod completions;
mod embeddings;
mod infill;
pub(crate) mod logprobs;
mod messages;
mod options;
mod render;
pub(crate) mod responses;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use akunu::FinishReason;
use akunu_tokenizer::Tokenizer;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde_json::{Value as Json, json};

use crate::app::{App, PathParameter, json};
use crate::fields::Fields;
use crate::job::{Finished, Running};
use crate::models::{ModelSpec, Variant};
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};
use crate::stream;
use crate::timestamp::timestamp;
pub(crate) use chat::choose_tool;
pub(crate) use messages::{TWICE, check_name, conversation, conversation_of, tools};
use options::StreamOptions;

pub const PROTOCOL: Protocol = Protocol { routes, owns: |_| true, error, needs_json_type: true };

/// The `system_fingerprint`, which changes with the version.
const FINGERPRINT: &str = concat!("akunu-", env!("CARGO_PKG_VERSION"));

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    let mut routes = vec![
        ("/v1/chat/completions", post(chat::completions)),
        ("/v1/chat/completions/render", post(render::chat)),
        ("/v1/completions", post(completions::completions)),
        ("/v1/completions/render", post(render::completions)),
        ("/infill", post(infill::infill)),
        ("/v1/embeddings", post(embeddings::embeddings)),
        ("/v1/audio/transcriptions", post(audio::transcriptions)),
        ("/v1/audio/translations", post(audio::translations)),
        ("/v1/models", get(models)),
        ("/v1/models/{*name}", get(model)),
    ];
    routes.extend(responses::routes());
    routes
}

/// Errors in OpenAI's format.
pub fn error(refusal: &Refusal) -> Json {
    let kind = match refusal.reason {
        Reason::Unauthorized => "authentication_error",
        Reason::TooMany => "rate_limit_error",
        Reason::Internal | Reason::Unavailable | Reason::Upstream | Reason::Overdue => "server_error",
        _ => "invalid_request_error",
    };
    json!({ "error": {
        "message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code,
    } })
}

async fn models(State(app): State<App>) -> Response {
    app.models().refresh().await;
    let variants = app.models().variants();
    let mut list = Vec::new();
    for (spec, _) in app.models().list() {
        let described = describe(&app, &spec).await;
        let names = [&spec.name].into_iter().chain(&spec.aliases);
        list.extend(names.map(|name| named(described.clone(), name, None)));
        let facts = app.models().facts(&spec).await;
        for variant in variants.iter().filter(|variant| variant.of == spec.name) {
            let mut model = named(described.clone(), &variant.name, Some(variant));
            variant.describe(&mut model, facts.as_deref());
            list.push(model);
        }
    }
    let id = |model: Option<&Json>| model.map(|model| model["id"].clone());
    // The last three are those of Anthropic's list.
    json(&json!({
        "object": "list", "first_id": id(list.first()), "last_id": id(list.last()), "has_more": false, "data": list,
    }))
}

async fn model(State(app): State<App>, PathParameter(name): PathParameter) -> Result<Response, Refusal> {
    let spec = app.models().spec(Some(&name)).await?;
    let variant = app.models().variant(Some(&name));
    let mut model = named(describe(&app, &spec).await, &name, variant.as_deref());
    if let Some(variant) = variant {
        variant.describe(&mut model, app.models().facts(&spec).await.as_deref());
    }
    Ok(json(&model))
}

/// A described model under its name, or that of a model that a client has made of it.
fn named(mut model: Json, name: &str, variant: Option<&Variant>) -> Json {
    (model["id"], model["display_name"]) = (name.into(), name.into());
    if let Some(variant) = variant {
        model["created"] = seconds(variant.created).into();
        model["created_at"] = timestamp(variant.created).into();
    }
    model
}

/// A model without its id. `type`, `display_name` and `created_at` are those of Anthropic's list. `capabilities`,
/// `context_length` and `kv_cache_tokens` are extensions. They are missing if the model's files cannot be read.
async fn describe(app: &App, spec: &ModelSpec) -> Json {
    let created = spec.changed().unwrap_or(UNIX_EPOCH);
    let mut model = json!({
        "id": "", "object": "model", "created": seconds(created), "owned_by": "akunu",
        "type": "model", "display_name": "", "created_at": timestamp(created),
    });
    if let Some(facts) = app.models().facts(spec).await {
        model["capabilities"] = facts.capabilities().into();
        if let Some(context) = facts.context {
            model["context_length"] = app.models().loaded_context(spec).unwrap_or(context).into();
        }
    }
    if let Some(tokens) = app.models().kv_capacity(spec) {
        model["kv_cache_tokens"] = tokens.into();
    }
    model
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn now() -> u64 {
    seconds(SystemTime::now())
}

/// A random id, such as `chatcmpl-…`.
pub(crate) fn new_id(kind: &str) -> String {
    format!("{kind}-{}", hex_id())
}

/// The random part of an id.
fn hex_id() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:08x}", random(), random() as u32)
}

/// The finish reason of OpenAI's and Ollama's APIs.
pub(crate) fn finish_reason(finish: &FinishReason) -> &'static str {
    match finish {
        FinishReason::MaxTokens | FinishReason::ContextFull => "length",
        _ => "stop",
    }
}

/// The fields that all objects of a response have in common.
#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
    /// Set if log probabilities were requested.
    tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Head {
    fn new(kind: &str, fields: &Fields<'_>, running: &Running, has_logprobs: bool) -> Result<Head, Refusal> {
        let model = running.model();
        let tokenizer = match has_logprobs {
            true => Some(model.model().tokenizer()?.clone()),
            false => None,
        };
        let name = fields.text("model")?.unwrap_or(model.name()).to_string();
        Ok(Head { id: new_id(kind), created: now(), model: name, tokenizer })
    }

    fn object(&self, kind: &str, choices: Vec<Json>) -> Json {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices, "system_fingerprint": FINGERPRINT,
        })
    }
}

/// Writes the chunks of a streamed response.
#[derive(Debug)]
struct Stream {
    kind: &'static str,
    head: Head,
    streaming: StreamOptions,
    usage: Usage,
}

impl Stream {
    fn new(kind: &'static str, head: Head, streaming: StreamOptions) -> Stream {
        Stream { kind, head, streaming, usage: Usage::default() }
    }

    fn chunk(&self, choice: Json, to: &mut String) {
        let mut chunk = self.head.object(self.kind, vec![choice]);
        if self.streaming.usage {
            chunk["usage"] = Json::Null;
        }
        stream::event(&chunk, to);
    }

    fn end(&self, to: &mut String) {
        if self.streaming.usage {
            let mut chunk = self.head.object(self.kind, Vec::new());
            self.usage.write(&mut chunk);
            stream::event(&chunk, to);
        }
        to.push_str("data: [DONE]\n\n");
    }
}

/// The token usage of a response, and its times. A prompt counts once, however many choices it has.
#[derive(Clone, Debug, Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
    reasoning: usize,
    /// Generated tokens without the first of each choice, which comes with the prompt's end.
    steps: usize,
    /// Seconds of the slowest prompt and of the slowest choice, which run side by side.
    prompt_s: f64,
    generate_s: f64,
}

impl Usage {
    fn add(&mut self, is_first_of_prompt: bool, finished: &Finished) {
        let timings = &finished.timings;
        if is_first_of_prompt {
            self.prompt += timings.prompt_tokens;
            self.cached += timings.reused_tokens;
        }
        self.prompt_s = self.prompt_s.max(timings.prompt_s);
        self.steps += timings.generated_tokens.saturating_sub(1);
        self.generate_s = self.generate_s.max(timings.generate_s);
        self.completion += timings.generated_tokens;
        self.reasoning += finished.reasoning_tokens;
    }

    /// Adds `usage` to a response, and `timings`.
    fn write(&self, response: &mut Json) {
        response["usage"] = json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
        });
        response["timings"] = self.timings();
    }

    /// The times, by llama.cpp's names.
    fn timings(&self) -> Json {
        let processed = self.prompt - self.cached.min(self.prompt);
        let rate =
            |tokens: usize, seconds: f64| (tokens > 0 && seconds > 0.).then(|| tokens as f64 / seconds);
        json!({
            "cache_n": self.cached,
            "prompt_n": processed,
            "prompt_ms": self.prompt_s * 1e3,
            "prompt_per_second": rate(processed, self.prompt_s),
            "predicted_n": self.completion,
            "predicted_ms": self.generate_s * 1e3,
            "predicted_per_second": rate(self.steps, self.generate_s),
        })
    }
}
