//! Complements of schemas, from their source: the union of the violations of their keywords. A violation that cannot be
//! expressed is left out, which allows fewer values.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::budget;
use super::convert::{Converter, Result, absent, present};
use super::keywords::{Named, TYPES};
use super::places::PlaceId;
use super::shape::{ANY, Array, Atom, Contains, Extra, Num, Object, Shape, Shapes, Text};
use super::{formats, numbers, pattern};

/// Numbers and strings that are excluded one by one.
const EXCEPTIONS: usize = 256;
/// Bytes of excluded strings.
const CHARACTERS: usize = 4_000;
/// Elements of an excluded array of which one may differ.
const ELEMENTS: usize = 32;

impl<'a> Converter<'a> {
    pub fn negative(&mut self, place: PlaceId) -> Result<Shapes> {
        let map = match self.keywords(place)? {
            Ok(map) => map,
            Err(true) => return Ok(Shapes::none()),
            Err(false) => return Ok(Shapes::any()),
        };
        if let Some(value) = map.get("$ref").filter(|_| self.places.is_old()) {
            let target = self.target(place, "$ref", value)?;
            return Ok(self.atom(Atom::Not(target))?.as_ref().clone());
        }
        let mut all = self.other_types(place, map)?;
        for (key, value) in map {
            let at = self.places.child(place, key);
            let part = match key.as_str() {
                _ if self.places.is_later(key) => Shapes::unknown(),
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    let target = self.target(place, key, value)?;
                    self.atom(Atom::Not(target))?.as_ref().clone()
                }
                "enum" => self.none_of_values(at)?,
                "const" => self.differ(at),
                "allOf" => self.any_of(at, Atom::Not)?,
                "anyOf" => self.all_of(at, Atom::Not)?,
                "oneOf" => self.none_or_several(at)?,
                "not" => self.atom(Atom::Is(at))?.as_ref().clone(),
                "if" => self.unconditional(place, map)?,
                "dependencies" | "dependentRequired" | "dependentSchemas" => self.violated_dependency(at)?,
                _ => self.violation(place, map, key)?,
            };
            self.budget.spend(part.list.len())?;
            if part.list.is_empty() && !part.is_exact {
                self.leave_out(at);
            }
            all.join(part);
        }
        Ok(all)
    }

    fn other_types(&mut self, place: PlaceId, map: &'a Map<String, Value>) -> Result<Shapes> {
        let Some(types) = self.types(place, map)? else { return Ok(Shapes::none()) };
        let is_left = |name: &str| !(types.contains(&name) || name == "number" && types.contains(&"integer"));
        let list =
            Shape::all().into_iter().zip(TYPES).filter(|(_, name)| is_left(name)).map(|(shape, _)| shape);
        // Numbers that are not integers cannot be expressed.
        let is_exact = types.contains(&"number") || !types.contains(&"integer");
        Ok(Shapes { list: list.collect(), is_exact })
    }

    /// Two of the branches hold, or none.
    fn none_or_several(&mut self, at: PlaceId) -> Result<Shapes> {
        let mut all = self.all_of(at, Atom::Not)?;
        let places = self.list(at)?;
        for i in 0..places.len() {
            for j in 0..i {
                let (a, b) = (self.atom(Atom::Is(places[i]))?, self.atom(Atom::Is(places[j]))?);
                all.join(self.meet(&a, &b)?);
            }
        }
        Ok(all)
    }

    fn unconditional(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Shapes> {
        let condition = self.places.child(place, "if");
        let mut all = Shapes::none();
        for (atom, branch) in [(Atom::Is(condition), "then"), (Atom::Not(condition), "else")] {
            if map.contains_key(branch) {
                let shapes = self.atom(atom)?;
                let branch = self.places.child(place, branch);
                let violated = self.atom(Atom::Not(branch))?;
                all.join(self.meet(&shapes, &violated)?);
            }
        }
        Ok(all)
    }

    fn violated_dependency(&mut self, at: PlaceId) -> Result<Shapes> {
        let mut all = Shapes::none();
        for (name, place) in self.members(at)? {
            let there = Shapes::one(present(&name));
            let violated = match self.places.value(place) {
                Value::Array(_) => {
                    let list = self.strings(place)?.iter().map(absent).collect();
                    Shapes { list, is_exact: true }
                }
                Value::String(other) => Shapes::one(absent(&Rc::from(other.as_str()))),
                _ => self.atom(Atom::Not(place))?.as_ref().clone(),
            };
            all.join(self.meet(&there, &violated)?);
        }
        Ok(all)
    }

    /// What violates a keyword of one type.
    fn violation(&mut self, place: PlaceId, map: &'a Map<String, Value>, key: &str) -> Result<Shapes> {
        let count = |converter: &Self| converter.count(place, map, key).map(|count| count.unwrap_or(0));
        let below = |count: u64| count.checked_sub(1);
        let at = self.places.child(place, key);
        Ok(match key {
            "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {
                return self.outside(place, map, key);
            }
            "minLength" => texts(below(count(self)?).map(|max| Text { max: Some(max), ..Text::default() })),
            "maxLength" => texts(Some(Text { min: count(self)?.saturating_add(1), ..Text::default() })),
            "pattern" => match map.get(key).and_then(Value::as_str).map(pattern::whole) {
                Some(Ok(pattern)) => texts(Some(Text { not: vec![(pattern.into(), at)], ..Text::default() })),
                _ => Shapes::unknown(),
            },
            "format" => match map.get(key).and_then(Value::as_str) {
                Some(format) if formats::lookup(format).is_some() => Shapes::unknown(),
                _ => Shapes::none(),
            },
            "minItems" => arrays(below(count(self)?).map(|max| Array { max: Some(max), ..Array::default() })),
            "maxItems" => arrays(Some(Array { min: count(self)?.saturating_add(1), ..Array::default() })),
            "prefixItems" | "items" | "additionalItems" => return self.wrong_element(place, map, key),
            "contains" if !map.contains_key("minContains") && !map.contains_key("maxContains") => {
                arrays(Some(Array { items: self.node(Atom::Not(at)), ..Array::default() }))
            }
            "minProperties" => {
                objects(below(count(self)?).map(|max| Object { max: Some(max), ..counted(place) }))
            }
            "maxProperties" => {
                objects(Some(Object { min: count(self)?.saturating_add(1), ..counted(place) }))
            }
            "required" => {
                let list = self.strings(at)?.iter().map(absent).collect();
                Shapes { list, is_exact: true }
            }
            "properties" => self.wrong_property(at)?,
            "additionalProperties" => self.wrong_additional(place, map)?,
            "uniqueItems" if map.get(key) == Some(&Value::Bool(false)) => Shapes::none(),
            "multipleOf"
            | "divisibleBy"
            | "uniqueItems"
            | "contains"
            | "minContains"
            | "maxContains"
            | "patternProperties"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties"
            | "disallow" => Shapes::unknown(),
            _ => Shapes::none(),
        })
    }

    fn outside(&self, place: PlaceId, map: &Map<String, Value>, key: &str) -> Result<Shapes> {
        let Some(Value::Number(number)) = map.get(key) else { return Ok(Shapes::none()) };
        self.bounds(place, map)?;
        if key.starts_with("exclusive") && self.has_later_bound(map) {
            return Ok(Shapes::unknown());
        }
        let (up, down) = numbers::round(number);
        let is_excluded = |keyword: &str| map.get(keyword) == Some(&Value::Bool(true));
        let num = match key {
            "minimum" => Num { max: Some((down, !is_excluded("exclusiveMinimum"))), ..Num::default() },
            "exclusiveMinimum" => Num { max: Some((down, false)), ..Num::default() },
            "maximum" => Num { min: Some((up, !is_excluded("exclusiveMaximum"))), ..Num::default() },
            _ => Num { min: Some((up, false)), ..Num::default() },
        };
        Ok(Shapes { list: vec![Shape::Number(num)], is_exact: up == down })
    }

    fn wrong_element(&mut self, place: PlaceId, map: &Map<String, Value>, key: &str) -> Result<Shapes> {
        let (prefix, rest) = self.elements(place, map)?;
        let is_first = key == "prefixItems" || matches!(map.get(key), Some(Value::Array(_)));
        let mut all = Shapes::none();
        if is_first {
            for (index, place) in prefix.iter().enumerate() {
                let mut first = vec![ANY; index];
                first.push(self.node(Atom::Not(*place)));
                self.budget.spend(first.len())?;
                all.join(arrays(Some(Array { min: first.len() as u64, prefix: first, ..Array::default() })));
            }
            return Ok(all);
        }
        let Some(rest) =
            rest.filter(|_| key != "additionalItems" || matches!(map.get("items"), Some(Value::Array(_))))
        else {
            return Ok(all);
        };
        let count = prefix.len() as u64;
        if *self.places.value(rest) == Value::Bool(false) {
            return Ok(arrays(Some(Array { min: count + 1, ..Array::default() })));
        }
        if count > 0 {
            return Ok(Shapes::unknown());
        }
        let node = self.node(Atom::Not(rest));
        let contains = vec![Contains { node, count: 1, place: rest }];
        Ok(arrays(Some(Array { contains, ..Array::default() })))
    }

    fn wrong_property(&mut self, at: PlaceId) -> Result<Shapes> {
        let mut all = Shapes::none();
        for (name, place) in self.members(at)? {
            let node = self.node(Atom::Not(place));
            let object =
                Object { properties: vec![(name.clone(), node)], required: vec![name], ..Object::default() };
            if node != super::shape::NEVER {
                all.join(Shapes::one(Shape::Object(Rc::new(object))));
                budget::at_most(all.list.len(), 8 * budget::ALTERNATIVES, "alternatives")?;
            }
        }
        Ok(all)
    }

    fn wrong_additional(&mut self, place: PlaceId, map: &Map<String, Value>) -> Result<Shapes> {
        let Named { properties, patterns } = self.named(place, map)?;
        let at = self.places.child(place, "additionalProperties");
        let node = self.node(Atom::Not(at));
        if node == super::shape::NEVER {
            return Ok(Shapes::none());
        }
        let names = properties.into_iter().map(|(name, _)| name).collect();
        let patterns = patterns.into_iter().map(|(pattern, _)| pattern).collect();
        let extra = vec![Rc::new(Extra { names, patterns, node })];
        Ok(objects(Some(Object { extra, ..counted(place) })))
    }

    /// Every value but the one at a place.
    pub fn differ(&mut self, at: PlaceId) -> Shapes {
        let shape = match self.places.value(at) {
            Value::Null => Shape::Null,
            Value::Bool(value) => {
                let mut all = Shapes::other_than(&Shape::Boolean(None));
                all.join(Shapes::one(Shape::Boolean(Some(!value))));
                return all;
            }
            Value::Number(number) => return except_numbers(&[number]),
            Value::String(text) => return except_strings(&[text]),
            Value::Array(list) => return self.differ_array(at, list.len()),
            Value::Object(_) => return self.differ_object(at),
        };
        Shapes::other_than(&shape)
    }

    fn differ_array(&mut self, at: PlaceId, count: usize) -> Shapes {
        let mut all = Shapes::other_than(&Shape::Array(Rc::default()));
        let length = count as u64;
        all.join(arrays(length.checked_sub(1).map(|max| Array { max: Some(max), ..Array::default() })));
        all.join(arrays(Some(Array { min: length + 1, ..Array::default() })));
        all.is_exact = count <= ELEMENTS;
        for index in 0..count.min(ELEMENTS) {
            let place = self.places.child(at, &index.to_string());
            let mut prefix = vec![ANY; index];
            prefix.push(self.node(Atom::Differ(place)));
            all.join(arrays(Some(Array { min: prefix.len() as u64, prefix, ..Array::default() })));
        }
        all
    }

    fn differ_object(&mut self, at: PlaceId) -> Shapes {
        let mut all = Shapes::other_than(&Shape::Object(Rc::default()));
        let names: Vec<Rc<str>> =
            self.members(at).unwrap_or_default().into_iter().map(|(name, _)| name).collect();
        all.is_exact = names.len() <= EXCEPTIONS;
        for name in names.iter().take(EXCEPTIONS) {
            let place = self.places.child(at, name);
            let properties = vec![(name.clone(), self.node(Atom::Differ(place)))];
            let required = vec![name.clone()];
            all.join(Shapes::one(absent(name)));
            all.join(objects(Some(Object { properties, required, ..Object::default() })));
        }
        let extra = vec![Rc::new(Extra { names, patterns: Vec::new(), node: ANY })];
        all.join(objects(Some(Object { extra, ..counted(at) })));
        all
    }

    /// Values that are not in `enum`.
    fn none_of_values(&mut self, at: PlaceId) -> Result<Shapes> {
        let Value::Array(list) = self.places.value(at) else {
            return Err(self.invalid_at(at, "it is not a list"));
        };
        self.budget.spend(list.len())?;
        let numbers: Vec<_> = list.iter().filter_map(Value::as_number).collect();
        let strings: Vec<_> = list.iter().filter_map(Value::as_str).collect();
        let mut all = self.meet(&except_numbers(&numbers), &except_strings(&strings))?;
        let is_other = |index: &usize| !list[*index].is_number() && !list[*index].is_string();
        for index in (0..list.len()).filter(is_other) {
            let at = self.places.child(at, &index.to_string());
            let other = self.differ(at);
            all = self.meet(&all, &other)?;
        }
        Ok(all)
    }
}

