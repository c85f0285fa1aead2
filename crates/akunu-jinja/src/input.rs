//! Converts JSON input to values, once before rendering.

use super::JinjaResult;
use super::eval::Interpreter;
use super::text::Text;
use super::value::Value;

pub(super) fn value(
    interpreter: &mut Interpreter<'_>,
    json: &serde_json::Value,
    untrusted: bool,
) -> JinjaResult<Value> {
    use serde_json::Value as Json;
    let text = |text: &str| Value::Str(if untrusted { Text::from_untrusted(text) } else { text.into() });
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(i), ..) => Value::Int(i.into()),
            (_, Some(u), _) => Value::Int(u.into()),
            (_, _, Some(f)) => Value::Float(f),
            _ => Value::str(&number.to_string()),
        },
        Json::String(s) => text(s),
        Json::Array(items) => {
            interpreter.limits.enter()?;
            let items = items.iter().map(|item| value(interpreter, item, untrusted));
            let items = items.collect::<JinjaResult<_>>()?;
            interpreter.limits.leave();
            interpreter.heap.list(items, &mut interpreter.limits)?
        }
        Json::Object(entries) => {
            interpreter.limits.enter()?;
            let entries = entries.iter().map(|(key, item)| {
                // Keys of messages and plain roles are trusted; all other strings of untrusted input are not.
                let item_untrusted = untrusted && !(key == "role" && is_word(item));
                Ok((text(key), value(interpreter, item, item_untrusted)?))
            });
            let entries = entries.collect::<JinjaResult<_>>()?;
            interpreter.limits.leave();
            interpreter.make_dict(entries)?
        }
    })
}

/// Whether this is a plain word such as `user`: a template may turn it into `<|user|>`.
fn is_word(json: &serde_json::Value) -> bool {
    let letters = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    json.as_str().is_some_and(letters)
}
