//! What llama.cpp's server says of itself: `/props`, and the states of its slots: `/slots`.

use akunu::chat::CallMarks;
use akunu::schedule::Stats;
use akunu::{Model, Sampling};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use serde_json::{Value as Json, json};

use crate::app::{App, json};
use crate::models::{Lease, ModelSpec};
use crate::openai;
use crate::protocol::Protocol;
use crate::refusal::{Reason, Refusal};
use crate::texts::exact;

pub const PROTOCOL: Protocol =
    Protocol { routes, owns: |_| false, error: openai::error, needs_json_type: true };

fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![("/props", get(props)), ("/slots", get(slots))]
}

/// A value of the query, in which `%2F`, `%3A` and the like are decoded.
pub(crate) fn query(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.rfind(|(key, value)| *key == name && !value.is_empty())?;
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let [first, more @ ..] = rest {
        let hex = (*first == b'%').then(|| std::str::from_utf8(more.get(..2)?).ok()).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Properties of a model, `?model=NAME` or the first, which is not loaded for it.
async fn props(State(app): State<App>, uri: Uri) -> Result<Response, Refusal> {
    let name = query(&uri, "model");
    let spec = app.models().spec(name.as_deref()).await?;
    let facts = app.models().facts(&spec).await;
    let unreadable = || {
        Refusal::new(Reason::Unavailable, format!("the files of the model \"{}\" cannot be read", spec.name))
            .code("model_not_loaded")
    };
    let facts = facts.ok_or_else(unreadable)?;
    let loaded = app.models().loaded_context(&spec);
    let context = loaded.or(facts.context).unwrap_or(0);
    let (opened, of_app) = (spec.clone(), app.clone());
    let variant = app.models().variant(name.as_deref());
    let facts = facts.of_variant(variant.as_deref());
    let read = move |model: &Model| {
        let neutral = Sampling { temperature: 1.0, ..Sampling::default() };
        let sampling = Sampling::suggested(&model.config().sampling, &neutral);
        let template = of_app.models().chat_template(&opened, variant.as_deref(), model);
        let source = template.as_ref().map_or(String::new(), |template| template.source().into());
        let for_tools = template.as_ref().and_then(CallMarks::one_for_tools);
        (sampling, source, for_tools.map(|other| other.source().to_string()))
    };
    let (sampling, template, for_tools) = app.models().look(&spec, read).await?;
    let mut properties = json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": context,
            "speculative": false,
            "is_processing": false,
            "params": params(&sampling),
        },
        "total_slots": app.models().slots(),
        "model_alias": spec.name,
        // Clients do not learn about the server's file system.
        "model_path": spec.name,
        "modalities": { "vision": false, "audio": false },
        "chat_template": template,
        "chat_template_caps": { "supports_tools": facts.has_tools, "supports_reasoning": facts.has_reasoning },
        "build_info": concat!("akunu-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": loaded.is_none(),
    });
    if let Some(for_tools) = for_tools {
        properties["chat_template_tool_use"] = for_tools.into();
    }
    Ok(json(&properties))
}

/// Settings of requests that say nothing else, under llama.cpp's names.
fn params(sampling: &Sampling) -> Json {
    json!({
        "n_predict": -1,
        "seed": u32::MAX,
        "temperature": exact(sampling.temperature),
        "dynatemp_range": exact(sampling.dynatemp_range),
        "dynatemp_exponent": exact(sampling.dynatemp_exponent),
        "top_k": sampling.top_k,
        "top_p": exact(sampling.top_p),
        "min_p": exact(sampling.min_p),
        "top_n_sigma": exact(sampling.top_n_sigma),
        "xtc_probability": exact(sampling.xtc_probability),
        "xtc_threshold": exact(sampling.xtc_threshold),
        "typical_p": exact(sampling.typical_p),
        "repeat_penalty": exact(sampling.repeat_penalty),
        "presence_penalty": exact(sampling.presence_penalty),
        "frequency_penalty": exact(sampling.frequency_penalty),
        "dry_multiplier": exact(sampling.dry_multiplier),
        "dry_base": exact(sampling.dry_base),
        "dry_allowed_length": sampling.dry_allowed_length,
        "max_tokens": -1,
        "ignore_eos": false,
        "stream": true,
    })
}

/// The slots of a model, `?model=NAME` or the first. With `?fail_on_no_slot=1`, 503 if none is free.
async fn slots(State(app): State<App>, uri: Uri) -> Result<Response, Refusal> {
    let name = query(&uri, "model");
    let spec = app.models().spec(name.as_deref()).await?;
    let lease = app.models().list().into_iter().find(|(other, _)| other.name == spec.name);
    let lease = lease.and_then(|(_, lease)| lease);
    let (busy, slots, context) = occupied(&app, &spec, lease.as_ref()).await;
    let fails = match query(&uri, "fail_on_no_slot").as_deref() {
        None | Some("0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => {
            let message = "'fail_on_no_slot' must be 0 or 1";
            return Err(Refusal::invalid(message).param("fail_on_no_slot").code("invalid_value"));
        }
    };
    if busy >= slots && fails {
        return Err(Refusal::new(Reason::Unavailable, "no slot is free").code("no_slot").retry_after(1));
    }
    let slot =
        |id: usize| json!({ "id": id, "n_ctx": context, "speculative": false, "is_processing": id < busy });
    Ok(json(&(0..slots).map(slot).collect()))
}

/// The slots that are in use, all slots, and the context of each.
async fn occupied(app: &App, spec: &ModelSpec, lease: Option<&Lease>) -> (usize, usize, usize) {
    let stats = lease.and_then(|lease| Some(lease.handle()?.stats()));
    let Stats { reading, running, slots, .. } = stats.unwrap_or_default();
    let facts = app.models().facts(spec).await;
    let context = lease.map(|lease| lease.context()).or(facts.and_then(|facts| facts.context));
    let slots = if stats.is_some() { slots } else { app.models().slots() };
    ((reading + running).min(slots), slots, context.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_decoded() {
        for (text, expected) in [
            ("/props?model=a", Some("a")),
            ("/props?x=1&model=hf%3AOWNER%2fNAME", Some("hf:OWNER/NAME")),
            ("/props?model=%", Some("%")),
            ("/props?model=%zz%4", Some("%zz%4")),
            ("/props?model=", None),
            ("/props?model", None),
            ("/props", None),
        ] {
            assert_eq!(query(&text.parse().unwrap(), "model").as_deref(), expected, "{text}");
        }
    }
}
