//! Tool calls with each argument between tags.

use akunu_grammar::{CallTags, ValueKind, value_kind};
use serde_json::Value as Json;

use super::call_json::is_json;
use super::calls::{Call, LONGEST_HEADER};

/// Parses a call without what ends it; `before` precedes the tool's name. The schemas of `tools` say which arguments are
/// strings, if the tags do not.
pub(super) fn read(tags: &CallTags, before: &str, text: &str, tools: &[Json]) -> Option<Call> {
    let (name, mut rest) = name_in(before, text)?;
    let tool = tool_of(tools, name);
    let mut arguments = Vec::new();
    while rest.contains(tags.key[0]) {
        let (key, value, behind) = next_argument(tags, tool, rest)?;
        arguments.push(format!("{}: {value}", Json::from(key)));
        rest = behind;
    }
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then(|| Call { name: name.to_string(), arguments: format!("{{{}}}", arguments.join(", ")) })
}

/// Where a call ends: at the first `end` outside of a value. `None`: more text is needed.
pub(super) fn end_of(tags: &CallTags, [before, end]: [&str; 2], text: &str, tools: &[Json]) -> Option<usize> {
    let (name, mut rest) = name_in(before, text)?;
    let tool = tool_of(tools, name);
    loop {
        let found = rest.find(end)?;
        if rest.find(tags.key[0]).is_none_or(|key| found < key) {
            return Some(text.len() - rest.len() + found);
        }
        (_, _, rest) = next_argument(tags, tool, rest)?;
    }
}

/// The first argument, and what follows it. `None`: it is not complete.
fn next_argument<'t>(
    tags: &CallTags,
    tool: Option<&Json>,
    text: &'t str,
) -> Option<(&'t str, String, &'t str)> {
    let (key, kind, behind) = begin_argument(tags, tool, text)?;
    let end = value_end(behind, tags.value[1], kind)?;
    Some((key, argument(tags, &behind[..end], kind), &behind[end + tags.value[1].len()..]))
}

/// The name of the first argument, the kind of its value, and the text from the value on. `None`: the value has not begun.
pub(super) fn begin_argument<'t>(
    tags: &CallTags,
    tool: Option<&Json>,
    text: &'t str,
) -> Option<(&'t str, Option<ValueKind>, &'t str)> {
    let (key, kind, behind) = next_key(tags, text)?;
    let of_tool = || tool.map(|tool| value_kind(&tool["function"]["parameters"], key));
    let (_, value) = behind.split_once(tags.value[0])?;
    Some((key, kind.or_else(of_tool), value))
}

pub(super) fn tool_of<'t>(tools: &'t [Json], name: &str) -> Option<&'t Json> {
    tools.iter().find(|tool| name_of(tool) == Some(name))
}

pub(super) fn name_in<'t>(before: &str, text: &'t str) -> Option<(&'t str, &'t str)> {
    let text = text.trim_start().strip_prefix(before)?;
    let (name, rest) = text.split_at(text.find(['<', '>', '\n', '"']).unwrap_or(text.len()));
    Some((name.trim(), rest))
}

/// How often the mark that ends a value may be in a JSON string.
pub(super) const MOST_QUOTED: usize = 64;

/// Whether a value may have the mark that ends it in a JSON string.
pub(super) fn may_quote(text: &str, kind: Option<ValueKind>) -> bool {
    let near = &text[..text.floor_char_boundary(LONGEST_HEADER)];
    kind == Some(ValueKind::Other) && near.trim_start().starts_with(['{', '[', '"'])
}

/// Where a value ends.
pub(super) fn value_end(text: &str, close: &str, kind: Option<ValueKind>) -> Option<usize> {
    let mut ends = text.match_indices(close).map(|(at, _)| at);
    let first = ends.next()?;
    if !may_quote(text, kind) {
        return Some(first);
    }
    let is_whole = |end: &usize| is_json(&text[..*end]);
    Some(std::iter::once(first).chain(ends).take(MOST_QUOTED).find(is_whole).unwrap_or(first))
}

/// The first key, whether its value is a string if the tags say so, and what follows them.
fn next_key<'t>(tags: &CallTags, text: &'t str) -> Option<(&'t str, Option<ValueKind>, &'t str)> {
    let Some([of_text, of_other]) = tags.kinds else {
        return between(text, tags.key).map(|(key, behind)| (key, None, behind));
    };
    let (_, text) = text.split_once(tags.key[0])?;
    let (key, _) = text.split_once('"')?;
    let behind = &text[key.len()..];
    match behind.strip_prefix(of_text) {
        Some(behind) => Some((key, Some(ValueKind::Text), behind)),
        None => Some((key, Some(ValueKind::Other), behind.strip_prefix(of_other)?)),
    }
}

pub(super) fn name_of(tool: &Json) -> Option<&str> {
    tool["function"]["name"].as_str()
}

/// The first text between two tags, and the rest.
fn between<'t>(text: &'t str, [open, close]: [&str; 2]) -> Option<(&'t str, &'t str)> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close)
}

/// Whether a template puts values on separate lines, so that a line's end on either side is not a part of the value. One
/// whose tags say what is a string writes strings as they are.
pub(super) fn has_lines(tags: &CallTags) -> bool {
    tags.kinds.is_none()
}

/// An argument as JSON text. Templates write values other than strings as JSON or as in Python.
pub(super) fn argument(tags: &CallTags, written: &str, kind: Option<ValueKind>) -> String {
    if !has_lines(tags) && kind == Some(ValueKind::Text) {
        return Json::from(written).to_string();
    }
    let text = written.strip_prefix('\n').unwrap_or(written);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let quoted = || Json::from(text).to_string();
    match text.trim() {
        "null" | "None" if kind == Some(ValueKind::TextOrNull) => "null".into(),
        _ if matches!(kind, Some(ValueKind::Text | ValueKind::TextOrNull)) => quoted(),
        "True" => "true".into(),
        "False" => "false".into(),
        "None" => "null".into(),
        other if is_json(other) => other.into(),
        _ => quoted(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TAGS: CallTags = CallTags { key: ["<parameter=", ">"], value: ["", "</parameter>"], kinds: None };

    fn read_f(text: &str) -> Option<Json> {
        let properties = json!({ "text": { "type": "string" }, "list": { "type": "array" }, "flag": { "type": "boolean" } });
        let tools = [json!({ "function": { "name": "f", "parameters": { "properties": properties } } })];
        read(&TAGS, "<function=", text, &tools).map(|call| json!([call.name, call.object()]))
    }

    #[test]
    fn string_arguments_are_not_parsed() {
        let text =
            "\n<function=f>\n<parameter=text>\n 3 <b>\n\n</parameter>\n<parameter=list>\n[1]\n</parameter>";
        assert_eq!(read_f(text), Some(json!(["f", { "text": " 3 <b>\n", "list": [1] }])));
        assert_eq!(
            read_f("<function=f><parameter=flag>False</parameter>"),
            Some(json!(["f", { "flag": false }]))
        );
        assert_eq!(read_f("<function=g><parameter=x>1</parameter>"), Some(json!(["g", { "x": 1 }])));
        assert_eq!(read_f("<function=g><parameter=x>a b</parameter>"), Some(json!(["g", { "x": "a b" }])));
        assert_eq!(read_f("<function=f>\n"), Some(json!(["f", {}])));
    }

    #[test]
    fn invalid_calls_are_not_parsed() {
        for text in ["", "f", "<function=>", "<function=two words>", "<function=f><parameter=a>never ends"] {
            assert_eq!(read_f(text), None, "{text}");
        }
    }
}
