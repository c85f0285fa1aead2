//! Items of `/v1/responses`: read from requests, and converted to messages.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::tools;
use crate::fields::Fields;
use crate::openai::hex_id;
use crate::refusal::Refusal;
use crate::texts::missing;

/// The items of `input`, each with an id and in the form in which it is returned.
pub(super) fn input(fields: &Fields<'_>) -> Result<Vec<Json>, Refusal> {
    match fields.get("input") {
        Some(Json::String(text)) => Ok(vec![message(None, "user", vec![text_part("user", text)])]),
        Some(Json::Array(list)) if !list.is_empty() => {
            let read = |(at, item)| read(&format!("input[{at}]"), item);
            let items = list.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
            check_ids(&items).map(|()| items)
        }
        Some(_) => Err(fields.refuse("input", "a string or a list of items, and not empty")),
        None => Err(missing("input", "give a string or a list of items")),
    }
}

/// An id of OpenAI's form, so that it can be a part of an address.
fn checked_id<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, Refusal> {
    let is_plain = |id: &&str| {
        (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    match fields.text("id")? {
        None => Ok(None),
        Some(id) if is_plain(&id) => Ok(Some(id)),
        Some(_) => Err(fields.refuse("id", "at most 128 letters, digits, '_' and '-'")),
    }
}

/// Each id is there once: pages of items begin after one.
fn check_ids(items: &[Json]) -> Result<(), Refusal> {
    let mut seen = HashSet::with_capacity(items.len());
    match items.iter().position(|item| !seen.insert(item["id"].as_str())) {
        None => Ok(()),
        Some(at) => {
            let place = format!("input[{at}].id");
            let message = format!("'{place}' is that of an item before it");
            Err(Refusal::invalid(message).param(place).code("invalid_value"))
        }
    }
}

fn message(id: Option<&str>, role: &str, parts: Vec<Json>) -> Json {
    json!({ "id": given_or_new(id, "msg"), "type": "message", "role": role, "status": "completed", "content": parts })
}

fn given_or_new(id: Option<&str>, kind: &str) -> String {
    id.map_or_else(|| format!("{kind}_{}", hex_id()), str::to_string)
}

fn text_part(role: &str, text: &str) -> Json {
    match role {
        "assistant" => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
        _ => json!({ "type": "input_text", "text": text }),
    }
}

pub(super) fn unsupported(place: &str, what: &str) -> Refusal {
    Refusal::invalid(format!("'{place}' {what}")).param(place).code("unsupported_parameter")
}

fn read(place: &str, item: &Json) -> Result<Json, Refusal> {
    let refuse =
        || Refusal::invalid(format!("'{place}' must be an object")).param(place).code("invalid_value");
    let prefix = format!("{place}.");
    let fields = Fields::within(item.as_object().ok_or_else(refuse)?, &prefix);
    let required =
        |name: &str| fields.text(name)?.ok_or_else(|| missing(&format!("{prefix}{name}"), "give a string"));
    let id = checked_id(&fields)?;
    match fields.text("type")?.unwrap_or("message") {
        "message" => {
            let role = required("role")?;
            if !["user", "system", "developer", "assistant"].contains(&role) {
                return Err(fields.refuse("role", "\"user\", \"system\", \"developer\" or \"assistant\""));
            }
            Ok(message(id, role, parts(&fields, "content", &prefix, role)?))
        }
        "function_call" => {
            let mut call = json!({
                "id": given_or_new(id, "fc"), "type": "function_call", "status": "completed",
                "call_id": required("call_id")?, "name": required("name")?, "arguments": required("arguments")?,
            });
            if let Some(namespace) = fields.text("namespace")? {
                call["namespace"] = namespace.into();
            }
            Ok(call)
        }
        "function_call_output" => {
            let output = parts(&fields, "output", &prefix, "user")?;
            let texts: Vec<&str> = output.iter().filter_map(|part| part["text"].as_str()).collect();
            Ok(json!({
                "id": given_or_new(id, "fco"), "type": "function_call_output", "status": "completed",
                "call_id": required("call_id")?, "output": texts.join("\n"),
            }))
        }
        "reasoning" => {
            let texts = |name: &str| -> Result<Vec<Json>, Refusal> {
                let list = fields.list(name)?.unwrap_or_default();
                let is_text = |part: &Json| part["text"].is_string() && part["type"].is_string();
                match list.iter().all(is_text) {
                    true => Ok(list.to_vec()),
                    false => Err(fields.refuse(name, "a list of texts with a type")),
                }
            };
            let (content, summary) = (texts("content")?, texts("summary")?);
            if content.is_empty() && summary.is_empty() && fields.get("encrypted_content").is_some() {
                let what = "was encrypted by another server and cannot be read; send the item's 'content'";
                return Err(unsupported(&format!("{prefix}encrypted_content"), what));
            }
            Ok(json!({
                "id": given_or_new(id, "rs"), "type": "reasoning", "status": "completed",
                "summary": summary, "content": content,
            }))
        }
        kind => Err(unsupported(&format!("{prefix}type"), &format!("is \"{kind}\", which is not supported"))),
    }
}

/// A string, or a list of parts that are text.
fn parts(fields: &Fields<'_>, name: &str, prefix: &str, role: &str) -> Result<Vec<Json>, Refusal> {
    match fields.get(name) {
        Some(Json::String(text)) => Ok(vec![text_part(role, text)]),
        Some(Json::Array(list)) => {
            let part = |(at, part): (usize, &Json)| {
                let place = format!("{prefix}{name}[{at}]");
                let text = match part["type"].as_str() {
                    Some("input_text" | "output_text" | "text") => part["text"].as_str(),
                    Some("refusal") => part["refusal"].as_str(),
                    Some(kind) => {
                        let what = format!("is of type \"{kind}\"; only text is supported");
                        return Err(unsupported(&place, &what));
                    }
                    None => None,
                };
                let text = text.ok_or_else(|| {
                    let message = format!("'{place}' must be a part with a 'type' and a 'text'");
                    Refusal::invalid(message).param(&*place).code("invalid_value")
                })?;
                Ok(text_part(role, text))
            };
            list.iter().enumerate().map(part).collect()
        }
        Some(_) => Err(fields.refuse(name, "a string or a list of parts")),
        None => Err(missing(&format!("{prefix}{name}"), "give a string or a list of parts")),
    }
}

/// Converts items to messages of chat completions. Reasoning, text and calls that follow each other are one message of
/// the assistant; instructions at the start are one system message, because many templates take only one.
pub(super) fn messages(instructions: Option<&str>, items: &[Json]) -> Result<Vec<Json>, Refusal> {
    check_calls(items)?;
    let mut messages: Vec<Json> = Vec::new();
    messages.extend(instructions.map(|text| json!({ "role": "system", "content": text })));
    for item in items {
        match item["type"].as_str() {
            Some("reasoning") => {
                let has = |name: &str| item[name].as_array().is_some_and(|list| !list.is_empty());
                let text = joined(&item[if has("content") { "content" } else { "summary" }]);
                let to =
                    assistant(&mut messages, |last| last["content"] == "" && last["tool_calls"].is_null());
                append(&mut to["reasoning_content"], "\n", &text);
            }
            Some("function_call") => {
                let name =
                    tools::joined(item["namespace"].as_str(), item["name"].as_str().unwrap_or_default());
                let call = json!({ "id": item["call_id"], "type": "function",
                    "function": { "name": name, "arguments": item["arguments"] } });
                let to = assistant(&mut messages, |_| true);
                match to["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => to["tool_calls"] = vec![call].into(),
                }
            }
            Some("function_call_output") => messages
                .push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": item["output"] })),
            _ => {
                let text = joined(&item["content"]);
                match item["role"].as_str().unwrap_or_default() {
                    "assistant" => {
                        // Outputs follow the message with their calls, so text after calls belongs to it too.
                        let takes_more = |last: &Json| last["content"] == "" || !last["tool_calls"].is_null();
                        let to = assistant(&mut messages, takes_more);
                        let separator = if to["content"] == "" { "" } else { "\n" };
                        append(&mut to["content"], separator, &text);
                    }
                    "system" | "developer" => match messages.as_mut_slice() {
                        [only] if only["role"] == "system" => append(&mut only["content"], "\n\n", &text),
                        _ => messages.push(json!({ "role": "system", "content": text })),
                    },
                    role => messages.push(json!({ "role": role, "content": text })),
                }
            }
        }
    }
    Ok(messages)
}

/// Appends to a text in place: a conversation may have very many items.
fn append(to: &mut Json, separator: &str, text: &str) {
    match to {
        Json::String(before) => before.extend([separator, text]),
        _ => *to = text.into(),
    }
}

fn joined(parts: &Json) -> String {
    let texts: Vec<&str> =
        parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

/// The last message, if it is the assistant's and takes more; or else a new one.
fn assistant(messages: &mut Vec<Json>, takes_more: impl FnOnce(&Json) -> bool) -> &mut Json {
    if !messages.last().is_some_and(|last| last["role"] == "assistant" && takes_more(last)) {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// Each output belongs to a call before it, and each call has an output.
fn check_calls(items: &[Json]) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::invalid(message).param("input").code("invalid_value"));
    let (mut calls, mut open): (HashSet<&str>, HashSet<&str>) = Default::default();
    for item in items {
        let Some(id) = item["call_id"].as_str() else { continue };
        if item["type"] == "function_call" {
            calls.insert(id);
            open.insert(id);
        } else {
            open.remove(id);
            if !calls.contains(id) {
                return refuse(format!(
                    "'input' has an output for the call \"{id}\", and there is no such call before it"
                ));
            }
        }
    }
    match items.iter().filter_map(|item| item["call_id"].as_str()).find(|id| open.contains(id)) {
        Some(id) => refuse(format!("'input' has no output for the call \"{id}\"")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_after_calls_belongs_to_their_message() {
        let call = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
        let output = json!({ "type": "function_call_output", "call_id": "1", "output": "7" });
        let items = [message(None, "user", vec![text_part("user", "a")]), call, said("b"), output, said("c")];
        let messages = messages(None, &items).unwrap();
        let roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
        assert_eq!((&messages[1]["content"], &messages[3]["content"]), (&json!("b"), &json!("c")));
        assert_eq!(messages[1]["tool_calls"][0]["id"], "1");
    }

    fn said(text: &str) -> Json {
        message(None, "assistant", vec![text_part("assistant", text)])
    }

    #[test]
    fn a_call_of_a_function_in_a_namespace_has_the_models_name_for_it() {
        let call = json!({ "type": "function_call", "call_id": "1", "name": "f", "namespace": "n", "arguments": "{}" });
        let output = json!({ "type": "function_call_output", "call_id": "1", "output": "7" });
        let read = read("input[0]", &call).unwrap();
        assert_eq!(read["namespace"], "n");
        let messages = messages(None, &[read, output]).unwrap();
        assert_eq!(messages[0]["tool_calls"][0]["function"]["name"], "n__f");
    }

    #[test]
    fn ids_are_plain_and_there_once() {
        let of = |first: &str, second: &str| {
            let item = |id: &str| json!({ "id": id, "role": "user", "content": "a" });
            let body = json!({ "input": [item(first), item(second)] });
            let Json::Object(map) = &body else { panic!("an object") };
            input(&Fields::within(map, "")).map_err(|refusal| refusal.message).err()
        };
        assert_eq!(of("msg_1", "msg-2"), None);
        assert!(of("a", "a").unwrap().contains("'input[1].id' is that of an item before it"));
        for bad in ["a b", "", "\u{e9}"] {
            assert!(of("a", bad).unwrap().contains("input[1].id"), "{bad}");
        }
    }
}
