//! Conversations with calls in other forms, for templates that refuse the given one or leave out calls.

use akunu_tokenizer::chat::{ChatTemplate, Rendered};
use serde_json::{Map, Value as Json, json};

use super::conversation::{message, nine};
use super::families::CallMarks;
use super::generic_tools;

/// Which calls of earlier turns a template writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    All,
    /// Of each turn.
    First,
    None,
}

/// Tries a template. One that refuses the conversation counts as one that writes all calls.
pub(super) fn written(render: impl Fn(&[Json]) -> Option<Rendered>) -> Written {
    const NAMES: [&str; 2] = ["akunu_first", "akunu_second"];
    let id = |name: &str| nine(fnv(name));
    let call = |name| json!({ "id": id(name), "type": "function", "function": { "name": name, "arguments": { "a": "b" } } });
    let result = |name| json!({ "role": "tool", "tool_call_id": id(name), "content": "c" });
    let calls = json!({ "role": "assistant", "content": "", "tool_calls": NAMES.map(call) });
    let [first, second] = NAMES.map(result);
    let Some(rendered) = render(&[message("user", "d"), calls, first, second]) else { return Written::All };
    match NAMES.map(|name| rendered.text.contains(name)) {
        [true, true] => Written::All,
        [true, false] => Written::First,
        _ => Written::None,
    }
}

impl Written {
    /// The conversation in a form in which the template writes all calls. `None`: it already is.
    pub(super) fn form(self, messages: &[Json], marks: Option<&CallMarks>) -> Option<Vec<Json>> {
        match self {
            Written::All => None,
            Written::First => with_single_calls(messages),
            Written::None => {
                Some(messages.iter().map(|message| with_text_of_calls(message, marks)).collect())
            }
        }
    }
}

/// Whether a template has tools in a field of the system's message, as Phi 4 mini's does.
pub(super) fn reads_tools_of_system(template: &ChatTemplate) -> bool {
    template.source().contains("message['tools']")
}

/// The conversation with tools as the text of that field.
pub(super) fn with_tools_of_system(messages: &[Json], tools: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    if messages.first().is_none_or(|first| first["role"] != "system") {
        messages.insert(0, message("system", "You are a helpful assistant with some tools."));
    }
    let functions: Vec<&Json> = tools.iter().map(function_of).collect();
    messages[0]["tools"] = json!(functions).to_string().into();
    messages
}

/// The variables of a template that wants tools as a text in one of them, beside the date, as Firefunction's does. `None`:
/// the template does not.
pub(super) fn with_functions(
    template: &ChatTemplate,
    tools: Option<&[Json]>,
    variables: &Map<String, Json>,
) -> Option<Map<String, Json>> {
    if !["functions", "datetime"].into_iter().all(|name| template.mentions(name)) {
        return None;
    }
    let mut variables = variables.clone();
    let functions: Vec<&Json> = tools.unwrap_or_default().iter().map(function_of).collect();
    variables.entry("functions").or_insert_with(|| json!(functions).to_string().into());
    // Without the time, so that prompts of a day begin alike.
    let date = ChatTemplate::new("{{ strftime_now('%Y-%m-%d') }}", None, None).ok()?;
    let date = date.render(&[], None, false, &Map::new()).ok()?.text;
    variables.entry("datetime").or_insert_with(|| date.into());
    Some(variables)
}

fn function_of(tool: &Json) -> &Json {
    tool.get("function").unwrap_or(tool)
}

/// A message with its calls at the end of its text, as the model writes them.
fn with_text_of_calls(message: &Json, marks: Option<&CallMarks>) -> Json {
    let Some(calls) = message["tool_calls"].as_array() else { return message.clone() };
    let Some(written) = marks.and_then(|marks| marks.write(calls)) else {
        return generic_tools::as_text(message);
    };
    let content = message["content"].as_str().unwrap_or_default();
    let mut message = message.clone();
    message["content"] = format!("{content}{}{written}", if content.is_empty() { "" } else { "\n" }).into();
    message.as_object_mut().map(|fields| fields.shift_remove("tool_calls"));
    message
}

/// Ids of calls that are nine letters and digits, as Mistral's templates demand: the same id always becomes the same.
/// `None`: all are.
pub(super) fn with_short_ids(messages: &[Json]) -> Option<Vec<Json>> {
    let is_short = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut has_changed = false;
    let mut shorten = |id: &mut Json| {
        if let Some(long) = id.as_str().filter(|id| !is_short(id)) {
            *id = nine(fnv(long)).into();
            has_changed = true;
        }
    };
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(&mut shorten);
        message.get_mut("tool_call_id").into_iter().for_each(&mut shorten);
    }
    has_changed.then_some(messages)
}

