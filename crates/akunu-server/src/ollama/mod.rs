//! Ollama's API: chats, texts and embeddings, and the models: which there are, which are loaded, and how long, and
//! others made of them.

mod answer;
mod create;
mod embed;
mod keep;
pub(crate) mod kept;
mod modelfile;
mod models;
mod options;
mod pull;
mod remove;
mod show;

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::{Value as Json, json};

use self::answer::{Endpoint, Head};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table::{self, Warnings};
use crate::fields::Fields;
use crate::job::{Conversation, Job, Prompt};
use crate::models::KeepAlive;
use crate::openai;
use crate::prefill;
use crate::protocol::Protocol;
use crate::reasoning;
use crate::refusal::Refusal;
use crate::stream;

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |path| path.starts_with("/api/"), error, needs_json_type: false };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/api/chat", post(chat)),
        ("/api/generate", post(generate)),
        ("/api/embed", post(embed::embed)),
        ("/api/embeddings", post(embed::embeddings)),
        ("/api/tags", get(models::tags)),
        ("/api/ps", get(models::ps)),
        ("/api/show", post(show::show)),
        ("/api/create", post(create::create)),
        ("/api/copy", post(create::copy)),
        ("/api/delete", delete(create::delete)),
        ("/api/pull", post(pull::pull)),
        ("/api/push", post(push)),
        ("/api/blobs/{digest}", post(blobs)),
        ("/api/version", get(version)),
    ]
}

/// Errors in Ollama's format.
fn error(refusal: &Refusal) -> Json {
    json!({ "error": refusal.message })
}

/// The version of Ollama whose API this is. Clients compare it with the first one that has what they need.
const VERSION: &str = "0.13.0";

async fn version() -> Response {
    json(&json!({ "version": VERSION, "akunu": env!("CARGO_PKG_VERSION") }))
}

async fn blobs() -> Refusal {
    Refusal::invalid(
        "'/api/blobs' is not supported: make models from those of the server, by the name as 'from'",
    )
}

async fn push() -> Refusal {
    Refusal::invalid("'/api/push' is not supported: this server sends its models nowhere")
}

async fn chat(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::OLLAMA_CHAT.check(&fields)?;
    let messages = fields.list("messages")?.unwrap_or_default();
    let prompt = match messages {
        [] => None,
        messages => Some(Prompt::Chat(conversation(&fields, messages)?)),
    };
    answer(&app, caller, (&fields, warnings), Endpoint::Chat, prompt).await
}

async fn generate(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::GENERATE.check(&fields)?;
    let text = fields.text("prompt")?.filter(|text| !text.is_empty());
    let after = fields.text("suffix")?.filter(|after| !after.is_empty());
    let is_raw = fields.flag("raw")?.unwrap_or(false);
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let continued = after.map(|_| "suffix").or(is_raw.then_some("raw"));
    if let (Some(name), Some(_)) = (continued, system) {
        let message = format!("'system' together with '{name}' is not supported: a text is continued");
        return Err(Refusal::invalid(message).param("system").code("unsupported_parameter"));
    }
    let prompt = match (text, after) {
        (before, Some(after)) => Some(Prompt::Infill {
            files: Vec::new(),
            before: before.unwrap_or_default().into(),
            after: after.into(),
        }),
        (None, None) => None,
        (Some(text), None) if is_raw => Some(Prompt::Text(text.to_string())),
        (Some(text), None) => {
            // A model without a template gets the text as it is, as in Ollama.
            let name = Some(model(&fields)?);
            let lease = app.models().get(name).await?;
            let variant = app.models().variant(name);
            let has_template = variant.is_some_and(|variant| variant.settings.template.is_some())
                || lease.chat_format(None).is_ok();
            match (has_template, system) {
                (false, None) => Some(Prompt::Text(text.to_string())),
                (_, system) => {
                    let system = system.map(|system| json!({ "role": "system", "content": system }));
                    let mut messages: Vec<Json> = system.into_iter().collect();
                    messages.push(json!({ "role": "user", "content": text }));
                    Some(Prompt::Chat(conversation(&fields, &messages)?))
                }
            }
        }
    };
    answer(&app, caller, (&fields, warnings), Endpoint::Generate, prompt).await
}

