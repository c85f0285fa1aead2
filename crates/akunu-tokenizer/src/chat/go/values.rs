//! The values of a template, as Ollama makes them of a conversation. Objects have the names and the order that Ollama writes
//! in JSON.

use serde_json::{Map, Value as Json, json};

/// All messages, for a template that reads them.
pub(super) fn of_conversation(messages: &[Json], tools: &Json, extra: &Map<String, Json>) -> Json {
    let messages = joined(messages);
    let is_system = |message: &&Json| message["role"] == "system";
    let system: Vec<&str> = messages.iter().filter(is_system).map(content).collect();
    let tools: Vec<Json> = tools.as_array().into_iter().flatten().map(tool).collect();
    let mut values = json!({ "System": system.join("\n\n"), "Response": "", "Tools": tools });
    values["Messages"] = messages.into();
    with_thinking(values, extra)
}

/// One turn for each answer of the conversation, and one for the next answer: a system's message, a user's, and the answer.
pub(super) fn turns(messages: &[Json], extra: &Map<String, Json>) -> Vec<Json> {
    let mut turns = Vec::new();
    let mut turn = ["", "", ""];
    let messages = joined(messages);
    for message in &messages {
        let part = match message["role"].as_str() {
            Some("system") => 0,
            Some("user") => 1,
            Some("assistant") => 2,
            _ => continue,
        };
        // What comes before what the turn already has belongs to the next one.
        if part < 2 && turn[part + 1..].iter().any(|text| !text.is_empty()) {
            turns.push(std::mem::take(&mut turn));
        }
        turn[part] = content(message);
    }
    turns.push(turn);
    let values = |[system, prompt, response]: [&str; 3]| json!({ "System": system, "Prompt": prompt, "Response": response });
    turns.into_iter().map(|turn| with_thinking(values(turn), extra)).collect()
}

/// A model that can reason does so unless it is told not to.
fn with_thinking(mut values: Json, extra: &Map<String, Json>) -> Json {
    let thinks = extra.get("enable_thinking").and_then(Json::as_bool).unwrap_or(true);
    let effort = extra.get("reasoning_effort").and_then(Json::as_str).filter(|effort| *effort != "none");
    values["Think"] = thinks.into();
    values["IsThinkSet"] = true.into();
    values["ThinkLevel"] = effort.unwrap_or("").into();
    values
}

fn content(message: &Json) -> &str {
    message["content"].as_str().unwrap_or("")
}

/// The messages with texts as contents; those of one role that follow each other are one message, but results of tools.
fn joined(messages: &[Json]) -> Vec<Json> {
    let mut all: Vec<Json> = Vec::new();
    for message in messages {
        let text = text(&message["content"]);
        let is_tool = message["role"] == "tool";
        match all.last_mut().filter(|last| !is_tool && last["role"] == message["role"]) {
            Some(last) => {
                if let Json::String(content) = &mut last["content"] {
                    content.push_str("\n\n");
                    content.push_str(&text);
                }
                if let Json::Array(calls) = &message["tool_calls"] {
                    match &mut last["tool_calls"] {
                        Json::Array(before) => before.extend_from_slice(calls),
                        none => *none = calls.clone().into(),
                    }
                }
            }
            None => {
                let mut message = message.clone();
                message["content"] = text.into();
                all.push(message);
            }
        }
    }
    all
}

/// The text of a content, which may have parts.
fn text(content: &Json) -> String {
    match content {
        Json::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or("").into(),
    }
}

/// A tool in the order of Ollama's fields.
fn tool(tool: &Json) -> Json {
    let mut tool = ordered(tool, &["type", "items", "function"]);
    if tool["function"].is_object() {
        let mut function = ordered(&tool["function"], &["name", "description", "parameters"]);
        if function["parameters"].is_object() {
            let known = ["type", "$defs", "items", "required", "properties"];
            let mut parameters = ordered(&function["parameters"], &known);
            for property in parameters["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
                *property = ordered(property, &["anyOf", "type", "items", "description", "enum"]);
            }
            function["parameters"] = parameters;
        }
        tool["function"] = function;
    }
    tool
}

/// An object with these keys first.
fn ordered(value: &Json, first: &[&str]) -> Json {
    let Json::Object(object) = value else { return value.clone() };
    let known = first.iter().filter_map(|key| object.get_key_value(*key));
    let others = object.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    known.chain(others).map(|(key, value)| (key.clone(), value.clone())).collect()
}
