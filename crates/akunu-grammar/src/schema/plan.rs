//! What is emitted: the shapes of all schemas that are reached, without those that no value satisfies.

use std::collections::HashMap;
use std::rc::Rc;

use super::SchemaError;
use super::budget::{self, Budget, DEPTH};
use super::convert::{Converter, Result};
use super::meet::least;
use super::regexes;
use super::shape::{ANY, Array, NEVER, Node, Shape, Text};

/// Steps for the complement of a pattern.
const COMPLEMENT: usize = 2_000;

pub(super) struct Plan {
    pub nodes: HashMap<Node, Planned>,
    pub budget: Budget,
    /// Where the schema's root is, for a message.
    pub root: String,
}

pub(super) struct Planned {
    pub shapes: Vec<Shape>,
    pub is_inhabited: bool,
    /// From other schemas.
    pub references: usize,
}

pub(super) fn plan(converter: &mut Converter<'_>, root: Node) -> std::result::Result<Plan, SchemaError> {
    let mut planner = Planner { converter, nodes: HashMap::new(), order: Vec::new() };
    planner.explore(root, 0)?;
    let Planner { nodes, order, .. } = planner;
    let mut plan =
        Plan { nodes, budget: std::mem::take(&mut converter.budget), root: converter.pointer(root) };
    plan.find_inhabited(&order)?;
    Ok(plan)
}

struct Planner<'a, 'b> {
    converter: &'a mut Converter<'b>,
    nodes: HashMap<Node, Planned>,
    /// Nodes, each after those that it refers to except in circles.
    order: Vec<Node>,
}

impl Planner<'_, '_> {
    /// llguidance follows references in this order, too, so that the depth limits its recursion.
    fn explore(&mut self, node: Node, depth: usize) -> Result<()> {
        if node == ANY || node == NEVER {
            return Ok(());
        }
        if let Some(planned) = self.nodes.get_mut(&node) {
            planned.references += 1;
            return Ok(());
        }
        budget::at_most(depth, DEPTH, "schemas are nested or refer to each other")?;
        let shapes = match self.converter.shapes(node) {
            Ok(shapes) => shapes,
            Err(error) => return Err(error.within(|| self.converter.pointer(node))),
        };
        self.nodes.insert(node, Planned { shapes: Vec::new(), is_inhabited: false, references: 1 });
        let expanded = self.expand(&shapes.list);
        let list = expanded.map_err(|error| error.within(|| self.converter.pointer(node)))?;
        for child in list.iter().flat_map(children) {
            self.explore(child, depth + 1)?;
        }
        if let Some(planned) = self.nodes.get_mut(&node) {
            planned.shapes = list;
        }
        self.order.push(node);
        Ok(())
    }

    /// The shapes without what cannot be emitted.
    fn expand(&mut self, shapes: &[Shape]) -> Result<Vec<Shape>> {
        let mut list = Vec::new();
        for shape in shapes {
            match shape {
                Shape::Array(array) => {
                    let arrays = self.converter.expand_array(array)?;
                    list.extend(arrays.into_iter().map(|array| Shape::Array(Rc::new(array))));
                }
                Shape::Object(object) => {
                    for object in self.converter.expand_object(object)? {
                        list.push(Shape::Object(Rc::new(object)));
                    }
                }
                Shape::String(text) => list.push(Shape::String(self.plain_text(text)?)),
                other => list.push(other.clone()),
            }
        }
        let list = merged(list);
        budget::at_most(list.len(), budget::ALTERNATIVES, "alternatives of one schema")?;
        Ok(list)
    }

    /// The string without excluded strings and patterns.
    fn plain_text(&mut self, text: &Text) -> Result<Text> {
        let mut plain = Text { not: Vec::new(), except: Rc::default(), ..text.clone() };
        for (not, place) in &text.not {
            let mut excludes = |pattern: &Rc<str>| self.converter.regexes.are_disjoint(pattern, not);
            if text.patterns.iter().any(&mut excludes) || excludes(&regexes::length(text.min, text.max)) {
                continue;
            }
            self.converter.budget.spend(COMPLEMENT)?;
            let Some(other) = self.converter.regexes.complement(not) else {
                return Err(self
                    .converter
                    .unsupported_at(*place, "the strings that do not match cannot be expressed shortly"));
            };
            plain.patterns.push(other);
        }
        let mut except = Vec::new();
        for value in text.except.iter() {
            let rest = Text { except: Rc::default(), ..text.clone() };
            if self.converter.accepts(&rest, value)? != Some(false) {
                except.push(value.clone());
            }
        }
        if !except.is_empty() {
            let pattern = regexes::all_but(except.iter().map(|value| &**value));
            self.converter.budget.spend(pattern.len())?;
            plain.patterns.push(pattern.into());
        }
        budget::at_most(plain.patterns.len(), budget::CONJUNCTION, "patterns and formats for one string")?;
        Ok(plain)
    }
}

