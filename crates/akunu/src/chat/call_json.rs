//! The JSON text of a call, while it is generated.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::call_tags::name_of;
use super::calls::Call;

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Whether a text is one JSON value. Its numbers may be larger than those of any type.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Parses `{"name": …, "arguments": {…}}`, or `{NAME: {…}}` if `by_key`, with the text of the arguments as it is.
pub(super) fn read(text: &str, by_key: bool) -> Option<Call> {
    let object = |text| serde_json::from_str::<BTreeMap<String, &RawValue>>(text).ok();
    let mut fields = object(text)?;
    if by_key {
        let (name, arguments) = fields.pop_first().filter(|_| fields.is_empty())?;
        return arguments.get().starts_with('{').then(|| Call { name, arguments: arguments.get().into() });
    }
    if let Some(function) = fields.get("function").and_then(|function| object(function.get())) {
        fields = function;
    }
    let name = |key| serde_json::from_str::<String>(fields.get(key)?.get()).ok();
    let name = NAMES.into_iter().find_map(name).filter(|name| !name.is_empty())?;
    let arguments = match ARGUMENTS.into_iter().find_map(|key| fields.get(key)).map(|value| value.get()) {
        None | Some("null") => "{}".into(),
        Some(object) if object.starts_with('{') => object.into(),
        Some(text) => {
            let text: String = serde_json::from_str(text).ok()?;
            (text.trim_start().starts_with('{') && is_json(&text)).then_some(text)?
        }
    };
    Some(Call { name, arguments })
}

/// Whether a call without a mark begins with the name of a tool, or with `"type": "function"` and the name, as the
/// grammar's calls do: only then are its arguments held to the tool's schema.
pub(super) fn begins_bare(text: &str, tools: &[Json]) -> bool {
    let named = || {
        let fields = after(text, &["{"])?;
        let fields = after(fields, &["\"type\"", ":", "\"function\"", ","]).unwrap_or(fields);
        after(fields, &["\"name\"", ":"])
    };
    let begins = |name: &str, tool: &Json| {
        name_of(tool).is_some_and(|of| name.trim_start().starts_with(&Json::from(of).to_string()))
    };
    named().is_some_and(|name| tools.iter().any(|tool| begins(name, tool)))
}

/// What follows these parts, which may have white space before them.
fn after<'t>(text: &'t str, parts: &[&str]) -> Option<&'t str> {
    parts.iter().try_fold(text, |rest, part| rest.trim_start().strip_prefix(part))
}

/// Why the name and the arguments of a call are not found in the beginning of its JSON text.
pub(super) enum Unnamed {
    /// It may still have them.
    Yet,
    /// The arguments are not an object, come before the name, or are in a list.
    Never,
}

/// The name in the beginning of what `read` parses, and where the arguments begin.
pub(super) fn named_arguments(text: &str, by_key: bool) -> Result<(String, usize), Unnamed> {
    let mut name = None;
    let rest = text.strip_prefix('{').ok_or(Unnamed::Never)?;
    let mut at = text.len() - rest.len();
    loop {
        let key = json_string(text, &mut at)?;
        skip(text, &mut at, ':')?;
        if by_key {
            return match text[at..].chars().next() {
                None => Err(Unnamed::Yet),
                Some('{') => Ok((key, at)),
                Some(_) => Err(Unnamed::Never),
            };
        }
        if ARGUMENTS.contains(&key.as_str()) {
            return match text[at..].chars().next() {
                None => Err(Unnamed::Yet),
                Some('{') => name.map(|name| (name, at)).ok_or(Unnamed::Never),
                Some(_) => Err(Unnamed::Never),
            };
        }
        let value = json_string(text, &mut at)?;
        if NAMES.contains(&key.as_str()) && !value.is_empty() {
            name.get_or_insert(value);
        }
        skip(text, &mut at, ',')?;
    }
}

/// Reads a string at a place after white space, and moves the place behind it and the white space that follows.
fn json_string(text: &str, at: &mut usize) -> Result<String, Unnamed> {
    let rest = text[*at..].trim_start();
    match rest.as_bytes().first() {
        None => return Err(Unnamed::Yet),
        Some(b'"') => {}
        Some(_) => return Err(Unnamed::Never),
    }
    let mut strings = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    match strings.next() {
        Some(Ok(string)) => {
            let behind = &rest[strings.byte_offset()..];
            *at = text.len() - behind.trim_start().len();
            Ok(string)
        }
        Some(Err(error)) if error.is_eof() => Err(Unnamed::Yet),
        _ => Err(Unnamed::Never),
    }
}

/// Moves a place behind a character and the white space that follows.
fn skip(text: &str, at: &mut usize, expected: char) -> Result<(), Unnamed> {
    match text[*at..].strip_prefix(expected) {
        Some(behind) => *at = text.len() - behind.trim_start().len(),
        None if text.len() == *at => return Err(Unnamed::Yet),
        None => return Err(Unnamed::Never),
    }
    Ok(())
}

/// Finds the end of a JSON value, visiting each byte once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub(super) at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Scan {
    pub(super) fn from(at: usize) -> Scan {
        Scan { at, depth: 0, in_text: false, escaped: false }
    }

    pub(super) fn end(&mut self, text: &[u8]) -> Option<usize> {
        while let Some(&byte) = text.get(self.at) {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                return Some(self.at);
            }
        }
        None
    }
}
