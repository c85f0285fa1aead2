//! Parses tool calls as written by real chat templates.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use crate::common::shared;
use akunu::chat::{Call, CallMarks, CallReader, ChatTemplate, Segment};
use akunu::{Calls, ResponseFormat, Tool, WithoutCalls};
use akunu_grammar::{Client, Limits, Session, Vocabulary, Workers};
use akunu_testing::fewest_or;
use serde_json::{Map, Value as Json, json};

/// Templates that have marks but do not write earlier calls: at all, or beside a text.
const SILENT: [&str; 4] = [
    "ibm-granite-granite-3.3-2B-Instruct.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
    "LFM2-8B-A1B.jinja",
    "LFM2.5-Instruct.jinja",
];

fn tools() -> Vec<Json> {
    let parameters = json!({ "type": "object", "properties": {
        "zone": { "type": "string" }, "count": { "type": "integer" }, "all": { "type": "boolean" } } });
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "description": "x", "parameters": parameters } });
    vec![tool("clock"), tool("add")]
}

fn call() -> Json {
    json!({ "name": "clock", "arguments": { "zone": "a \"<tool_call>\" {", "count": 3, "all": true } })
}

/// The text of a tool call after the prompt; `None`: the template refuses the conversation.
fn written(template: &ChatTemplate) -> Option<String> {
    let user = json!({ "role": "user", "content": "What time is it?" });
    let assistant = json!({ "role": "assistant", "content": "", "tool_calls": [
        { "id": "abcdefghi", "type": "function", "function": call() } ] });
    let render = |messages: &[Json], add_prompt: bool| {
        // Firefunction's template wants two more, which `akunu::chat::render` gives it.
        let variables = ["functions", "datetime"].map(|name| (name.to_string(), json!("x")));
        let variables = variables.into_iter().filter(|(name, _)| template.mentions(name)).collect();
        template.render(messages, Some(&tools()), add_prompt, &variables).map(|rendered| rendered.text)
    };
    let prompt = render(std::slice::from_ref(&user), true).ok()?;
    let whole = render(&[user, assistant], false).ok()?;
    let common = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    // The prompt may end with the opening tag of reasoning, which has the same prefix as the mark of a call.
    let open = whole[..common].rfind('<').filter(|&at| !whole[at..common].contains('>'));
    Some(whole[open.unwrap_or(common)..].to_string())
}

fn calls_in(marks: &'static CallMarks, text: &str) -> Vec<Call> {
    let mut reader = CallReader::new(marks, tools());
    let mut calls = Vec::new();
    let mut on_segment = |segment: Segment<'_>| {
        if let Segment::Call(call) = segment {
            calls.push(call);
        }
    };
    // A character at a time.
    text.chars().for_each(|c| reader.push(c.encode_utf8(&mut [0; 4]), &mut on_segment));
    reader.finish(&mut on_segment);
    calls
}

/// An answer with calls of tools, of bytes.
fn session(marks: &CallMarks, tools: &[Json], without: WithoutCalls) -> Session {
    static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
        let bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        Arc::new(Vocabulary::new(&bytes, Limits::default()).unwrap())
    });
    static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(Arc::default);
    let tools = tools.iter().filter_map(Tool::from_openai).collect();
    let format = ResponseFormat::Calls(Calls { form: marks.form(), tools, is_single: false, without });
    let grammar = WORKERS.compile(&VOCABULARY, &format, None, Client::default()).unwrap();
    Session::new(WORKERS.clone(), Arc::new(grammar))
}

/// Whether the grammar of calls takes a text, and where it stops if not.
fn held(marks: &CallMarks, text: &str) -> Result<(), String> {
    let mut session = session(marks, &tools(), WithoutCalls::Text);
    for (at, byte) in text.bytes().enumerate() {
        if !session.mask().map_err(|error| error.to_string())?.contains(u32::from(byte)) {
            return Err(format!("stops before {:?}", String::from_utf8_lossy(&text.as_bytes()[at..])));
        }
        session.push(u32::from(byte));
    }
    if session.is_over() {
        return Ok(());
    }
    match session.mask().map_err(|error| error.to_string())?.may_end {
        true => Ok(()),
        false => Err("may not end".into()),
    }
}