/// The hash FNV-1a, which is the same in each process, so that cached prompts are found.
fn fnv(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A turn for each call, with its result after it, as Llama 3's templates demand. `None`: no turn has several calls.
pub(super) fn with_single_calls(messages: &[Json]) -> Option<Vec<Json>> {
    let calls_of = |message: &Json| message["tool_calls"].as_array().cloned().unwrap_or_default();
    if !messages.iter().any(|message| calls_of(message).len() > 1) {
        return None;
    }
    let mut all = Vec::with_capacity(messages.len());
    let mut rest = messages.iter().peekable();
    while let Some(message) = rest.next() {
        let calls = calls_of(message);
        if calls.len() < 2 {
            all.push(message.clone());
            continue;
        }
        let mut results: Vec<&Json> = Vec::new();
        while let Some(result) = rest.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for (index, call) in calls.into_iter().enumerate() {
            // Results without ids come in the order of the calls.
            let of_call =
                |result: &&Json| result["tool_call_id"].is_null() || result["tool_call_id"] == call["id"];
            let result = results.iter().position(of_call).map(|at| results.remove(at).clone());
            let mut turn = message.clone();
            if index > 0 {
                turn["content"] = "".into();
                turn.as_object_mut().map(|fields| fields.shift_remove("reasoning_content"));
            }
            turn["tool_calls"] = vec![call].into();
            all.push(turn);
            all.extend(result);
        }
        all.extend(results.into_iter().cloned());
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str) -> Json {
        json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": {} } })
    }

    fn result(id: &str) -> Json {
        json!({ "role": "tool", "tool_call_id": id, "content": id })
    }

    #[test]
    fn calls_that_a_template_leaves_out_are_text() {
        let asked = json!({ "role": "assistant", "content": "Hm.", "tool_calls": [
            { "function": { "name": "f", "arguments": { "a": "x\"", "b": [true, null], "c": { "d": 1 } } } },
            { "function": { "name": "g", "arguments": {} } },
        ] });
        let of = |template: &str| {
            let form = Written::None.form(std::slice::from_ref(&asked), CallMarks::of_template(template));
            form.unwrap()[0]["content"].as_str().unwrap().to_string()
        };
        assert_eq!(
            of("List of tools: "),
            "Hm.\n<|tool_call_start|>[f(a=\"x\\\"\", b=[True, None], c={\"d\": 1}), g()]<|tool_call_end|>"
        );
        assert_eq!(
            of("<|tool_call|>"),
            "Hm.\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\":\"x\\\"\",\"b\":[true,null],\"c\":{\"d\":1}}}, \
             {\"name\": \"g\", \"arguments\": {}}]"
        );
        assert!(of("none").starts_with("Hm.\n<tool_call>{\"name\":\"f\""));
    }

    #[test]
    fn long_ids_become_short_ones_that_stay_the_same() {
        let messages = [
            json!({ "role": "assistant", "content": "", "tool_calls": [call("call_1"), call("abcdefgh9")] }),
            result("call_1"),
            result("abcdefgh9"),
        ];
        let short = with_short_ids(&messages).unwrap();
        let id = short[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!((&short[1]["tool_call_id"], &short[2]["tool_call_id"]), (&json!(id), &json!("abcdefgh9")));
        assert_eq!(short[0]["tool_calls"][1]["id"], "abcdefgh9");
        assert_eq!(with_short_ids(&messages).unwrap(), short);
        assert_eq!(with_short_ids(&short), None);
    }

    #[test]
    fn each_call_gets_a_turn_with_its_result() {
        let said = |content: &str, calls: Vec<Json>| json!({ "role": "assistant", "content": content, "tool_calls": calls });
        let user = json!({ "role": "user", "content": "a" });
        let messages =
            [user.clone(), said("b", vec![call("1"), call("2")]), result("2"), result("1"), user.clone()];
        let expected = [
            user.clone(),
            said("b", vec![call("1")]),
            result("1"),
            said("", vec![call("2")]),
            result("2"),
            user.clone(),
        ];
        assert_eq!(with_single_calls(&messages).unwrap(), expected);
        assert_eq!(with_single_calls(&expected), None);
    }
}