pub(super) fn children(shape: &Shape) -> Vec<Node> {
    match shape {
        Shape::Array(array) => array.prefix.iter().copied().chain([array.items]).collect(),
        Shape::Object(object) => {
            let named = object.properties.iter().chain(&object.patterns).map(|(_, node)| *node);
            named.chain([object.additional]).collect()
        }
        _ => Vec::new(),
    }
}

impl Plan {
    pub fn is_inhabited(&self, node: Node) -> bool {
        node == ANY || self.nodes.get(&node).is_some_and(|planned| planned.is_inhabited)
    }

    /// Marks the nodes of which finite values exist.
    fn find_inhabited(&mut self, order: &[Node]) -> Result<()> {
        let mut todo: Vec<Node> = order.to_vec();
        loop {
            let before = todo.len();
            let mut left = Vec::new();
            for node in todo {
                let planned = &self.nodes[&node];
                self.budget.spend(planned.shapes.len())?;
                let is_inhabited = planned.shapes.iter().any(|shape| self.has_value(shape));
                match self.nodes.get_mut(&node) {
                    Some(planned) if is_inhabited => planned.is_inhabited = true,
                    _ => left.push(node),
                }
            }
            if left.len() == before {
                break;
            }
            todo = left;
        }
        for node in order {
            let shapes = self
                .nodes
                .get_mut(node)
                .map(|planned| std::mem::take(&mut planned.shapes))
                .unwrap_or_default();
            let shapes = shapes.into_iter().filter(|shape| self.has_value(shape)).collect();
            if let Some(planned) = self.nodes.get_mut(node) {
                planned.shapes = shapes;
            }
        }
        Ok(())
    }

    fn has_value(&self, shape: &Shape) -> bool {
        match shape {
            Shape::Array(array) => self.has_elements(array),
            Shape::Object(object) => {
                let required: std::collections::HashSet<&str> =
                    object.required.iter().map(|name| &**name).collect();
                let mut needed = object.properties.iter().filter(|(name, _)| required.contains(&**name));
                let others = object.patterns.iter().map(|(_, node)| *node).chain([object.additional]);
                needed.all(|(_, node)| self.is_inhabited(*node))
                    && (object.min == 0 || others.into_iter().any(|node| self.is_inhabited(node)))
            }
            _ => true,
        }
    }

    fn has_elements(&self, array: &Array) -> bool {
        let needed = array.min as usize;
        array.prefix.iter().take(needed).all(|node| self.is_inhabited(*node))
            && (needed <= array.prefix.len() || self.is_inhabited(array.items))
    }
}

/// One list of strings and one of numbers, and lengths of strings that overlap as one.
fn merged(list: Vec<Shape>) -> Vec<Shape> {
    let (mut strings, mut numbers) = (Vec::new(), Vec::new());
    let mut lengths: Vec<(u64, Option<u64>)> = Vec::new();
    let mut out = Vec::new();
    for shape in list {
        match &shape {
            Shape::String(Text { values: Some(values), .. }) => strings.extend(values.iter().cloned()),
            Shape::String(text) if text.patterns.is_empty() => lengths.push((text.min, text.max)),
            Shape::Number(num) => match &num.values {
                Some(values) => numbers.extend(values.iter().cloned()),
                None => out.push(shape),
            },
            _ => out.push(shape),
        }
    }
    lengths.sort_unstable_by_key(|(min, _)| *min);
    let mut joined: Vec<(u64, Option<u64>)> = Vec::new();
    for (min, max) in lengths {
        match joined.last_mut() {
            Some((_, last)) if last.is_none_or(|last| last.saturating_add(1) >= min) => {
                *last = last.and_then(|last| max.map(|max| max.max(last)));
            }
            _ => joined.push((min, max)),
        }
    }
    let mut seen = std::collections::HashSet::new();
    strings.retain(|text| seen.insert(text.clone()));
    let mut seen = std::collections::HashSet::new();
    numbers.retain(|number| seen.insert(super::numbers::key(number)));
    if !strings.is_empty() {
        out.push(Shape::String(Text { values: Some(Rc::new(strings)), ..Text::default() }));
    }
    if !numbers.is_empty() {
        let values = Some(Rc::new(numbers));
        out.push(Shape::Number(super::shape::Num { values, ..Default::default() }));
    }
    out.extend(
        joined
            .into_iter()
            .map(|(min, max)| Shape::String(Text { min, max: least(max, None), ..Text::default() })),
    );
    out
}
