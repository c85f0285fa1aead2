//! `tojson`, as transformers overrides it: Python's `json.dumps`.

use super::functions::Arguments;
use super::limits::Limits;
use super::text::TextBuffer;
use super::value::{Heap, Value};
use super::{JinjaError, JinjaResult, eval::Interpreter, python};

struct Writer<'w, 't> {
    heap: &'w Heap<'t>,
    limits: &'w mut Limits,
    out: TextBuffer,
    ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort: bool,
    level: usize,
}

impl Interpreter<'_> {
    pub(super) fn tojson(&mut self, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let [ascii, indent, separators, sort] =
            arguments.take("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
        let flag = |value: Option<Value>, heap: &Heap<'_>| value.is_some_and(|value| heap.truth(&value));
        let (ascii, sort) = (flag(ascii, &self.heap), flag(sort, &self.heap));
        let indent = match indent {
            None | Some(Value::None) => None,
            Some(Value::Str(text)) => Some(text.as_str().to_string()),
            Some(other) => match other.as_int() {
                Some(width) => Some(" ".repeat(width.clamp(0, 64) as usize)),
                None => return Err(JinjaError::type_error("tojson: indent must be a number or a string")),
            },
        };
        let (mut comma, mut colon) =
            (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string());
        if let Some(separators) = separators.filter(|given| !matches!(given, Value::None)) {
            match &*self.iterate(&separators)? {
                [Value::Str(a), Value::Str(b)] => {
                    comma = a.as_str().to_string();
                    colon = b.as_str().to_string();
                }
                _ => return Err(JinjaError::type_error("tojson: separators must be two strings")),
            }
        }
        let mut writer = Writer {
            heap: &self.heap,
            limits: &mut self.limits,
            out: TextBuffer::default(),
            ascii,
            indent,
            comma,
            colon,
            sort,
            level: 0,
        };
        writer.value(value)?;
        Ok(Value::Str(writer.out.finish()))
    }
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value) -> JinjaResult<()> {
        self.limits.bytes(16)?;
        match value {
            Value::None => self.out.push_trusted("null"),
            Value::Bool(true) => self.out.push_trusted("true"),
            Value::Bool(false) => self.out.push_trusted("false"),
            Value::Int(i) => self.out.push_trusted(&i.to_string()),
            Value::Float(f) => self.out.push_trusted(&float(*f)),
            Value::Str(text) => {
                // An ASCII character takes at most six bytes when escaped, and longer ones three times as many as before.
                self.limits.bytes(2 * 6 * text.len())?;
                self.out.push_trusted("\"");
                for (run, untrusted) in text.runs() {
                    self.out.push(&escaped(run, self.ascii), untrusted);
                }
                self.out.push_trusted("\"");
            }
            Value::List(id) | Value::Tuple(id) => {
                let heap = self.heap;
                self.bracket('[', heap.items(*id), ']', |me, item| me.value(item))?;
            }
            Value::Dict(id) => {
                let heap = self.heap;
                let mut entries: Vec<&(Value, Value)> = heap.entries(*id).entries.iter().collect();
                if self.sort {
                    let name = |entry: &&(Value, Value)| match &entry.0 {
                        Value::Str(key) => key.as_str().to_string(),
                        _ => String::new(),
                    };
                    entries.sort_by_cached_key(name);
                }
                self.bracket('{', &entries, '}', |me, (key, value)| {
                    me.key(key)?;
                    let colon = me.colon.clone();
                    me.limits.bytes(colon.len())?;
                    me.out.push_trusted(&colon);
                    me.value(value)
                })?;
            }
            other => {
                let message = format!("Object of type {} is not JSON serializable", other.kind());
                return Err(JinjaError::type_error(message));
            }
        }
        Ok(())
    }

    fn bracket<T>(
        &mut self,
        open: char,
        items: &[T],
        close: char,
        mut one: impl FnMut(&mut Self, &T) -> JinjaResult<()>,
    ) -> JinjaResult<()> {
        self.limits.enter()?;
        self.out.push_trusted(open.encode_utf8(&mut [0; 4]));
        self.level += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let comma = self.comma.clone();
                self.limits.bytes(comma.len())?;
                self.out.push_trusted(&comma);
            }
            self.new_line()?;
            one(self, item)?;
        }
        self.level -= 1;
        if !items.is_empty() {
            self.new_line()?;
        }
        self.out.push_trusted(close.encode_utf8(&mut [0; 4]));
        self.limits.leave();
        Ok(())
    }

    fn new_line(&mut self) -> JinjaResult<()> {
        if let Some(indent) = &self.indent {
            self.limits.bytes(1 + indent.len() * self.level)?;
            self.out.push_trusted("\n");
            self.out.push_trusted(&indent.repeat(self.level));
        }
        Ok(())
    }

    fn key(&mut self, key: &Value) -> JinjaResult<()> {
        match key {
            Value::Str(_) => self.value(key),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.out.push_trusted("\"");
                self.value(key)?;
                self.out.push_trusted("\"");
                Ok(())
            }
            other => {
                let message = format!("keys must be str, int, float, bool or None, not {}", other.kind());
                Err(JinjaError::type_error(message))
            }
        }
    }
}

fn float(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".into(),
        v if v.is_infinite() => if v > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        v => python::float(v),
    }
}

fn escaped(text: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// `from_json`, which some templates use: parses JSON text.
pub(super) fn parse(text: &str) -> JinjaResult<serde_json::Value> {
    serde_json::from_str(text).map_err(|error| JinjaError::type_error(format!("from_json: {error}")))
}
