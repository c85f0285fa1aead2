//! Compiles a JSON Schema to a grammar. Unsupported keywords are errors that name them.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::disjoint::Comparison;
use super::node::{ArrayRule, Grammar, Node, NodeId, ObjectRule, Property};
use super::number::{NumberRule, UNIT, scaled};
use super::text::TextRule;

/// Why a schema is not supported, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schema is invalid or not supported: at {place}: {reason}")]
pub struct SchemaError {
    /// Such as `#/properties/name`.
    pub place: String,
    pub reason: String,
}

/// Annotations, which do not restrict values.
const ANNOTATIONS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords of a type. They are ignored for other types.
const OF_TYPES: [(&str, &[&str]); 5] = [
    ("object", &["properties", "required", "additionalProperties"]),
    ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]),
    ("string", &["minLength", "maxLength"]),
    ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    ("integer", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
];

pub(super) const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Limit on the size of a schema, more than real schemas need and few enough to compile quickly.
const MAX_NODES: usize = 10_000;
/// Limit on nested schemas, including references.
const MAX_DEPTH: usize = 100;

pub(super) type Place<'p> = &'p str;

/// Compiles schemas to nodes.
#[derive(Debug, Default)]
pub(super) struct Compiler {
    nodes: Vec<Node>,
    known: HashMap<Node, NodeId>,
    any: Option<NodeId>,
}

impl Compiler {
    pub(super) fn grammar(self, root: NodeId) -> Grammar {
        Grammar::new(self.nodes, root)
    }

    /// Adds a node; equal nodes are shared.
    pub(super) fn node(&mut self, node: Node) -> NodeId {
        let Compiler { nodes, known, .. } = self;
        *known.entry(node).or_insert_with_key(|node| {
            nodes.push(node.clone());
            nodes.len() as NodeId - 1
        })
    }

    /// Reserves a node that is defined later, so that it may contain itself.
    pub(super) fn reserve(&mut self) -> NodeId {
        self.nodes.push(Node::Choice(Vec::new()));
        self.nodes.len() as NodeId - 1
    }

    pub(super) fn fill(&mut self, reserved: NodeId, with: NodeId) {
        self.nodes[reserved as usize] = Node::Choice(vec![with]);
    }

    pub(super) fn literals<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) -> NodeId {
        let mut texts: Vec<Box<[u8]>> = texts.into_iter().map(|text| text.as_bytes().into()).collect();
        texts.sort_unstable();
        texts.dedup();
        self.node(Node::Literals(texts))
    }

    /// A node for any value.
    pub(super) fn any(&mut self) -> NodeId {
        if let Some(any) = self.any {
            return any;
        }
        let any = self.reserve();
        self.any = Some(any);
        let kinds = TYPES.iter().filter(|kind| **kind != "integer");
        let kinds = kinds.map(|kind| self.any_of_type(kind, any)).collect();
        self.nodes[any as usize] = Node::Choice(kinds);
        any
    }

    pub(super) fn any_object(&mut self) -> NodeId {
        let any = self.any();
        self.any_of_type("object", any)
    }

    fn any_of_type(&mut self, kind: &str, any: NodeId) -> NodeId {
        let node = match kind {
            "object" => {
                Node::Object(ObjectRule { properties: Vec::new(), more: Some(any), names: Vec::new() })
            }
            "array" => Node::Array(ArrayRule { first: Vec::new(), rest: Some(any), min: 0, max: u32::MAX }),
            "string" => Node::Text(TextRule::ANY),
            "boolean" => return self.literals(["true", "false"]),
            "null" => return self.literals(["null"]),
            _ => Node::Number(NumberRule { whole: kind == "integer", ..NumberRule::default() }),
        };
        self.node(node)
    }

    pub(super) fn object(&mut self, properties: Vec<Property>, more: Option<NodeId>) -> NodeId {
        let inner = |property: &Property| property.key[1..property.key.len() - 1].into();
        let mut names: Vec<Box<[u8]>> = properties.iter().map(inner).collect();
        names.sort_unstable();
        self.node(Node::Object(ObjectRule { properties, more, names }))
    }

    /// A node for the values of a schema.
    pub(super) fn schema(&mut self, root: &Json) -> Result<NodeId, SchemaError> {
        let mut of = OfRoot { compiler: self, root, references: HashMap::new(), level: 0 };
        of.schema(root, "#")
    }
}

/// The key of `property` in JSON.
pub(super) fn key(property: &str) -> Box<[u8]> {
    Json::from(property).to_string().into_bytes().into()
}

