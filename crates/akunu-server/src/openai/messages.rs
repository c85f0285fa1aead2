//! Reads the conversations of OpenAI's API.

use std::collections::HashSet;

use akunu::chat::conversation::normalise;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::{Conversation, Ending};
use crate::prefill;
use crate::reasoning;
use crate::refusal::Refusal;

/// A conversation whose contents are texts and whose tool calls have objects for arguments.
pub(crate) fn conversation(messages: &[Json]) -> Result<Conversation, Refusal> {
    if messages.is_empty() {
        return Err(refuse("messages", "is empty"));
    }
    let messages = normalise(messages).map_err(|invalid| refuse(invalid.place, &invalid.problem))?;
    Ok(Conversation { messages, ..Conversation::default() })
}

/// Reads messages, tools and template variables of a request.
pub(crate) fn conversation_of(fields: &Fields<'_>) -> Result<Conversation, Refusal> {
    let list = fields.list("messages")?.ok_or_else(|| {
        Refusal::invalid("'messages' is missing: give a list of messages")
            .param("messages")
            .code("missing_required_parameter")
    })?;
    let mut conversation = conversation(list)?;
    check_calls(list)?;
    let tools = tools(fields, 64)?;
    let may_call = fields.get("tool_choice").is_none_or(|choice| choice != "none");
    conversation.tools = tools.filter(|_| may_call);
    reasoning::set_effort(fields, "reasoning_effort", reasoning::OPENAI, &mut conversation.variables)?;
    let variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    conversation.variables.extend(variables);
    conversation.ending = prefill::requested(fields, &conversation)?;
    // No answer follows a conversation that is closed.
    if conversation.ending != Ending::Closed {
        unanswered(list)?;
    }
    Ok(conversation)
}

/// The first call that has no result.
fn refuse_open(open: &[&str]) -> Result<(), Refusal> {
    match open.first() {
        None => Ok(()),
        Some(id) => Err(refuse("messages", &format!("has no result for the call \"{}\"", id.escape_debug()))),
    }
}

/// Refuses a conversation that ends with calls without results, as OpenAI does.
fn unanswered(messages: &[Json]) -> Result<(), Refusal> {
    let Some(calls) = messages.last().and_then(|last| last["tool_calls"].as_array()) else { return Ok(()) };
    let ids: Vec<&str> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
    refuse_open(&ids)
}

/// Checks calls and their results as OpenAI does: each call has an id and one result after it, and each result is that of
/// a call before it. Arguments may also be objects. The calls of the last message may have none: see [`unanswered`].
fn check_calls(messages: &[Json]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let place = format!("messages[{index}].tool_call_id");
            let id =
                message["tool_call_id"].as_str().ok_or_else(|| refuse(place.clone(), "must be a string"))?;
            let at = open.iter().position(|call| *call == id);
            open.remove(at.ok_or_else(|| refuse(place, "must be the id of a call that has no result yet"))?);
            continue;
        }
        refuse_open(&open)?;
        for (at, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let place = |field: &str| format!("messages[{index}].tool_calls[{at}].{field}");
            if message["role"] != "assistant" {
                return Err(refuse(
                    format!("messages[{index}].tool_calls"),
                    "belongs to messages of the assistant",
                ));
            }
            let id = call["id"].as_str().filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| refuse(place("id"), "must be a string that is not empty"))?;
            if open.contains(&id) {
                return Err(refuse(place("id"), "is that of a call before it"));
            }
            if call["type"] != "function" {
                return Err(refuse(place("type"), "must be \"function\""));
            }
            let arguments = &call["function"]["arguments"];
            if !(arguments.is_string() || arguments.is_object()) {
                return Err(refuse(place("function.arguments"), "must be a string with a JSON object"));
            }
            open.push(id);
        }
    }
    match messages.last() {
        Some(last) if last["role"] == "tool" => refuse_open(&open),
        _ => Ok(()),
    }
}

/// Calls of two tools of one name could not be told apart.
pub(crate) const TWICE: &str = "is the name of a tool before it: names must be unique";

