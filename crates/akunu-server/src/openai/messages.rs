//! Converts messages of OpenAI's API to what chat templates expect.

use serde_json::{Map, Value as Json};

use crate::fields::Fields;
use crate::job::Conversation;
use crate::refusal::Refusal;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A conversation whose contents are texts and whose tool calls have objects for arguments.
pub(crate) fn conversation(messages: &[Json]) -> Result<Conversation, Refusal> {
    if messages.is_empty() {
        return Err(refuse("messages", "is empty"));
    }
    let messages = messages.iter().enumerate().map(|(index, message)| normal(index, message));
    Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, ..Conversation::default() })
}

/// Reads messages, tools and template variables of a request.
pub(crate) fn conversation_of(fields: &Fields<'_>) -> Result<Conversation, Refusal> {
    let list = fields.list("messages")?.ok_or_else(|| {
        Refusal::invalid("'messages' is missing: give a list of messages")
            .param("messages")
            .code("missing_required_parameter")
    })?;
    let mut conversation = conversation(list)?;
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    if tools.is_some_and(|tools| !tools.iter().all(Json::is_object)) {
        return Err(fields.refuse("tools", "a list of objects"));
    }
    let may_call = fields.get("tool_choice").is_none_or(|choice| choice != "none");
    conversation.tools = tools.filter(|_| may_call).map(<[Json]>::to_vec);
    if let Some(effort) = fields.text("reasoning_effort")? {
        conversation.variables.insert("reasoning_effort".into(), effort.into());
    }
    let variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    conversation.variables.extend(variables);
    Ok(conversation)
}

fn refuse(param: impl Into<String>, what: &str) -> Refusal {
    let param = param.into();
    Refusal::invalid(format!("'{param}' {what}")).param(param).code("invalid_value")
}

fn normal(index: usize, message: &Json) -> Result<Json, Refusal> {
    let place = |name: &str| format!("messages[{index}]{name}");
    let mut fields = message.as_object().ok_or_else(|| refuse(place(""), "is not an object"))?.clone();
    let role = fields.get("role").and_then(Json::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(refuse(place(".role"), &format!("must be one of {}", ROLES.join(", "))));
    }
    let may_be_empty = role == "assistant";
    if let Some(Json::Array(calls)) = fields.get_mut("tool_calls") {
        calls.iter_mut().for_each(read_arguments);
    }
    let content = match fields.get("content") {
        Some(Json::String(text)) => Json::String(text.clone()),
        Some(Json::Array(parts)) => Json::String(text_of(parts).map_err(|at| {
            refuse(place(&format!(".content[{at}]")), "is not text; only text content is supported")
        })?),
        None | Some(Json::Null) if may_be_empty => Json::String(String::new()),
        _ => return Err(refuse(place(".content"), "must be a string or a list of text parts")),
    };
    fields.insert("content".into(), content);
    // Templates test whether fields are defined.
    fields.retain(|_, value| !value.is_null());
    Ok(Json::Object(fields))
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
