//! Jinja tests, the names after `is`.

use super::ast::CompareOp;
use super::eval::Interpreter;
use super::functions::Arguments;
use super::value::Value;
use super::{JinjaError, JinjaResult};

impl Interpreter<'_> {
    pub(super) fn check(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<bool> {
        let op = match name {
            "eq" | "equalto" | "==" => Some(CompareOp::Eq),
            "ne" | "!=" => Some(CompareOp::Ne),
            "lt" | "lessthan" | "<" => Some(CompareOp::Lt),
            "le" | "<=" => Some(CompareOp::Le),
            "gt" | "greaterthan" | ">" => Some(CompareOp::Gt),
            "ge" | ">=" => Some(CompareOp::Ge),
            "in" => Some(CompareOp::In),
            _ => None,
        };
        let [other] = arguments.take(name, ["other"])?;
        if let Some(op) = op {
            return self.compare(op, value, &other.unwrap_or(Value::None));
        }
        let number = |value: &Value| {
            value.as_int().ok_or_else(|| JinjaError::type_error(format!("'is {name}' needs an integer")))
        };
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "boolean" => matches!(value, Value::Bool(_)),
            "string" => matches!(value, Value::Str(_)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "iterable" => {
                let some = Value::is_undefined(value);
                some || matches!(value, Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_))
            }
            "sequence" => {
                let some = Value::is_undefined(value);
                some || matches!(value, Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_))
            }
            "callable" => {
                matches!(value, Value::Function(_) | Value::Method(_) | Value::Macro(_))
            }
            "escaped" => matches!(value, Value::Str(text) if text.safe),
            "lower" | "upper" => {
                let text = self.text_of(value)?;
                let upper = name == "upper";
                let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
                let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
                text.as_str().chars().any(right) && !text.as_str().chars().any(wrong)
            }
            "odd" => number(value)?.rem_euclid(2) == 1,
            "even" => number(value)?.rem_euclid(2) == 0,
            "divisibleby" => {
                let by = number(&other.unwrap_or(Value::None))?;
                number(value)?.checked_rem(by).ok_or_else(|| JinjaError::type_error("division by zero"))? == 0
            }
            "sameas" => match (value, other.unwrap_or(Value::None)) {
                (Value::Bool(a), Value::Bool(b)) => *a == b,
                (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
                (value, other) => {
                    value.kind() == other.kind() && self.heap.equal(value, &other, &mut self.limits)?
                }
            },
            "filter" | "test" => {
                return Err(JinjaError::type_error(format!("'is {name}' is not supported")));
            }
            _ => return Err(JinjaError::type_error(format!("no test named '{name}'"))),
        })
    }
}
