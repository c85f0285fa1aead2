//! The plan as a schema in the keywords of `llguidance`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::budget::{self, REPETITIONS, STRINGS};
use super::convert::Result;
use super::plan::Plan;
use super::shape::{ANY, Array, NEVER, Node, Object, Shape, Text};
use super::{SchemaError, numbers};

pub(super) fn emit(plan: Plan, root: Node) -> Result<Value> {
    if !plan.is_inhabited(root) {
        return Err(SchemaError::Unsatisfiable { place: plan.root });
    }
    if root == ANY {
        return Ok(json!({}));
    }
    let mut emitter = Emitter { plan, waiting: Vec::new(), known: Default::default() };
    let Value::Object(mut schema) = emitter.reference(root)? else {
        return Err(SchemaError::Unsatisfiable { place: emitter.plan.root });
    };
    let mut definitions = Map::new();
    while let Some(node) = emitter.waiting.pop() {
        let body = emitter.body(node)?;
        definitions.insert(name(node), body);
    }
    if !definitions.is_empty() {
        schema.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(Value::Object(schema))
}

fn name(node: Node) -> String {
    format!("n{node}")
}

struct Emitter {
    plan: Plan,
    /// Definitions that are referred to and not emitted yet.
    waiting: Vec<Node>,
    known: HashSet<Node>,
}

impl Emitter {
    /// The schema of a node, or a reference to it if it is needed more than once.
    fn reference(&mut self, node: Node) -> Result<Value> {
        self.plan.budget.output(1)?;
        if node == ANY {
            return Ok(true.into());
        }
        if node == NEVER || !self.plan.is_inhabited(node) {
            return Ok(false.into());
        }
        let planned = &self.plan.nodes[&node];
        let has_parts = |shape: &Shape| matches!(shape, Shape::Array(_) | Shape::Object(_));
        let is_any = is_any(&planned.shapes);
        if planned.references > 1 && !is_any && planned.shapes.iter().any(has_parts) {
            if self.known.insert(node) {
                self.waiting.push(node);
            }
            return Ok(json!({ "$ref": format!("#/$defs/{}", name(node)) }));
        }
        self.body(node)
    }

    fn body(&mut self, node: Node) -> Result<Value> {
        let shapes = self.plan.nodes[&node].shapes.clone();
        if is_any(&shapes) {
            return Ok(json!({}));
        }
        let is_text = |shape: &&Shape| matches!(shape, Shape::String(text) if text.values.is_none());
        budget::at_most(shapes.iter().filter(is_text).count(), STRINGS, "alternatives of one string")?;
        self.limit_multiples(&shapes)?;
        let mut list = Vec::new();
        for shape in &shapes {
            self.plan.budget.output(1)?;
            list.extend(self.shape(shape)?);
        }
        match list.len() {
            0 => Ok(false.into()),
            1 => Ok(list.remove(0)),
            _ => Ok(json!({ "anyOf": list })),
        }
    }

    /// Alternatives are one automaton, which has a state for each combination of remainders.
    fn limit_multiples(&mut self, shapes: &[Shape]) -> Result<()> {
        let multiple = |shape: &Shape| match shape {
            Shape::Number(num) => num.multiple,
            _ => None,
        };
        let multiples: HashSet<(u32, u32)> = shapes.iter().filter_map(multiple).collect();
        let states = multiples
            .iter()
            .fold(1, |states: usize, (coefficient, _)| states.saturating_mul(*coefficient as usize));
        let limit = numbers::COEFFICIENT as usize;
        budget::at_most(states, limit, "remainders of multipleOf in the alternatives of one number")?;
        self.plan.budget.output(if multiples.is_empty() { 0 } else { 2 * states })
    }

    fn shape(&mut self, shape: &Shape) -> Result<Option<Value>> {
        Ok(match shape {
            Shape::Null => Some(json!({ "type": "null" })),
            Shape::Boolean(None) => Some(json!({ "type": "boolean" })),
            Shape::Boolean(Some(value)) => Some(json!({ "const": value })),
            Shape::Number(num) => match &num.values {
                Some(values) => {
                    self.plan.budget.output(values.len())?;
                    Some(json!({ "enum": **values }))
                }
                None => numbers::emit(num).map(Value::Object),
            },
            Shape::String(text) => self.text(text)?,
            Shape::Array(array) => Some(self.array(array)?),
            Shape::Object(object) => Some(self.object(object)?),
        })
    }

    fn text(&mut self, text: &Text) -> Result<Option<Value>> {
        if let Some(values) = &text.values {
            self.plan.budget.output(values.iter().map(|value| 1 + value.len() / 32).sum())?;
            let values: Vec<&str> = values.iter().map(|value| &**value).collect();
            return Ok(Some(json!({ "enum": values })));
        }
        let mut out = Map::from_iter([("type".to_string(), "string".into())]);
        if text.min > 0 {
            out.insert("minLength".into(), text.min.into());
        }
        if let Some(max) = text.max {
            out.insert("maxLength".into(), max.min(REPETITIONS).into());
        }
        if text.min > REPETITIONS {
            return Ok(None);
        }
        let patterns: Vec<String> = text.patterns.iter().map(|pattern| anchored(pattern)).collect();
        self.plan.budget.output(patterns.iter().map(|pattern| pattern.len() / 32).sum())?;
        match &patterns[..] {
            [] => {}
            [only] => {
                out.insert("pattern".into(), only.as_str().into());
            }
            [first, others @ ..] => {
                out.insert("pattern".into(), first.as_str().into());
                let others = others.iter().map(|pattern| json!({ "type": "string", "pattern": pattern }));
                out.insert("allOf".into(), others.collect());
            }
        }
        Ok(Some(Value::Object(out)))
    }

    fn array(&mut self, array: &Array) -> Result<Value> {
        let mut out = Map::from_iter([("type".to_string(), "array".into())]);
        let used = array.max.map_or(array.prefix.len(), |max| array.prefix.len().min(max as usize));
        if used > 0 {
            let prefix =
                array.prefix[..used].iter().map(|node| self.reference(*node)).collect::<Result<Vec<_>>>()?;
            out.insert("prefixItems".into(), prefix.into());
        }
        let is_full = array.max.is_some_and(|max| max <= used as u64);
        out.insert("items".into(), if is_full { false.into() } else { self.reference(array.items)? });
        let limit = u64::from(u32::MAX / 2);
        if array.min > 0 {
            out.insert("minItems".into(), array.min.min(limit).into());
        }
        if let Some(max) = array.max {
            out.insert("maxItems".into(), max.min(limit).into());
        }
        Ok(Value::Object(out))
    }

    fn object(&mut self, object: &Object) -> Result<Value> {
        let is_closed = !self.plan.is_inhabited(object.additional) && object.patterns.is_empty();
        let mut out = Map::from_iter([("type".to_string(), "object".into())]);
        self.plan.budget.output(object.properties.len().pow(2) / 120)?;
        let mut properties = Map::new();
        for (name, node) in &object.properties {
            // A property that no value satisfies is named so that it is not an additional one.
            if !is_closed || self.plan.is_inhabited(*node) {
                properties.insert(name.to_string(), self.reference(*node)?);
            }
        }
        if !properties.is_empty() {
            out.insert("properties".into(), Value::Object(properties));
        }
        if !object.patterns.is_empty() {
            let mut patterns = Map::new();
            for (pattern, node) in &object.patterns {
                self.plan.budget.output(pattern.len() / 32)?;
                patterns.insert(anchored(pattern), self.reference(*node)?);
            }
            out.insert("patternProperties".into(), Value::Object(patterns));
        }
        out.insert("additionalProperties".into(), self.reference(object.additional)?);
        if !object.required.is_empty() {
            let required: Vec<&str> = object.required.iter().map(|name| &**name).collect();
            out.insert("required".into(), required.into());
        }
        if object.min > 0 {
            out.insert("minProperties".into(), object.min.into());
        }
        if let Some(max) = object.max {
            out.insert("maxProperties".into(), max.into());
        }
        Ok(Value::Object(out))
    }
}

fn is_any(shapes: &[Shape]) -> bool {
    shapes.len() == 6 && shapes.iter().all(Shape::is_whole)
}

fn anchored(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}
