//! Python's text forms of values: `str`, `repr`, and its definition of whitespace.

use super::JinjaResult;
use super::limits::Limits;
use super::text::TextBuffer;
use super::value::{Heap, Value};

/// `str.isspace`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `repr` of a float: the shortest digits that round-trip.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Appends `str(value)` to a buffer. Strings keep their untrusted ranges.
pub(super) fn write(
    heap: &Heap<'_>,
    value: &Value,
    names: &[String],
    out: &mut TextBuffer,
    limits: &mut Limits,
) -> JinjaResult<()> {
    match value {
        Value::Str(text) => {
            limits.bytes(text.len())?;
            out.push_text(text);
            Ok(())
        }
        Value::Undefined(_) => Ok(()),
        other => write_repr(heap, other, names, out, limits),
    }
}

/// Appends `repr(value)` to a buffer.
pub(super) fn write_repr(
    heap: &Heap<'_>,
    value: &Value,
    names: &[String],
    out: &mut TextBuffer,
    limits: &mut Limits,
) -> JinjaResult<()> {
    limits.bytes(16)?;
    match value {
        Value::Undefined(_) => out.push_trusted("Undefined"),
        Value::None => out.push_trusted("None"),
        Value::Bool(true) => out.push_trusted("True"),
        Value::Bool(false) => out.push_trusted("False"),
        Value::Int(i) => out.push_trusted(&i.to_string()),
        Value::Float(f) => out.push_trusted(&float(*f)),
        Value::Str(text) => {
            // A control character takes four bytes when escaped.
            limits.bytes(2 * 4 * text.len())?;
            let whole = text.as_str();
            let quote = if whole.contains('\'') && !whole.contains('"') { '"' } else { '\'' };
            out.push_trusted(quote.encode_utf8(&mut [0; 4]));
            for (run, untrusted) in text.runs() {
                out.push(&escaped(run, quote), untrusted);
            }
            out.push_trusted(quote.encode_utf8(&mut [0; 4]));
        }
        Value::List(id) | Value::Tuple(id) => {
            limits.enter()?;
            let tuple = matches!(value, Value::Tuple(_));
            out.push_trusted(if tuple { "(" } else { "[" });
            for (index, item) in heap.items(*id).iter().enumerate() {
                out.push_trusted(if index > 0 { ", " } else { "" });
                write_repr(heap, item, names, out, limits)?;
            }
            let single = tuple && heap.items(*id).len() == 1;
            out.push_trusted(if single {
                ",)"
            } else if tuple {
                ")"
            } else {
                "]"
            });
            limits.leave();
        }
        Value::Dict(id) => {
            limits.enter()?;
            out.push_trusted("{");
            for (index, (key, value)) in heap.entries(*id).entries.iter().enumerate() {
                out.push_trusted(if index > 0 { ", " } else { "" });
                write_repr(heap, key, names, out, limits)?;
                out.push_trusted(": ");
                write_repr(heap, value, names, out, limits)?;
            }
            out.push_trusted("}");
            limits.leave();
        }
        Value::Namespace(id) => {
            limits.enter()?;
            out.push_trusted("<Namespace {");
            for (index, (name, value)) in heap.attributes(*id).iter().enumerate() {
                out.push_trusted(if index > 0 { ", " } else { "" });
                out.push_trusted(&format!("'{}': ", names.get(*name as usize).map_or("", String::as_str)));
                write_repr(heap, value, names, out, limits)?;
            }
            out.push_trusted("}>");
            limits.leave();
        }
        Value::Macro(_) | Value::Loop(_) | Value::Method(_) | Value::Function(_) => {
            out.push_trusted(&format!("<{}>", value.kind()));
        }
    }
    Ok(())
}

fn escaped(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out
}

/// `str.isprintable`, except for unassigned code points.
fn is_printable(c: char) -> bool {
    let format = matches!(c as u32,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe000..=0xf8ff | 0xe0000..=0xe007f | 0xf0000..=0x10ffff);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format)
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.0 / 3.0, "0.3333333333333333"),
            (f64::INFINITY, "inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }
}
