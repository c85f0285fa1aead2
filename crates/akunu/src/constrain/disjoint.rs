//! Whether a value can be of two schemas at once.

use serde_json::{Map, Value as Json};

use super::schema::{TYPES, is_of_type, required, resolve, types};

/// Only where that is certain: by their types, by the values that they list, or by a property that both require.
pub(super) fn are_disjoint(root: &Json, one: &Json, other: &Json) -> bool {
    match (resolved(root, one), resolved(root, other)) {
        (Some(one), Some(other)) => maps_are_disjoint(root, one, other),
        _ => false,
    }
}

/// Through references, as far as they lead to a schema with something in it.
fn resolved<'a>(root: &'a Json, mut schema: &'a Json) -> Option<&'a Map<String, Json>> {
    for _ in 0..32 {
        let map = schema.as_object()?;
        let Some(reference) = map.get("$ref").and_then(Json::as_str) else { return Some(map) };
        schema = resolve(root, reference)?;
    }
    None
}

fn maps_are_disjoint(root: &Json, one: &Map<String, Json>, other: &Map<String, Json>) -> bool {
    for (some, others) in [(one, other), (other, one)] {
        if let Some(parts) = some.get("anyOf").or(some.get("oneOf")).and_then(Json::as_array) {
            let others = Json::Object(others.clone());
            return parts.iter().all(|part| are_disjoint(root, part, &others));
        }
        // What may be in others, nobody looks after.
        if some.contains_key("allOf") {
            return false;
        }
    }
    match (values(one), values(other)) {
        (Some(some), Some(others)) => {
            return !some.iter().any(|value| others.iter().any(|other| are_equal(value, other)));
        }
        (Some(values), None) => return !values.iter().any(|value| may_be(value, other)),
        (None, Some(values)) => return !values.iter().any(|value| may_be(value, one)),
        (None, None) => {}
    }
    let (ours, theirs) = (kinds(one), kinds(other));
    let common: Vec<&&str> = ours.iter().filter(|kind| theirs.contains(kind)).collect();
    match common[..] {
        [] => true,
        [&"object"] => objects_are_disjoint(root, one, other),
        _ => false,
    }
}

fn values(map: &Map<String, Json>) -> Option<&[Json]> {
    match map.get("const") {
        Some(value) => Some(std::slice::from_ref(value)),
        None => map.get("enum").and_then(Json::as_array).map(Vec::as_slice),
    }
}

/// 1 is 1.0.
fn are_equal(one: &Json, other: &Json) -> bool {
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

fn may_be(value: &Json, map: &Map<String, Json>) -> bool {
    kinds(map).iter().any(|kind| is_of_type(value, kind))
}

/// A whole number is a number too.
fn kinds(map: &Map<String, Json>) -> Vec<&str> {
    let mut kinds = types(map, "").unwrap_or_default();
    if kinds.is_empty() {
        kinds = TYPES.to_vec();
    }
    if kinds.contains(&"number") {
        kinds.push("integer");
    }
    kinds
}

fn objects_are_disjoint(root: &Json, one: &Map<String, Json>, other: &Map<String, Json>) -> bool {
    let required = |map| required(map, "").unwrap_or_default();
    let (ours, theirs) = (required(one), required(other));
    let property = |map: &'_ Map<String, Json>, name: &str| map.get("properties")?.get(name).cloned();
    ours.iter().filter(|name| theirs.contains(name)).any(|name| {
        matches!((property(one, name), property(other, name)), (Some(one), Some(other)) if are_disjoint(root, &one, &other))
    })
}
