//! Messages as JSON, in the form of the OpenAI API.

use serde_json::{Map, Value as Json, json};

use crate::Error;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

pub fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

/// Reads a list of messages, or an object that has one as `messages`.
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
    for (number, message) in (1..).zip(&list) {
        check(message).map_err(|reason| refuse(format!("message {number} {reason}")))?;
    }
    Ok((list, rest))
}

fn check(message: &Json) -> Result<(), String> {
    let fields = message.as_object().ok_or("is not an object")?;
    let role = fields.get("role").ok_or("has no role")?.as_str().ok_or("has a role that is not text")?;
    if !ROLES.contains(&role) {
        return Err(format!("has the role \"{role}\", and there are {}", ROLES.join(", ")));
    }
    let calls = |fields: &Map<String, Json>| fields.get("tool_calls").is_some_and(Json::is_array);
    match fields.get("content") {
        Some(Json::String(_)) => Ok(()),
        Some(Json::Array(parts)) if parts.iter().all(Json::is_object) => Ok(()),
        None | Some(Json::Null) if calls(fields) => Ok(()),
        None | Some(Json::Null) => Err("has no content".into()),
        Some(_) => Err("has content that is neither text nor a list of parts".into()),
    }
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
        let call = r#"[{"role": "assistant", "content": null, "tool_calls": []}]"#;
        assert_eq!(parse(call).unwrap().len(), 1);
        assert_eq!(
            parse(r#"[{"role": "user", "content": [{"type": "text", "text": "a"}]}]"#).unwrap().len(),
            1
        );
    }

    #[test]
    fn errors_name_the_invalid_message() {
        for (text, words) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("3", "neither a list"),
            ("{}", "no \"messages\""),
            (r#"{"messages": 1}"#, "not a list"),
            (r#"[{"role": "user", "content": "a"}, 3]"#, "message 2 is not an object"),
            (r#"[{"content": "a"}]"#, "message 1 has no role"),
            (r#"[{"role": 1, "content": "a"}]"#, "role that is not text"),
            (r#"[{"role": "king", "content": "a"}]"#, "the role \"king\""),
            (r#"[{"role": "user"}]"#, "no content"),
            (r#"[{"role": "user", "content": 1}]"#, "neither text nor"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
