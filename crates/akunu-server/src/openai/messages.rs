//! Reads the conversations of OpenAI's API.

use akunu::chat::conversation::normalise;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::Conversation;
use crate::prefill;
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
    let tools = tools(fields, 64)?;
    let may_call = fields.get("tool_choice").is_none_or(|choice| choice != "none");
    conversation.tools = tools.filter(|_| may_call);
    if let Some(effort) = fields.text("reasoning_effort")? {
        conversation.variables.insert("reasoning_effort".into(), effort.into());
    }
    let variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    conversation.variables.extend(variables);
    conversation.ending = prefill::requested(fields, &conversation)?;
    Ok(conversation)
}

/// Reads the functions that may be called, whose names have at most `longest` bytes.
pub(crate) fn tools(fields: &Fields<'_>, longest: usize) -> Result<Option<Vec<Json>>, Refusal> {
    let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
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