/// Answers a prompt. Without one, only loads the model, as in Ollama.
async fn answer(
    app: &App,
    caller: Caller,
    (fields, warnings): (&Fields<'_>, Warnings),
    endpoint: Endpoint,
    prompt: Option<Prompt>,
) -> Result<Response, Refusal> {
    let started = Instant::now();
    let name = model(fields)?;
    let keep = keep::read(fields)?;
    let job = prompt.map(|prompt| job(fields, name, prompt)).transpose()?;
    if job.is_none() && keep == Some(KeepAlive::UNLOAD) {
        keep::unload(app, name).await?;
        let head = Head { endpoint, model: name.to_string(), started, load: Duration::ZERO, tokenizer: None };
        return Ok(warnings.on(json(&head.unloaded())));
    }
    let lease = app.models().get(Some(name)).await?;
    app.models().keep(name, keep);
    let mut head =
        Head { endpoint, model: name.to_string(), started, load: started.elapsed(), tokenizer: None };
    let Some(job) = job else { return Ok(warnings.on(json(&head.loaded()))) };
    if job.logprobs.is_some() {
        head.tokenizer = Some(lease.model().tokenizer()?.clone());
    }
    let running = app.start(job, caller).await?;
    let warnings = warnings.of(&running);
    let response = match fields.flag("stream")?.unwrap_or(true) {
        true => stream::respond(running, answer::Lines { head }),
        false => answer::collect(running, head).await?,
    };
    Ok(warnings.on(response))
}

/// The model's name, without the tag that Ollama's clients add.
fn model<'a>(fields: &Fields<'a>) -> Result<&'a str, Refusal> {
    let given = |field| Ok::<_, Refusal>(fields.text(field)?.filter(|name| !name.is_empty()));
    // The older name of the field.
    let name = given("model")?.or(given("name")?);
    let name = name.ok_or_else(|| Refusal::invalid("'model' is missing: name a model").param("model"))?;
    Ok(name.strip_suffix(":latest").unwrap_or(name))
}

fn job(fields: &Fields<'_>, model: &str, prompt: Prompt) -> Result<Job, Refusal> {
    let format = options::format(fields)?;
    let mut job = Job { format, ..Job::new(Some(model.to_string()), prompt) };
    options::read(fields, &mut job)?;
    let top = fields.count("top_logprobs", 0..=20)?;
    let has_logprobs = fields.flag("logprobs")?.unwrap_or(false);
    job.logprobs = has_logprobs.then(|| top.unwrap_or(0));
    Ok(job)
}

fn conversation(fields: &Fields<'_>, messages: &[Json]) -> Result<Conversation, Refusal> {
    let messages = messages.iter().enumerate().map(|(index, message)| to_openai_format(index, message));
    let mut conversation = openai::conversation(&messages.collect::<Result<Vec<_>, _>>()?)?;
    conversation.tools = openai::tools(fields, 128)?;
    let variables = &mut conversation.variables;
    match fields.get("think") {
        None => {}
        Some(Json::Bool(think)) => drop(variables.insert("enable_thinking".into(), (*think).into())),
        Some(Json::String(_)) => {
            variables.insert("enable_thinking".into(), true.into());
            reasoning::set_effort(fields, "think", reasoning::OLLAMA, variables)?;
        }
        Some(_) => {
            let efforts = reasoning::OLLAMA.join("\", \"");
            return Err(fields.refuse("think", format_args!("true, false, or one of \"{efforts}\"")));
        }
    }
    conversation.ending = prefill::implied(&conversation)?;
    Ok(conversation)
}

/// Converts a message to OpenAI's format.
fn to_openai_format(index: usize, message: &Json) -> Result<Json, Refusal> {
    let mut message = message.clone();
    let Some(fields) = message.as_object_mut() else { return Ok(message) };
    if fields.get("images").and_then(Json::as_array).is_some_and(|images| !images.is_empty()) {
        let param = format!("messages[{index}].images");
        return Err(
            Refusal::invalid(format!("'{param}' is not supported: only text content is")).param(param)
        );
    }
    for (theirs, ours) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        if let Some(value) = fields.remove(theirs) {
            fields.entry(ours).or_insert(value);
        }
    }
    Ok(message)
}
