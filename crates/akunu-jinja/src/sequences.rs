//! Sequence operations on strings and lists: iteration, length, slicing.

use std::sync::Arc;

use super::eval::Interpreter;
use super::postfix::place;
use super::text::{Text, TextBuffer};
use super::value::Value;
use super::{JinjaError, JinjaResult};

impl Interpreter<'_> {
    /// The items that a for loop iterates over.
    pub(super) fn iterate(&mut self, value: &Value) -> JinjaResult<Arc<[Value]>> {
        let items: Arc<[Value]> = match value {
            Value::List(id) | Value::Tuple(id) => self.heap.items(*id).into(),
            Value::Dict(id) => self.heap.entries(*id).entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Str(text) => {
                self.limits.bytes(text.len() * 2 * size_of::<Value>())?;
                self.characters(text).into_iter().map(Value::Str).collect()
            }
            Value::Undefined(_) => Arc::from([]),
            other => {
                return Err(JinjaError::type_error(format!("'{}' object is not iterable", other.kind())));
            }
        };
        self.limits.bytes(items.len() * size_of::<Value>())?;
        self.limits.spend(items.len() / 4)?;
        Ok(items)
    }

    pub(super) fn characters(&self, text: &Text) -> Vec<Text> {
        let string = text.as_str();
        string.char_indices().map(|(at, c)| text.slice(at..at + c.len_utf8())).collect()
    }

    pub(super) fn character(&mut self, text: &Text, index: i128) -> JinjaResult<Option<Text>> {
        self.limits.spend(text.len() / 16)?;
        let string = text.as_str();
        let at = match index {
            0.. => usize::try_from(index).ok().and_then(|index| string.char_indices().nth(index)),
            _ => usize::try_from(-(index + 1)).ok().and_then(|back| string.char_indices().nth_back(back)),
        };
        Ok(at.map(|(at, c)| text.slice(at..at + c.len_utf8())))
    }

    /// `len(value)`.
    pub(super) fn length(&mut self, value: &Value) -> JinjaResult<usize> {
        Ok(match value {
            Value::Str(text) => {
                self.limits.spend(text.len() / 64)?;
                text.as_str().chars().count()
            }
            Value::List(id) | Value::Tuple(id) => self.heap.items(*id).len(),
            Value::Dict(id) => self.heap.entries(*id).entries.len(),
            Value::Undefined(_) => 0,
            other => {
                return Err(JinjaError::type_error(format!(
                    "object of type '{}' has no len()",
                    other.kind()
                )));
            }
        })
    }

    /// `value[start:stop:step]`.
    pub(super) fn slice(&mut self, value: &Value, bounds: &[Value; 3]) -> JinjaResult<Value> {
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            *number = match (bound, bound.as_int()) {
                (Value::None, _) => None,
                (_, Some(i)) => Some(i),
                (Value::Undefined(what), _) => return Err(JinjaError::type_error(what.to_string())),
                _ => return Err(JinjaError::type_error("slice indices must be integers or None")),
            };
        }
        let [start, stop, step] = numbers;
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(JinjaError::type_error("slice step cannot be zero"));
        }
        match value {
            Value::Str(text) => self.slice_text(text, start, stop, step).map(Value::Str),
            Value::List(id) | Value::Tuple(id) => {
                let items = self.heap.items(*id);
                let chosen: Vec<Value> =
                    chosen(items.len(), start, stop, step).map(|at| items[at].clone()).collect();
                match value {
                    Value::List(_) => self.heap.list(chosen, &mut self.limits),
                    _ => self.heap.tuple(chosen, &mut self.limits),
                }
            }
            // As in Jinja2: slicing an unsupported value gives an undefined value, and slicing an undefined value is an
            // error.
            Value::Undefined(what) => Err(JinjaError::type_error(what.to_string())),
            other => {
                let what = format!("'{} object' cannot be sliced", other.kind());
                Ok(Value::Undefined(what.into()))
            }
        }
    }

    fn slice_text(
        &mut self,
        text: &Text,
        start: Option<i128>,
        stop: Option<i128>,
        step: i128,
    ) -> JinjaResult<Text> {
        self.limits.bytes(text.len())?;
        let string = text.as_str();
        let places: Vec<usize> = string.char_indices().map(|(at, _)| at).chain([string.len()]).collect();
        self.limits.bytes(places.len() * size_of::<usize>())?;
        let count = places.len() - 1;
        let mut chosen = chosen(count, start, stop, step);
        if step == 1 {
            let first = chosen.next();
            let last = chosen.last().or(first);
            return Ok(match (first, last) {
                (Some(first), Some(last)) => text.slice(places[first]..places[last + 1]),
                _ => Text::default(),
            });
        }
        let mut out = TextBuffer::default();
        for at in chosen {
            self.limits.spend(1)?;
            out.push_text(&text.slice(places[at]..places[at + 1]));
        }
        Ok(out.finish())
    }

    /// Removes and returns an item of a list, as `list.pop(index)`.
    pub(super) fn pop(&mut self, id: usize, index: i128) -> JinjaResult<Value> {
        let items = self.heap.items_mut(id);
        self.limits.spend(items.len() / 64)?;
        match place(index, items.len()) {
            Some(at) => Ok(items.remove(at)),
            None => Err(JinjaError::type_error("pop index out of range")),
        }
    }
}

/// The indices of a slice.
fn chosen(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let len = len as i128;
    // Python's clamping: negative indices count from the end, and indices are at most one past either end.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(i) if i < 0 => i.saturating_add(len).clamp(low, high),
        Some(i) => i.clamp(low, high),
    };
    let (start, stop) = match step > 0 {
        true => (clamp(start, low), clamp(stop, high)),
        false => (clamp(start, high), clamp(stop, low)),
    };
    let mut at = start;
    std::iter::from_fn(move || {
        let more = if step > 0 { at < stop } else { at > stop };
        let here = more.then_some(at as usize);
        at = at.saturating_add(step);
        here
    })
}