#[test]
fn calls_of_real_templates_are_parsed() {
    let Some(folder) = shared("chat-templates") else { return };
    let (mut read, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().to_string();
        let Some(source) = std::fs::read_to_string(&path).ok().filter(|_| name.ends_with(".jinja")) else {
            continue;
        };
        let Some(marks) = CallMarks::of_template(&source) else { continue };
        let Some(text) = written(&ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap()) else {
            println!("{name} refuses the conversation");
            continue;
        };
        let calls: Vec<Json> = calls_in(marks, &text)
            .into_iter()
            .map(|of| json!({ "name": of.name, "arguments": of.object() }))
            .collect();
        match SILENT.contains(&name.as_str()) {
            true => assert_eq!(calls, [] as [Json; 0]),
            false => {
                let held = held(marks, &text);
                if calls != [call()] || held.is_err() {
                    wrong.push(format!("{name}: {text:?} is {calls:?}, grammar: {held:?}"));
                }
                read += 1;
            }
        }
    }
    println!("calls in the form of {read} templates");
    assert!(read > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each template, known format or not, gets what was called and what came back: several calls in a turn, over two turns,
/// with another server's ids.
#[test]
fn templates_take_calls_of_earlier_turns() {
    let Some(folder) = shared("chat-templates") else { return };
    let call = |id: &str, zone: &str| {
        json!({ "id": id, "type": "function",
        "function": { "name": "clock", "arguments": { "zone": zone } } })
    };
    let result = |id: &str, content: &str| json!({ "role": "tool", "tool_call_id": id, "name": "clock", "content": content });
    let messages = [
        json!({ "role": "system", "content": "Be brief." }),
        json!({ "role": "user", "content": "What time is it?" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call("call_0001", "zone-one"), call("call_0002", "zone-two")] }),
        result("call_0001", "result-one"),
        result("call_0002", "result-two"),
        json!({ "role": "assistant", "content": "Noon." }),
        json!({ "role": "user", "content": "And now?" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call("call_0003", "zone-three")] }),
        result("call_0003", "result-three"),
    ];
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for (name, source) in templates_in(&folder) {
        let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap();
        match akunu::chat::render(&template, &messages, Some(&tools()), true, &Map::new()) {
            Err(error) => wrong.push(format!("{name}: {error}")),
            Ok(rendered) => {
                let parts =
                    ["zone-one", "zone-two", "zone-three", "result-one", "result-two", "result-three"];
                let missing: Vec<&str> =
                    parts.into_iter().filter(|part| !rendered.text.contains(part)).collect();
                if !missing.is_empty() {
                    wrong.push(format!("{name} leaves out {missing:?}"));
                }
                taken += 1;
            }
        }
    }
    // It uses variables that no conversation has.
    wrong.retain(|wrong| !wrong.starts_with("MiroThinker.jinja:"));
    assert!(taken > 40 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What begins a call in each mode: nothing where there must be a call, and a mark, or what counts as one, in a text.
fn begins(marks: &CallMarks, name: &str) -> Vec<(String, WithoutCalls)> {
    let form = marks.form();
    let in_text = match form.text_name {
        "" if form.ends_text => format!("So {}{}", form.section[0], form.open),
        "" => format!("So {}", form.open),
        text => format!("{text}So {}{name}\n", form.open),
    };
    let mut all = vec![(String::new(), WithoutCalls::Refused), (in_text, WithoutCalls::Text)];
    if form.is_bare {
        let bare = if form.is_list { format!("[{name}(") } else { format!("{{\"name\": \"{name}\"") };
        all.push((bare, WithoutCalls::Text));
    }
    all
}

/// A random call that the grammar allows after a beginning; `None`: it is too long.
fn allowed(
    marks: &CallMarks,
    tools: &[Json],
    (begin, without): (String, WithoutCalls),
    random: &mut impl FnMut(usize) -> usize,
) -> Option<String> {
    let mut session = session(marks, tools, without);
    begin.bytes().for_each(|byte| session.push(u32::from(byte)));
    let mut text = begin.into_bytes();
    while text.len() < 2000 {
        let mask = session.mask().unwrap();
        if mask.may_end {
            return Some(String::from_utf8(text).unwrap());
        }
        let may = |byte: &u8| mask.contains(u32::from(*byte));
        let allowed: Vec<u8> = (0..=255).filter(may).collect();
        // What ends values is preferred, and so are texts that the families do not have.
        let ends: Vec<u8> = b"\"]}<,)n".iter().copied().filter(may).collect();
        let byte = match random(3) {
            0 => allowed[random(allowed.len())],
            _ if ends.is_empty() => allowed[random(allowed.len())],
            _ => ends[random(ends.len())],
        };
        session.push(u32::from(byte));
        text.push(byte);
        if session.is_over() {
            return Some(String::from_utf8(text).unwrap());
        }
    }
    None
}

#[test]
fn what_the_grammar_allows_is_parsed() {
    let schemas = [
        json!({ "type": "object", "properties": { "zone": { "type": "string" }, "all": { "type": "boolean" } },
            "required": ["zone"], "additionalProperties": false }),
        json!({ "type": "object", "properties": { "kind": { "enum": ["a <b", "c"], "type": "string" },
            "list": { "type": "array", "items": { "type": "integer" }, "minItems": 1, "maxItems": 3 } },
            "required": ["kind", "list"], "additionalProperties": false }),
        json!({ "type": "object", "properties": { "id": { "type": "string", "pattern": "^[a-f]{3}$" },
            "inner": { "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"], "additionalProperties": false } },
            "required": ["id"], "additionalProperties": false }),
        json!({ "type": "object", "additionalProperties": false }),
        json!({ "properties": { "zone": { "anyOf": [{ "type": "string" }, { "type": "null" }] } }, "required": ["zone"],
            "additionalProperties": false }),
        json!({ "type": "object" }),
    ];
    let tools: Vec<Json> = schemas
        .iter()
        .enumerate()
        .map(|(index, schema)| json!({ "type": "function", "function": { "name": format!("f{index}"), "parameters": schema } }))
        .collect();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for marks in CallMarks::all() {
        let mut read = 0;
        for round in 0..fewest_or(tools.len(), 10, 150) {
            let of_one = &tools[round % tools.len()..][..1];
            let begins = begins(marks, of_one[0]["function"]["name"].as_str().unwrap());
            let begin = begins[(round + round / tools.len()) % begins.len()].clone();
            let Some(text) = allowed(marks, of_one, begin, &mut random) else { continue };
            let mut calls = Vec::new();
            let mut rest = String::new();
            let mut reader = CallReader::new(marks, of_one.to_vec());
            let mut on_segment = |segment: Segment<'_>| match segment {
                Segment::Call(call) => calls.push(call),
                Segment::Text(text) | Segment::Cut(text) => rest.push_str(text),
                Segment::Begun(_) | Segment::Arguments(_) => {}
            };
            text.chars().for_each(|c| reader.push(c.encode_utf8(&mut [0; 4]), &mut on_segment));
            reader.finish(&mut on_segment);
            assert!(
                !calls.is_empty() && ["", "So"].contains(&rest.trim()),
                "{marks:?}: {text:?} is {calls:?} and {rest:?}"
            );
            for call in calls {
                assert_eq!(of_one[0]["function"]["name"], *call.name, "{text:?}");
                match serde_json::from_str::<Json>(&call.arguments) {
                    Ok(arguments) => check(&of_one[0]["function"]["parameters"], &arguments, &text),
                    // The grammar allows numbers with any exponent.
                    Err(error) => {
                        assert!(error.to_string().contains("number out of range"), "{text:?}: {error}")
                    }
                }
            }
            read += 1;
        }
        assert!(read > 2, "{marks:?}: {read}");
    }
}

