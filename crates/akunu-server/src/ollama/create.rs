//! Makes models of others, with settings of their own, and removes them.

use std::sync::Arc;
use std::time::SystemTime;

use akunu::Model;
use akunu::chat::ChatTemplate;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value as Json, json};

use super::modelfile::{self, Modelfile};
use super::{kept, options, remove, to_openai_format};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::job::Job;
use crate::models::{MAX_BYTES, ModelSpec, Preset, Settings, Variant};
use crate::openai;
use crate::refusal::{Reason, Refusal};

/// Maximum bytes of a name.
const MAX_NAME: usize = 128;

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    field_table::CREATE.check(&fields)?;
    let name = new_name(super::model(&fields)?, "model")?;
    let mut file = match fields.text("modelfile")? {
        Some(text) => modelfile::parse(text)?,
        None => Modelfile::default(),
    };
    file.from = fields.text("from")?.map(str::to_string).or(file.from);
    file.system = fields.text("system")?.map(str::to_string).or(file.system);
    file.template = fields.text("template")?.map(str::to_string).or(file.template);
    file.parameters.extend(fields.object("parameters")?.cloned().unwrap_or_default());
    file.messages.extend_from_slice(fields.list("messages")?.unwrap_or_default());
    file.license.extend(fields.texts("license")?);
    let missing = || {
        let message = "'from' is missing: name the model that it is made from";
        Refusal::invalid(message).param("from").code("missing_required_parameter")
    };
    let from = file.from.take().ok_or_else(missing)?;
    let from = from.trim_end_matches(":latest");
    // Parameters are options of requests, of which unknown ones are told.
    let as_options = json!({ "options": file.parameters });
    let (of, settings) = settings(&app, from, file).await?;
    let warnings = field_table::GENERATE.check(&Fields::new(&as_options)?)?;
    put(&app, caller, name, of, settings).await?;
    let steps = ["reading model metadata", "writing manifest"];
    Ok(warnings.on(status(fields.flag("stream")?.unwrap_or(true), &steps)))
}

/// The lines of a request that has succeeded, or its last one.
fn status(is_streamed: bool, steps: &[&str]) -> Response {
    if !is_streamed {
        return json(&json!({ "status": "success" }));
    }
    let line = |status: &&str| format!("{}\n", json!({ "status": status }));
    let lines: String = steps.iter().chain(&["success"]).map(line).collect();
    ([(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))], lines).into_response()
}

/// The settings of a model that is made from another, and that whose weights they share.
async fn settings(app: &App, from: &str, file: Modelfile) -> Result<(String, Settings), Refusal> {
    let spec = app.models().spec(Some(from)).await.map_err(|refusal| refusal.param("from"))?;
    let mut settings =
        app.models().variant(Some(from)).map(|variant| variant.settings.clone()).unwrap_or_default();
    let Modelfile { system, template, parameters, messages, license, .. } = file;
    settings.system = system.filter(|system| !system.is_empty()).or(settings.system);
    if let Some(template) = template.filter(|template| !template.is_empty()) {
        settings.template = Some(checked(app, &spec, template).await?);
    }
    settings.parameters.extend(parameters);
    if !messages.is_empty() {
        let messages = messages.iter().enumerate().map(|(index, message)| to_openai_format(index, message));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        settings.messages = openai::conversation(&messages)?.messages;
    }
    if !license.is_empty() {
        settings.license = license;
    }
    settings.preset = preset(app, &settings.parameters)?;
    let Settings { system, template, messages, parameters, license, .. } = &settings;
    check_size(json!([system, template.as_deref(), messages, parameters, license]).to_string().len())?;
    Ok((spec.name.clone(), settings))
}

fn check_size(bytes: usize) -> Result<(), Refusal> {
    match bytes <= MAX_BYTES {
        true => Ok(()),
        false => {
            let message = format!("the settings of a model may have {MAX_BYTES} bytes, and these have more");
            Err(Refusal::new(Reason::TooLarge, message))
        }
    }
}

/// A template that can be read, with the tokens of the model.
async fn checked(app: &App, spec: &ModelSpec, template: String) -> Result<Arc<str>, Refusal> {
    check_size(template.len())?;
    let read = move |model: &Model| -> Result<Arc<str>, Refusal> {
        ChatTemplate::of_modelfile(&template, &**model.tokenizer()?).map_err(|error| {
            Refusal::invalid(format!("'template': {error}")).param("template").code("invalid_value")
        })?;
        Ok(template.into())
    };
    app.models().look(spec, read).await?
}

/// What parameters mean. They are those of a request's `options`.
pub(super) fn preset(app: &App, parameters: &Map<String, Json>) -> Result<Preset, Refusal> {
    let body = json!({ "options": parameters });
    let mut job = Job::default();
    let rename = |text: String| text.replace("options.", "parameters.");
    let named = |refusal: Refusal| Refusal {
        message: rename(refusal.message),
        param: refusal.param.map(rename),
        ..refusal
    };
    let fields = Fields::new(&body)?;
    field_table::GENERATE.check(&fields).map_err(named)?;
    options::read(&fields, &mut job).map_err(named)?;
    app.check_lists(&job)?;
    let Job { max_tokens, stop, sampling, .. } = job;
    Ok(Preset { max_tokens, stop, sampling })
}

async fn put(app: &App, caller: Caller, name: &str, of: String, settings: Settings) -> Result<(), Refusal> {
    let (name, created) = (name.to_string(), SystemTime::now());
    app.models().put_variant(Variant { name, of, settings, owner: app.keys().digest(caller), created })?;
    kept::save(app).await
}

fn new_name<'a>(name: &'a str, param: &str) -> Result<&'a str, Refusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let is_name = name.len() <= MAX_NAME
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match is_name {
        true => Ok(name),
        false => Err(Refusal::invalid(format!(
            "'{param}' must be a name of at most {MAX_NAME} letters, digits, and '-_./:@', which begins with a letter or \
             a digit"
        ))
        .param(param)
        .code("invalid_value")),
    }
}

pub(super) async fn copy(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let read = |field| {
        let name = fields.text(field)?.filter(|name| !name.is_empty());
        let missing = || Refusal::invalid(format!("'{field}' is missing: name a model")).param(field);
        Ok::<&str, Refusal>(name.ok_or_else(missing)?.trim_end_matches(":latest"))
    };
    let (source, name) = (read("source")?, new_name(read("destination")?, "destination")?);
    let (of, settings) = settings(&app, source, Modelfile::default()).await?;
    put(&app, caller, name, of, settings).await?;
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn delete(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let name = super::model(&fields)?;
    if app.models().remove_variant(name, app.keys().digest(caller)) {
        kept::save(&app).await?;
        return Ok(StatusCode::OK.into_response());
    }
    let spec = app.models().spec(Some(name)).await?;
    remove::downloaded(&app, name, &spec).await?;
    Ok(StatusCode::OK.into_response())
}
