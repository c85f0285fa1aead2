//! Tool calls in three protocols.

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::schema::Description;
use crate::serve::{Served, serve_with};
use crate::thinker::{CALLER, caller, callers, counter, namer};

const CHAT: &str = "/v1/chat/completions";

fn serve() -> (TempDir, Served) {
    let (folder, model) = caller();
    (folder, serve_with(|options| options.models.models.push(model)))
}

fn body(more: Json) -> Json {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } });
    let mut body = json!({
        "model": CALLER, "messages": [{ "role": "user", "content": "What time is it?" }],
        "temperature": 0, "max_tokens": 100, "tools": [tool("clock"), tool("add")],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn clock_and_add() -> Json {
    json!([
        { "type": "function", "function": { "name": "clock", "arguments": "{\"zone\": \"UTC\"}" } },
        { "type": "function", "function": { "name": "add", "arguments": "{\"b\": 1, \"a\": 2}" } },
    ])
}

/// Removes the ids, after checking that they are unique and valid for Mistral's templates.
fn without_ids(calls: &Json) -> Json {
    let mut calls = calls.as_array().unwrap().clone();
    let mut ids: Vec<String> = Vec::new();
    for call in &mut calls {
        let id = call.as_object_mut().unwrap().shift_remove("id").unwrap();
        let id = id.as_str().unwrap().to_string();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert!(!ids.contains(&id));
        ids.push(id);
    }
    calls.into()
}

/// The calls of which these are the deltas.
pub fn joined<'d>(deltas: impl Iterator<Item = &'d Json>) -> Json {
    let mut calls: Vec<Json> = Vec::new();
    for delta in deltas {
        let index = delta["index"].as_u64().unwrap() as usize;
        if delta["id"].is_string() {
            assert_eq!((index, &delta["type"]), (calls.len(), &json!("function")));
            let mut call = delta.clone();
            call.as_object_mut().unwrap().shift_remove("index");
            calls.push(call);
            continue;
        }
        let more = delta["function"]["arguments"].as_str().unwrap();
        let arguments = &mut calls[index]["function"]["arguments"];
        *arguments = format!("{}{more}", arguments.as_str().unwrap()).into();
    }
    calls.into()
}

#[test]
fn openai_response_has_tool_calls() {
    let (_folder, server) = serve();
    let whole = server.ok(CHAT, &body(json!({})));
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        (&choice["message"]["content"], &choice["message"]["reasoning_content"]),
        (&json!("Let me see."), &json!("Hmm."))
    );
    assert_eq!(without_ids(&choice["message"]["tool_calls"]), clock_and_add());
    // A second request has the message and the results.
    let result = |call: &Json| json!({ "role": "tool", "tool_call_id": call["id"], "content": "noon" });
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let mut messages =
        vec![json!({ "role": "user", "content": "What time is it?" }), choice["message"].clone()];
    messages.extend(calls.iter().map(result));
    assert_eq!(server.post(CHAT, &body(json!({ "messages": messages }))).status, 200);
    if let Some(description) = Description::open() {
        description.assert("CreateChatCompletionResponse", &whole);
    }
}

#[test]
fn openai_stream_has_the_same_tool_calls() {
    let (_folder, server) = serve();
    let mut events = server.post(CHAT, &body(json!({ "stream": true, "n": 2 }))).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Json> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for index in 0..2 {
        let choices =
            || chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let text: String = choices().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        let deltas = choices().filter_map(|choice| choice["delta"]["tool_calls"].as_array()).flatten();
        // The arguments of the first call come in more than one piece.
        assert!(deltas.clone().filter(|delta| delta["index"] == 0).count() > 2);
        let calls = joined(deltas);
        assert_eq!(text, "Let me see.");
        assert_eq!(without_ids(&calls), clock_and_add());
        assert_eq!(choices().next_back().unwrap()["finish_reason"], "tool_calls");
    }
    if let Some(description) = Description::open() {
        chunks.iter().for_each(|chunk| description.assert("CreateChatCompletionStreamResponse", chunk));
    }
}

#[test]
fn parallel_tool_calls_can_be_disabled() {
    let (_folder, server) = serve();
    let all = server.ok(CHAT, &body(json!({})));
    let one = server.ok(CHAT, &body(json!({ "parallel_tool_calls": false })));
    let calls = &one["choices"][0]["message"]["tool_calls"];
    assert_eq!(without_ids(calls)[0], clock_and_add()[0]);
    assert_eq!(
        (calls.as_array().unwrap().len(), &one["choices"][0]["finish_reason"]),
        (1, &json!("tool_calls"))
    );
    let tokens = |answer: &Json| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(tokens(&one) <= tokens(&all));
}

