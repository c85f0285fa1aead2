//! Arithmetic and comparison with Python's semantics.

use std::cmp::Ordering;

use super::ast::{CompareOp, MathOp};
use super::eval::Interpreter;
use super::text::{Text, TextBuffer};
use super::value::Value;
use super::{JinjaError, JinjaResult};

/// Maximum length of a string or list made by `*`.
const MAX_REPEATED: usize = 16 << 20;

/// Escapes a string as MarkupSafe does.
pub(super) fn html_escaped(text: &Text) -> Text {
    let escape = |run: &str| {
        let mut out = String::with_capacity(run.len());
        for c in run.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '\'' => out.push_str("&#39;"),
                '"' => out.push_str("&#34;"),
                other => out.push(other),
            }
        }
        out
    };
    text.map_runs(escape).marked_safe(true)
}

impl Interpreter<'_> {
    pub(super) fn math(&mut self, op: MathOp, a: &Value, b: &Value) -> JinjaResult<Value> {
        for value in [a, b] {
            if let Value::Undefined(what) = value {
                return Err(JinjaError::type_error(what.to_string()));
            }
        }
        match (op, a, b) {
            (MathOp::Add, Value::Str(a), Value::Str(b)) => self.join_two(a, b).map(Value::Str),
            (MathOp::Add, Value::List(x), Value::List(y)) => {
                let items = [self.heap.items(*x), self.heap.items(*y)].concat();
                self.heap.list(items, &mut self.limits)
            }
            (MathOp::Add, Value::Tuple(x), Value::Tuple(y)) => {
                let items = [self.heap.items(*x), self.heap.items(*y)].concat();
                self.heap.tuple(items, &mut self.limits)
            }
            (MathOp::Mul, Value::Str(_) | Value::List(_) | Value::Tuple(_), _) if b.as_int().is_some() => {
                self.repeat(a, b)
            }
            (MathOp::Mul, _, Value::Str(_) | Value::List(_) | Value::Tuple(_)) if a.as_int().is_some() => {
                self.repeat(b, a)
            }
            (MathOp::Mod, Value::Str(format), _) => self.percent(format, b).map(Value::Str),
            _ => arithmetic(op, a, b),
        }
    }

    fn join_two(&mut self, a: &Text, b: &Text) -> JinjaResult<Text> {
        let safe = a.safe || b.safe;
        self.limits.bytes((a.len() + b.len()) * if safe { 6 } else { 1 })?;
        let mut out = TextBuffer::default();
        for part in [a, b] {
            if safe && !part.safe { out.push_text(&html_escaped(part)) } else { out.push_text(part) }
        }
        Ok(out.finish().marked_safe(safe))
    }

    fn repeat(&mut self, value: &Value, times: &Value) -> JinjaResult<Value> {
        let times = times.as_int().unwrap_or(0).clamp(0, 1 + MAX_REPEATED as i128) as usize;
        let too_long = || JinjaError::Limit("creates a too long string or list");
        let fits =
            |len: usize| len.checked_mul(times).filter(|&len| len <= MAX_REPEATED).ok_or_else(too_long);
        match value {
            Value::Str(text) => {
                let len = fits(text.len())?;
                self.limits.bytes(len)?;
                if text.untrusted().is_empty() {
                    return Ok(Value::Str(text.as_str().repeat(times).into()));
                }
                self.limits.spend(times)?;
                let mut out = TextBuffer::default();
                (0..if text.is_empty() { 0 } else { times }).for_each(|_| out.push_text(text));
                Ok(Value::Str(out.finish()))
            }
            Value::List(id) | Value::Tuple(id) => {
                let len = fits(self.heap.items(*id).len())?;
                self.limits.bytes(len * size_of::<Value>())?;
                let items = self.heap.items(*id);
                let items = items.iter().cycle().take(len).cloned().collect();
                match value {
                    Value::List(_) => self.heap.list(items, &mut self.limits),
                    _ => self.heap.tuple(items, &mut self.limits),
                }
            }
            _ => Ok(Value::None),
        }
    }

    pub(super) fn negate(&mut self, value: &Value, sign: i128) -> JinjaResult<Value> {
        match (value, value.as_int()) {
            (Value::Float(f), _) => Ok(Value::Float(f * sign as f64)),
            (_, Some(i)) => i.checked_mul(sign).map(Value::Int).ok_or_else(overflow),
            (Value::Undefined(what), _) => Err(JinjaError::type_error(what.to_string())),
            _ => Err(JinjaError::type_error(format!("bad operand type for unary -: '{}'", value.kind()))),
        }
    }

    pub(super) fn compare(&mut self, op: CompareOp, a: &Value, b: &Value) -> JinjaResult<bool> {
        Ok(match op {
            CompareOp::Eq => self.heap.equal(a, b, &mut self.limits)?,
            CompareOp::Ne => !self.heap.equal(a, b, &mut self.limits)?,
            CompareOp::In => self.contains(b, a)?,
            CompareOp::NotIn => !self.contains(b, a)?,
            CompareOp::Lt => self.order(a, b)?.is_some_and(Ordering::is_lt),
            CompareOp::Le => self.order(a, b)?.is_some_and(Ordering::is_le),
            CompareOp::Gt => self.order(a, b)?.is_some_and(Ordering::is_gt),
            CompareOp::Ge => self.order(a, b)?.is_some_and(Ordering::is_ge),
        })
    }

    /// The order of two values; `None` if one of them is NaN.
    pub(super) fn order(&mut self, a: &Value, b: &Value) -> JinjaResult<Option<Ordering>> {
        self.limits.enter()?;
        let order = match (a, b) {
            (Value::Str(a), Value::Str(b)) => {
                self.limits.spend(a.len().min(b.len()) / 64)?;
                Some(a.as_str().cmp(b.as_str()))
            }
            (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
                self.order_items(*x, *y)?
            }
            _ => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => Some(a.cmp(&b)),
                _ => match (a.as_float(), b.as_float()) {
                    (Some(a), Some(b)) => a.partial_cmp(&b),
                    _ => {
                        let (a, b) = (a.kind(), b.kind());
                        let message = format!("'<' not supported between instances of '{a}' and '{b}'");
                        return Err(JinjaError::type_error(message));
                    }
                },
            },
        };
        self.limits.leave();
        Ok(order)
    }

    fn order_items(&mut self, x: usize, y: usize) -> JinjaResult<Option<Ordering>> {
        let (xs, ys) = (self.heap.items(x).len(), self.heap.items(y).len());
        for at in 0..xs.min(ys) {
            let (a, b) = (self.heap.items(x)[at].clone(), self.heap.items(y)[at].clone());
            if !self.heap.equal(&a, &b, &mut self.limits)? {
                return self.order(&a, &b);
            }
        }
        Ok(Some(xs.cmp(&ys)))
    }

    pub(super) fn contains(&mut self, container: &Value, item: &Value) -> JinjaResult<bool> {
        match container {
            Value::Str(text) => match item {
                Value::Str(part) => {
                    self.limits.spend((text.len() + part.len()) / 64)?;
                    Ok(text.as_str().contains(part.as_str()))
                }
                other => {
                    let kind = other.kind();
                    let message = format!("'in <string>' requires string as left operand, not {kind}");
                    Err(JinjaError::type_error(message))
                }
            },
            Value::List(id) | Value::Tuple(id) => {
                for candidate in self.heap.items(*id) {
                    if self.heap.equal(candidate, item, &mut self.limits)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Dict(id) => {
                let key = self.heap.key(item, &mut self.limits)?;
                Ok(self.heap.entries(*id).get(&key).is_some())
            }
            Value::Undefined(_) => Ok(false),
            other => {
                Err(JinjaError::type_error(format!("argument of type '{}' is not iterable", other.kind())))
            }
        }
    }
}

fn overflow() -> JinjaError {
    JinjaError::type_error("integer overflow: integers are limited to 128 bits")
}

fn arithmetic(op: MathOp, a: &Value, b: &Value) -> JinjaResult<Value> {
    let unsupported = || {
        let sign = match op {
            MathOp::Add => "+",
            MathOp::Sub => "-",
            MathOp::Mul => "*",
            MathOp::Div => "/",
            MathOp::FloorDiv => "//",
            MathOp::Mod => "%",
            MathOp::Pow => "**",
        };
        let (a, b) = (a.kind(), b.kind());
        match (op, a) {
            (MathOp::Add, "str") => {
                JinjaError::type_error(format!("can only concatenate str (not \"{b}\") to str"))
            }
            _ => JinjaError::type_error(format!("unsupported operand type(s) for {sign}: '{a}' and '{b}'")),
        }
    };
    let by_zero = || JinjaError::type_error("division by zero");
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        let whole = match op {
            MathOp::Add => x.checked_add(y),
            MathOp::Sub => x.checked_sub(y),
            MathOp::Mul => x.checked_mul(y),
            MathOp::FloorDiv | MathOp::Mod if y == 0 => return Err(by_zero()),
            MathOp::FloorDiv => x.checked_div_euclid(y).map(|_| floor_div(x, y)),
            MathOp::Mod => x.checked_rem(y).map(|_| x - floor_div(x, y) * y),
            MathOp::Pow if y >= 0 => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            MathOp::Div | MathOp::Pow => return float_arithmetic(op, x as f64, y as f64).ok_or_else(by_zero),
        };
        return whole.map(Value::Int).ok_or_else(overflow);
    }
    match (a.as_float(), b.as_float()) {
        (Some(x), Some(y)) => float_arithmetic(op, x, y).ok_or_else(by_zero),
        _ => Err(unsupported()),
    }
}

/// Division rounded towards minus infinity.
fn floor_div(x: i128, y: i128) -> i128 {
    let quotient = x / y;
    if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient }
}

fn float_arithmetic(op: MathOp, x: f64, y: f64) -> Option<Value> {
    if y == 0.0 && matches!(op, MathOp::Div | MathOp::FloorDiv | MathOp::Mod) {
        return None;
    }
    Some(Value::Float(match op {
        MathOp::Add => x + y,
        MathOp::Sub => x - y,
        MathOp::Mul => x * y,
        MathOp::Div => x / y,
        MathOp::FloorDiv => (x / y).floor(),
        MathOp::Mod => {
            let rest = x % y;
            if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
        }
        MathOp::Pow => x.powf(y),
    }))
}