pub(super) fn fail<T>(place: Place<'_>, reason: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { place: place.into(), reason: reason.into() })
}

/// Resolves a reference within a document.
pub(super) fn resolve<'a>(root: &'a Json, reference: &str) -> Option<&'a Json> {
    let pointer = reference.strip_prefix('#')?;
    // Percent-decoded, as in a URL.
    root.pointer(&pointer.replace("%25", "%"))
}

/// The schemas of a document.
struct OfRoot<'a, 'c> {
    compiler: &'c mut Compiler,
    root: &'a Json,
    references: HashMap<&'a str, NodeId>,
    level: usize,
}

impl<'a> OfRoot<'a, '_> {
    fn schema(&mut self, schema: &'a Json, place: Place<'_>) -> Result<NodeId, SchemaError> {
        if self.level > MAX_DEPTH {
            return fail(place, format!("it has more than {MAX_DEPTH} nested schemas"));
        }
        self.level += 1;
        let node = self.one(schema, place);
        self.level -= 1;
        node
    }

    fn one(&mut self, schema: &'a Json, place: Place<'_>) -> Result<NodeId, SchemaError> {
        if self.compiler.nodes.len() > MAX_NODES {
            return fail(place, format!("it has more than {MAX_NODES} parts"));
        }
        let map = match schema {
            Json::Bool(true) => return Ok(self.compiler.any()),
            Json::Bool(false) => return Ok(self.compiler.node(Node::Choice(Vec::new()))),
            Json::Object(map) => map,
            _ => return fail(place, "a schema must be an object, true or false"),
        };
        for combined in ["$ref", "enum", "const", "anyOf", "oneOf", "allOf"] {
            if let Some(value) = map.get(combined) {
                check_alone(map, combined, place)?;
                return self.combined(combined, value, map, &format!("{place}/{combined}"));
            }
        }
        let types = types(map, place)?;
        check_known(map, place)?;
        if types.is_empty() {
            return Ok(self.compiler.any());
        }
        let kinds = types.into_iter().map(|kind| self.of_type(kind, map, place));
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        Ok(if let [kind] = kinds[..] { kind } else { self.compiler.node(Node::Choice(kinds)) })
    }

    fn combined(
        &mut self,
        keyword: &str,
        value: &'a Json,
        map: &'a Map<String, Json>,
        place: Place<'_>,
    ) -> Result<NodeId, SchemaError> {
        match (keyword, value) {
            ("$ref", Json::String(reference)) => self.reference(reference, place),
            ("const", value) => self.values(std::slice::from_ref(value), map, place),
            ("enum", Json::Array(values)) if !values.is_empty() => self.values(values, map, place),
            ("allOf", Json::Array(parts)) if parts.len() == 1 => {
                self.schema(&parts[0], &format!("{place}/0"))
            }
            ("allOf", Json::Array(_)) => fail(place, "only one schema is supported"),
            ("anyOf" | "oneOf", Json::Array(parts)) if !parts.is_empty() => {
                if keyword == "oneOf" {
                    self.check_apart(parts, place)?;
                }
                let parts =
                    parts.iter().enumerate().map(|(at, part)| self.schema(part, &format!("{place}/{at}")));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                Ok(self.compiler.node(Node::Choice(parts)))
            }
            ("$ref", _) => fail(place, "must be a string"),
            _ => fail(place, "must be a list that is not empty"),
        }
    }

    fn reference(&mut self, reference: &'a str, place: Place<'_>) -> Result<NodeId, SchemaError> {
        if let Some(node) = self.references.get(reference) {
            return Ok(*node);
        }
        let Some(schema) = resolve(self.root, reference) else {
            let reason =
                format!("unresolved reference \"{reference}\"; references must be like \"#/$defs/name\"");
            return fail(place, reason);
        };
        let reserved = self.compiler.reserve();
        self.references.insert(reference, reserved);
        let node = self.schema(schema, reference)?;
        self.compiler.fill(reserved, node);
        Ok(reserved)
    }

    /// The listed values, as far as they have one of the schema's types.
    fn values(
        &mut self,
        values: &[Json],
        map: &Map<String, Json>,
        place: Place<'_>,
    ) -> Result<NodeId, SchemaError> {
        let types = match map.contains_key("type") {
            true => types(map, place)?,
            false => TYPES.to_vec(),
        };
        let texts: Vec<String> = values
            .iter()
            .filter(|value| types.iter().any(|kind| is_of_type(value, kind)))
            .map(Json::to_string)
            .collect();
        Ok(match texts.is_empty() {
            true => self.compiler.node(Node::Choice(Vec::new())),
            false => self.compiler.literals(texts.iter().map(String::as_str)),
        })
    }

    /// `oneOf`: a value must not satisfy a second alternative.
    fn check_apart(&self, parts: &[Json], place: Place<'_>) -> Result<(), SchemaError> {
        let comparison = Comparison::new(self.root);
        for (at, part) in parts.iter().enumerate() {
            if let Some(other) = parts[..at].iter().position(|other| !comparison.are_disjoint(other, part)) {
                let reason = format!("alternatives {other} and {at} may overlap; use anyOf");
                return fail(place, reason);
            }
        }
        Ok(())
    }

    fn of_type(
        &mut self,
        kind: &str,
        map: &'a Map<String, Json>,
        place: Place<'_>,
    ) -> Result<NodeId, SchemaError> {
        match kind {
            "object" => self.object(map, place),
            "array" => self.array(map, place),
            "string" => {
                let (min, max) = counts(map, ["minLength", "maxLength"], place)?;
                Ok(self.compiler.node(Node::Text(TextRule { min, max })))
            }
            "number" | "integer" => {
                let rule = number(kind == "integer", map, place)?;
                Ok(self.compiler.node(match rule.is_possible() {
                    true => Node::Number(rule),
                    false => Node::Choice(Vec::new()),
                }))
            }
            kind => {
                let any = self.compiler.any();
                Ok(self.compiler.any_of_type(kind, any))
            }
        }
    }

    /// Properties that are not named are allowed if the schema says so, or if it names none.
    fn object(&mut self, map: &'a Map<String, Json>, place: Place<'_>) -> Result<NodeId, SchemaError> {
        let named = match map.get("properties") {
            None => None,
            Some(Json::Object(named)) => Some(named),
            Some(_) => return fail(&format!("{place}/properties"), "must be an object"),
        };
        let required = required(map, place)?;
        let more = match map.get("additionalProperties") {
            None if named.is_some() => None,
            None | Some(Json::Bool(true)) => Some(self.compiler.any()),
            Some(Json::Bool(false)) => None,
            Some(schema) => Some(self.schema(schema, &format!("{place}/additionalProperties"))?),
        };
        let mut properties = Vec::new();
        for (name, schema) in named.into_iter().flatten() {
            let value = self.schema(schema, &format!("{place}/properties/{name}"))?;
            properties.push(Property { key: key(name), value, required: required.contains(&name.as_str()) });
        }
        for name in required.into_iter().filter(|name| named.is_none_or(|named| !named.contains_key(*name))) {
            // The keywords for unnamed properties apply.
            let value = match (more, map.get("additionalProperties")) {
                (Some(more), _) => more,
                (None, None) => self.compiler.any(),
                (None, _) => self.compiler.node(Node::Choice(Vec::new())),
            };
            properties.push(Property { key: key(name), value, required: true });
        }
        Ok(self.compiler.object(properties, more))
    }

    fn array(&mut self, map: &'a Map<String, Json>, place: Place<'_>) -> Result<NodeId, SchemaError> {
        let first = match map.get("prefixItems") {
            None => &[][..],
            Some(Json::Array(first)) => first,
            Some(_) => return fail(&format!("{place}/prefixItems"), "must be a list"),
        };
        let first = first
            .iter()
            .enumerate()
            .map(|(at, item)| self.schema(item, &format!("{place}/prefixItems/{at}")));
        let first = first.collect::<Result<Vec<_>, _>>()?;
        let rest = match map.get("items") {
            None | Some(Json::Bool(true)) => Some(self.compiler.any()),
            Some(Json::Bool(false)) => None,
            Some(Json::Array(_)) => {
                return fail(
                    &format!("{place}/items"),
                    "must be a schema; use prefixItems for a list of schemas",
                );
            }
            Some(items) => Some(self.schema(items, &format!("{place}/items"))?),
        };
        if !matches!(map.get("uniqueItems"), None | Some(Json::Bool(false))) {
            return fail(place, "\"uniqueItems\" is not supported");
        }
        let (min, max) = counts(map, ["minItems", "maxItems"], place)?;
        Ok(self.compiler.node(Node::Array(ArrayRule { first, rest, min, max })))
    }
}

