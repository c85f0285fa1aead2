//! `'%s' % x` and `'{}'.format(x)`.

use super::eval::Interpreter;
use super::functions::Arguments;
use super::text::{Text, TextBuffer, shown};
use super::value::{Key, Value};
use super::{JinjaError, JinjaResult, python};

/// Maximum width of padding.
const MAX_WIDTH: usize = 1 << 12;

/// Maximum bytes of a specification.
const MAX_SPEC: usize = 64;

/// A format specification.
#[derive(Debug, Default)]
struct Spec {
    /// `<`, `>` or `^`; the default depends on the type of the value.
    align: Option<char>,
    fill: Option<char>,
    plus: Option<char>,
    alternate: bool,
    grouped: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Interpreter<'_> {
    /// `format % values`.
    pub(super) fn percent(&mut self, format: &Text, values: &Value) -> JinjaResult<Text> {
        self.limits.bytes(2 * format.len())?;
        let values_list: Vec<Value> = match values {
            Value::Tuple(id) => self.heap.items(*id).to_vec(),
            other => vec![other.clone()],
        };
        let string = format.as_str();
        let mut next = values_list.iter();
        let mut out = TextBuffer::default();
        let mut at = 0;
        let mut named = false;
        while let Some(found) = string[at..].find('%') {
            out.push_text(&format.slice(at..at + found));
            at += found + 1;
            let mut key = None;
            if string[at..].starts_with('(') {
                let Some(end) = string[at..].find(')') else { return Err(incomplete()) };
                self.limits.bytes(2 * end)?;
                key = Some(&string[at + 1..at + end]);
                at += end + 1;
            }
            let (spec, len) = percent_spec(&string[at..])?;
            at += len;
            if spec.kind == '%' {
                out.push_trusted("%");
                continue;
            }
            let value = match (key, values) {
                (Some(key), Value::Dict(id)) => {
                    named = true;
                    self.heap.entries(*id).get(&Key::Str(key.into())).cloned()
                }
                (Some(_), _) => return Err(JinjaError::type_error("format requires a mapping")),
                (None, _) => next.next().cloned(),
            };
            let Some(value) = value else {
                return Err(JinjaError::type_error("not enough arguments for format string"));
            };
            let text = self.formatted(&value, &spec)?;
            out.push_text(&text);
        }
        if !named && next.next().is_some() && !matches!(values, Value::Dict(_)) {
            return Err(JinjaError::type_error("not all arguments converted during string formatting"));
        }
        out.push_text(&format.slice(at..string.len()));
        Ok(out.finish())
    }

    fn formatted(&mut self, value: &Value, spec: &Spec) -> JinjaResult<Text> {
        let number = value.as_float();
        let need = |what: &str| {
            let message = format!("%{} format: {what} is required, not {}", spec.kind, value.kind());
            JinjaError::type_error(message)
        };
        let text: Text = match spec.kind {
            'r' | 'a' => {
                let mut out = TextBuffer::default();
                python::write_repr(&self.heap, value, self.names, &mut out, &mut self.limits)?;
                out.finish()
            }
            'd' | 'i' | 'u' => match (value.as_int(), value) {
                (Some(i), _) => grouped(i.to_string(), spec.grouped).into(),
                (None, Value::Float(f)) => format!("{:.0}", f.trunc()).into(),
                _ => return Err(need("a real number")),
            },
            'x' | 'X' | 'o' | 'b' => {
                let i = value.as_int().ok_or_else(|| need("an integer"))?;
                let digits = match spec.kind {
                    'x' => format!("{:x}", i.unsigned_abs()),
                    'X' => format!("{:X}", i.unsigned_abs()),
                    'o' => format!("{:o}", i.unsigned_abs()),
                    _ => format!("{:b}", i.unsigned_abs()),
                };
                let prefix = if spec.alternate { format!("0{}", spec.kind) } else { String::new() };
                format!("{}{prefix}{digits}", if i < 0 { "-" } else { "" }).into()
            }
            'f' | 'F' => {
                let f = number.ok_or_else(|| need("a real number"))?;
                grouped(format!("{f:.*}", spec.precision.unwrap_or(6)), spec.grouped).into()
            }
            '%' => {
                let f = number.ok_or_else(|| need("a real number"))?;
                format!("{:.*}%", spec.precision.unwrap_or(6), f * 100.0).into()
            }
            'e' | 'E' => exponent(number.ok_or_else(|| need("a real number"))?, spec).into(),
            'g' | 'G' => general(number.ok_or_else(|| need("a real number"))?, spec).into(),
            'c' => match value {
                Value::Str(text) => text.clone(),
                other => {
                    let code = other.as_int().and_then(|i| u32::try_from(i).ok()).and_then(char::from_u32);
                    code.ok_or_else(|| need("a character"))?.to_string().into()
                }
            },
            _ => {
                let text = self.text_of(value)?;
                match (spec.precision, value) {
                    (Some(most), Value::Str(_)) => {
                        let end = text.as_str().char_indices().nth(most).map_or(text.len(), |(at, _)| at);
                        text.slice(0..end)
                    }
                    _ if spec.grouped => grouped(text.as_str().to_string(), true).into(),
                    _ => text,
                }
            }
        };
        let numeric = number.is_some() && !matches!(spec.kind, 's' | 'r' | 'a' | 'c');
        self.filled(text, spec, numeric)
    }

