//! `/v1/chat/completions/render` and `/v1/completions/render`: the tokens that a request would run, as vLLM's server has
//! them. Routers send a request to the server whose cache has these.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::{chat, completions, new_id, options::StreamOptions};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::refusal::Refusal;
use crate::start::Rendered;
use crate::texts::exact;

/// An object, since a conversation has one prompt.
pub(super) async fn chat(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::CHAT.check(&fields)?;
    StreamOptions::read(&fields)?;
    let rendered = app.render(chat::read(&fields)?, caller).await?;
    let request = rendered.first().map(|rendered| request("chatcmpl", rendered));
    Ok(warnings.on(json(&request.ok_or_else(|| Refusal::internal("no prompt"))?)))
}

/// A list with an object for each prompt.
pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::COMPLETIONS.check(&fields)?;
    let streaming = StreamOptions::read(&fields)?;
    let (job, _) = completions::read(&fields, streaming.stream)?;
    let rendered = app.render(job, caller).await?;
    Ok(warnings.on(json(&rendered.iter().map(|rendered| request("cmpl", rendered)).collect())))
}

fn request(kind: &str, rendered: &Rendered) -> Json {
    let Rendered { model, ids, options, seed, choices, cache_salt, priority } = rendered;
    let sampling = &options.sampling;
    json!({
        "request_id": new_id(kind),
        "model": model,
        "token_ids": ids,
        "features": null,
        "sampling_params": {
            "n": choices,
            "temperature": exact(sampling.temperature),
            "top_p": exact(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": exact(sampling.min_p),
            "repetition_penalty": exact(sampling.repeat_penalty),
            "presence_penalty": exact(sampling.presence_penalty),
            "frequency_penalty": exact(sampling.frequency_penalty),
            "seed": seed,
            "stop": options.stop_strings,
            "stop_token_ids": options.stop_ids,
            "ignore_eos": options.ignore_eos,
            "max_tokens": options.max_tokens,
            "logprobs": options.logprobs,
        },
        "cache_salt": cache_salt,
        "priority": priority,
    })
}
