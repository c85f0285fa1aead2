//! What schemas of arguments say.

use serde_json::{Value as Json, json};

/// An argument that can be written between tags.
pub(super) struct Property<'s> {
    pub(super) name: &'s str,
    pub(super) is_required: bool,
    pub(super) value: Value<'s>,
}

pub(super) enum Value<'s> {
    /// Any text.
    Text,
    /// One of these.
    Texts(Vec<&'s str>),
    /// JSON of this schema.
    Json(Json),
}

pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords without effect on what is valid.
pub(super) const ANNOTATIONS: [&str; 7] =
    ["title", "description", "default", "examples", "deprecated", "$schema", "$comment"];

/// A property of an object.
pub(super) struct Member<'s> {
    pub(super) name: &'s str,
    pub(super) is_required: bool,
    pub(super) schema: &'s Json,
}

/// The properties of a schema that says nothing else than which there are; `None`: it does.
pub(super) fn members(schema: &Json) -> Option<Vec<Member<'_>>> {
    let schema = schema.as_object()?;
    let is_known = |key: &str| {
        ANNOTATIONS.contains(&key)
            || DEFINITIONS.contains(&key)
            || ["type", "properties", "required", "additionalProperties"].contains(&key)
    };
    let is_plain = schema.keys().all(|key| is_known(key))
        && schema.get("type").is_none_or(|kind| kind == "object")
        && schema.get("additionalProperties").is_none_or(Json::is_boolean);
    if !is_plain {
        return None;
    }
    let given = match schema.get("properties") {
        None => Vec::new(),
        Some(properties) => properties.as_object()?.iter().collect(),
    };
    let required: Vec<&str> = match schema.get("required") {
        None => Vec::new(),
        Some(list) => list.as_array()?.iter().map(Json::as_str).collect::<Option<_>>()?,
    };
    let is_word = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
    };
    let is_given = |name: &&str| given.iter().any(|(other, _)| other == name);
    if !required.iter().all(is_given) || !given.iter().all(|(name, _)| is_word(name)) {
        return None;
    }
    let mut all = Vec::with_capacity(given.len());
    for (name, schema) in given {
        all.push(Member { name, is_required: required.contains(&name.as_str()), schema });
    }
    Some(all)
}

/// Whether arguments of this schema can be written between tags. Others are JSON.
pub fn fits_tags(schema: &Json) -> bool {
    properties(schema).is_some()
}

/// The arguments of such a schema; `None`: they can be held as JSON only.
pub(super) fn properties(parameters: &Json) -> Option<Vec<Property<'_>>> {
    let property = |Member { name, is_required, schema }| {
        Some(Property { name, is_required, value: value(parameters, name, schema)? })
    };
    members(parameters)?.into_iter().map(property).collect()
}

/// How the value of an argument is written between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// As it is.
    Text,
    /// As it is, or `null`.
    TextOrNull,
    /// As JSON.
    Other,
}

/// The kind of a property of these parameters.
pub fn value_kind(parameters: &Json, name: &str) -> ValueKind {
    let schema = resolved(parameters, &parameters["properties"][name]);
    let kinds: Vec<&Json> = match (&schema["type"], &schema["anyOf"]) {
        (kind @ Json::String(_), _) => vec![kind],
        (Json::Array(kinds), _) => kinds.iter().collect(),
        (_, Json::Array(all)) => all.iter().map(|one| &resolved(parameters, one)["type"]).collect(),
        _ => Vec::new(),
    };
    let (texts, nulls) = (count(&kinds, "string"), count(&kinds, "null"));
    match (texts, nulls) {
        (0, _) => ValueKind::Other,
        _ if texts + nulls < kinds.len() => ValueKind::Other,
        (_, 0) => ValueKind::Text,
        _ => ValueKind::TextOrNull,
    }
}

fn count(kinds: &[&Json], name: &str) -> usize {
    kinds.iter().filter(|kind| **kind == name).count()
}

/// Whether a schema allows both booleans, which some templates write as Python does.
pub(super) fn is_any_boolean(schema: &Json) -> bool {
    schema["type"] == "boolean" && schema["enum"].is_null() && schema["const"].is_null()
}

/// Whether a reference is to what is defined beside the properties.
pub(super) fn is_definition(place: &str) -> bool {
    DEFINITIONS.iter().any(|defined| place.starts_with(&format!("#/{defined}/")))
}

/// The schema that a reference to the definitions of the parameters is to, or the schema itself.
fn resolved<'s>(parameters: &'s Json, schema: &'s Json) -> &'s Json {
    let place = schema["$ref"].as_str().and_then(|place| place.strip_prefix('#'));
    place.and_then(|place| parameters.pointer(place)).unwrap_or(schema)
}

/// Whether a schema of texts says nothing about the text.
fn is_any_text(parameters: &Json, schema: &Json) -> bool {
    let has_only = |schema: &Json, keys: &[&str]| {
        let is_known = |key: &String| ANNOTATIONS.contains(&key.as_str()) || keys.contains(&key.as_str());
        schema.as_object().is_some_and(|fields| fields.keys().all(is_known))
    };
    let schema = resolved(parameters, schema);
    match schema["anyOf"].as_array() {
        None => has_only(schema, &["type"]),
        Some(all) => {
            has_only(schema, &["anyOf"])
                && all.iter().all(|one| has_only(resolved(parameters, one), &["type"]))
        }
    }
}

fn value<'s>(parameters: &'s Json, name: &str, schema: &'s Json) -> Option<Value<'s>> {
    if !refers_to_definitions(schema) {
        return None;
    }
    let is_text = value_kind(parameters, name) != ValueKind::Other;
    if is_text && is_any_text(parameters, schema) {
        return Some(Value::Text);
    }
    // The readers take it as text, which cannot be held.
    if is_text && schema["type"] != "string" {
        return None;
    }
    let Some(fields) = schema.as_object().filter(|fields| fields.get("type") == Some(&json!("string")))
    else {
        return Some(Value::Json(schema.clone()));
    };
    let mut others = fields.keys().filter(|key| *key != "type" && !ANNOTATIONS.contains(&key.as_str()));
    match (others.next().map(String::as_str), others.next()) {
        (None, _) => Some(Value::Text),
        (Some("enum"), None) => {
            let texts: Option<Vec<&str>> = fields["enum"].as_array()?.iter().map(Json::as_str).collect();
            texts.filter(|texts| !texts.is_empty()).map(Value::Texts)
        }
        (Some("const"), None) => Some(Value::Texts(vec![fields["const"].as_str()?])),
        _ => None,
    }
}

/// Whether all references are to what is defined beside the properties.
fn refers_to_definitions(schema: &Json) -> bool {
    match schema {
        Json::Object(fields) => fields.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref", Json::String(place)) => is_definition(place),
            (_, value) => refers_to_definitions(value),
        }),
        Json::Array(list) => list.iter().all(refers_to_definitions),
        _ => true,
    }
}
