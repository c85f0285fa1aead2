//! Decides whether a value can satisfy two schemas.

use std::cell::Cell;

use serde_json::{Map, Value as Json};

use super::schema::{TYPES, is_of_type, required, resolve, types};

/// Limits on comparisons for the alternatives of a schema, and on their depth. Beyond them the result is unknown.
const MOST_COMPARISONS: u32 = 10_000;
const MOST_DEPTH: u32 = 16;

/// Compares schemas of one document.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    root: &'a Json,
    left: Cell<u32>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(root: &'a Json) -> Comparison<'a> {
        Comparison { root, left: Cell::new(MOST_COMPARISONS) }
    }

    /// True only if this is certain: from the types, the listed values, or a property that both require.
    pub(super) fn are_disjoint(&self, one: &Json, other: &Json) -> bool {
        self.schemas(one, other, 0)
    }

    fn schemas(&self, one: &Json, other: &Json, depth: u32) -> bool {
        match (self.resolved(one), self.resolved(other)) {
            (Some(one), Some(other)) => self.maps(one, other, depth),
            _ => false,
        }
    }

    /// Follows references to a schema with content.
    fn resolved<'s>(&self, mut schema: &'s Json) -> Option<&'s Map<String, Json>>
    where
        'a: 's,
    {
        for _ in 0..MOST_DEPTH {
            let map = schema.as_object()?;
            let Some(reference) = map.get("$ref").and_then(Json::as_str) else { return Some(map) };
            schema = resolve(self.root, reference)?;
        }
        None
    }

    fn maps(&self, one: &Map<String, Json>, other: &Map<String, Json>, depth: u32) -> bool {
        if depth > MOST_DEPTH || self.left.get() == 0 {
            return false;
        }
        self.left.set(self.left.get() - 1);
        for (some, others) in [(one, other), (other, one)] {
            if let Some(parts) = some.get("anyOf").or(some.get("oneOf")).and_then(Json::as_array) {
                let is_apart =
                    |part| self.resolved(part).is_some_and(|part| self.maps(part, others, depth + 1));
                return parts.iter().all(is_apart);
            }
            // The content of other properties is not compared.
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
            [&"object"] => self.objects(one, other, depth),
            _ => false,
        }
    }

    fn objects(&self, one: &Map<String, Json>, other: &Map<String, Json>, depth: u32) -> bool {
        let names = |map| required(map, "").unwrap_or_default();
        let (ours, theirs) = (names(one), names(other));
        let property = |map, name: &str| Map::get(map, "properties").and_then(|all| all.get(name));
        ours.iter().filter(|name| theirs.contains(name)).any(|name| {
            let both = (property(one, name), property(other, name));
            matches!(both, (Some(one), Some(other)) if self.schemas(one, other, depth + 1))
        })
    }
}

fn values(map: &Map<String, Json>) -> Option<&[Json]> {
    match map.get("const") {
        Some(value) => Some(std::slice::from_ref(value)),
        None => map.get("enum").and_then(Json::as_array).map(Vec::as_slice),
    }
}

/// 1 and 1.0 are equal.
fn are_equal(one: &Json, other: &Json) -> bool {
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

fn may_be(value: &Json, map: &Map<String, Json>) -> bool {
    kinds(map).iter().any(|kind| is_of_type(value, kind))
}

/// An integer is also a number.
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
