//! Reads Dynamo's requests. What the engine cannot do as it is asked is refused.

use std::hash::{BuildHasher, RandomState};

use akunu::schedule::Request;
use akunu::{GenerateOptions, Model, ResponseFormat, Sampling};
use dynamo_backend_common::engine::RoutingHints;
use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use serde_json::Value as Json;

use crate::error::invalid;

/// A request for the scheduler, without what is compiled of it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) format: Option<ResponseFormat>,
    /// Tokens that end the text and belong to it.
    pub(crate) shown: Shown,
}

/// Which of the tokens that end a text belong to it.
#[derive(Debug)]
pub(crate) enum Shown {
    All,
    Only(Vec<u32>),
}

impl Shown {
    pub(crate) fn contains(&self, id: u32) -> bool {
        match self {
            Shown::All => true,
            Shown::Only(ids) => ids.contains(&id),
        }
    }
}

/// `salts` hashes what separates the prefixes of clients.
pub(crate) fn read(
    asked: &PreprocessedRequest,
    model: &Model,
    context: usize,
    salts: &RandomState,
) -> Result<Asked, DynamoError> {
    refuse_parts(asked)?;
    let (stop, output) = (&asked.stop_conditions, &asked.output_options);
    refuse_stops(stop)?;
    if output.prompt_logprobs.is_some() {
        return Err(unsupported("prompt_logprobs"));
    }
    let ids = [&stop.stop_token_ids, &stop.stop_token_ids_visible, &stop.stop_token_ids_hidden];
    let mut stop_ids: Vec<u32> = ids.into_iter().flatten().flatten().copied().collect();
    stop_ids.sort_unstable();
    stop_ids.dedup();
    let shown = match output.no_stop_trim {
        Some(true) => Shown::All,
        _ => Shown::Only(stop.stop_token_ids_visible.clone().unwrap_or_default()),
    };
    let options = GenerateOptions {
        max_tokens: stop.max_tokens.map(|tokens| tokens as usize),
        sampling: sampling(&asked.sampling_options, model, context)?,
        stop_strings: stop.stop.clone().unwrap_or_default(),
        stop_ids,
        ignore_eos: stop.ignore_eos.unwrap_or(false),
        logprobs: output.logprobs.map(|count| count as usize),
        ..GenerateOptions::default()
    };
    let format = asked.sampling_options.guided_decoding.as_ref().map(format).transpose()?.flatten();
    if format.is_some() && asked.require_reasoning {
        return Err(invalid("a format of the answer after reasoning is not supported: turn reasoning off"));
    }
    let routing = asked.routing.as_ref();
    let salt = routing.and_then(|routing| routing.cache_namespace.as_deref()).filter(|salt| !salt.is_empty());
    let request = Request {
        prompt: asked.token_ids.to_vec(),
        options,
        // Dynamo serves higher values first, the scheduler lower ones.
        priority: routing.and_then(|routing| routing.priority).unwrap_or(0).saturating_neg(),
        salt: salt.map_or(0, |salt| salts.hash_one(salt)),
        ..Request::default()
    };
    Ok(Asked { request, format, shown })
}

fn unsupported(name: &str) -> DynamoError {
    invalid(format!("'{name}' is not supported by Akunu"))
}

/// Refuses what belongs to images, adapters and workers with other tasks.
fn refuse_parts(asked: &PreprocessedRequest) -> Result<(), DynamoError> {
    let routing = asked.routing.as_ref();
    let of_routing = |has: fn(&RoutingHints) -> bool| routing.is_some_and(has);
    let extra = |part: &str, name: &str| {
        let extra = asked.extra_args.as_ref().and_then(|extra| extra.get(part)?.get(name));
        extra.is_some_and(|value| !value.is_null())
    };
    let parts = [
        ("prompt_embeds", asked.prompt_embeds.is_some()),
        ("multi_modal_data", asked.multi_modal_data.is_some()),
        ("multi_modal_uuids", asked.multi_modal_uuids.is_some()),
        ("mm_processor_kwargs", asked.mm_processor_kwargs.is_some()),
        ("media_io_kwargs", asked.media_io_kwargs.is_some()),
        ("encoder_result", asked.encoder_result.is_some()),
        ("prefill_result", asked.prefill_result.is_some()),
        ("bootstrap_info", asked.bootstrap_info.is_some()),
        ("kv_hint", asked.kv_hint.is_some()),
        ("lora_name", of_routing(|routing| routing.lora_name.is_some())),
        ("dp_rank", of_routing(|routing| routing.dp_rank.is_some_and(|rank| rank != 0))),
        ("allowed_token_ids", extra("sampling_options", "allowed_token_ids")),
        ("bad_words_token_ids", extra("sampling_options", "bad_words_token_ids")),
        ("logprob_token_ids", extra("sampling_options", "logprob_token_ids")),
        ("metadata_upload", extra("nvext", "metadata_upload")),
    ];
    match parts.iter().find(|(_, is_asked)| *is_asked) {
        Some((name, _)) => Err(unsupported(name)),
        None => Ok(()),
    }
}

