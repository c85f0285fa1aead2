//! Options that `/v1/chat/completions` and `/v1/completions` have in common.

use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::{Job, Prompt, SamplingOverrides};
use crate::refusal::Refusal;
use crate::response_format;
use crate::samplers::Samplers;

/// How long an answer should be, as OpenAI names it.
pub(super) const VERBOSITIES: &[&str] = &["low", "medium", "high"];

/// Whether and how to stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamOptions {
    pub(super) stream: bool,
    /// Send the usage in a last chunk.
    pub(super) usage: bool,
}

impl StreamOptions {
    pub(super) fn read(fields: &Fields<'_>) -> Result<StreamOptions, Refusal> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        let usage = match fields.object("stream_options")? {
            Some(_) if !stream => {
                return Err(Refusal::invalid("'stream_options' requires 'stream': true")
                    .param("stream_options")
                    .code("invalid_value"));
            }
            Some(options) => Fields::within(options, "stream_options.").flag("include_usage")?,
            None => None,
        };
        Ok(StreamOptions { stream, usage: usage.unwrap_or(false) })
    }
}

/// Reads the common options of a job.
pub(super) fn job(fields: &Fields<'_>, prompts: Vec<Prompt>) -> Result<Job, Refusal> {
    Ok(Job {
        format: response_format::requested(fields)?,
        model: fields.text("model")?.map(str::to_string),
        prompts,
        choices: fields.count("n", 1..=crate::start::MAX_CHOICES)?.unwrap_or(1),
        stop: fields.stops("stop", "a string or a list of strings")?,
        stop_ids: stop_ids(fields)?,
        sampling: overrides(fields)?,
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        priority: fields.whole("priority")?,
        cache_salt: fields.text("cache_salt")?.map(str::to_string),
        ..Job::default()
    })
}

/// Each token of an answer is compared with them.
const MAX_STOP_IDS: usize = 64;

fn stop_ids(fields: &Fields<'_>) -> Result<Vec<u32>, Refusal> {
    let list = fields.list("stop_token_ids")?.unwrap_or_default();
    let id = |value: &Json| u32::try_from(value.as_u64()?).ok();
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    ids.filter(|ids| ids.len() <= MAX_STOP_IDS)
        .ok_or_else(|| fields.refuse("stop_token_ids", format!("a list of at most {MAX_STOP_IDS} token ids")))
}

fn overrides(fields: &Fields<'_>) -> Result<SamplingOverrides, Refusal> {
    // vLLM calls it `repetition_penalty`.
    let repeat_penalty = match fields.number("repeat_penalty", 1e-3..=1e3)? {
        None => fields.number("repetition_penalty", 1e-3..=1e3)?,
        given => given,
    };
    Ok(SamplingOverrides {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_k: top_k(fields)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repeat_penalty,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        repeat_last_n: fields.count("repeat_last_n", 0..=usize::MAX)?,
        logit_bias: logit_bias(fields)?,
        samplers: Samplers::read(fields)?,
        seed: fields.seed("seed")?,
    })
}

/// In vLLM's and SGLang's form -1 is all tokens, and SGLang's router writes it into requests.
fn top_k(fields: &Fields<'_>) -> Result<Option<usize>, Refusal> {
    match fields.get("top_k").and_then(Json::as_i64) {
        Some(-1) => Ok(Some(0)),
        _ => fields.count("top_k", 0..=usize::MAX),
    }
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, Refusal> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let read = |(id, bias): (&String, &Json)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id.parse().ok()?, bias as f32))
    };
    map.iter()
        .map(|entry| {
            read(entry).ok_or_else(|| {
                fields.refuse("logit_bias", "an object that maps token ids to numbers from -100 to 100")
            })
        })
        .collect()
}

/// At most 16 texts, as OpenAI limits them.
pub(super) fn metadata(fields: &Fields<'_>) -> Result<Json, Refusal> {
    let metadata = fields.object("metadata")?.cloned().unwrap_or_default();
    let is_short = |text: &str, limit: usize| text.chars().count() <= limit;
    let is_valid = |(name, value): (&String, &Json)| {
        is_short(name, 64) && value.as_str().is_some_and(|value| is_short(value, 512))
    };
    match metadata.len() <= 16 && metadata.iter().all(is_valid) {
        true => Ok(Json::Object(metadata)),
        false => {
            let expected =
                "an object of at most 16 strings of at most 512 characters, with names of at most 64";
            Err(fields.refuse("metadata", expected))
        }
    }
}