fn texts(text: Option<Text>) -> Shapes {
    text.map_or(Shapes::none(), |text| Shapes::one(Shape::String(text)))
}

fn arrays(array: Option<Array>) -> Shapes {
    array.map_or(Shapes::none(), |array| Shapes::one(Shape::Array(Rc::new(array))))
}

fn objects(object: Option<Object>) -> Shapes {
    object.map_or(Shapes::none(), |object| Shapes::one(Shape::Object(Rc::new(object))))
}

fn counted(place: PlaceId) -> Object {
    Object { counted: place, ..Object::default() }
}

/// All values but some numbers: the ranges between them.
fn except_numbers(numbers: &[&serde_json::Number]) -> Shapes {
    let mut all = Shapes::other_than(&Shape::Number(Num::default()));
    let mut values: Vec<(f64, f64)> = numbers.iter().map(|number| numbers::round(number)).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    values.dedup();
    if values.len() > EXCEPTIONS {
        all.is_exact = false;
        return all;
    }
    let mut min = None;
    for (up, down) in values {
        all.is_exact &= up == down;
        all.list.push(Shape::Number(Num { min, max: Some((down, true)), ..Num::default() }));
        min = Some((up, true));
    }
    all.list.push(Shape::Number(Num { min, ..Num::default() }));
    all
}

fn except_strings<T: AsRef<str>>(strings: &[T]) -> Shapes {
    let mut all = Shapes::other_than(&Shape::String(Text::default()));
    let except: std::collections::BTreeSet<Rc<str>> =
        strings.iter().map(|text| Rc::from(text.as_ref())).collect();
    let characters = except.iter().map(|text| text.len()).sum::<usize>();
    if except.len() > EXCEPTIONS || characters > CHARACTERS {
        all.is_exact = false;
        return all;
    }
    all.list.push(Shape::String(Text { except: Rc::new(except), ..Text::default() }));
    all
}
