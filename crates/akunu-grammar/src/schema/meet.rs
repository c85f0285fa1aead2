//! Intersections of unions and of shapes.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::budget::{self, ALTERNATIVES, CONJUNCTION, PATTERN_PROPERTIES};
use super::convert::{Converter, Result};
use super::shape::{ANY, Array, NEVER, Node, Object, Shape, Shapes, Text};
use super::{formats, numbers, regexes};

type Patterns = Vec<(Rc<str>, Node)>;

/// Steps for a question about two patterns.
const QUESTION: usize = 200;

impl Converter<'_> {
    pub fn meet(&mut self, a: &Shapes, b: &Shapes) -> Result<Shapes> {
        if a.is_any() || b.is_any() {
            let (all, other) = if a.is_any() { (a, b) } else { (b, a) };
            return Ok(Shapes { list: other.list.clone(), is_exact: all.is_exact && other.is_exact });
        }
        let mut out = Shapes { list: Vec::new(), is_exact: a.is_exact && b.is_exact };
        for one in &a.list {
            for other in &b.list {
                self.budget.spend(1)?;
                if !one.is_type_of(other) {
                    continue;
                }
                let (both, is_exact) = self.meet_shape(one, other)?;
                out.is_exact &= is_exact;
                if let Some(both) = both {
                    out.join(Shapes::one(both));
                    budget::at_most(
                        out.list.len(),
                        ALTERNATIVES,
                        "alternatives when its parts are combined",
                    )?;
                }
            }
        }
        Ok(out)
    }

    /// The values of both, and whether these are all.
    pub fn meet_shape(&mut self, a: &Shape, b: &Shape) -> Result<(Option<Shape>, bool)> {
        Ok(match (a, b) {
            (Shape::Null, Shape::Null) => (Some(Shape::Null), true),
            (Shape::Boolean(a), Shape::Boolean(b)) => {
                let same = a.is_none() || b.is_none() || a == b;
                (same.then(|| Shape::Boolean(a.or(*b))), true)
            }
            (Shape::Number(a), Shape::Number(b)) => {
                let values = [a, b].map(|num| num.values.as_ref().map_or(1, |values| values.len()));
                self.budget.spend(values[0] + values[1])?;
                match numbers::meet(a, b) {
                    Some(both) => (both.map(Shape::Number), true),
                    None => (None, false),
                }
            }
            (Shape::String(a), Shape::String(b)) => {
                let (both, is_exact) = self.meet_text(a, b)?;
                (both.map(Shape::String), is_exact)
            }
            (Shape::Array(a), Shape::Array(b)) => {
                (self.meet_array(a, b)?.map(|both| Shape::Array(Rc::new(both))), true)
            }
            (Shape::Object(a), Shape::Object(b)) => {
                let (both, is_exact) = self.meet_object(a, b)?;
                (both.map(|both| Shape::Object(Rc::new(both))), is_exact)
            }
            _ => (None, true),
        })
    }

    fn meet_text(&mut self, a: &Text, b: &Text) -> Result<(Option<Text>, bool)> {
        if let Some(values) = &a.values {
            let of_b: Option<HashSet<&str>> =
                b.values.as_ref().map(|values| values.iter().map(|value| &**value).collect());
            self.budget.spend(values.len() + of_b.as_ref().map_or(0, HashSet::len))?;
            let rest = Text { values: None, ..b.clone() };
            let (mut left, mut is_exact) = (Vec::new(), true);
            for value in
                values.iter().filter(|value| of_b.as_ref().is_none_or(|values| values.contains(&***value)))
            {
                match self.accepts(&rest, value)? {
                    Some(true) => left.push(value.clone()),
                    Some(false) => {}
                    None => is_exact = false,
                }
            }
            return Ok((
                (!left.is_empty()).then(|| Text { values: Some(Rc::new(left)), ..Text::default() }),
                is_exact,
            ));
        }
        if b.values.is_some() {
            return self.meet_text(b, a);
        }
        let mut both = a.clone();
        for pattern in &b.patterns {
            if !both.patterns.contains(pattern) {
                both.patterns.push(pattern.clone());
            }
        }
        budget::at_most(both.patterns.len(), CONJUNCTION, "patterns and formats for one string")?;
        for not in &b.not {
            if !both.not.contains(not) {
                both.not.push(not.clone());
            }
        }
        budget::at_most(both.not.len(), 4 * CONJUNCTION, "excluded patterns for one string")?;
        if both.except.is_empty() {
            both.except = b.except.clone();
        } else if !b.except.is_empty() {
            self.budget.spend(both.except.len() + b.except.len())?;
            both.except = Rc::new(both.except.union(&b.except).cloned().collect());
        }
        both.min = both.min.max(b.min);
        both.max = least(both.max, b.max);
        if both.max.is_some_and(|max| max < both.min) {
            return Ok((None, true));
        }
        Ok((Some(both), true))
    }

    /// Whether a string has the properties; `None` if it cannot be found out, or if a format has it that is narrowed.
    pub fn accepts(&mut self, text: &Text, value: &str) -> Result<Option<bool>> {
        let length = value.chars().count() as u64;
        let listed = text.values.as_ref().is_none_or(|values| values.iter().any(|other| &**other == value));
        if length < text.min
            || text.max.is_some_and(|max| length > max)
            || text.except.contains(value)
            || !listed
        {
            return Ok(Some(false));
        }
        let patterns = text.patterns.iter().map(|pattern| (pattern, true));
        for (pattern, expected) in patterns.chain(text.not.iter().map(|(pattern, _)| (pattern, false))) {
            self.budget.spend((1 + value.len() / 8).saturating_mul(regexes::weight(pattern)))?;
            match self.regexes.matches(pattern, value) {
                Some(matches) if matches == expected => {}
                Some(_) => {
                    let wide = formats::wide(pattern).filter(|_| expected);
                    let may_match =
                        wide.is_some_and(|wide| self.regexes.matches(&wide, value) != Some(false));
                    return Ok((!may_match).then_some(false));
                }
                None => return Ok(None),
            }
        }
        Ok(Some(true))
    }

    /// Whether two of the patterns exclude each other, where formats are taken with all their strings.
    pub fn is_empty_text(&mut self, text: &Text) -> Result<bool> {
        let all = |pattern: &Rc<str>| formats::wide(pattern).unwrap_or_else(|| pattern.clone());
        let mut patterns: Vec<Rc<str>> = text.patterns.iter().map(all).collect();
        if !patterns.is_empty() && (text.min > 0 || text.max.is_some()) {
            patterns.push(regexes::length(text.min, text.max));
        }
        for i in 0..patterns.len() {
            for j in 0..i {
                if self.are_disjoint_patterns(&patterns[i], &patterns[j])? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn meet_array(&mut self, a: &Array, b: &Array) -> Result<Option<Array>> {
        let element = |array: &Array, index: usize| array.prefix.get(index).copied().unwrap_or(array.items);
        let mut prefix = Vec::new();
        for index in 0..a.prefix.len().max(b.prefix.len()) {
            self.budget.spend(1)?;
            prefix.push(self.both(element(a, index), element(b, index))?);
        }
        let (min, mut max) = (a.min.max(b.min), least(a.max, b.max));
        if let Some(index) = prefix.iter().position(|node| *node == NEVER) {
            max = least(max, Some(index as u64));
        }
        let items = self.both(a.items, b.items)?;
        if items == NEVER {
            max = least(max, Some(prefix.len() as u64));
        }
        if max.is_some_and(|max| max < min) {
            return Ok(None);
        }
        let contains = a.contains.iter().chain(b.contains.iter().filter(|other| !a.contains.contains(other)));
        let contains = contains.cloned().collect();
        Ok(Some(Array { prefix, items, min, max, contains, unique: a.unique.or(b.unique) }))
    }

    /// What a property satisfies that is not named.
    pub fn unnamed(&mut self, object: &Object, name: &str) -> Result<Node> {
        let mut node = None;
        for (pattern, of_pattern) in &object.patterns {
            self.budget.spend(1)?;
            if self.matches(pattern, name)? {
                node = Some(match node {
                    None => *of_pattern,
                    Some(before) => self.both(before, *of_pattern)?,
                });
            }
        }
        Ok(node.unwrap_or(object.additional))
    }

    pub fn are_disjoint_patterns(&mut self, a: &Rc<str>, b: &Rc<str>) -> Result<bool> {
        self.budget.spend(QUESTION + a.len() + b.len())?;
        Ok(self.regexes.are_disjoint(a, b))
    }

    pub fn matches(&mut self, pattern: &Rc<str>, name: &str) -> Result<bool> {
        self.budget.spend((1 + name.len() / 8).saturating_mul(regexes::weight(pattern)))?;
        self.regexes
            .matches(pattern, name)
            .ok_or_else(|| budget::too_large("a pattern of names is too complex".into()))
    }

    pub fn property_of(&mut self, object: &Object, name: &str) -> Result<Node> {
        self.budget.spend(1 + object.properties.len() / 16)?;
        match object.property(name) {
            Some(node) => Ok(node),
            None => self.unnamed(object, name),
        }
    }

    fn meet_object(&mut self, a: &Object, b: &Object) -> Result<(Option<Object>, bool)> {
        self.budget
            .spend(1 + a.properties.len() + b.properties.len() + a.required.len() + b.required.len())?;
        let index_b: HashMap<&str, Node> = b.properties.iter().map(|(name, node)| (&**name, *node)).collect();
        let index_a: HashSet<&str> = a.properties.iter().map(|(name, _)| &**name).collect();
        let mut properties = Vec::with_capacity(a.properties.len() + b.properties.len());
        for (name, node) in &a.properties {
            let other = match index_b.get(&**name) {
                Some(node) => *node,
                None => self.unnamed(b, name)?,
            };
            properties.push((name.clone(), self.both(*node, other)?));
        }
        for (name, node) in b.properties.iter().filter(|(name, _)| !index_a.contains(&**name)) {
            let other = self.unnamed(a, name)?;
            properties.push((name.clone(), self.both(other, *node)?));
        }
        let known: HashSet<&str> = a.required.iter().map(|name| &**name).collect();
        let mut required = a.required.clone();
        required.extend(b.required.iter().filter(|name| !known.contains(&***name)).cloned());
        let never: HashSet<&str> =
            properties.iter().filter(|(_, node)| *node == NEVER).map(|(name, _)| &**name).collect();
        if required.iter().any(|name| never.contains(&**name)) {
            return Ok((None, true));
        }
        let (min, max) = (a.min.max(b.min), least(a.max, b.max));
        if max.is_some_and(|max| max < min.max(required.len() as u64)) {
            return Ok((None, true));
        }
        let (patterns, is_exact) = self.meet_patterns(a, b)?;
        let additional = self.both(a.additional, b.additional)?;
        let mut names = a.names.clone();
        names.extend(b.names.iter().filter(|node| !a.names.contains(node)));
        let mut extra = a.extra.clone();
        extra.extend(b.extra.iter().filter(|extra| !a.extra.contains(extra)).cloned());
        let counted = if a.counted != 0 { a.counted } else { b.counted };
        let both = Object { properties, patterns, additional, required, min, max, names, extra, counted };
        Ok((Some(both), is_exact))
    }

    /// The patterns of both, and whether they allow all that both allow.
    fn meet_patterns(&mut self, a: &Object, b: &Object) -> Result<(Patterns, bool)> {
        let (mut patterns, mut is_exact) = (Vec::new(), true);
        self.budget.spend(1 + a.patterns.len() * b.patterns.len())?;
        for (ours, theirs) in [(a, b), (b, a)] {
            for (pattern, node) in &ours.patterns {
                if patterns.iter().any(|(other, _)| other == pattern) {
                    continue;
                }
                let same = theirs.patterns.iter().find(|(other, _)| other == pattern);
                let mut node = self.both(*node, same.map_or(theirs.additional, |(_, node)| *node))?;
                // Names that match both need what both say; so all names of the pattern do.
                for (other, of_other) in theirs.patterns.iter().filter(|(other, _)| other != pattern) {
                    if *of_other != ANY && !self.are_disjoint_patterns(pattern, other)? {
                        let narrower = self.both(node, *of_other)?;
                        is_exact &= narrower == node;
                        node = narrower;
                    }
                }
                patterns.push((pattern.clone(), node));
            }
        }
        budget::at_most(patterns.len(), PATTERN_PROPERTIES, "patternProperties of one object")?;
        Ok((patterns, is_exact))
    }
}

pub(super) fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}