/// The types that a schema names or has keywords of; if none, all types.
pub(super) fn types<'a>(map: &'a Map<String, Json>, place: Place<'_>) -> Result<Vec<&'a str>, SchemaError> {
    let known = |kind: &'a Json| kind.as_str().filter(|kind| TYPES.contains(kind));
    let types = match map.get("type") {
        None => {
            let has = |(kind, words): &(&'static str, &[&str])| {
                *kind != "integer" && words.iter().any(|word| map.contains_key(*word))
            };
            return Ok(OF_TYPES.iter().filter(|row| has(row)).map(|row| row.0).collect());
        }
        Some(Json::Array(types)) if !types.is_empty() => types.iter().map(known).collect(),
        Some(kind) => known(kind).map(|kind| vec![kind]),
    };
    let expected = || format!("\"type\" must be one of {}, or a list of them", TYPES.join(", "));
    types.map_or_else(|| fail(place, expected()), Ok)
}

/// Refuses unsupported keywords.
fn check_known(map: &Map<String, Json>, place: Place<'_>) -> Result<(), SchemaError> {
    let is_known = |word: &str| {
        let of_a_type = OF_TYPES.iter().any(|(_, words)| words.contains(&word));
        word == "type" || of_a_type || is_annotation(word, place)
    };
    match map.keys().find(|word| !is_known(word)) {
        Some(word) => fail(place, format!("\"{word}\" is not supported")),
        None => Ok(()),
    }
}

