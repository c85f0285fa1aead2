//! Keywords of one type, and values.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

use super::budget::{PATTERN_PROPERTIES, REPETITIONS, at_most};
use super::convert::{Converter, Result, scalar_shape};
use super::places::PlaceId;
use super::shape::{ANY, Array, Atom, Bound, Contains, NEVER, Node, Num, Object, Shape, Shapes, Text};
use super::{formats, numbers, pattern};

/// Keywords that do something only to values of one type.
const TYPED: [&str; 30] = [
    "type",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "required",
    "minProperties",
    "maxProperties",
    "divisibleBy",
    "disallow",
];
/// Keywords that apply schemas to the same value, so that what is evaluated is not known beside them.
const IN_PLACE: [&str; 11] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
    "dependencies",
    "contains",
];

pub(super) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl<'a> Converter<'a> {
    /// The keywords of each type and `type`; `None` if there are none.
    pub fn typed(&mut self, place: PlaceId, map: &'a Map<String, Value>) -> Result<Option<Shapes>> {
        if !TYPED.iter().any(|keyword| map.contains_key(*keyword)) {
            return Ok(None);
        }
        if map.contains_key("disallow") {
            return Err(self.unsupported(place, "disallow", "use not"));
        }
        let types = self.types(place, map)?;
        let has = |name: &str| types.as_ref().is_none_or(|types| types.contains(&name));
        let mut all = Shapes::none();
        if has("null") {
            all.list.push(Shape::Null);
        }
        if has("boolean") {
            all.list.push(Shape::Boolean(None));
        }
        if has("number") || has("integer") {
            let (shape, is_exact) = self.number(place, map, !has("number"))?;
            all.list.extend(shape.map(Shape::Number));
            all.is_exact &= is_exact;
        }
        if has("string") {
            let text = self.text(place, map)?;
            if text.max.is_none_or(|max| max >= text.min) {
                all.list.push(Shape::String(text));
            }
        }
        if has("array") {
            all.list.extend(self.array(place, map)?.map(|array| Shape::Array(Rc::new(array))));
        }
        if has("object") {
            all.list.extend(self.object(place, map)?.map(|object| Shape::Object(Rc::new(object))));
        }
        Ok(Some(all))
    }

    pub fn types(&self, place: PlaceId, map: &'a Map<String, Value>) -> Result<Option<Vec<&'a str>>> {
        let types = match map.get("type") {
            None => return Ok(None),
            Some(Value::String(name)) => vec![name.as_str()],
            Some(Value::Array(list)) => list.iter().map(|item| item.as_str().unwrap_or("")).collect(),
            Some(_) => return Err(self.invalid(place, "type", "it is neither a string nor a list")),
        };
        match types.iter().find(|name| **name != "integer" && !TYPES.contains(name)) {
            Some(name) => Err(self.invalid(place, "type", &format!("there is no type {name:.100?}"))),
            None => Ok(Some(types)),
        }
    }

    pub fn count(&self, place: PlaceId, map: &Map<String, Value>, keyword: &str) -> Result<Option<u64>> {
        let Some(value) = map.get(keyword) else { return Ok(None) };
        let whole =
            value.as_f64().filter(|value| value.fract() == 0.0 && *value >= 0.0).map(|value| value as u64);
        match value.as_u64().or(whole) {
            Some(count) => Ok(Some(count)),
            None => Err(self.invalid(place, keyword, "it is not a count")),
        }
    }

    /// Whether a bound is excluded by a number, in a draft that knows only booleans there and may ignore it.
    pub fn has_later_bound(&self, map: &Map<String, Value>) -> bool {
        let is_number = |keyword: &str| map.get(keyword).is_some_and(Value::is_number);
        self.places.is_later("const") && (is_number("exclusiveMinimum") || is_number("exclusiveMaximum"))
    }

    pub fn bounds(&self, place: PlaceId, map: &Map<String, Value>) -> Result<(Bound, Bound)> {
        let number = |keyword: &str| match map.get(keyword) {
            Some(Value::Number(number)) => Ok(Some(numbers::round(number))),
            Some(Value::Bool(_)) if keyword.starts_with("exclusive") => Ok(None),
            None => Ok(None),
            Some(_) => Err(self.invalid(place, keyword, "it is not a number")),
        };
        // Of draft 4: whether the other bound is excluded.
        let is_excluded = |keyword: &str| map.get(keyword) == Some(&Value::Bool(true));
        let min = number("minimum")?.map(|(up, _)| (up, is_excluded("exclusiveMinimum")));
        let max = number("maximum")?.map(|(_, down)| (down, is_excluded("exclusiveMaximum")));
        let above = number("exclusiveMinimum")?.map(|(up, _)| (up, true));
        let below = number("exclusiveMaximum")?.map(|(_, down)| (down, true));
        Ok((numbers::higher(min, above), numbers::lower(max, below)))
    }

    fn number(
        &self,
        place: PlaceId,
        map: &Map<String, Value>,
        is_integer: bool,
    ) -> Result<(Option<Num>, bool)> {
        let (min, max) = self.bounds(place, map)?;
        let is_exact = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
            .iter()
            .filter_map(|keyword| map.get(*keyword)?.as_number())
            .all(numbers::is_rounded_exactly);
        let is_exact = is_exact && !self.has_later_bound(map);
        let mut num = Num { values: None, is_integer, min, max, multiple: None };
        for keyword in ["multipleOf", "divisibleBy"] {
            let Some(value) = map.get(keyword) else { continue };
            let Value::Number(number) = value else {
                return Err(self.invalid(place, keyword, "it is not a number"));
            };
            let Some(multiple) = numbers::multiple(number) else {
                return Err(self.unsupported(
                    place,
                    keyword,
                    "it is neither an integer up to 1000 nor one with up to six decimals that stay exact, as in 0.01",
                ));
            };
            match multiple {
                (1, 0) => num.is_integer = true,
                multiple => num.multiple = Some(multiple),
            }
        }
        Ok(match numbers::meet(&num, &Num::default()) {
            Some(num) => (num, is_exact),
            None => (None, false),
        })
    }

    fn text(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Text> {
        let mut text = Text {
            min: self.count(place, map, "minLength")?.unwrap_or(0),
            max: self.count(place, map, "maxLength")?,
            ..Text::default()
        };
        if text.min > REPETITIONS {
            return Err(self.unsupported(place, "minLength", &format!("it is larger than {REPETITIONS}")));
        }
        if let Some(source) = map.get("pattern") {
            let Some(source) = source.as_str() else {
                return Err(self.invalid(place, "pattern", "it is not a string"));
            };
            self.budget.spend(source.len() / 8)?;
            let at = self.places.child(place, "pattern");
            match pattern::conditions(source) {
                Ok(conditions) => {
                    text.patterns.extend(conditions.must.into_iter().map(Rc::from));
                    text.not.extend(conditions.must_not.into_iter().map(|pattern| (pattern.into(), at)));
                }
                Err(reason) => return Err(self.unsupported(place, "pattern", &reason)),
            }
        }
        if let Some(format) = map.get("format").and_then(Value::as_str) {
            text.patterns.extend(formats::lookup(format).map(Rc::from));
        }
        Ok(text)
    }

    /// The keywords of elements: those of the first ones, and the one of the others.
    pub fn elements(
        &mut self,
        place: PlaceId,
        map: &Map<String, Value>,
    ) -> Result<(Vec<PlaceId>, Option<PlaceId>)> {
        let is_list = matches!(map.get("items"), Some(Value::Array(_)));
        let first = if is_list { "items" } else { "prefixItems" };
        let rest = if is_list { "additionalItems" } else { "items" };
        let prefix = match map.get(first) {
            Some(Value::Array(list)) => {
                let at = self.places.child(place, first);
                (0..list.len()).map(|index| self.places.child(at, &index.to_string())).collect()
            }
            None => Vec::new(),
            Some(_) => return Err(self.invalid(place, first, "it is not a list")),
        };
        let rest = map.contains_key(rest).then(|| self.places.child(place, rest));
        Ok((prefix, rest))
    }

    fn array(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Option<Array>> {
        let (prefix, rest) = self.elements(place, map)?;
        let rest = match rest {
            None if map.contains_key("unevaluatedItems") => {
                self.unevaluated(place, map, "unevaluatedItems")?
            }
            rest => rest,
        };
        self.budget.spend(prefix.len())?;
        let items = rest.map_or(ANY, |place| self.node(Atom::Is(place)));
        // A draft that does not know `prefixItems` applies `items` to the first elements, too.
        let is_one = map.get("items").is_some_and(|items| !items.is_array());
        let is_ignored = is_one && self.places.is_later("prefixItems");
        let mut first = Vec::with_capacity(prefix.len());
        for place in prefix {
            let node = self.node(Atom::Is(place));
            first.push(if is_ignored { self.both(node, items)? } else { node });
        }
        let mut array = Array {
            prefix: first,
            items,
            min: self.count(place, map, "minItems")?.unwrap_or(0),
            max: self.count(place, map, "maxItems")?,
            contains: Vec::new(),
            unique: None,
        };
        match map.get("uniqueItems") {
            Some(Value::Bool(true)) => array.unique = Some(place),
            None | Some(Value::Bool(false)) => {}
            Some(_) => return Err(self.invalid(place, "uniqueItems", "it is not a boolean")),
        }
        let mut all = Some(array);
        if map.contains_key("contains") {
            let at = self.places.child(place, "contains");
            let mut count = self.count(place, map, "minContains")?.unwrap_or(1);
            if self.places.is_later("minContains") {
                // It may be ignored.
                count = count.max(1);
            }
            let node = self.node(Atom::Is(at));
            if let Some(array) = all.as_mut().filter(|_| count > 0) {
                array.contains.push(Contains { node, count, place: at });
            }
            if let Some(most) = self.count(place, map, "maxContains")? {
                if most > 16 {
                    return Err(self.unsupported(place, "maxContains", "it is larger than 16"));
                }
                // Only the first elements may be among those that are counted.
                let others = self.node(Atom::Not(at));
                let few = Array { prefix: vec![ANY; most as usize], items: others, ..Array::default() };
                all = match all {
                    Some(array) => self.meet_both_arrays(&array, &few)?,
                    None => None,
                };
            }
        }
        // Normalised by the intersection: elements that no value satisfies end the array.
        match all {
            Some(array) => self.meet_both_arrays(&array, &Array::default()),
            None => Ok(None),
        }
    }

    fn meet_both_arrays(&mut self, a: &Array, b: &Array) -> Result<Option<Array>> {
        let (a, b) = (Shape::Array(Rc::new(a.clone())), Shape::Array(Rc::new(b.clone())));
        Ok(match self.meet_shape(&a, &b)?.0 {
            Some(Shape::Array(array)) => Some(array.as_ref().clone()),
            _ => None,
        })
    }

    /// The schema of elements or properties that no other keyword has evaluated.
    fn unevaluated(
        &mut self,
        place: PlaceId,
        map: &Map<String, Value>,
        keyword: &str,
    ) -> Result<Option<PlaceId>> {
        let at = self.places.child(place, keyword);
        if self.node(Atom::Is(at)) == ANY {
            return Ok(None);
        }
        match IN_PLACE.iter().find(|other| map.contains_key(**other)) {
            Some(other) => {
                Err(self.unsupported(place, keyword, &format!("it is supported without {other} only")))
            }
            None => Ok(Some(at)),
        }
    }

    /// `properties` and `patternProperties` as they are written.
    pub fn named(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Named> {
        let mut named = Named::default();
        if map.contains_key("properties") {
            let at = self.places.child(place, "properties");
            named.properties = self.members(at)?;
        }
        if map.contains_key("patternProperties") {
            let at = self.places.child(place, "patternProperties");
            let members = self.members(at)?;
            at_most(members.len(), PATTERN_PROPERTIES, "patternProperties of one object")?;
            for (source, place) in members {
                self.budget.spend(source.len() / 8)?;
                match pattern::whole(&source) {
                    Ok(pattern) => named.patterns.push((pattern.into(), place)),
                    Err(reason) => return Err(self.unsupported_at(at, &reason)),
                }
            }
        }
        Ok(named)
    }

    fn object(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Option<Object>> {
        let Named { properties, patterns } = self.named(place, map)?;
        let is_open = !map.contains_key("additionalProperties");
        let rest = match is_open {
            true if map.contains_key("unevaluatedProperties") => {
                self.unevaluated(place, map, "unevaluatedProperties")?
            }
            true => None,
            false => Some(self.places.child(place, "additionalProperties")),
        };
        let mut object = Object {
            patterns: patterns
                .into_iter()
                .map(|(pattern, place)| (pattern, self.node(Atom::Is(place))))
                .collect(),
            additional: rest.map_or(ANY, |place| self.node(Atom::Is(place))),
            min: self.count(place, map, "minProperties")?.unwrap_or(0),
            max: self.count(place, map, "maxProperties")?,
            counted: place,
            ..Object::default()
        };
        for (name, place) in properties {
            let mut node = self.node(Atom::Is(place));
            for (pattern, of_pattern) in &object.patterns {
                if self.matches(pattern, &name)? {
                    node = self.both(node, *of_pattern)?;
                }
            }
            object.properties.push((name, node));
        }
        if map.contains_key("required") && !map.get("required").is_some_and(Value::is_boolean) {
            let at = self.places.child(place, "required");
            object.required = self.strings(at)?;
        } else if map.get("required") == Some(&Value::Bool(true)) {
            return Err(self.invalid(place, "required", "it is not a list (as in draft 3)"));
        }
        if map.contains_key("propertyNames") {
            let at = self.places.child(place, "propertyNames");
            object.names.push(self.node(Atom::Is(at)));
        }
        let any = Shape::Object(Rc::default());
        Ok(match self.meet_shape(&Shape::Object(Rc::new(object)), &any)?.0 {
            Some(Shape::Object(object)) => Some(object.as_ref().clone()),
            _ => None,
        })
    }

    /// The value at a place, which `const` or `enum` allows.
    pub fn equal(&mut self, at: PlaceId) -> Shapes {
        let node = |converter: &mut Self, token: &str| {
            let at = converter.places.child(at, token);
            converter.node(Atom::Equal(at))
        };
        Shapes::one(match self.places.value(at) {
            Value::Number(number) if !numbers::is_exact(number) => return Shapes::unknown(),
            Value::String(text) if !is_written(text) => return Shapes::unknown(),
            value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                scalar_shape(value)
            }
            Value::Array(list) => {
                let prefix: Vec<Node> = (0..list.len()).map(|index| node(self, &index.to_string())).collect();
                let count = list.len() as u64;
                Shape::Array(Rc::new(Array {
                    prefix,
                    items: NEVER,
                    min: count,
                    max: Some(count),
                    ..Array::default()
                }))
            }
            Value::Object(map) => {
                let properties = map.keys().map(|key| (Rc::from(key.as_str()), node(self, key))).collect();
                let required = map.keys().map(|key| key.as_str().into()).collect();
                Shape::Object(Rc::new(Object {
                    properties,
                    additional: NEVER,
                    required,
                    ..Object::default()
                }))
            }
        })
    }

    /// The values of `enum`.
    pub fn any_value(&mut self, at: PlaceId) -> Result<Shapes> {
        let Value::Array(list) = self.places.value(at) else {
            return Err(self.invalid_at(at, "it is not a list"));
        };
        self.budget.spend(list.len())?;
        let mut all = Shapes::none();
        let (mut strings, mut numbers) = (Vec::<Rc<str>>::new(), Vec::<Number>::new());
        let (mut seen, mut seen_numbers) = (HashSet::new(), HashSet::new());
        let (mut has_null, mut has_bool) = (false, [false; 2]);
        for (index, value) in list.iter().enumerate() {
            match value {
                Value::Null => has_null = true,
                Value::Bool(value) => has_bool[usize::from(*value)] = true,
                Value::String(text) if is_written(text) => {
                    if seen.insert(text.as_str()) {
                        strings.push(text.as_str().into());
                    }
                }
                Value::Number(number) if numbers::is_exact(number) => {
                    if seen_numbers.insert(numbers::key(number)) {
                        numbers.push(number.clone());
                    }
                }
                _ => {
                    let at = self.places.child(at, &index.to_string());
                    all.join(self.equal(at));
                }
            }
        }
        all.list.extend(has_null.then_some(Shape::Null));
        for value in [false, true] {
            all.list.extend(has_bool[usize::from(value)].then_some(Shape::Boolean(Some(value))));
        }
        if !strings.is_empty() {
            all.list.push(Shape::String(Text { values: Some(Rc::new(strings)), ..Text::default() }));
        }
        if !numbers.is_empty() {
            all.list.push(Shape::Number(Num { values: Some(Rc::new(numbers)), ..Num::default() }));
        }
        Ok(all)
    }
}

#[derive(Default)]
pub(super) struct Named {
    pub properties: Vec<(Rc<str>, PlaceId)>,
    pub patterns: Vec<(Rc<str>, PlaceId)>,
}

/// Whether the string can be written without `\u`.
pub(super) fn is_written(text: &str) -> bool {
    text.chars().all(|c| (c >= ' ' && c != '\u{7f}') || matches!(c, '\u{8}' | '\u{c}' | '\n' | '\r' | '\t'))
}