fn refuse_stops(stop: &StopConditions) -> Result<(), DynamoError> {
    if stop.min_tokens.is_some_and(|tokens| tokens > 0) {
        return Err(unsupported("min_tokens"));
    }
    if stop.max_thinking_tokens.is_some() {
        return Err(unsupported("max_thinking_tokens"));
    }
    Ok(())
}

fn sampling(asked: &SamplingOptions, model: &Model, context: usize) -> Result<Sampling, DynamoError> {
    let refused = [
        ("n", asked.n.is_some_and(|n| n != 1)),
        ("best_of", asked.best_of.is_some_and(|n| n != 1)),
        ("use_beam_search", asked.use_beam_search == Some(true)),
        ("length_penalty", asked.length_penalty.is_some_and(|penalty| penalty != 1.0)),
    ];
    if let Some((name, _)) = refused.iter().find(|(_, is_asked)| *is_asked) {
        return Err(unsupported(name));
    }
    let top_k = |k: i32| match k {
        -1 => Ok(0),
        _ => usize::try_from(k).map_err(|_| invalid(format!("'top_k' is {k}; it must be -1 or more"))),
    };
    let neutral = Sampling { temperature: 1.0, ..Sampling::default() };
    let suggested = Sampling::suggested(&model.config().sampling, &neutral);
    let penalties = [asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty];
    let has_penalties = penalties.iter().any(Option::is_some);
    let sampling = Sampling {
        temperature: asked.temperature.unwrap_or(suggested.temperature),
        top_k: asked.top_k.map(top_k).transpose()?.unwrap_or(suggested.top_k),
        top_p: asked.top_p.unwrap_or(suggested.top_p),
        min_p: asked.min_p.unwrap_or(suggested.min_p),
        repeat_penalty: asked.repetition_penalty.unwrap_or(suggested.repeat_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        repeat_last_n: if has_penalties { context } else { suggested.repeat_last_n },
        seed: asked.seed.map_or_else(|| RandomState::new().hash_one(0), |seed| seed as u64),
        ..suggested
    };
    sampling.check(model.config().vocab_size).map_err(|error| invalid(error.to_string()))?;
    Ok(sampling)
}

fn format(asked: &GuidedDecodingOptions) -> Result<Option<ResponseFormat>, DynamoError> {
    let GuidedDecodingOptions { json, regex, choice, grammar, backend, whitespace_pattern, structural_tag } =
        asked;
    let refused = [
        ("guided_decoding_backend", backend.is_some()),
        ("guided_whitespace_pattern", whitespace_pattern.is_some()),
        ("structural_tag", structural_tag.is_some()),
    ];
    if let Some((name, _)) = refused.iter().find(|(_, is_asked)| *is_asked) {
        return Err(unsupported(name));
    }
    let all = [
        json.as_ref().map(schema).transpose()?,
        regex.clone().map(ResponseFormat::Regex),
        choice.clone().map(ResponseFormat::Choice),
        grammar.as_deref().map(ResponseFormat::from_grammar),
    ];
    let mut all = all.into_iter().flatten();
    match (all.next(), all.next()) {
        (format, None) => Ok(format),
        _ => Err(invalid("several formats of the answer were given: give one")),
    }
}

/// A JSON Schema, or a string that contains one.
fn schema(json: &Json) -> Result<ResponseFormat, DynamoError> {
    let parsed = json.as_str().map(serde_json::from_str).transpose();
    match parsed.ok().map(|parsed| parsed.unwrap_or_else(|| json.clone())) {
        Some(schema @ (Json::Object(_) | Json::Bool(_))) => Ok(ResponseFormat::Schema(schema)),
        _ => Err(invalid("'guided_json' must be a JSON Schema, or a string that contains one")),
    }
}