/// Checks the keywords of the schemas above, except `pattern`, which not all formats hold.
fn check(schema: &Json, value: &Json, text: &str) {
    let shown = || format!("{value} of {schema} in {text:?}");
    let kind = match &schema["anyOf"] {
        Json::Null if schema.get("properties").is_some() => "object",
        Json::Null => schema["type"].as_str().unwrap_or_else(|| panic!("{}", shown())),
        _ => return assert!(value.is_string() || value.is_null(), "{}", shown()),
    };
    match kind {
        "object" => {
            let fields = value.as_object().unwrap_or_else(|| panic!("{}", shown()));
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{}", shown());
            }
            if schema.get("properties").is_some() {
                fields.iter().for_each(|(name, value)| check(&schema["properties"][name], value, text));
            }
        }
        "array" => value
            .as_array()
            .unwrap_or_else(|| panic!("{}", shown()))
            .iter()
            .for_each(|item| check(&schema["items"], item, text)),
        "string" => {
            assert!(value.is_string(), "{}", shown());
            if let Some(choices) = schema["enum"].as_array() {
                assert!(choices.contains(value), "{}", shown());
            }
        }
        "boolean" => assert!(value.is_boolean(), "{}", shown()),
        "integer" | "number" => assert!(value.is_number(), "{}", shown()),
        other => panic!("{other}"),
    }
}

