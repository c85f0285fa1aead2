//! Messages as JSON, in the form of the OpenAI API.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value as Json, json};

use crate::Error;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

pub fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

/// A message that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidMessage {
    /// For example `messages[2].role`.
    pub place: String,
    /// What is wrong with it: a predicate.
    pub problem: String,
}

impl std::fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' {}", self.place, self.problem)
    }
}

/// Messages in the form that chat templates expect: contents are texts, arguments of tool calls are objects, and there are no
/// nulls, since templates test whether fields are defined.
pub fn normalise(messages: &[Json]) -> Result<Vec<Json>, InvalidMessage> {
    messages.iter().enumerate().map(|(index, message)| normal(index, message)).collect()
}

fn normal(index: usize, message: &Json) -> Result<Json, InvalidMessage> {
    let refuse = |field: &str, problem: &str| InvalidMessage {
        place: format!("messages[{index}]{field}"),
        problem: problem.into(),
    };
    let mut fields = message.as_object().ok_or_else(|| refuse("", "is not an object"))?.clone();
    let role = fields.get("role").and_then(Json::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(refuse(".role", &format!("must be one of {}", ROLES.join(", "))));
    }
    let may_be_empty = role == "assistant";
    match fields.get_mut("tool_calls") {
        None | Some(Json::Null) => {}
        Some(Json::Array(calls)) => {
            let has_name =
                |call: &Json| call["function"]["name"].as_str().is_some_and(|name| !name.is_empty());
            if let Some(at) = calls.iter().position(|call| !has_name(call)) {
                return Err(refuse(
                    &format!(".tool_calls[{at}].function.name"),
                    "must be the name of a function",
                ));
            }
            calls.iter_mut().for_each(read_arguments);
        }
        Some(_) => return Err(refuse(".tool_calls", "must be a list of calls")),
    }
    let content = match fields.get("content") {
        Some(Json::String(text)) => Json::String(text.clone()),
        Some(Json::Array(parts)) => Json::String(
            text_of(parts).map_err(|at| refuse(&format!(".content[{at}]"), &not_text(&parts[at])))?,
        ),
        None | Some(Json::Null) if may_be_empty => Json::String(String::new()),
        _ => return Err(refuse(".content", "must be a string or a list of text parts")),
    };
    fields.insert("content".into(), content);
    fields.retain(|_, value| !value.is_null());
    Ok(Json::Object(fields))
}

/// What is wrong with a part or block that is not text.
pub fn not_text(part: &Json) -> String {
    match part["type"].as_str() {
        Some(kind) if kind != "text" => format!("is of type {kind:?}; only text content is supported"),
        _ => "is not text; only text content is supported".into(),
    }
}

