//! Lists models: all, and those in memory.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use crate::app::{App, json};
use crate::blocking::blocking;
use crate::models::digest::hex;
use crate::models::{Facts, ModelSpec, Settings, Variant};
use crate::timestamp::timestamp;

pub(super) async fn tags(State(app): State<App>) -> Response {
    app.models().refresh().await;
    let mut list = Vec::new();
    for (spec, _) in app.models().list() {
        let described = listed(&app, &spec).await;
        let facts = app.models().facts(&spec).await;
        let names = std::iter::once(&spec.name).chain(&spec.aliases);
        list.extend(names.map(|name| named(&described, name)));
        for variant in app.models().variants().iter().filter(|variant| spec.name == variant.of) {
            let mut model = named(&described, &variant.name);
            variant.describe(&mut model, facts.as_deref());
            model["digest"] = digest(model["digest"].as_str().unwrap_or_default(), variant).into();
            model["modified_at"] = timestamp(variant.created).into();
            model["details"]["parent_model"] = tagged(&variant.of).into();
            list.push(model);
        }
    }
    json(&json!({ "models": list }))
}

/// Years from now, by which clients are told that a model stays.
const FAR: Duration = Duration::from_secs(10_413_792_000);

pub(super) async fn ps(State(app): State<App>) -> Response {
    let mut list = Vec::new();
    for loaded in app.models().in_memory() {
        let mut model = named(&listed(&app, &loaded.spec).await, &loaded.spec.name);
        let expires_at = match loaded.expires_in {
            Some(time) => SystemTime::now() + time,
            None => UNIX_EPOCH + FAR,
        };
        for (name, value) in [
            ("size", Json::from(loaded.bytes)),
            ("size_vram", loaded.device_bytes.into()),
            ("context_length", loaded.context.into()),
            ("expires_at", timestamp(expires_at).into()),
        ] {
            model[name] = value;
        }
        if let Some(fields) = model.as_object_mut() {
            fields.shift_remove("modified_at");
        }
        list.push(model);
    }
    json(&json!({ "models": list }))
}

/// A model without its name. Clients rely on all fields, also where the files cannot be read.
async fn listed(app: &App, spec: &ModelSpec) -> Json {
    let facts = app.models().facts(spec).await;
    let of = spec.clone();
    let about = blocking(move || (of.path.as_deref().and_then(size), of.changed())).await.unwrap_or_default();
    let size = about.0.unwrap_or_else(|| facts.as_ref().map_or(0, |facts| facts.bytes));
    let changed = about.1.unwrap_or(UNIX_EPOCH);
    let mut model = json!({
        "name": "", "model": "", "modified_at": timestamp(changed), "size": size,
        "digest": app.models().digest(spec).await,
        "details": facts.as_ref().map_or_else(|| unknown_details(spec), |facts| details(facts)),
    });
    if let Some(facts) = facts {
        model["capabilities"] = facts.capabilities().into();
    }
    model
}

fn named(model: &Json, name: &str) -> Json {
    let mut model = model.clone();
    model["name"] = tagged(name).into();
    model["model"] = model["name"].clone();
    model
}

/// A name with a tag. Clients add `:latest` to names without one, and look for the result in the list.
pub(super) fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_string() } else { format!("{name}:latest") }
}

pub(super) fn details(facts: &Facts) -> Json {
    json!({
        "parent_model": "",
        "format": facts.format,
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": short(facts.parameters),
        "quantization_level": facts.quantisation,
    })
}

fn unknown_details(spec: &ModelSpec) -> Json {
    let is_folder = spec.path.as_deref().is_some_and(Path::is_dir);
    let format = if is_folder { "safetensors" } else { "gguf" };
    json!({
        "parent_model": "", "format": format, "family": "", "families": [], "parameter_size": "",
        "quantization_level": "",
    })
}

/// That of a variant, which changes with its settings.
fn digest(of_model: &str, variant: &Variant) -> String {
    let Settings { system, template, messages, parameters, license, .. } = &variant.settings;
    let own = json!([of_model, system, template.as_deref(), messages, parameters, license]);
    hex(Sha256::digest(own.to_string()))
}

/// The size of a file, or of the weights in a folder.
fn size(path: &Path) -> Option<u64> {
    let about = path.metadata().ok()?;
    Some(match about.is_dir() {
        false => about.len(),
        true => {
            let files = path.read_dir().ok()?.flatten().map(|entry| entry.path());
            let weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
            weights.filter_map(|path| Some(path.metadata().ok()?.len())).sum()
        }
    })
}

/// `1.2B`
fn short(parameters: u64) -> String {
    let (size, unit) = match parameters {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        _ => (1e3, "K"),
    };
    format!("{:.1}{unit}", parameters as f64 / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_abbreviated() {
        assert_eq!([999, 1_240_000, 70_553_000_000].map(short), ["1.0K", "1.2M", "70.6B"]);
    }

    #[test]
    fn a_model_that_stays_expires_in_the_year_2300() {
        assert_eq!(timestamp(UNIX_EPOCH + FAR), "2300-01-01T00:00:00.000000Z");
    }
}