fn calls_of(name: &str, template: &str, schema: &Json, text: &str) -> Vec<Json> {
    let marks = CallMarks::of_template(template).unwrap();
    let tools = vec![json!({ "type": "function", "function": { "name": name, "parameters": schema } })];
    let mut reader = CallReader::new(marks, tools);
    let mut calls = Vec::new();
    let mut on_segment = |segment: Segment<'_>| {
        if let Segment::Call(call) = segment {
            calls.push(Json::Object(call.object().unwrap()));
        }
    };
    text.chars().for_each(|c| reader.push(c.encode_utf8(&mut [0; 4]), &mut on_segment));
    reader.finish(&mut on_segment);
    calls
}

#[test]
fn arguments_may_have_the_marks_that_end_calls() {
    let text = json!({ "properties": { "text": { "type": "string" } } });
    for (template, open, close, mark) in [
        (
            "<parameter=",
            "<tool_call><function=f><parameter=text>",
            "</parameter></function></tool_call>",
            "</function>",
        ),
        (
            "<arg_key>",
            "<tool_call>f<arg_key>text</arg_key><arg_value>",
            "</arg_value></tool_call>",
            "</tool_call>",
        ),
        (
            "<minimax:tool_call>",
            "<minimax:tool_call><invoke name=\"f\"><parameter name=\"text\">",
            "</parameter></invoke></minimax:tool_call>",
            "</invoke>",
        ),
        ("<|tool_call>", "<|tool_call>call:f{text:<|\"|>", "<|\"|>}<tool_call|>", "<tool_call|>"),
        ("List of tools: ", "<|tool_call_start|>[f(text=\"", "\")]<|tool_call_end|>", "<|tool_call_end|>"),
    ] {
        let value = format!("a {mark} b");
        assert_eq!(
            calls_of("f", template, &text, &format!("{open}{value}{close}")),
            [json!({ "text": value })],
            "{template}"
        );
    }
    let object = json!({ "properties": { "o": { "type": "object" } } });
    let call =
        "<tool_call><function=f><parameter=o>{\"a\": \"x</parameter>y\"}</parameter></function></tool_call>";
    assert_eq!(calls_of("f", "<parameter=", &object, call), [json!({ "o": { "a": "x</parameter>y" } })]);
    let optional = json!({ "properties": { "o": { "anyOf": [{ "type": "string" }, { "type": "null" }] } } });
    for (written, value) in [("3", json!("3")), ("null", Json::Null), ("Paris", json!("Paris"))] {
        let call =
            format!("<tool_call><function=f><parameter=o>\n{written}\n</parameter></function></tool_call>");
        assert_eq!(calls_of("f", "<parameter=", &optional, &call), [json!({ "o": value })]);
    }
}

#[test]
fn calls_without_a_mark_are_held_or_text() {
    const LLAMA: &str = "\"name\": function name, \"parameters\"";
    let closed = json!({ "type": "object", "properties": { "x": { "enum": [1] } }, "required": ["x"], "additionalProperties": false });
    let marks = CallMarks::of_template(LLAMA).unwrap();
    for text in [
        "{\n    \"name\": \"clock\",\n    \"parameters\": {\"wrong\": 7}}",
        "{\"type\": \"function\", \"name\": \"clock\", \"parameters\": {\"wrong\": 7}}",
        "{\"parameters\": {\"wrong\": 7}, \"name\": \"clock\"}",
        "{\"function\": {\"name\": \"clock\", \"parameters\": {\"wrong\": 7}}}",
        "{ \"name\" : \"clock\" , \"parameters\" : {\"wrong\": 7}}",
        "{\"name\": \"other\", \"name\": \"clock\", \"parameters\": {\"wrong\": 7}}",
        "{\"name\": \"\\u0063lock\", \"parameters\": {\"wrong\": 7}}",
    ] {
        let parsed = calls_of("clock", LLAMA, &closed, text);
        let tool = json!({ "type": "function", "function": { "name": "clock", "parameters": closed } });
        let mut session = session(marks, &[tool], WithoutCalls::Text);
        let is_held = text.bytes().any(|byte| {
            let is_out = !session.mask().unwrap().contains(u32::from(byte));
            session.push(u32::from(byte));
            is_out
        });
        assert!(parsed.is_empty() || is_held, "{text}: {parsed:?}");
    }
}

