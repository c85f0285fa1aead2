//! The Python values of templates, and the heap of compound ones.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{MacroDef, Symbol};
use super::limits::Limits;
use super::text::Text;
use super::{JinjaError, JinjaResult};

/// Index of a compound value on the [`Heap`]. Compound values refer to each other by index, so dropping them does not
/// recurse and cycles do not leak.
pub(super) type Id = usize;

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// With the message of the error that its use causes.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Id),
    Tuple(Id),
    Dict(Id),
    Namespace(Id),
    Macro(Id),
    /// The `loop` of a for loop.
    Loop(Id),
    /// `receiver.name` before it is called.
    Method(Arc<(Value, &'static str)>),
    /// A global function.
    Function(&'static str),
}

impl Value {
    pub(super) fn str(text: &str) -> Value {
        Value::Str(text.into())
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Method(_) => "builtin_function_or_method",
            Value::Function(_) => "function",
        }
    }

    /// Numbers and booleans as integers, as in Python's arithmetic.
    pub(super) fn as_int(&self) -> Option<i128> {
        match *self {
            Value::Bool(b) => Some(b.into()),
            Value::Int(i) => Some(i),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match *self {
            Value::Float(f) => Some(f),
            _ => self.as_int().map(|i| i as f64),
        }
    }
}

/// The key of a dictionary entry: equal for values that are equal in Python.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Undefined,
    None,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
}

/// A dictionary in insertion order.
#[derive(Clone, Debug, Default)]
pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
}

impl Dict {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    pub(super) fn insert(&mut self, key: Key, name: Value, value: Value) {
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key, self.entries.len());
                self.entries.push((name, value));
            }
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Value> {
        let at = self.index.remove(key)?;
        let (_, value) = self.entries.remove(at);
        for place in self.index.values_mut() {
            *place -= usize::from(*place > at);
        }
        Some(value)
    }
}

#[derive(Debug)]
pub(super) struct Macro<'t> {
    pub(super) definition: &'t MacroDef,
    /// The scope in which it was defined.
    pub(super) scope: usize,
    /// The `caller` inside it.
    pub(super) is_caller: bool,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Arc<[Value]>,
    pub(super) index: usize,
    pub(super) depth: usize,
    /// The last arguments of `loop.changed(…)`.
    pub(super) changed: Option<Vec<Value>>,
    /// For a recursive loop: its index and the scope that contains it.
    pub(super) recursive: Option<(usize, usize)>,
}

/// The compound values of one rendering, freed together afterwards.
#[derive(Debug, Default)]
pub(super) struct Heap<'t> {
    sequences: Vec<Vec<Value>>,
    dicts: Vec<Dict>,
    namespaces: Vec<Vec<(Symbol, Value)>>,
    macros: Vec<Macro<'t>>,
    loops: Vec<Loop>,
}

const SLOT: usize = size_of::<Value>();

impl<'t> Heap<'t> {
    fn sequence(&mut self, items: Vec<Value>, limits: &mut Limits) -> JinjaResult<Id> {
        limits.bytes(64 + items.len() * SLOT)?;
        self.sequences.push(items);
        Ok(self.sequences.len() - 1)
    }

    pub(super) fn list(&mut self, items: Vec<Value>, limits: &mut Limits) -> JinjaResult<Value> {
        Ok(Value::List(self.sequence(items, limits)?))
    }

    pub(super) fn tuple(&mut self, items: Vec<Value>, limits: &mut Limits) -> JinjaResult<Value> {
        Ok(Value::Tuple(self.sequence(items, limits)?))
    }

    pub(super) fn items(&self, id: Id) -> &[Value] {
        &self.sequences[id]
    }

    pub(super) fn items_mut(&mut self, id: Id) -> &mut Vec<Value> {
        &mut self.sequences[id]
    }

    pub(super) fn dict(&mut self, dict: Dict, limits: &mut Limits) -> JinjaResult<Value> {
        limits.bytes(128 + dict.entries.len() * 4 * SLOT)?;
        self.dicts.push(dict);
        Ok(Value::Dict(self.dicts.len() - 1))
    }

    pub(super) fn entries(&self, id: Id) -> &Dict {
        &self.dicts[id]
    }

    pub(super) fn entries_mut(&mut self, id: Id) -> &mut Dict {
        &mut self.dicts[id]
    }

