//! Places in a schema's source: what `$ref` refers to, and JSON pointers for messages.

use std::collections::HashMap;

use serde_json::Value;

use super::{SchemaError, budget, uri};

pub(super) type PlaceId = u32;

struct Place<'a> {
    value: &'a Value,
    parent: Option<(PlaceId, String)>,
    /// The URI that references are relative to.
    base: usize,
}

pub(super) struct Places<'a> {
    places: Vec<Place<'a>>,
    /// By address: a value has one place. A place that a reference names by another pointer is the same place.
    by_address: HashMap<*const Value, PlaceId>,
    bases: Vec<String>,
    /// Resources by URI, and anchors by URI and `#anchor`.
    targets: HashMap<String, PlaceId>,
    /// `$dynamicAnchor`s by name: how often each is there.
    dynamic: HashMap<String, usize>,
    /// The year of the draft that the schema names; the latest one if it names none.
    year: u16,
}

/// Keywords whose value is a schema, a list of schemas or a map of schemas.
const SCHEMAS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// What `$schema` contains in each draft, and the year.
const DRAFTS: [(&str, u16); 5] =
    [("draft-03", 2010), ("draft-04", 2013), ("draft-06", 2017), ("draft-07", 2018), ("draft/2019-09", 2019)];
const MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

impl<'a> Places<'a> {
    pub fn new(root: &'a Value, budget: &mut budget::Budget) -> Result<Places<'a>, SchemaError> {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or("");
        let mut places = Places {
            places: vec![Place { value: root, parent: None, base: 0 }],
            by_address: HashMap::from([(root as *const Value, 0)]),
            bases: vec![String::new()],
            targets: HashMap::from([(String::new(), 0)]),
            dynamic: HashMap::new(),
            year: DRAFTS.iter().find(|(name, _)| draft.contains(name)).map_or(2020, |(_, year)| *year),
        };
        places.scan(budget)?;
        Ok(places)
    }

    /// Finds the resources and anchors of all schemas.
    fn scan(&mut self, budget: &mut budget::Budget) -> Result<(), SchemaError> {
        let mut todo = vec![0];
        while let Some(place) = todo.pop() {
            budget.spend(1)?;
            let Some(map) = self.value(place).as_object() else { continue };
            self.name(place);
            for (key, value) in map {
                let is_map = MAPS.contains(&key.as_str());
                if !is_map && !SCHEMAS.contains(&key.as_str()) {
                    continue;
                }
                let at = self.child(place, key);
                match value {
                    Value::Object(map) if is_map => todo.extend(map.keys().map(|name| self.child(at, name))),
                    Value::Array(list) => {
                        todo.extend((0..list.len()).map(|index| self.child(at, &index.to_string())))
                    }
                    _ => todo.push(at),
                }
            }
        }
        Ok(())
    }

    /// Notes the names that a schema gives itself.
    fn name(&mut self, place: PlaceId) {
        let value = self.value(place);
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let is_ignored = self.is_old() && value.get("$ref").is_some();
        if let Some(id) = text("$id").or_else(|| text("id")).filter(|_| !is_ignored) {
            let (resource, anchor) = uri::split(id);
            if !resource.is_empty() {
                let whole = uri::join(&self.bases[self.places[place as usize].base], resource);
                self.targets.entry(whole.clone()).or_insert(place);
                self.bases.push(whole);
                self.places[place as usize].base = self.bases.len() - 1;
            }
            self.anchor(place, anchor);
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = text(key) {
                self.anchor(place, anchor);
            }
        }
        if let Some(anchor) = text("$dynamicAnchor") {
            *self.dynamic.entry(anchor.to_string()).or_default() += 1;
        }
    }

    fn anchor(&mut self, place: PlaceId, anchor: &str) {
        if !anchor.is_empty() {
            let base = &self.bases[self.places[place as usize].base];
            self.targets.entry(format!("{base}#{anchor}")).or_insert(place);
        }
    }

    /// Whether keywords beside `$ref` have no effect, as up to draft 7.
    pub fn is_old(&self) -> bool {
        self.year < 2019
    }

    /// Whether the draft that the schema names does not know the keyword yet. It is applied, but it may be ignored.
    pub fn is_later(&self, keyword: &str) -> bool {
        let year = match keyword {
            "prefixItems" | "$dynamicRef" => 2020,
            "dependentRequired"
            | "dependentSchemas"
            | "minContains"
            | "maxContains"
            | "unevaluatedItems"
            | "unevaluatedProperties" => 2019,
            "if" | "then" | "else" => 2018,
            "const" | "contains" | "propertyNames" => 2017,
            "allOf" | "anyOf" | "oneOf" | "not" | "required" | "minProperties" | "maxProperties"
            | "multipleOf" => 2013,
            _ => return false,
        };
        self.year < year
    }

    pub fn value(&self, place: PlaceId) -> &'a Value {
        self.places[place as usize].value
    }

    /// The place of an object's member or of an array's element, which must be there.
    pub fn child(&mut self, parent: PlaceId, token: &str) -> PlaceId {
        self.existing_child(parent, token).unwrap_or(parent)
    }

    fn existing_child(&mut self, parent: PlaceId, token: &str) -> Option<PlaceId> {
        let value = match self.value(parent) {
            Value::Object(map) => map.get(token),
            Value::Array(list) => token.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        }?;
        let next = self.places.len() as PlaceId;
        let id = *self.by_address.entry(value).or_insert(next);
        if id == next {
            let base = self.places[parent as usize].base;
            self.places.push(Place { value, parent: Some((parent, token.to_string())), base });
        }
        Some(id)
    }

    /// What a reference refers to, if it is in this document.
    pub fn target(&mut self, from: PlaceId, reference: &str) -> Option<PlaceId> {
        let (resource, fragment) = uri::split(reference);
        let base = &self.bases[self.places[from as usize].base];
        let whole = uri::join(base, resource);
        let resource = match self.targets.get(&whole) {
            Some(place) => *place,
            // The document's root has this URI even if it names itself by another one.
            None if resource.is_empty() => 0,
            None => return None,
        };
        if fragment.is_empty() || fragment == "/" {
            return Some(resource);
        }
        let Some(pointer) = fragment.strip_prefix('/') else {
            return self.targets.get(&format!("{whole}#{}", uri::token(fragment))).copied();
        };
        let mut place = resource;
        for token in pointer.split('/') {
            place = self.existing_child(place, &uri::token(token))?;
        }
        Some(place)
    }

    /// Whether the anchor is dynamic in several places, so that what it refers to depends on the path to it.
    pub fn is_ambiguous(&self, anchor: &str) -> bool {
        self.dynamic.get(anchor).is_some_and(|count| *count > 1)
    }

    pub fn resources(&self) -> usize {
        self.bases.len()
    }

    pub fn pointer(&self, place: PlaceId) -> String {
        let mut tokens = Vec::new();
        let mut at = &self.places[place as usize];
        while let Some((parent, token)) = &at.parent {
            tokens.push(token.replace('~', "~0").replace('/', "~1"));
            at = &self.places[*parent as usize];
        }
        tokens.push("#".into());
        tokens.reverse();
        tokens.join("/")
    }
}