#[test]
fn a_call_without_tools_or_cut_off_is_text() {
    let (_folder, server) = serve();
    for more in [json!({ "tools": null }), json!({ "tool_choice": "none" })] {
        let answer = server.ok(CHAT, &body(more));
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(
            text.starts_with("Let me see.\n\n<tool_call>\n{\"name\": \"clock\"")
                && text.ends_with("</tool_call>"),
            "{text}"
        );
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["tool_calls"]),
            (&json!("stop"), &Json::Null)
        );
    }
    let cut = server.ok(CHAT, &body(json!({ "max_tokens": 6 })));
    let choice = &cut["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["tool_calls"]), (&json!("length"), &Json::Null));
    assert!(choice["message"]["content"].as_str().unwrap().contains("<tool_call>"), "{cut}");
    // In a stream, what there is of it has been sent.
    let events = server.post(CHAT, &body(json!({ "max_tokens": 6, "stream": true }))).events();
    let chunks: Vec<Json> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let deltas: Vec<&Json> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!((deltas.len(), &deltas[0]["function"]["name"]), (2, &json!("clock")), "{deltas:?}");
    assert_eq!(deltas[1]["function"]["arguments"], "{\"zo");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn ollama_messages_have_tool_calls() {
    let (_folder, server) = serve();
    let expected = json!([
        { "function": { "name": "clock", "arguments": { "zone": "UTC" } } },
        { "function": { "name": "add", "arguments": { "b": 1, "a": 2 } } },
    ]);
    let whole = server.ok("/api/chat", &body(json!({ "stream": false })));
    assert_eq!(
        (&whole["message"]["content"], &whole["done_reason"]),
        (&json!("Let me see."), &json!("stop"))
    );
    assert_eq!(without_ids(&whole["message"]["tool_calls"]), expected);
    let text = server.post("/api/chat", &body(json!({}))).text();
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let calls: Json =
        lines.filter_map(|line| line["message"]["tool_calls"].as_array().cloned()).flatten().collect();
    assert_eq!(without_ids(&calls), expected);
    let shown = server.ok("/api/show", &json!({ "model": CALLER }));
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    let model = server.get(&format!("/v1/models/{CALLER}")).json();
    assert_eq!(model["capabilities"], shown["capabilities"]);
}

/// In Ollama's API the temperature is an option, so the requests of these tests are sampled. With this seed, the draw of "J" after
/// "Let me see." exceeds that of the script's token by more than 17.
#[test]
fn sampled_answers_are_the_script_too() {
    let (_folder, server) = serve();
    let answer = server.ok("/api/chat", &body(json!({ "stream": false, "options": { "seed": 7_418_966 } })));
    assert_eq!(answer["message"]["content"], "Let me see.");
}

#[test]
fn anthropic_messages_have_tool_use_blocks() {
    let (_folder, server) = serve();
    let tools = ["clock", "add"].map(|name| json!({ "name": name, "input_schema": { "type": "object" } }));
    let request = |more: Json| {
        let mut body = body(json!({ "tools": tools }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.ok("/v1/messages", &request(json!({})));
    let content = whole["content"].as_array().unwrap();
    assert_eq!((&content[0]["type"], &content[1]["text"]), (&json!("thinking"), &json!("Let me see.")));
    let expected = json!([
        { "type": "tool_use", "name": "clock", "input": { "zone": "UTC" } },
        { "type": "tool_use", "name": "add", "input": { "b": 1, "a": 2 } },
    ]);
    assert_eq!(without_ids(&content[2..].into()), expected);
    assert_eq!(whole["stop_reason"], "tool_use");
    let one = server.ok(
        "/v1/messages",
        &request(json!({ "tool_choice": { "type": "auto", "disable_parallel_tool_use": true } })),
    );
    assert_eq!((one["content"].as_array().unwrap().len(), &one["stop_reason"]), (3, &json!("tool_use")));

    let text = server.post("/v1/messages", &request(json!({ "stream": true }))).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Json> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let of =
        |kind: &str| events.iter().filter(move |event| event["type"] == *kind).cloned().collect::<Vec<_>>();
    let indices =
        |events: &[Json]| events.iter().map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>();
    let (begun, ended) = (of("content_block_start"), of("content_block_stop"));
    assert_eq!((indices(&begun), indices(&ended)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    assert_eq!(
        (&begun[2]["content_block"]["name"], &begun[2]["content_block"]["input"]),
        (&json!("clock"), &json!({}))
    );
    let deltas = of("content_block_delta");
    let input = |index: u64| {
        deltas
            .iter()
            .filter(|event| event["index"] == index)
            .filter_map(|event| event["delta"]["partial_json"].as_str())
            .collect::<String>()
    };
    assert_eq!([input(2), input(3)], ["{\"zone\": \"UTC\"}", "{\"b\": 1, \"a\": 2}"]);
    assert_eq!(of("message_delta")[0]["delta"]["stop_reason"], "tool_use");
}

#[test]
fn calls_of_other_families_are_the_same_in_each_protocol() {
    let models = callers();
    let server = serve_with(|options| {
        options.models.models.extend(models.iter().map(|(_, model, _)| model.clone()));
    });
    let anthropic =
        ["clock", "add"].map(|name| json!({ "name": name, "input_schema": { "type": "object" } }));
    for (_, model, reasons) in &models {
        let name = &model.name;
        let ask = |more: Json| {
            let mut body = body(json!({ "model": name }));
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let reasoning = if *reasons { json!("Hmm.") } else { Json::Null };
        let text = if *reasons { json!("Let me see.") } else { Json::Null };
        // A turn of gpt-oss ends after a call.
        let expected = if *reasons { json!([clock_and_add()[0]]) } else { clock_and_add() };
        let whole = server.ok(CHAT, &ask(json!({})));
        let choice = &whole["choices"][0];
        let message = &choice["message"];
        assert_eq!(without_ids(&message["tool_calls"]), expected, "{whole}");
        assert_eq!((&message["content"], &message["reasoning_content"]), (&text, &reasoning), "{name}");
        assert_eq!(choice["finish_reason"], "tool_calls");

        let events = server.post(CHAT, &ask(json!({ "stream": true }))).events();
        let chunks: Vec<Json> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let calls = joined(deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten());
        assert_eq!(without_ids(&calls), expected, "{name}");
        let said: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
        assert_eq!(said, text.as_str().unwrap_or_default(), "{name}");

        let blocks = server.ok("/v1/messages", &ask(json!({ "tools": anthropic })));
        assert_eq!(blocks["stop_reason"], "tool_use", "{blocks}");
        let uses: Vec<&Json> = blocks["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .collect();
        assert_eq!(
            (uses.len(), &uses[0]["input"]),
            (expected.as_array().unwrap().len(), &json!({ "zone": "UTC" }))
        );

        let ollama = server.ok("/api/chat", &ask(json!({ "stream": false })));
        assert_eq!(ollama["message"]["tool_calls"].as_array().unwrap().len(), uses.len(), "{ollama}");

        let tools = ["clock", "add"].map(|name| json!({ "type": "function", "name": name }));
        let items = json!({ "model": name, "input": "What time is it?", "tools": tools, "max_output_tokens": 100, "temperature": 0 });
        let items = server.ok("/v1/responses", &items);
        let kinds: Vec<&Json> =
            items["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
        let calls = kinds.iter().filter(|kind| **kind == "function_call").count();
        assert_eq!((calls, kinds[0] == "reasoning"), (uses.len(), *reasons), "{items}");
    }
}

#[test]
fn numbers_of_arguments_are_as_the_model_wrote_them() {
    const NUMBERS: &str = "{\"n\": [12345678901234567890123, 1e999]}";
    let (_folder, model) = counter();
    let server = serve_with(|options| options.models.models.push(model));
    let quoted = Json::from(NUMBERS).to_string();
    for stream in [false, true] {
        let openai = server.post(CHAT, &body(json!({ "stream": stream }))).text();
        let ollama = server.post("/api/chat", &body(json!({ "stream": stream }))).text();
        let tools = json!([{ "name": "clock", "input_schema": { "type": "object" } }]);
        let anthropic =
            server.post("/v1/messages", &body(json!({ "stream": stream, "tools": tools }))).text();
        let input =
            if stream { format!("\"partial_json\":{quoted}") } else { format!("\"input\":{NUMBERS}") };
        for (text, part) in [
            (openai, format!("\"arguments\":{quoted}")),
            (ollama, format!("\"arguments\":{NUMBERS}")),
            (anthropic, input),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
}

#[test]
fn names_before_parts_of_an_answer_are_not_in_it() {
    let (_folder, model) = namer();
    let server = serve_with(|options| options.models.models.push(model));
    let called =
        json!([{ "type": "function", "function": { "name": "clock", "arguments": "{\"zone\": \"UTC\"}" } }]);
    let schema =
        json!({ "type": "object", "properties": { "zone": { "type": "string" } }, "required": ["zone"] });
    let tools = json!([{ "type": "function", "function": { "name": "clock", "parameters": schema } }]);
    let whole = server.ok(CHAT, &body(json!({ "tools": tools })));
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "Let me see.", "{whole}");
    assert_eq!(without_ids(&message["tool_calls"]), called);
    let events = server.post(CHAT, &body(json!({ "tools": tools, "stream": true }))).events();
    let chunks: Vec<Json> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, "Let me see.");
    let calls = joined(deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten());
    assert_eq!(without_ids(&calls), called);
    // Without tools, the name of text is removed too.
    let plain = server.ok(CHAT, &body(json!({ "tools": null })));
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("Let me see."), "{text}");
    // A tool that is required is called at once: no text can come before.
    let forced =
        server.ok(CHAT, &body(json!({ "tools": tools, "tool_choice": "required", "max_tokens": 60 })));
    assert!(
        forced["choices"][0]["message"]["content"].as_str().is_none_or(|text| !text.contains("Let")),
        "{forced}"
    );
}
