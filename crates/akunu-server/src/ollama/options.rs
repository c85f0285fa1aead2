//! Reads Ollama's options.

use akunu::ResponseFormat;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::Job;
use crate::refusal::Refusal;
use crate::response_format::RequestedFormat;
use crate::samplers::Samplers;

/// Reads `format`: "json" or a schema.
pub(super) fn format(fields: &Fields<'_>) -> Result<Option<RequestedFormat>, Refusal> {
    let requested = |format| Ok(Some(RequestedFormat { format, param: "format" }));
    match fields.get("format") {
        None => Ok(None),
        Some(Json::String(text)) if text.is_empty() => Ok(None),
        Some(Json::String(text)) if text == "json" => requested(ResponseFormat::Object),
        Some(schema @ Json::Object(_)) => requested(ResponseFormat::Schema(schema.clone())),
        Some(_) => Err(fields.refuse("format", "\"json\" or a JSON Schema")),
    }
}

pub(super) fn read(fields: &Fields<'_>, job: &mut Job) -> Result<(), Refusal> {
    let Some(options) = fields.object("options")? else { return Ok(()) };
    let options = Fields::within(options, "options.");
    job.max_tokens = max_tokens(&options, "num_predict")?;
    job.stop = options.stops("stop", "a string or a list of strings")?;
    let overrides = &mut job.sampling;
    overrides.temperature = options.number("temperature", 0.0..=100.0)?;
    overrides.top_k = options.count("top_k", 0..=usize::MAX)?;
    overrides.top_p = options.number("top_p", 0.0..=1.0)?;
    overrides.min_p = options.number("min_p", 0.0..=1.0)?;
    overrides.repeat_penalty = options.number("repeat_penalty", 1e-3..=1e3)?;
    overrides.frequency_penalty = options.number("frequency_penalty", -2.0..=2.0)?;
    overrides.presence_penalty = options.number("presence_penalty", -2.0..=2.0)?;
    overrides.repeat_last_n = match options.get("repeat_last_n").and_then(Json::as_i64) {
        // The whole context.
        Some(-1) => Some(usize::MAX),
        _ => options.count("repeat_last_n", 0..=usize::MAX)?,
    };
    overrides.samplers = Samplers::read(&options)?;
    overrides.seed = match options.get("seed").and_then(Json::as_i64) {
        // Random.
        Some(-1) => None,
        _ => options.seed("seed")?,
    };
    Ok(())
}

/// -1 and -2 mean no limit.
fn max_tokens(options: &Fields<'_>, name: &str) -> Result<Option<usize>, Refusal> {
    match options.get(name).and_then(Json::as_i64) {
        Some(-1 | -2) => Ok(None),
        _ => options.count(name, 0..=usize::MAX),
    }
}
