//! Global functions, and argument handling.

use super::eval::Interpreter;
use super::text::Text;
use super::value::{Dict, Value};
use super::{JinjaError, JinjaResult, printable};

pub(super) const NAMES: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];

/// The maximum length of a range, as in Jinja2's sandbox.
const MAX_RANGE: i128 = 100_000;

/// The arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Text, Value)>,
}

impl Arguments {
    /// Assigns the arguments to the parameters of a function, in their order.
    pub(super) fn take<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
    ) -> JinjaResult<[Option<Value>; N]> {
        let mut found = [const { None }; N];
        let count = self.positional.len();
        if count > N {
            let message = format!("{function}() takes at most {N} arguments ({count} given)");
            return Err(JinjaError::type_error(message));
        }
        for (place, value) in found.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match parameters.iter().position(|known| *known == name.as_str()) {
                Some(at) if found[at].is_none() => found[at] = Some(value),
                _ => {
                    let message =
                        format!("{function}() got an unexpected keyword argument '{}'", name.shown());
                    return Err(JinjaError::type_error(message));
                }
            }
        }
        Ok(found)
    }
}

impl Interpreter<'_> {
    pub(super) fn make_dict(&mut self, entries: Vec<(Value, Value)>) -> JinjaResult<Value> {
        let mut dict = Dict::default();
        for (name, value) in entries {
            self.limits.spend(1)?;
            let key = self.heap.key(&name, &mut self.limits)?;
            dict.insert(key, name, value);
        }
        self.heap.dict(dict, &mut self.limits)
    }

    pub(super) fn call(&mut self, callee: &Value, arguments: Arguments) -> JinjaResult<Value> {
        self.limits.enter()?;
        let value = match callee {
            Value::Function(name) => self.call_function(name, arguments),
            Value::Method(method) => self.call_method(&method.0, method.1, arguments),
            Value::Macro(id) => self.call_macro(*id, arguments),
            Value::Loop(id) => {
                let [items] = arguments.take("loop", ["iterable"])?;
                self.recurse(*id, &items.unwrap_or(Value::None))
            }
            Value::Undefined(what) => Err(JinjaError::type_error(what.to_string())),
            other => Err(JinjaError::type_error(format!("'{}' object is not callable", other.kind()))),
        };
        self.limits.leave();
        value
    }

    fn call_function(&mut self, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        match name {
            "range" => self.range(arguments),
            "raise_exception" => {
                let [message] = arguments.take(name, ["message"])?;
                let text = self.text_of(&message.unwrap_or(Value::None))?;
                Err(JinjaError::Raised(printable(text.as_str())))
            }
            "strftime_now" => {
                let [format] = arguments.take(name, ["format"])?;
                let Some(Value::Str(format)) = format else {
                    return Err(JinjaError::type_error("strftime_now() takes a format"));
                };
                self.limits.bytes(16 * format.len())?;
                Ok(Value::Str(self.now.format(format.as_str()).into()))
            }
            _ => self.mapping(name, arguments),
        }
    }

    /// `dict(…)` and `namespace(…)`.
    fn mapping(&mut self, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        let mut entries = Vec::new();
        for value in arguments.positional {
            match value {
                Value::Dict(id) => {
                    let given = &self.heap.entries(id).entries;
                    self.limits.bytes(given.len() * size_of::<(Value, Value)>())?;
                    entries.extend(given.iter().cloned());
                }
                other => {
                    for pair in self.iterate(&other)?.iter() {
                        let pair = self.iterate(pair)?;
                        let [key, value] = &*pair else {
                            return Err(JinjaError::type_error(format!("{name}() takes pairs")));
                        };
                        entries.push((key.clone(), value.clone()));
                    }
                }
            }
        }
        entries.extend(arguments.named.into_iter().map(|(name, value)| (Value::Str(name), value)));
        if name == "dict" {
            return self.make_dict(entries);
        }
        let id = self.heap.namespace(&mut self.limits)?;
        for (key, value) in entries {
            // A name that does not occur in the template cannot be accessed, so it is skipped.
            if let Value::Str(key) = key
                && let Some(symbol) = self.symbol(key.as_str())
            {
                self.heap.set_attribute(id, symbol, value);
            }
        }
        Ok(Value::Namespace(id))
    }

    fn range(&mut self, arguments: Arguments) -> JinjaResult<Value> {
        let bounds: Option<Vec<i128>> = arguments.positional.iter().map(Value::as_int).collect();
        let (start, stop, step) = match bounds.as_deref() {
            Some([stop]) => (0, *stop, 1),
            Some([start, stop]) => (*start, *stop, 1),
            Some([start, stop, step]) if *step != 0 => (*start, *stop, *step),
            _ => {
                return Err(JinjaError::type_error(
                    "range() takes one to three integers, and the step must not be 0",
                ));
            }
        };
        let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
        let size = step.unsigned_abs();
        let count = (distance.max(0) as u128).div_ceil(size) as i128;
        if count > MAX_RANGE {
            let message = format!("range too big: the sandbox blocks ranges larger than {MAX_RANGE}");
            return Err(JinjaError::type_error(message));
        }
        let items = (0..count).map(|i| Value::Int(start.saturating_add(i.saturating_mul(step)))).collect();
        self.heap.list(items, &mut self.limits)
    }
}
