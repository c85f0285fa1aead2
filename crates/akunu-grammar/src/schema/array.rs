//! Arrays with `contains` and `uniqueItems`, as unions of arrays without.

use std::collections::HashSet;

use serde_json::Value;

use super::budget::EXPANSION;
use super::convert::{Converter, Result};
use super::meet::least;
use super::shape::{ANY, Array, Node, Shape};

/// Places at which an element that has to be there is tried.
const POSITIONS: u64 = 4;

impl Converter<'_> {
    pub fn expand_array(&mut self, array: &Array) -> Result<Vec<Array>> {
        let mut all = vec![Array { contains: Vec::new(), unique: None, ..array.clone() }];
        for contains in &array.contains {
            if contains.node == ANY {
                all.iter_mut().for_each(|array| array.min = array.min.max(contains.count));
                continue;
            }
            let mut next = Vec::new();
            for array in &all {
                for start in 0..POSITIONS {
                    let end = start + contains.count;
                    if contains.count > EXPANSION as u64 || array.max.is_some_and(|max| max < end) {
                        break;
                    }
                    let mut prefix = vec![ANY; start as usize];
                    prefix.resize(end as usize, contains.node);
                    let needed = Array { prefix, min: end, ..Array::default() };
                    let both = (Shape::Array(array.clone().into()), Shape::Array(needed.into()));
                    if let Some(Shape::Array(array)) = self.meet_shape(&both.0, &both.1)?.0 {
                        next.push(array.as_ref().clone());
                    }
                }
            }
            if next.len() > EXPANSION {
                return Err(self.unsupported_at(contains.place, "there are too many of it for one array"));
            }
            all = next;
        }
        all.retain(|array| array.max.is_none_or(|max| max >= array.min));
        let Some(place) = array.unique else { return Ok(all) };
        let mut unique = Vec::new();
        for array in all {
            match self.unique(&array)? {
                Some(arrays) => unique.extend(arrays),
                None => {
                    let reason = "it is supported for at most one element, and for elements of few values";
                    return Err(self.unsupported(place, "uniqueItems", reason));
                }
            }
        }
        Ok(unique)
    }

    /// The arrays without equal elements, or some of them; `None` if these cannot be told.
    fn unique(&mut self, array: &Array) -> Result<Option<Vec<Array>>> {
        if array.max.is_some_and(|max| max <= 1) {
            return Ok(Some(vec![array.clone()]));
        }
        // Elements with their own schemas, each excluding the others.
        if array.max.is_some_and(|max| max <= array.prefix.len() as u64 && max <= 8) {
            let mut is_unique = true;
            for i in 0..array.prefix.len() {
                for j in 0..i {
                    let both = self.both(array.prefix[i], array.prefix[j])?;
                    is_unique &= self.is_never(both)?;
                }
            }
            return Ok(is_unique.then(|| vec![array.clone()]));
        }
        if !array.prefix.is_empty() {
            return Ok(None);
        }
        let Some(values) = self.values(array.items)? else { return Ok(None) };
        Ok(sequences(&values, array.min, least(array.max, Some(values.len() as u64)).unwrap_or(0)))
    }

    /// The schemas of each value of a node, if these are few and have no parts.
    fn values(&mut self, node: Node) -> Result<Option<Vec<Node>>> {
        let shapes = self.shapes(node)?;
        let mut values: Vec<Value> = Vec::new();
        for shape in &shapes.list {
            match shape {
                Shape::Null => values.push(Value::Null),
                Shape::Boolean(Some(value)) => values.push((*value).into()),
                Shape::Boolean(None) => values.extend([false.into(), true.into()]),
                Shape::String(text) => match &text.values {
                    Some(list) => values.extend(list.iter().map(|text| Value::from(&**text))),
                    None => return Ok(None),
                },
                Shape::Number(num) => match &num.values {
                    Some(list) => values.extend(list.iter().cloned().map(Value::Number)),
                    None => return Ok(None),
                },
                Shape::Array(_) | Shape::Object(_) => return Ok(None),
            }
            if values.len() > EXPANSION {
                return Ok(None);
            }
        }
        let mut seen = HashSet::new();
        values.retain(|value| {
            seen.insert(value.as_f64().map_or(value.to_string(), |number| number.to_string()))
        });
        Ok(Some(values.into_iter().map(|value| self.scalar(value)).collect()))
    }
}

/// All sequences of different values if these are few, else those in the order of the values.
fn sequences(values: &[Node], min: u64, max: u64) -> Option<Vec<Array>> {
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    let is_short = values.len() <= 3;
    let mut from = 0;
    while from < all.len() {
        let start = all[from].clone();
        from += 1;
        if start.len() as u64 == max {
            continue;
        }
        for index in 0..values.len() {
            let is_next = if is_short {
                !start.contains(&index)
            } else {
                start.last().is_none_or(|last| index > *last)
            };
            if is_next {
                let mut longer = start.clone();
                longer.push(index);
                all.push(longer);
            }
        }
        if all.len() > EXPANSION {
            return None;
        }
    }
    let array = |sequence: &Vec<usize>| Array {
        prefix: sequence.iter().map(|index| values[*index]).collect(),
        items: super::shape::NEVER,
        min: sequence.len() as u64,
        max: Some(sequence.len() as u64),
        ..Array::default()
    };
    Some(all.iter().filter(|sequence| sequence.len() as u64 >= min).map(array).collect())
}
