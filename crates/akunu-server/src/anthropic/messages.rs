//! Converts messages, system prompts and tools of Anthropic's API to OpenAI's format.

use std::collections::HashSet;

use akunu::chat::conversation::not_text;
use serde_json::{Value as Json, json};

use super::stable;
use crate::fields::Fields;
use crate::job::Conversation;
use crate::openai;
use crate::prefill;
use crate::reasoning;
use crate::refusal::Refusal;
use crate::response_format::{self, RequestedFormat, require_call};

/// `stable`: lines that change between turns do not begin the system prompt.
pub(super) fn conversation(fields: &Fields<'_>, stable: bool) -> Result<Conversation, Refusal> {
    let given =
        fields.list("messages")?.ok_or_else(|| super::missing("messages", "give a list of messages"))?;
    let mut messages = Vec::with_capacity(given.len() + 1);
    if let Some(system) = fields.get("system") {
        let mut text = text(system, "system")?;
        if stable {
            text = stable::rewrite(text);
        }
        if !text.is_empty() {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    for (index, message) in given.iter().enumerate() {
        let before = messages.len();
        read(&format!("messages[{index}]"), message, index > 0, &mut messages)?;
        join_reminder(&mut messages, before, message, given.get(index.wrapping_sub(1)));
    }
    if given.is_empty() {
        return Err(refuse("messages", "is empty"));
    }
    check_calls(given)?;
    let mut conversation = openai::conversation(&messages)?;
    conversation.tools = tools(fields)?;
    let variables = &mut conversation.variables;
    variables.insert("enable_thinking".into(), is_thinking_enabled(fields)?.into());
    if let Some(budget) = budget(fields)? {
        variables.insert("thinking_budget".into(), budget.into());
    }
    if let Some(config) = fields.object("output_config")? {
        let config = Fields::within(config, "output_config.");
        reasoning::set_effort(&config, "effort", reasoning::ANTHROPIC, variables)?;
    }
    conversation.ending = prefill::always(&conversation)?;
    Ok(conversation)
}

fn refuse(param: impl Into<String>, what: &str) -> Refusal {
    let param = param.into();
    Refusal::invalid(format!("'{param}' {what}")).param(param)
}

/// Reads a string, or a list of text blocks.
fn text(content: &Json, place: &str) -> Result<String, Refusal> {
    match content {
        Json::String(text) => Ok(text.clone()),
        Json::Array(blocks) => {
            let texts = blocks.iter().enumerate().map(|(at, block)| {
                let text = block["text"].as_str().filter(|_| block["type"] == "text");
                text.ok_or_else(|| refuse(format!("{place}[{at}]"), &not_text(block)))
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err(refuse(place, "must be a string or a list of blocks")),
    }
}

/// Checks that each `tool_use` has a `tool_result` in the user's next turn, and each result a call before it, as Anthropic
/// does. Messages of one role that follow each other are one turn.
fn check_calls(messages: &[Json]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    // The last message of the user's turn, if it is the latest.
    let mut answered: Option<usize> = None;
    let refuse_open = |answered: Option<usize>, open: &[&str]| match open.first() {
        None => Ok(()),
        Some(id) => {
            let place = answered.map_or_else(|| "messages".into(), |index| format!("messages[{index}]"));
            let what =
                format!("has no 'tool_result' for the 'tool_use' with the id \"{}\"", id.escape_debug());
            Err(refuse(place, &what))
        }
    };
    for (index, message) in messages.iter().enumerate().filter(|(_, message)| message["role"] != "system") {
        let of = |kind: &'static str, id: &'static str| {
            let blocks = message["content"].as_array().into_iter().flatten().enumerate();
            blocks.filter(move |(_, block)| block["type"] == kind).map(move |(at, block)| (at, &block[id]))
        };
        if message["role"] == "user" {
            for (at, id) in of("tool_result", "tool_use_id") {
                let place = || format!("messages[{index}].content[{at}].tool_use_id");
                let what = "must be the id of a 'tool_use' in the turn before it, which has one result";
                let called = open.iter().position(|open| id == open);
                open.swap_remove(called.ok_or_else(|| refuse(place(), what))?);
            }
            answered = Some(index);
            continue;
        }
        if let index @ Some(_) = answered.take() {
            refuse_open(index, &open)?;
        }
        for (at, id) in of("tool_use", "id") {
            let place = || format!("messages[{index}].content[{at}].id");
            let id = id.as_str().filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| refuse(place(), "must be a string that is not empty"))?;
            if open.contains(&id) {
                return Err(refuse(place(), "is that of a 'tool_use' before it"));
            }
            open.push(id);
        }
    }
    refuse_open(answered, &open)
}

/// Converts a message to one or several of OpenAI's, where each tool result is a message. A message of the system after
/// others becomes a reminder from the user, in the form that Claude Code uses: few templates have a system message there.
fn read(place: &str, message: &Json, has_turns: bool, to: &mut Vec<Json>) -> Result<(), Refusal> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        Some("system") if has_turns => {
            let text = text(&message["content"], &format!("{place}.content"))?;
            to.push(json!({ "role": "user", "content": format!("<system-reminder>\n{text}\n</system-reminder>") }));
            return Ok(());
        }
        _ => return Err(refuse(format!("{place}.role"), "must be \"user\" or \"assistant\"")),
    };
    let place = format!("{place}.content");
    let blocks = match &message["content"] {
        Json::Array(blocks) => blocks,
        content => {
            to.push(json!({ "role": role, "content": text(content, &place)? }));
            return Ok(());
        }
    };
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{at}]");
        let of = |name: &str| {
            block[name].as_str().ok_or_else(|| refuse(format!("{place}.{name}"), "must be a string"))
        };
        match block["type"].as_str() {
            Some("text") => texts.push(of("text")?),
            Some("thinking") if role == "assistant" => reasoning.push(of("thinking")?),
            // Encrypted by Anthropic's servers.
            Some("redacted_thinking") if role == "assistant" => {}
            Some("tool_use") if role == "assistant" => calls.push(json!({
                "id": of("id")?, "type": "function",
                "function": { "name": of("name")?, "arguments": block["input"] },
            })),
            Some("tool_result") if role == "user" => {
                let result = match &block["content"] {
                    Json::Null => String::new(),
                    content => text(content, &format!("{place}.content"))?,
                };
                to.push(json!({ "role": "tool", "tool_call_id": of("tool_use_id")?, "content": result }));
            }
            kind => {
                let kind = kind.unwrap_or("without a type");
                return Err(refuse(place, &format!("is a block of an unsupported type ({kind})")));
            }
        }
    }
    // Tool results alone make no message of the user.
    if role == "user" && texts.is_empty() && !blocks.is_empty() {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": texts.join("\n") });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    to.push(message);
    Ok(())
}

/// Joins a reminder and the user's messages around it, since many templates want the user and the assistant in turn.
/// `before`: the number of messages before the last one given.
fn join_reminder(messages: &mut Vec<Json>, before: usize, given: &Json, previous: Option<&Json>) {
    let is_reminder = |message: &Json| message["role"] == "system";
    if !(is_reminder(given) || previous.is_some_and(is_reminder))
        || before == 0
        || messages.len() != before + 1
    {
        return;
    }
    let is_user = |message: &Json| message["role"] == "user";
    if is_user(&messages[before - 1]) && is_user(&messages[before]) {
        let last = messages.remove(before);
        let text = |message: &Json| message["content"].as_str().unwrap_or_default().to_string();
        messages[before - 1]["content"] =
            format!("{}\n\n{}", text(&messages[before - 1]), text(&last)).into();
    }
}

/// Whether an answer may have only one tool call.
pub(super) fn one_call(fields: &Fields<'_>) -> Result<bool, Refusal> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok(false) };
    let only = Fields::within(choice, "tool_choice.").flag("disable_parallel_tool_use")?;
    Ok(only.unwrap_or(false))
}

/// Reads `tool_choice`.
pub(super) fn choose_tool(fields: &Fields<'_>, conversation: &mut Conversation) -> Result<(), Refusal> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
    let choice = Fields::within(choice, "tool_choice.");
    match choice.get("type").and_then(Json::as_str) {
        Some("any") => require_call(conversation, None, "tool_choice"),
        Some("tool") => {
            let name = choice.text("name")?.ok_or_else(|| choice.refuse("name", "the name of a tool"))?;
            require_call(conversation, Some(name), "tool_choice")
        }
        _ => Ok(()),
    }
}

/// The format in `output_config`, or in `output_format`, its name while the API was in beta.
pub(super) fn output_format(fields: &Fields<'_>) -> Result<Option<RequestedFormat>, Refusal> {
    let config = fields.object("output_config")?.map(|config| Fields::within(config, "output_config."));
    let format = config.map(|config| config.object("format")).transpose()?.flatten();
    let format = format.map(|format| Fields::within(format, "output_config.format."));
    let beta = fields.object("output_format")?.map(|format| Fields::within(format, "output_format."));
    match (format, beta) {
        (Some(_), Some(_)) => {
            Err(refuse("output_format", "together with 'output_config.format' is not supported: give one"))
        }
        (None, beta @ Some(_)) => response_format::format(beta.as_ref(), None, "output_format"),
        (format, None) => response_format::format(format.as_ref(), None, "output_config.format"),
    }
}

fn tools(fields: &Fields<'_>) -> Result<Option<Vec<Json>>, Refusal> {
    match fields.object("tool_choice")?.and_then(|choice| choice.get("type")).map(Json::as_str) {
        None | Some(Some("auto" | "any" | "tool")) => {}
        Some(Some("none")) => return Ok(None),
        Some(_) => {
            return Err(refuse("tool_choice", "must be of type \"auto\", \"any\", \"tool\" or \"none\""));
        }
    }
    let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let mut names = HashSet::new();
    let read = |(index, tool): (usize, &Json)| match (&tool["name"], &tool["input_schema"]) {
        (Json::String(name), schema @ Json::Object(_)) => {
            if !names.insert(name.clone()) {
                return Err(refuse(format!("tools[{index}].name"), openai::TWICE));
            }
            openai::check_name(name, 128)
                .map_err(|expected| refuse(format!("tools[{index}].name"), &format!("must be {expected}")))?;
            let mut function = json!({ "name": name, "parameters": schema });
            if let Some(description) = tool.get("description") {
                function["description"] = description.clone();
            }
            Ok(json!({ "type": "function", "function": function }))
        }
        _ if tool["type"].as_str().is_some_and(|kind| kind != "custom") => {
            let what = format!("is {}: only tools with an 'input_schema' are supported", tool["type"]);
            Err(refuse(format!("tools[{index}].type"), &what))
        }
        _ => Err(refuse(format!("tools[{index}]"), "has no name, or no 'input_schema'")),
    };
    tools.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>().map(Some)
}

/// The tokens of reasoning in `thinking`.
fn budget(fields: &Fields<'_>) -> Result<Option<usize>, Refusal> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(None) };
    let budget = Fields::within(thinking, "thinking.").count("budget_tokens", 1024..=usize::MAX)?;
    Ok(budget.filter(|_| thinking.get("type").is_some_and(|kind| kind == "enabled")))
}

/// Refuses a budget that leaves no tokens for the answer. Reasoning between calls (`is_interleaved`) may have more than one
/// answer has.
pub(super) fn check_budget(
    fields: &Fields<'_>,
    max_tokens: usize,
    is_interleaved: bool,
) -> Result<(), Refusal> {
    match budget(fields)? {
        Some(budget) if budget >= max_tokens && !is_interleaved => {
            let what = format!("is {budget}, and must be less than 'max_tokens', which is {max_tokens}");
            Err(refuse("thinking.budget_tokens", &what))
        }
        _ => Ok(()),
    }
}

/// Whether `thinking` is enabled; it is not by default.
fn is_thinking_enabled(fields: &Fields<'_>) -> Result<bool, Refusal> {
    match fields.object("thinking")?.and_then(|thinking| thinking.get("type")).map(Json::as_str) {
        None | Some(Some("disabled")) => Ok(false),
        Some(Some("enabled" | "adaptive")) => Ok(true),
        Some(_) => Err(refuse("thinking.type", "must be \"enabled\", \"adaptive\" or \"disabled\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Json) -> Result<Conversation, Refusal> {
        conversation(&Fields::new(body)?, true)
    }

    #[test]
    fn a_budget_without_a_type_is_none() {
        let budget_of = |thinking: Json| {
            let body = json!({ "thinking": thinking });
            budget(&Fields::new(&body).unwrap()).unwrap()
        };
        assert_eq!(budget_of(json!({ "budget_tokens": 1024 })), None);
        assert_eq!(budget_of(json!({ "type": "enabled", "budget_tokens": 1024 })), Some(1024));
    }

    #[test]
    fn blocks_become_messages() {
        let body = json!({
            "system": [{ "type": "text", "text": "Be brief." }, { "type": "text", "text": "Be kind." }],
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "tools": [{ "name": "add", "description": "Adds", "input_schema": { "type": "object" } }],
            "messages": [
                { "role": "user", "content": "1 + 1?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Hm.", "signature": "" },
                    { "type": "text", "text": "Let me see." },
                    { "type": "tool_use", "id": "a", "name": "add", "input": { "x": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "2" }] },
                ] },
            ],
        });
        let conversation = read(&body).unwrap();
        let call =
            json!({ "id": "a", "type": "function", "function": { "name": "add", "arguments": { "x": 1 } } });
        let expected = json!([
            { "role": "system", "content": "Be brief.\nBe kind." },
            { "role": "user", "content": "1 + 1?" },
            { "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "a", "content": "2" },
        ]);
        assert_eq!(Json::from(conversation.messages), expected);
        let tool = json!({ "type": "function", "function": {
            "name": "add", "description": "Adds", "parameters": { "type": "object" } } });
        assert_eq!(conversation.tools, Some(vec![tool]));
        assert_eq!(conversation.variables["enable_thinking"], true);
    }

    #[test]
    fn a_system_message_among_others_is_a_reminder_from_the_user() {
        let said = |role: &str, text: &str| json!({ "role": role, "content": text });
        let body = json!({ "messages": [
            said("user", "a"), said("system", "b"), said("assistant", "c"),
            { "role": "system", "content": [{ "type": "text", "text": "d" }] }, said("user", "e"),
        ] });
        let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>");
        let expected = [
            said("user", &format!("a\n\n{}", reminder("b"))),
            said("assistant", "c"),
            said("user", &format!("{}\n\ne", reminder("d"))),
        ];
        assert_eq!(read(&body).unwrap().messages, expected);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let say = |content: Json| json!({ "messages": [{ "role": "user", "content": content }] });
        let call = json!({ "type": "tool_use", "id": "a", "name": "add", "input": {} });
        let prefilled = json!({ "role": "assistant", "content": "a" });
        let image = json!([{ "type": "text", "text": "a" }, { "type": "image", "source": {} }]);
        for (body, place) in [
            (json!({}), "messages"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "system", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": [7] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "assistant", "content": "" }] }), "messages"),
            (json!({ "messages": [{ "role": "assistant", "content": [call] }] }), "messages"),
            (json!({ "messages": [prefilled], "thinking": { "type": "enabled" } }), "thinking"),
            (say(image), "messages[0].content[1]"),
            (say(json!([{ "type": "thinking", "thinking": "a" }])), "messages[0].content[0]"),
            (say(json!([{ "type": "text" }])), "messages[0].content[0].text"),
            (say(json!([3])), "messages[0].content[0]"),
            (say(Json::Null), "messages[0].content"),
            (json!({ "messages": [], "system": [{ "type": "image" }] }), "system[0]"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(place), "{body}");
        }
        for (name, value) in [
            ("tool_choice", json!({ "type": "other" })),
            ("tools", json!([{ "name": "a" }])),
            ("thinking", json!({ "type": "loud" })),
        ] {
            let mut body = say("a".into());
            body[name] = value;
            assert!(read(&body).is_err(), "{body}");
        }
    }
}