/// Reads the functions that may be called, whose names have at most `longest` bytes.
pub(crate) fn tools(fields: &Fields<'_>, longest: usize) -> Result<Option<Vec<Json>>, Refusal> {
    let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let mut names = HashSet::new();
    for (index, tool) in tools.iter().enumerate() {
        let place = |field: &str| format!("tools[{index}]{field}");
        if !tool.is_object() {
            return Err(fields.refuse("tools", "a list of objects"));
        }
        if tool["type"] != "function" {
            return Err(refuse(place(".type"), "must be \"function\": other tools are not supported"));
        }
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        check_name(name, longest)
            .map_err(|expected| refuse(place(".function.name"), &format!("must be {expected}")))?;
        if !names.insert(name) {
            return Err(refuse(place(".function.name"), TWICE));
        }
        if !(function["strict"].is_null() || function["strict"].is_boolean()) {
            return Err(refuse(place(".function.strict"), "must be true or false"));
        }
        if !(function["description"].is_null() || function["description"].is_string()) {
            return Err(refuse(place(".function.description"), "must be a string"));
        }
        if !(function["parameters"].is_null() || function["parameters"].is_object()) {
            return Err(refuse(place(".function.parameters"), "must be an object, a JSON Schema"));
        }
    }
    Ok(Some(tools.to_vec()))
}

/// Checks the name of a tool; an error says what it must be.
pub(crate) fn check_name(name: &str, longest: usize) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match (1..=longest).contains(&name.len()) && name.bytes().all(is_word) {
        true => Ok(()),
        false => Err(format!("1 to {longest} letters, digits, underscores and dashes")),
    }
}

fn refuse(param: impl Into<String>, what: &str) -> Refusal {
    let param = param.into();
    Refusal::invalid(format!("'{param}' {what}")).param(param).code("invalid_value")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_and_their_results_belong_together() {
        let call = |id: Json, arguments: Json| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": arguments } });
        let calls = |calls: Vec<Json>| json!({ "role": "assistant", "content": null, "tool_calls": calls });
        let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "7" });
        let user = json!({ "role": "user", "content": "a" });
        let check =
            |messages: &[Json]| check_calls(messages).map_err(|refusal| refusal.param.unwrap_or_default());
        let two = calls(vec![call("a".into(), "{}".into()), call("b".into(), json!({}))]);
        assert_eq!(check(&[user.clone(), two.clone(), result("b"), result("a"), user.clone()]), Ok(()));
        let untyped = json!({ "id": "a", "function": { "name": "f", "arguments": "{}" } });
        for (messages, place) in [
            (vec![two.clone(), result("a")], "messages"),
            (vec![two.clone(), result("a"), user.clone(), result("b")], "messages"),
            (vec![two.clone(), result("a"), result("a")], "messages[2].tool_call_id"),
            (vec![user.clone(), result("a")], "messages[1].tool_call_id"),
            (vec![two, json!({ "role": "tool", "content": "7" })], "messages[1].tool_call_id"),
            (vec![calls(vec![call(Json::Null, "{}".into())])], "messages[0].tool_calls[0].id"),
            (vec![calls(vec![call("".into(), "{}".into())])], "messages[0].tool_calls[0].id"),
            (vec![calls(vec![call("a".into(), json!([]))])], "messages[0].tool_calls[0].function.arguments"),
            (vec![calls(vec![call("a".into(), Json::Null)])], "messages[0].tool_calls[0].function.arguments"),
            (vec![calls(vec![untyped])], "messages[0].tool_calls[0].type"),
            (
                vec![calls(vec![call("a".into(), "{}".into()), call("a".into(), "{}".into())])],
                "messages[0].tool_calls[1].id",
            ),
            (
                vec![
                    json!({ "role": "user", "content": "a", "tool_calls": [call("a".into(), "{}".into())] }),
                ],
                "messages[0].tool_calls",
            ),
        ] {
            assert_eq!(check(&messages), Err(place.to_string()), "{messages:?}");
        }
    }
}