    fn filled(&mut self, text: Text, spec: &Spec, numeric: bool) -> JinjaResult<Text> {
        let string = text.as_str();
        let negative = numeric && string.starts_with('-');
        let sign = match spec.plus {
            Some(sign) if numeric && !negative => sign.to_string(),
            _ => String::new(),
        };
        let missing = spec.width.saturating_sub(string.chars().count() + sign.len());
        self.limits.bytes(text.len() + 4 * missing)?;
        let fill = spec.fill.unwrap_or(' ').to_string();
        let mut out = TextBuffer::default();
        let (left, right) = match spec.align.unwrap_or(if numeric { '>' } else { '<' }) {
            '<' => (0, missing),
            '^' => (missing / 2, missing - missing / 2),
            '=' => {
                // Zero padding goes between the sign and the digits.
                out.push_text(&text.slice(0..usize::from(negative)));
                out.push_trusted(&sign);
                out.push_trusted(&fill.repeat(missing));
                out.push_text(&text.slice(usize::from(negative)..text.len()));
                return Ok(out.finish());
            }
            _ => (missing, 0),
        };
        out.push_trusted(&fill.repeat(left));
        out.push_trusted(&sign);
        out.push_text(&text);
        out.push_trusted(&fill.repeat(right));
        Ok(out.finish())
    }

    /// `format.format(…)`. Fields refer to arguments only, without attribute access.
    pub(super) fn brace_format(&mut self, format: &Text, arguments: Arguments) -> JinjaResult<Text> {
        let string = format.as_str();
        let mut out = TextBuffer::default();
        let (mut at, mut automatic) = (0, 0);
        while let Some(found) = string[at..].find(['{', '}']) {
            out.push_text(&format.slice(at..at + found));
            at += found;
            let two = string.get(at..at + 2);
            if matches!(two, Some("{{" | "}}")) {
                out.push_text(&format.slice(at..at + 1));
                at += 2;
                continue;
            }
            let Some(end) = string[at..].find('}').filter(|&end| end > 0) else { return Err(incomplete()) };
            let field = &string[at + 1..at + end];
            at += end + 1;
            self.limits.spend(1 + arguments.named.len() / 16)?;
            let (field, spec) = field.split_once(':').unwrap_or((field, ""));
            let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
            let value = if field.is_empty() || field.bytes().all(|b| b.is_ascii_digit()) {
                let index = if field.is_empty() { automatic } else { field.parse().unwrap_or(usize::MAX) };
                automatic += 1;
                arguments.positional.get(index).cloned()
            } else {
                arguments
                    .named
                    .iter()
                    .find(|(name, _)| name.as_str() == field)
                    .map(|(_, value)| value.clone())
            };
            let Some(value) = value else {
                return Err(JinjaError::type_error(format!(
                    "format(): no argument for '{{{}}}'",
                    shown(field)
                )));
            };
            let mut spec = brace_spec(spec)?;
            if conversion == "r" {
                spec.kind = 'r';
            }
            let text = self.formatted(&value, &spec)?;
            out.push_text(&text);
        }
        out.push_text(&format.slice(at..string.len()));
        Ok(out.finish())
    }
}

fn incomplete() -> JinjaError {
    JinjaError::type_error("incomplete format")
}

fn width(text: &str) -> JinjaResult<usize> {
    let number = text.parse().unwrap_or(if text.is_empty() { 0 } else { usize::MAX });
    if number > MAX_WIDTH { Err(JinjaError::Limit("uses a too large width in a format")) } else { Ok(number) }
}

/// Leading digits.
fn digits(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_digit).count()]
}