    pub(super) fn namespace(&mut self, limits: &mut Limits) -> JinjaResult<Id> {
        limits.bytes(64)?;
        self.namespaces.push(Vec::new());
        Ok(self.namespaces.len() - 1)
    }

    pub(super) fn attributes(&self, id: Id) -> &[(Symbol, Value)] {
        &self.namespaces[id]
    }

    pub(super) fn set_attribute(&mut self, id: Id, name: Symbol, value: Value) {
        let attributes = &mut self.namespaces[id];
        match attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => attributes.push((name, value)),
        }
    }

    pub(super) fn add_macro(&mut self, made: Macro<'t>) -> Value {
        self.macros.push(made);
        Value::Macro(self.macros.len() - 1)
    }

    pub(super) fn get_macro(&self, id: Id) -> &Macro<'t> {
        &self.macros[id]
    }

    pub(super) fn macro_count(&self) -> usize {
        self.macros.len()
    }

    pub(super) fn add_loop(&mut self, made: Loop) -> Id {
        self.loops.push(made);
        self.loops.len() - 1
    }

    pub(super) fn get_loop(&self, id: Id) -> &Loop {
        &self.loops[id]
    }

    pub(super) fn get_loop_mut(&mut self, id: Id) -> &mut Loop {
        &mut self.loops[id]
    }

    /// Python's `bool(value)`.
    pub(super) fn truth(&self, value: &Value) -> bool {
        match value {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::List(id) | Value::Tuple(id) => !self.items(*id).is_empty(),
            Value::Dict(id) => !self.entries(*id).entries.is_empty(),
            _ => true,
        }
    }

    pub(super) fn key(&self, value: &Value, limits: &mut Limits) -> JinjaResult<Key> {
        Ok(match value {
            Value::Undefined(_) => Key::Undefined,
            Value::None => Key::None,
            Value::Str(s) => {
                // For its hash.
                limits.spend(s.len() / 64)?;
                Key::Str(s.shared())
            }
            Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e18 => Key::Int(*f as i128),
            Value::Float(f) => Key::Float(f.to_bits()),
            Value::Tuple(id) => {
                limits.enter()?;
                limits.bytes(self.items(*id).len() * size_of::<Key>())?;
                limits.spend(self.items(*id).len())?;
                let keys = self.items(*id).iter().map(|item| self.key(item, limits));
                let keys = keys.collect::<JinjaResult<_>>()?;
                limits.leave();
                Key::Tuple(keys)
            }
            other => match other.as_int() {
                Some(i) => Key::Int(i),
                None => return Err(JinjaError::type_error(format!("unhashable type: '{}'", other.kind()))),
            },
        })
    }

    /// Python's `==`.
    pub(super) fn equal(&self, a: &Value, b: &Value, limits: &mut Limits) -> JinjaResult<bool> {
        limits.spend(1)?;
        Ok(match (a, b) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                limits.spend(a.len().min(b.len()) / 64)?;
                a.as_str() == b.as_str()
            }
            (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
                x == y || self.equal_items(self.items(*x), self.items(*y), limits)?
            }
            (Value::Dict(x), Value::Dict(y)) => x == y || self.equal_entries(*x, *y, limits)?,
            (Value::Namespace(x), Value::Namespace(y)) => x == y,
            (Value::Macro(x), Value::Macro(y)) | (Value::Loop(x), Value::Loop(y)) => x == y,
            (Value::Function(x), Value::Function(y)) => x == y,
            (Value::Method(x), Value::Method(y)) => Arc::ptr_eq(x, y),
            _ => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (a.as_float(), b.as_float()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            },
        })
    }

    fn equal_items(&self, a: &[Value], b: &[Value], limits: &mut Limits) -> JinjaResult<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        limits.enter()?;
        for (a, b) in a.iter().zip(b) {
            if !self.equal(a, b, limits)? {
                limits.leave();
                return Ok(false);
            }
        }
        limits.leave();
        Ok(true)
    }

    fn equal_entries(&self, a: Id, b: Id, limits: &mut Limits) -> JinjaResult<bool> {
        let (a, b) = (self.entries(a), self.entries(b));
        if a.entries.len() != b.entries.len() {
            return Ok(false);
        }
        limits.enter()?;
        for (name, value) in &a.entries {
            let same = match b.get(&self.key(name, limits)?) {
                Some(other) => self.equal(value, other, limits)?,
                None => false,
            };
            if !same {
                limits.leave();
                return Ok(false);
            }
        }
        limits.leave();
        Ok(true)
    }
}
