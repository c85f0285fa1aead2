//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

mod answer;
mod messages;
mod stable;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use serde_json::{Value as Json, json};

use crate::app::{App, Caller, json};
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::job::{Job, Prompt};
use crate::openai::new_id;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};
use crate::start::render_that_fits;
use crate::stream;

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |path| path.starts_with("/v1/messages"), error, needs_json_type: true };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/v1/messages", post(create)), ("/v1/messages/count_tokens", post(count_tokens))]
}

fn error(refusal: &Refusal) -> Json {
    let kind = match refusal.reason {
        Reason::Invalid | Reason::Method | Reason::MediaType => "invalid_request_error",
        Reason::Unauthorized => "authentication_error",
        Reason::Forbidden => "permission_error",
        Reason::NotFound => "not_found_error",
        Reason::TooLarge => "request_too_large",
        Reason::TooSlow | Reason::Overdue => "timeout_error",
        Reason::TooMany => "rate_limit_error",
        Reason::Internal | Reason::Upstream => "api_error",
        Reason::Unavailable => "overloaded_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": refusal.message } })
}

/// Whether a request has the beta in which the budget of reasoning is that of all calls of a turn.
fn is_interleaved(headers: &HeaderMap) -> bool {
    let values = headers.get_all("anthropic-beta").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|beta| beta.trim().starts_with("interleaved-thinking"))
}

async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::MESSAGES.check(&fields)?;
    let job = job(&fields, app.stable_prompts(), is_interleaved(&headers))?;
    let running = app.start(job, caller).await?;
    let warnings = warnings.of(&running);
    let model = model(&fields)?.to_string();
    let head = answer::Head { id: new_id("msg"), model };
    let input_tokens = running.prompt_tokens().iter().sum();
    let response = match fields.flag("stream")?.unwrap_or(false) {
        true => stream::respond(running, answer::Events::new(head, input_tokens)),
        false => answer::collect(running, head).await?,
    };
    Ok(warnings.on(response))
}

async fn count_tokens(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::COUNT_TOKENS.check(&fields)?;
    let mut conversation = messages::conversation(&fields, app.stable_prompts())?;
    let name = model(&fields)?;
    if let Some(variant) = app.models().variant(Some(name)) {
        variant.begin(&mut conversation);
    }
    let lease = app.models().get(Some(name)).await?;
    let memory = app.memory().clone();
    let turn = app.models().writing([&conversation].into_iter()).await?;
    let counted = blocking(move || {
        let _turn = turn;
        let (rendered, _charge) = render_that_fits(&conversation, &lease, &memory)?;
        let ids = rendered.encode(&**conversation.chat_format(&lease)?.tokenizer());
        Ok::<usize, Refusal>(ids.map_err(akunu::Error::from)?.len())
    });
    Ok(warnings.on(json(&json!({ "input_tokens": counted.await?? }))))
}

fn missing(name: &str, advice: &str) -> Refusal {
    Refusal::invalid(format!("'{name}' is missing: {advice}")).param(name)
}

fn model<'a>(fields: &Fields<'a>) -> Result<&'a str, Refusal> {
    fields.text("model")?.ok_or_else(|| missing("model", "name a model"))
}

fn job(fields: &Fields<'_>, stable: bool, is_interleaved: bool) -> Result<Job, Refusal> {
    let max_tokens = fields.count("max_tokens", 1..=usize::MAX)?;
    let max_tokens = max_tokens.ok_or_else(|| missing("max_tokens", "give the maximum number of tokens"))?;
    let mut conversation = messages::conversation(fields, stable)?;
    messages::check_budget(fields, max_tokens, is_interleaved)?;
    if let Some(metadata) = fields.object("metadata")? {
        Fields::within(metadata, "metadata.").text("user_id")?;
    }
    messages::choose_tool(fields, &mut conversation)?;
    let format = messages::output_format(fields)?;
    let mut job = Job::new(Some(model(fields)?.to_string()), Prompt::Chat(conversation));
    job.format = format;
    job.max_tokens = Some(max_tokens);
    job.stop = fields.stops("stop_sequences", "a list of strings")?;
    job.one_call = messages::one_call(fields)?;
    let overrides = &mut job.sampling;
    overrides.temperature = fields.number("temperature", 0.0..=1.0)?;
    overrides.top_k = fields.count("top_k", 0..=usize::MAX)?;
    overrides.top_p = fields.number("top_p", 0.0..=1.0)?;
    // Not in Anthropic's API; an extension for reproducible answers.
    overrides.seed = fields.seed("seed")?;
    Ok(job)
}