/// Parses the specification after `%` or `%(name)`; also returns its length.
fn percent_spec(text: &str) -> JinjaResult<(Spec, usize)> {
    let mut spec = Spec::default();
    let flags = text.bytes().take_while(|b| b"-+ #0".contains(b)).count();
    for flag in text[..flags].bytes() {
        match flag {
            b'-' => spec.align = Some('<'),
            b'+' => spec.plus = Some('+'),
            b' ' => spec.plus = spec.plus.or(Some(' ')),
            b'#' => spec.alternate = true,
            _ if spec.align.is_none() => (spec.align, spec.fill) = (Some('='), Some('0')),
            _ => {}
        }
    }
    if spec.align == Some('<') {
        spec.fill = None;
    }
    let mut at = flags;
    let wide = digits(&text[at..]);
    spec.width = width(wide)?;
    at += wide.len();
    if text[at..].starts_with('.') {
        let places = digits(&text[at + 1..]);
        spec.precision = Some(width(places)?);
        at += 1 + places.len();
    }
    let Some(kind) = text[at..].chars().next() else { return Err(incomplete()) };
    if !"srcdiuxXoeEfFgGa%".contains(kind) {
        return Err(JinjaError::type_error(format!("unsupported format character '{kind}'")));
    }
    spec.kind = kind;
    if matches!(kind, 's' | 'r' | 'a' | 'c') && spec.align.is_none_or(|align| align == '=') {
        (spec.align, spec.fill) = (Some('>'), None);
    }
    Ok((spec, at + 1))
}

/// `[[fill]align][sign][#][0][width][,][.precision][type]`.
fn brace_spec(text: &str) -> JinjaResult<Spec> {
    let invalid = || JinjaError::type_error(format!("invalid format specifier '{}'", shown(text)));
    if text.len() > MAX_SPEC {
        return Err(invalid());
    }
    let mut spec = Spec { kind: 's', ..Spec::default() };
    let mut chars: Vec<char> = text.chars().collect();
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>^=".contains(*c));
    if is_align(chars.get(1)) {
        (spec.fill, spec.align) = (Some(chars[0]), Some(chars[1]));
        chars.drain(..2);
    } else if is_align(chars.first()) {
        spec.align = Some(chars.remove(0));
    }
    let rest: String = chars.into_iter().collect();
    let mut rest = rest.as_str();
    let mut skip = |prefix: char| match rest.strip_prefix(prefix) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    };
    if skip('+') {
        spec.plus = Some('+');
    } else if skip(' ') {
        spec.plus = Some(' ');
    } else {
        skip('-');
    }
    spec.alternate = skip('#');
    if skip('0') && spec.align.is_none() {
        (spec.align, spec.fill) = (Some('='), Some('0'));
    }
    let wide = digits(rest);
    spec.width = width(wide)?;
    rest = &rest[wide.len()..];
    if let Some(after) = rest.strip_prefix([',', '_']) {
        spec.grouped = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('.') {
        let places = digits(after);
        spec.precision = Some(width(places)?);
        rest = &after[places.len()..];
    }
    let mut kinds = rest.chars();
    if let Some(kind) = kinds.next() {
        spec.kind = kind;
    }
    if kinds.next().is_some() || !"sdxXobeEfFgGc%n".contains(spec.kind) {
        return Err(invalid());
    }
    Ok(spec)
}

fn grouped(number: String, wanted: bool) -> String {
    let whole = number.find('.').unwrap_or(number.len());
    let start = usize::from(number.starts_with('-'));
    if !wanted {
        return number;
    }
    let mut out = number[..start].to_string();
    for (index, digit) in number[start..whole].chars().enumerate() {
        if index > 0 && (whole - start - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + &number[whole..]
}

fn exponent(value: f64, spec: &Spec) -> String {
    let text = format!("{value:.*e}", spec.precision.unwrap_or(6));
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}{}{sign}{:02}", spec.kind, power.abs())
}

fn general(value: f64, spec: &Spec) -> String {
    let precision = spec.precision.unwrap_or(6).max(1);
    let power = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let (text, tail) = if power < -4 || power >= precision as i32 {
        let kind = if spec.kind == 'G' { 'E' } else { 'e' };
        let text = exponent(value, &Spec { precision: Some(precision - 1), kind, ..Spec::default() });
        let at = text.find(kind).unwrap_or(text.len());
        (text[..at].to_string(), text[at..].to_string())
    } else {
        (format!("{value:.*}", (precision as i32 - 1 - power).max(0) as usize), String::new())
    };
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    };
    text + &tail
}