/// The names and texts of a folder's templates.
fn templates_in(folder: &Path) -> Vec<(String, String)> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let templates = paths.filter(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().to_string();
    templates.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

/// Which templates of the data folder take tools and have no known form of calls: their tools are text.
#[test]
fn few_templates_with_tools_have_no_known_calls() {
    let Some(folder) = shared("chat-templates") else { return };
    let mut unknown: Vec<String> = Vec::new();
    for (name, source) in templates_in(&folder) {
        let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap();
        if template.writes_tools() && CallMarks::of_template(&source).is_none() {
            unknown.push(name);
        }
    }
    unknown.sort();
    // Command R+ is asked for a call in each turn, one of which means that it answers.
    assert_eq!(unknown, ["CohereForAI-c4ai-command-r-plus-tool_use.jinja"]);
}

/// What a template writes for a conversation with tools, calls and results.
fn conversation(template: &str) -> String {
    let template = ChatTemplate::new(template, Some("<s>"), Some("</s>")).unwrap();
    let of = |id: &str| json!({ "id": id, "type": "function", "function": call() });
    let messages = [
        json!({ "role": "user", "content": "What time is it?" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [of("abcdefghi"), of("abcdefghj")] }),
        json!({ "role": "tool", "tool_call_id": "abcdefghi", "content": "noon" }),
        json!({ "role": "tool", "tool_call_id": "abcdefghj", "content": "one" }),
    ];
    akunu::chat::render(&template, &messages, Some(&tools()), true, &Map::new()).unwrap().text
}

/// Phi 4 mini's template has tools in a field of the system's message, and leaves out calls.
const PHI: &str = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\
    {% if message['tools'] %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Llama 4's has an empty piece of code before calls.
const LLAMA_4: &str = "{% if tools %}Respond in the format {\"name\": function name, \"parameters\": its arguments}.\
    {{ tools | tojson }}{% endif %}{% for message in messages %}<|header_start|>{{ message.role }}<|header_end|>\n\n\
    {% if message.tool_calls %}<|python_start|>{{ message.content }}<|python_end|>{% for call in message.tool_calls %}\
    {\"name\": \"{{ call.function.name }}\", \"parameters\": {{ call.function.arguments | tojson }}}{% endfor %}\
    {% else %}{{ message.content }}{% endif %}<|eot|>{% endfor %}";

#[test]
fn calls_of_templates_in_short_are_parsed() {
    for (template, has) in
        [(PHI, "<|tool|>[{\"name\":\"clock\","), (LLAMA_4, "\"name\": \"clock\", \"parameters\"")]
    {
        let text = conversation(template);
        assert!(text.contains(has) && text.contains("noon"), "{text}");
        let marks = CallMarks::of_template(template).unwrap();
        let start = text.find(marks.form().section[0]).filter(|_| template == LLAMA_4);
        let start = start.unwrap_or_else(|| text.find(marks.open()).unwrap());
        let written = &text[start..start + text[start..].find("<|e").unwrap()];
        let calls: Vec<Json> = calls_in(marks, written)
            .into_iter()
            .map(|of| json!({ "name": of.name, "arguments": of.object() }))
            .collect();
        assert_eq!(calls, [call(), call()], "{written}");
        assert_eq!(held(marks, written), Ok(()), "{written}");
    }
}

#[test]
fn tools_come_in_the_variable_that_a_template_reads() {
    let Some(path) = shared("chat-templates/fireworks-ai-llama-3-firefunction-v2.jinja") else { return };
    let text = conversation(&std::fs::read_to_string(path).unwrap());
    for part in ["[{\"name\":\"clock\",", "functools[{\"name\": \"clock\"", "noon", "Today is 20"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
