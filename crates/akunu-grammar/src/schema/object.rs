//! Objects that count properties, restrict names or need a property without a name, as unions of objects without.

use std::collections::HashSet;
use std::rc::Rc;

use super::budget::{EXPANSION, PATTERN_PROPERTIES, PROPERTIES, at_most};
use super::convert::{Converter, Result};
use super::regexes;
use super::shape::{ANY, Extra, NEVER, Node, Object, Shape, Text};

impl Converter<'_> {
    pub fn expand_object(&mut self, object: &Object) -> Result<Vec<Object>> {
        let mut object = self.with_names(object)?;
        self.simplify_patterns(&mut object)?;
        let mut object = self.with_required(object)?;
        at_most(object.properties.len(), PROPERTIES, "properties of one object")?;
        at_most(object.required.len(), PROPERTIES, "required properties of one object")?;
        at_most(object.patterns.len(), PATTERN_PROPERTIES, "patternProperties of one object")?;
        let extra = std::mem::take(&mut object.extra);
        let mut all = vec![object];
        for extra in &extra {
            let mut next = Vec::new();
            for object in &all {
                next.extend(self.with_extra(object, extra)?);
            }
            self.few(next.len(), &all[0])?;
            all = next;
            if all.is_empty() {
                return Ok(all);
            }
        }
        let mut counted = Vec::new();
        for object in all {
            counted.extend(self.counted(object)?);
        }
        Ok(counted)
    }

    fn few(&self, count: usize, object: &Object) -> Result<()> {
        if count <= EXPANSION {
            return Ok(());
        }
        let reason = format!("the object has more than {EXPANSION} forms");
        Err(self.unsupported(object.counted, "minProperties, maxProperties or not", &reason))
    }

    /// Applies `propertyNames`.
    fn with_names(&mut self, object: &Object) -> Result<Object> {
        let mut object = object.clone();
        for node in std::mem::take(&mut object.names) {
            let shapes = self.shapes(node)?;
            let texts: Vec<&Text> = shapes
                .list
                .iter()
                .filter_map(|shape| match shape {
                    Shape::String(text) => Some(text),
                    _ => None,
                })
                .collect();
            if texts.iter().any(|text| text.is_whole()) {
                continue;
            }
            // Names that are listed become properties.
            for value in texts.iter().filter_map(|text| text.values.as_ref()).flat_map(|values| values.iter())
            {
                if object.property(value).is_none() {
                    let node = self.unnamed(&object, value)?;
                    object.properties.push((value.clone(), node));
                    self.budget.spend(1 + object.properties.len() / 8)?;
                }
            }
            for index in 0..object.properties.len() {
                let name = object.properties[index].0.clone();
                let mut is_allowed = false;
                for text in &texts {
                    is_allowed |= self.accepts(text, &name)? == Some(true);
                }
                if !is_allowed {
                    object.properties[index].1 = NEVER;
                }
            }
            let names = self.open_names(&object, &texts)?;
            let is_same = |(pattern, _): &(Rc<str>, Node)| names == [pattern.clone()];
            if !names.is_empty() && !object.patterns.iter().all(is_same) {
                return Err(self.unsupported(
                    object.counted,
                    "propertyNames",
                    "there are patternProperties beside it",
                ));
            }
            if object.patterns.is_empty() && object.additional != NEVER {
                // llguidance applies a pattern's schema to named properties, too.
                for (name, _) in object.properties.clone() {
                    for pattern in names.iter().filter(|_| object.additional != ANY) {
                        if self.matches(pattern, &name)? {
                            let reason =
                                "a property that is named matches it, and additionalProperties is a schema";
                            return Err(self.unsupported(object.counted, "propertyNames", reason));
                        }
                    }
                }
                object.patterns = names.into_iter().map(|name| (name, object.additional)).collect();
            } else if names.is_empty() {
                object.patterns.clear();
            }
            object.additional = NEVER;
        }
        let never: HashSet<&str> =
            object.properties.iter().filter(|(_, node)| *node == NEVER).map(|(n, _)| &**n).collect();
        if object.required.iter().any(|name| never.contains(&**name)) {
            object.max = Some(0);
            object.min = 1;
        }
        Ok(object)
    }

    /// Expressions of the names that are allowed and not listed.
    fn open_names(&self, object: &Object, texts: &[&Text]) -> Result<Vec<Rc<str>>> {
        let mut names: Vec<Rc<str>> = Vec::new();
        for text in texts.iter().filter(|text| text.values.is_none()) {
            match &text.patterns[..] {
                [] if text.except.is_empty() => names.push(regexes::length(text.min, text.max)),
                [only] if text.except.is_empty() && text.min == 0 && text.max.is_none() => {
                    names.push(only.clone())
                }
                _ => {
                    return Err(self.unsupported(
                        object.counted,
                        "propertyNames",
                        "it has several conditions",
                    ));
                }
            }
            if !text.not.is_empty() {
                return Err(self.unsupported(object.counted, "propertyNames", "it excludes a pattern"));
            }
        }
        Ok(names)
    }

    /// Patterns that say the same become one, because llguidance needs them to be disjoint.
    fn simplify_patterns(&mut self, object: &mut Object) -> Result<()> {
        if object.patterns.len() == 1 || object.additional == ANY {
            object.patterns.retain(|(_, node)| *node != object.additional);
        }
        if let [(pattern, node)] = &object.patterns[..] {
            self.budget.spend(1 + pattern.len())?;
            if self.regexes.is_universal(pattern) {
                object.additional = *node;
                object.patterns.clear();
            }
        }
        let patterns = std::mem::take(&mut object.patterns);
        for (pattern, node) in patterns {
            let mut overlapping = Vec::new();
            for index in 0..object.patterns.len() {
                if !self.are_disjoint_patterns(&object.patterns[index].0, &pattern)? {
                    overlapping.push(index);
                }
            }
            match overlapping[..] {
                [] => object.patterns.push((pattern, node)),
                [only] if object.patterns[only].1 == node => {
                    object.patterns[only].0 = format!("(?:{}|{pattern})", object.patterns[only].0).into();
                }
                _ => {
                    let reason = "a name may match several of them";
                    return Err(self.unsupported(object.counted, "patternProperties", reason));
                }
            }
        }
        Ok(())
    }

    /// The object with all required names among its properties.
    fn with_required(&mut self, mut object: Object) -> Result<Object> {
        let known: HashSet<Rc<str>> = object.properties.iter().map(|(name, _)| name.clone()).collect();
        for name in object.required.clone().iter().filter(|name| !known.contains(*name)) {
            let node = self.unnamed(&object, name)?;
            object.properties.push((name.clone(), node));
        }
        Ok(object)
    }

    /// The objects that have the extra property: a named one, or any other one.
    fn with_extra(&mut self, object: &Object, extra: &Extra) -> Result<Vec<Object>> {
        let mut all = Vec::new();
        let names: HashSet<&str> = extra.names.iter().map(|name| &**name).collect();
        let required: HashSet<&str> = object.required.iter().map(|name| &**name).collect();
        let mut unnamed = object.clone();
        let candidates: Vec<Rc<str>> = object
            .properties
            .iter()
            .map(|(name, _)| name.clone())
            .chain(object.required.iter().filter(|name| object.property(name).is_none()).cloned())
            .collect();
        for name in candidates {
            self.budget.spend(1 + object.properties.len() / 4)?;
            let mut is_extra = !names.contains(&*name);
            for pattern in &extra.patterns {
                is_extra = is_extra && !self.matches(pattern, &name)?;
            }
            let node = self.property_of(object, &name)?;
            if !is_extra || node == NEVER {
                continue;
            }
            let both = self.both(node, extra.node)?;
            if required.contains(&*name) && both == node {
                return Ok(vec![object.clone()]);
            }
            if all.len() <= EXPANSION {
                let mut with = object.clone();
                set(&mut with.properties, &name, both);
                if !required.contains(&*name) {
                    with.required.push(name.clone());
                }
                all.push(with);
            }
        }
        // Any other property: the optional ones are left out, because only then properties can be counted.
        if extra.patterns.is_empty() && object.patterns.is_empty() && object.additional != NEVER {
            for name in extra.names.iter().filter(|name| !required.contains(&***name)) {
                set(&mut unnamed.properties, name, NEVER);
            }
            for (name, node) in &mut unnamed.properties {
                if !required.contains(&**name) {
                    *node = NEVER;
                }
            }
            unnamed.additional = self.both(object.additional, extra.node)?;
            unnamed.min = unnamed.min.max(unnamed.required.len() as u64 + 1);
            all.push(unnamed);
        }
        Ok(all)
    }

    /// Applies the counts of properties: llguidance counts only those that are not named.
    fn counted(&mut self, mut object: Object) -> Result<Vec<Object>> {
        let required: HashSet<Rc<str>> = object.required.iter().cloned().collect();
        let count = required.len() as u64;
        let optional: Vec<Rc<str>> = object
            .properties
            .iter()
            .filter(|(name, node)| *node != NEVER && !required.contains(name))
            .map(|(name, _)| name.clone())
            .collect();
        let is_closed = object.additional == NEVER && object.patterns.iter().all(|(_, node)| *node == NEVER);
        let missing = object.min.saturating_sub(count);
        let left = object.max.map(|max| max.saturating_sub(count));
        if object.max.is_some_and(|max| max < object.min.max(count)) {
            return Ok(Vec::new());
        }
        let left = left.filter(|left| !is_closed || *left < optional.len() as u64);
        (object.min, object.max) = (0, None);
        match (missing, left) {
            (0, None) => Ok(vec![object]),
            (_, Some(0)) => Ok(vec![closed(object, &required)]),
            _ => self.some_of(object, &optional, is_closed, missing, left, &required),
        }
    }

    fn some_of(
        &mut self,
        object: Object,
        optional: &[Rc<str>],
        is_closed: bool,
        missing: u64,
        left: Option<u64>,
        required: &HashSet<Rc<str>>,
    ) -> Result<Vec<Object>> {
        let mut all = Vec::new();
        // Named properties: which ones have to be there, and with a maximum, which ones may.
        let chosen = left.map_or(missing, |left| left.min(optional.len() as u64)) as usize;
        if !optional.is_empty() && chosen <= optional.len() {
            let sets = combinations(optional.len(), chosen);
            self.few(sets.as_ref().map_or(EXPANSION + 1, Vec::len), &object)?;
            for set in sets.unwrap_or_default() {
                self.budget.spend(1 + object.properties.len())?;
                let names: HashSet<&str> = set.iter().map(|index| &*optional[*index]).collect();
                let mut with = object.clone();
                if left.is_some() {
                    let may = |name: &str| required.contains(name) || names.contains(name);
                    with.properties
                        .iter_mut()
                        .filter(|(name, _)| !may(name))
                        .for_each(|(_, node)| *node = NEVER);
                    with.patterns.clear();
                    with.additional = NEVER;
                }
                let must = if left.is_some() { missing as usize } else { chosen };
                let subsets = combinations(set.len(), must).unwrap_or_default();
                for subset in subsets {
                    let mut with = with.clone();
                    with.required.extend(subset.iter().map(|index| optional[set[*index]].clone()));
                    all.push(with);
                    self.few(all.len(), &object)?;
                }
            }
        }
        if is_closed {
            return Ok(all);
        }
        // Other properties. One of them may be written twice, so that only one is counted.
        let mut others = closed(object.clone(), required);
        (others.patterns, others.additional) = (object.patterns.clone(), object.additional);
        if missing <= 1 {
            let count = required.len() as u64;
            others.min = if missing == 0 { 0 } else { count + missing };
            others.max = left.map(|left| count + left);
            all.push(others);
        } else if all.is_empty() {
            let reason =
                "at least two properties without names cannot be told from one that is written twice";
            return Err(self.unsupported(object.counted, "minProperties", reason));
        }
        Ok(all)
    }
}

fn set(properties: &mut Vec<(Rc<str>, Node)>, name: &Rc<str>, node: Node) {
    match properties.iter_mut().find(|(other, _)| other == name) {
        Some((_, old)) => *old = node,
        None => properties.push((name.clone(), node)),
    }
}

/// The object without optional properties.
fn closed(mut object: Object, required: &HashSet<Rc<str>>) -> Object {
    object
        .properties
        .iter_mut()
        .filter(|(name, _)| !required.contains(name))
        .for_each(|(_, node)| *node = NEVER);
    object.patterns.clear();
    object.additional = NEVER;
    object
}

/// The sets of `size` of `count` indices, if they are few.
fn combinations(count: usize, size: usize) -> Option<Vec<Vec<usize>>> {
    let mut sets: Vec<Vec<usize>> = vec![vec![]];
    for step in 0..size {
        let mut longer = Vec::new();
        for set in &sets {
            let from = set.last().map_or(0, |last| last + 1);
            for index in from..=(count + step).checked_sub(size)? {
                let mut set = set.clone();
                set.push(index);
                longer.push(set);
                if longer.len() > EXPANSION {
                    return None;
                }
            }
        }
        sets = longer;
    }
    Some(sets)
}
