//! Evaluation of expressions.

use std::sync::Arc;

use super::ast::{CompareOp, Expr, Postfix, Symbol};
use super::eval::Interpreter;
use super::text::{TextBuffer, shown};
use super::value::{Key, Value};
use super::{JinjaError, JinjaResult, methods, python};

impl<'t> Interpreter<'t> {
    pub(super) fn eval(&mut self, expr: &'t Expr) -> JinjaResult<Value> {
        self.limits.enter()?;
        let value = match expr {
            Expr::Name(name) => self.lookup(*name),
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Int(i) => Ok(Value::Int(*i)),
            Expr::Float(f) => Ok(Value::Float(*f)),
            Expr::Str(text) => Ok(Value::Str(text.clone())),
            Expr::List(items) => self.literal(items, false),
            Expr::Tuple(items) => self.literal(items, true),
            Expr::Dict(entries) => self.dict_literal(entries),
            Expr::Postfix(base, chain) => self.chain(base, chain),
            Expr::Not(inner) => {
                let value = self.eval(inner)?;
                Ok(Value::Bool(!self.heap.truth(&value)))
            }
            Expr::Negate(inner) => {
                let value = self.eval(inner)?;
                self.negate(&value, -1)
            }
            Expr::Positive(inner) => {
                let value = self.eval(inner)?;
                self.negate(&value, 1)
            }
            Expr::And(parts) => self.bool_op(parts, false),
            Expr::Or(parts) => self.bool_op(parts, true),
            Expr::Math(first, rest) => {
                let mut value = self.eval(first)?;
                for (op, expr) in rest {
                    let right = self.eval(expr)?;
                    value = self.math(*op, &value, &right)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => self.concat(parts),
            Expr::Compare(first, rest) => self.comparison(first, rest),
            Expr::Conditional(parts) => self.conditional(parts),
        };
        self.limits.leave();
        value
    }

    fn literal(&mut self, items: &'t [Expr], tuple: bool) -> JinjaResult<Value> {
        let items = items.iter().map(|item| self.eval(item)).collect::<JinjaResult<_>>()?;
        match tuple {
            true => self.heap.tuple(items, &mut self.limits),
            false => self.heap.list(items, &mut self.limits),
        }
    }

    fn dict_literal(&mut self, entries: &'t [(Expr, Expr)]) -> JinjaResult<Value> {
        let entries = entries.iter().map(|(key, value)| Ok((self.eval(key)?, self.eval(value)?)));
        let entries = entries.collect::<JinjaResult<_>>()?;
        self.make_dict(entries)
    }

    /// `and`, or `or` if `until`: the first operand that decides the result, or the last one.
    fn bool_op(&mut self, parts: &'t [Expr], until: bool) -> JinjaResult<Value> {
        let mut value = Value::None;
        for part in parts {
            value = self.eval(part)?;
            if self.heap.truth(&value) == until {
                break;
            }
        }
        Ok(value)
    }

    fn conditional(&mut self, parts: &'t (Expr, Expr, Option<Expr>)) -> JinjaResult<Value> {
        let (value, test, otherwise) = parts;
        let holds = self.eval(test)?;
        match (self.heap.truth(&holds), otherwise) {
            (true, _) => self.eval(value),
            (false, Some(otherwise)) => self.eval(otherwise),
            (false, None) => Ok(Value::Undefined(
                "the inline if-expression evaluated to false and no else section was defined".into(),
            )),
        }
    }

    fn concat(&mut self, parts: &'t [Expr]) -> JinjaResult<Value> {
        let mut out = TextBuffer::default();
        for part in parts {
            let value = self.eval(part)?;
            python::write(&self.heap, &value, self.names, &mut out, &mut self.limits)?;
        }
        Ok(Value::Str(out.finish()))
    }

    fn comparison(&mut self, first: &'t Expr, rest: &'t [(CompareOp, Expr)]) -> JinjaResult<Value> {
        let mut left = self.eval(first)?;
        for (op, expr) in rest {
            let right = self.eval(expr)?;
            if !self.compare(*op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// Evaluates a value and the postfix operators after it.
    pub(super) fn chain(&mut self, base: &'t Expr, chain: &'t [Postfix]) -> JinjaResult<Value> {
        let mut value = self.eval(base)?;
        for link in chain {
            self.limits.spend(1)?;
            value = match link {
                Postfix::Attribute(name) => self.attribute(&value, *name)?,
                Postfix::Item(index) => {
                    let index = self.eval(index)?;
                    self.item(&value, &index)?
                }
                Postfix::Slice(parts) => {
                    let mut bounds = [Value::None, Value::None, Value::None];
                    for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                        if let Some(part) = part {
                            *bound = self.eval(part)?;
                        }
                    }
                    self.slice(&value, &bounds)?
                }
                Postfix::Call(args) => {
                    let arguments = self.arguments(args)?;
                    self.call(&value, arguments)?
                }
                Postfix::Filter(filter) => self.filter(&filter.name, value, &filter.args)?,
                Postfix::Test { name, args, negated } => {
                    let arguments = self.arguments(args)?;
                    Value::Bool(self.check(name, &value, arguments)? != *negated)
                }
            };
        }
        Ok(value)
    }

    /// `value.name`: Python's attribute first, then the item of that name.
    fn attribute(&mut self, value: &Value, symbol: Symbol) -> JinjaResult<Value> {
        let name = self.name(symbol);
        match value {
            Value::Namespace(id) => {
                let attributes = self.heap.attributes(*id);
                self.limits.spend(attributes.len() / 32)?;
                if let Some((_, found)) = attributes.iter().find(|(known, _)| *known == symbol) {
                    return Ok(found.clone());
                }
            }
            Value::Loop(id) => {
                if let Some(found) = self.loop_attribute(*id, name)? {
                    return Ok(found);
                }
            }
            _ => {}
        }
        if let Some(method) = methods::find(value, name) {
            return Ok(Value::Method(Arc::new((value.clone(), method))));
        }
        if let Value::Dict(id) = value
            && let Some(found) = self.heap.entries(*id).get(&Key::Str(name.into()))
        {
            return Ok(found.clone());
        }
        missing(value, name)
    }

    /// `value[index]`: the item first, then the attribute of that name.
    pub(super) fn item(&mut self, value: &Value, index: &Value) -> JinjaResult<Value> {
        let found = match value {
            Value::Dict(id) => {
                // A value that cannot be a key is not in the dictionary.
                let unhashable = matches!(index, Value::List(_) | Value::Dict(_) | Value::Namespace(_));
                let key = if unhashable { Key::Undefined } else { self.heap.key(index, &mut self.limits)? };
                self.heap.entries(*id).get(&key).cloned()
            }
            Value::List(id) | Value::Tuple(id) => {
                let items = self.heap.items(*id);
                index.as_int().and_then(|i| place(i, items.len())).map(|at| items[at].clone())
            }
            Value::Str(text) => match index.as_int() {
                Some(i) => self.character(text, i)?.map(Value::Str),
                None => None,
            },
            _ => None,
        };
        match (found, index) {
            (Some(found), _) => Ok(found),
            (None, Value::Str(name)) => match self.symbol(name.as_str()) {
                Some(symbol) => self.attribute(value, symbol),
                None => match methods::find(value, name.as_str()) {
                    Some(method) => Ok(Value::Method(Arc::new((value.clone(), method)))),
                    None => missing(value, name.as_str()),
                },
            },
            (None, _) => {
                let index = self.text_of(index)?;
                missing(value, index.as_str())
            }
        }
    }

    /// `loop.index` and other attributes; `None` if there is no such attribute.
    fn loop_attribute(&mut self, id: usize, name: &str) -> JinjaResult<Option<Value>> {
        let about = self.heap.get_loop(id);
        let (index, len) = (about.index, about.items.len());
        let number = |n: usize| Some(Value::Int(n as i128));
        let neighbour = |at: Option<usize>, what: &str| {
            let item = at.and_then(|at| about.items.get(at)).cloned();
            Some(item.unwrap_or_else(|| Value::Undefined(format!("there is no {what} item").into())))
        };
        Ok(match name {
            "index" => number(index + 1),
            "index0" => number(index),
            "revindex" => number(len - index),
            "revindex0" => number(len - index - 1),
            "first" => Some(Value::Bool(index == 0)),
            "last" => Some(Value::Bool(index + 1 == len)),
            "length" => number(len),
            "depth" => number(about.depth),
            "depth0" => number(about.depth - 1),
            "previtem" => neighbour(index.checked_sub(1), "previous"),
            "nextitem" => neighbour(Some(index + 1), "next"),
            _ => None,
        })
    }
}

/// Converts an index that may be negative to a position.
pub(super) fn place(index: i128, len: usize) -> Option<usize> {
    let index = if index < 0 { index + len as i128 } else { index };
    usize::try_from(index).ok().filter(|&at| at < len)
}

fn missing(value: &Value, name: &str) -> JinjaResult<Value> {
    if let Value::Undefined(what) = value {
        return Err(JinjaError::type_error(what.to_string()));
    }
    Ok(Value::Undefined(format!("'{} object' has no attribute '{}'", value.kind(), shown(name)).into()))
}