fn is_annotation(word: &str, place: Place<'_>) -> bool {
    // In a nested schema, an id would change the meaning of references.
    ANNOTATIONS.contains(&word) || word.starts_with("x-") || (word == "$id" && place == "#")
}

/// Refuses keywords next to one that must stand alone.
fn check_alone(map: &Map<String, Json>, keyword: &str, place: Place<'_>) -> Result<(), SchemaError> {
    let of_values = matches!(keyword, "enum" | "const");
    let may = |word: &str| word == keyword || is_annotation(word, place) || (of_values && word == "type");
    match map.keys().find(|word| !may(word)) {
        Some(word) => fail(
            place,
            format!("\"{word}\" beside \"{keyword}\" is not supported; move it into the subschemas"),
        ),
        None => Ok(()),
    }
}

pub(super) fn is_of_type(value: &Json, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    }
}

pub(super) fn required<'a>(
    map: &'a Map<String, Json>,
    place: Place<'_>,
) -> Result<Vec<&'a str>, SchemaError> {
    let texts: Option<Vec<&str>> = match map.get("required") {
        None => Some(Vec::new()),
        Some(Json::Array(names)) => names.iter().map(Json::as_str).collect(),
        Some(_) => None,
    };
    let mut names =
        texts.map_or_else(|| fail(&format!("{place}/required"), "must be a list of strings"), Ok)?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The minimum and maximum of a keyword pair.
fn counts(map: &Map<String, Json>, names: [&str; 2], place: Place<'_>) -> Result<(u32, u32), SchemaError> {
    let count = |name: &str| match map.get(name) {
        None => Ok(None),
        // 2.0 is an integer.
        Some(value) => match value.as_f64().filter(|count| count.fract() == 0.0 && *count >= 0.0) {
            Some(count) => Ok(Some(count as u32)),
            None => fail(&format!("{place}/{name}"), "must be an integer of at least 0"),
        },
    };
    let (min, max) = (count(names[0])?.unwrap_or(0), count(names[1])?.unwrap_or(u32::MAX));
    match min <= max {
        true => Ok((min, max)),
        false => fail(place, format!("{} exceeds {}", names[0], names[1])),
    }
}

fn number(whole: bool, map: &Map<String, Json>, place: Place<'_>) -> Result<NumberRule, SchemaError> {
    let mut rule = NumberRule { whole, least: None, most: None };
    for (name, is_least, excluded) in [
        ("minimum", true, 0),
        ("exclusiveMinimum", true, 1),
        ("maximum", false, 0),
        ("exclusiveMaximum", false, 1),
    ] {
        let Some(value) = map.get(name) else { continue };
        let place = format!("{place}/{name}");
        if !value.is_number() {
            return fail(&place, "must be a number");
        }
        let is_negative = value.as_f64().is_some_and(|value| value < 0.0);
        let Some((at, exact)) = scaled(&value.to_string()).filter(|(at, _)| at.abs() < UNIT * UNIT) else {
            match is_least == is_negative {
                // Outside of the range of supported numbers.
                true => continue,
                false => return fail(&place, "numbers with more than 15 digits are not supported"),
            }
        };
        if is_least {
            let least = at + if exact { excluded } else { 1 };
            rule.least = Some(rule.least.map_or(least, |other| other.max(least)));
        } else {
            let most = at - if exact { excluded } else { 0 };
            rule.most = Some(rule.most.map_or(most, |other| other.min(most)));
        }
    }
    Ok(rule)
}
