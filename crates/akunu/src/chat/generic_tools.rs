//! Tools for models whose templates have none, or whose format of calls is unknown: they are described in the system message,
//! and calls and their results are parts of the text.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::conversation::message;
use super::families::{CallMarks, GENERIC};

/// The conversation with calls and results as text. `None`: there are none.
pub(super) fn without_calls(messages: &[Json]) -> Option<Vec<Json>> {
    let has_calls = |message: &Json| message["role"] == "tool" || message["tool_calls"].is_array();
    if !messages.iter().any(has_calls) {
        return None;
    }
    let mut all: Vec<Json> = Vec::with_capacity(messages.len());
    let mut after_result = false;
    for given in messages {
        let is_result = given["role"] == "tool";
        let written = as_text(given);
        // Many templates want the user's and the assistant's messages in turn.
        match all.last_mut().filter(|_| after_result && written["role"] == "user") {
            Some(last) => last["content"] = format!("{}\n{}", text_of(last), text_of(&written)).into(),
            None => all.push(written),
        }
        after_result = is_result || (after_result && given["role"] == "user");
    }
    Some(all)
}

/// The conversation with tools described in the system's message, to be called as models of a family do.
pub(super) fn with_tools(mut messages: Vec<Json>, tools: &[Json], marks: &CallMarks) -> Vec<Json> {
    let described = description(tools, marks);
    match messages.first_mut().filter(|first| first["role"] == "system" || first["role"] == "developer") {
        Some(system) => system["content"] = format!("{}\n\n{described}", text_of(system)).into(),
        None => messages.insert(0, message("system", &described)),
    }
    messages
}

fn text_of(message: &Json) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// The same with the system's message as the beginning of the user's first one, for templates without that role.
pub(super) fn without_system(mut messages: Vec<Json>) -> Vec<Json> {
    let system = text_of(&messages.remove(0)).to_string();
    match messages.iter_mut().find(|message| message["role"] == "user") {
        Some(user) => user["content"] = format!("{system}\n\n{}", text_of(user)).into(),
        None => messages.insert(0, message("user", &system)),
    }
    messages
}

pub(super) fn description(tools: &[Json], marks: &CallMarks) -> String {
    let mut text = "You may call these tools, one of which is described in each line as JSON:\n".to_string();
    for tool in tools {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", tool.get("function").unwrap_or(tool));
    }
    if let Some(example) = marks.example().filter(|_| marks != &GENERIC) {
        return text
            + &format!(
                "\nTo call a tool, write\n{example}\nwith its name for NAME and an object for ARGUMENTS, as often as \
                 there are calls, and nothing after them."
            );
    }
    let [open, close] = [GENERIC.form.open, GENERIC.form.close];
    text + &format!(
        "\nTo call a tool, write\n{open}{{\"name\": its name, \"arguments\": an object}}{close}\n\
         as often as there are calls, and nothing after them. The results follow as <tool_response>…</tool_response>."
    )
}

pub(super) fn as_text(given: &Json) -> Json {
    let content = text_of(given);
    if given["role"] == "tool" {
        return message("user", &format!("<tool_response>\n{content}\n</tool_response>"));
    }
    let Some(calls) = given["tool_calls"].as_array() else { return given.clone() };
    let [open, close] = [GENERIC.form.open, GENERIC.form.close];
    let mut text = content.to_string();
    for call in calls {
        let function = &call["function"];
        let call = json!({ "name": function["name"], "arguments": function["arguments"] });
        let gap = if text.is_empty() { "" } else { "\n" };
        text += &format!("{gap}{open}{call}{close}");
    }
    let mut message = given.clone();
    if let Some(fields) = message.as_object_mut() {
        fields.shift_remove("tool_calls");
        fields.insert("content".into(), text.into());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_family_is_described_where_its_template_writes_no_tools() {
        use akunu_tokenizer::chat::ChatTemplate;

        let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}\
                      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>\
                      {{ call.function.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source, None, None).unwrap();
        let tools = [json!({ "type": "function", "function": { "name": "clock", "parameters": {} } })];
        let call = json!({ "id": "1", "type": "function", "function": { "name": "clock", "arguments": { "zone": "UTC" } } });
        let messages = [
            message("user", "What time is it?"),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "1", "content": "noon" }),
        ];
        let rendered =
            crate::chat::render(&template, &messages, Some(&tools), true, &serde_json::Map::new()).unwrap();
        for part in [
            "system: You may call these tools",
            "{\"name\":\"clock\"",
            "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{\"zone\": \"UTC\"}<｜tool▁call▁end｜>",
            "tool: noon",
        ] {
            assert!(rendered.text.contains(part), "{part}: {}", rendered.text);
        }
        let plain = crate::chat::render(&template, &messages, None, true, &serde_json::Map::new()).unwrap();
        assert!(!plain.text.contains("You may call"), "{}", plain.text);
    }

    #[test]
    fn tools_calls_and_results_are_text() {
        let tools = [json!({ "type": "function", "function": { "name": "clock", "parameters": {} } })];
        let call = json!({ "id": "1", "type": "function", "function": { "name": "clock", "arguments": { "zone": "UTC" } } });
        let messages = [
            message("system", "Be brief."),
            message("user", "What time is it?"),
            json!({ "role": "assistant", "content": "Let me see.", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "1", "content": "noon" }),
            json!({ "role": "tool", "tool_call_id": "2", "content": "UTC" }),
            message("user", "Thanks."),
            message("assistant", "Welcome."),
        ];
        let all = with_tools(without_calls(&messages).unwrap(), &tools, &GENERIC);
        let system = text_of(&all[0]);
        assert!(
            system.starts_with("Be brief.\n\nYou may call") && system.contains("{\"name\":\"clock\""),
            "{system}"
        );
        let called =
            "Let me see.\n<tool_call>{\"name\":\"clock\",\"arguments\":{\"zone\":\"UTC\"}}</tool_call>";
        assert_eq!(all[2], message("assistant", called));
        let results =
            "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nUTC\n</tool_response>\nThanks.";
        assert_eq!((&all[3], all.len()), (&message("user", results), 5));
        assert_eq!(without_calls(&messages[..2]), None);
        let joined = without_system(with_tools(messages[1..2].to_vec(), &tools, &GENERIC));
        assert_eq!((joined.len(), &joined[0]["role"]), (1, &json!("user")));
        assert!(text_of(&joined[0]).ends_with("\n\nWhat time is it?"));
    }
}