/// The text of parts, or the index of a part that is not text.
fn text_of(parts: &[Json]) -> Result<String, usize> {
    let texts = parts.iter().enumerate().map(|(at, part)| {
        let is_text = part["type"] == "text" || part["type"] == "refusal";
        let text = part["text"].as_str().or(part["refusal"].as_str());
        text.filter(|_| is_text).ok_or(at)
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Parses arguments: they are a JSON string in the API and an object in templates.
fn read_arguments(call: &mut Json) {
    let Some(function) = call.get_mut("function").and_then(Json::as_object_mut) else { return };
    let Some(text) = function.get("arguments").and_then(Json::as_str) else { return };
    if let Ok(arguments) = serde_json::from_str::<Map<String, Json>>(text) {
        function.insert("arguments".into(), Json::Object(arguments));
    }
}

/// A random id for a tool call: nine letters and digits, as Mistral's templates demand.
pub fn call_id() -> String {
    nine(RandomState::new().hash_one(0))
}

/// Nine letters and digits for a number.
pub(super) fn nine(mut number: u64) -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let digit = |_| {
        let digit = DIGITS[(number % DIGITS.len() as u64) as usize];
        number /= DIGITS.len() as u64;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

/// Reads a list of messages, or an object that has one as `messages`, and normalises them.
pub fn parse(text: &str) -> Result<Vec<Json>, Error> {
    Ok(parse_with_rest(text)?.0)
}

/// As [`parse`], with the other fields of the object.
pub fn parse_with_rest(text: &str) -> Result<(Vec<Json>, Map<String, Json>), Error> {
    let refuse = |reason: String| Error::Conversation { reason };
    let json: Json =
        serde_json::from_str(text).map_err(|error| refuse(format!("it is not JSON ({error})")))?;
    let (list, rest) = match json {
        Json::Array(list) => (list, Map::new()),
        Json::Object(mut fields) => match fields.remove("messages") {
            Some(Json::Array(list)) => (list, fields),
            Some(_) => return Err(refuse("\"messages\" is not a list".into())),
            None => return Err(refuse("there are no \"messages\" in it".into())),
        },
        _ => return Err(refuse("it is neither a list of messages nor an object with \"messages\"".into())),
    };
    let messages = normalise(&list).map_err(|invalid| refuse(invalid.to_string()))?;
    Ok((messages, rest))
}

/// Writes messages in the format that [`parse`] reads.
pub fn to_json(messages: &[Json]) -> String {
    let mut text = serde_json::to_string_pretty(&json!({ "messages": messages })).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_a_round_trip() {
        let messages =
            [message("system", "Be \"brief\".\n"), message("user", "é\u{1}"), message("assistant", "")];
        assert_eq!(parse(&to_json(&messages)).unwrap(), messages);
    }

    /// As Python's `json` reads and writes them.
    #[test]
    fn numbers_are_kept_exactly() {
        let given =
            r#"[{"role": "user", "content": "", "x": [0.4674408446744074, 3.162277660168379e-9, -5e-324]}]"#;
        let written = to_json(&parse(given).unwrap());
        for number in ["0.4674408446744074", "3.162277660168379e-9", "-5e-324"] {
            assert!(written.contains(number), "{written}");
        }
    }

    #[test]
    fn messages_are_brought_into_the_form_of_templates() {
        let given = r#"[
            {"role": "user", "name": null, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": 2}}},
                {"id": "3", "type": "function", "function": {"name": "h", "arguments": "[]"}}
            ]}
        ]"#;
        let expected = json!([
            { "role": "user", "content": "a\nb" },
            { "role": "assistant", "content": "", "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } },
                { "id": "2", "type": "function", "function": { "name": "g", "arguments": { "b": 2 } } },
                { "id": "3", "type": "function", "function": { "name": "h", "arguments": "[]" } },
            ] },
        ]);
        assert_eq!(Json::Array(parse(given).unwrap()), expected);
    }

    #[test]
    fn errors_name_the_invalid_message() {
        for (text, words) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("3", "neither a list"),
            ("{}", "no \"messages\""),
            (r#"{"messages": 1}"#, "not a list"),
            (r#"[{"role": "user", "content": "a"}, 3]"#, "'messages[1]' is not an object"),
            (r#"[{"content": "a"}]"#, "'messages[0].role' must be one of"),
            (r#"[{"role": 1, "content": "a"}]"#, "'messages[0].role' must be one of"),
            (r#"[{"role": "king", "content": "a"}]"#, "'messages[0].role' must be one of"),
            (r#"[{"role": "user"}]"#, "'messages[0].content' must be a string"),
            (r#"[{"role": "assistant", "tool_calls": "f"}]"#, "'messages[0].tool_calls' must be a list"),
            (
                r#"[{"role": "assistant", "tool_calls": [{"id": "a"}]}]"#,
                "'messages[0].tool_calls[0].function.name' must be the name",
            ),
            (r#"[{"role": "user", "content": 1}]"#, "'messages[0].content' must be a string"),
            (
                r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
                "'messages[0].content[0]' is of type \"image_url\"; only text content is supported",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
