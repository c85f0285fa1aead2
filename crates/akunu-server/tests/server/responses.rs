//! OpenAI's `/v1/responses`.

use std::time::{Duration, Instant};

use akunu_server::Keys;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::http::{Answer, request, send};
use crate::schema::Description;
use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{CALLER, caller, caller_of};

const PATH: &str = "/v1/responses";

fn serve_caller() -> (TempDir, Served) {
    let (folder, model) = caller();
    (folder, serve_with(|options| options.models.models.push(model)))
}

fn with(mut body: Json, more: Json) -> Json {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tale(more: Json) -> Json {
    let body = json!({
        "model": TALES, "input": "tell me a story about a fox", "max_output_tokens": 20, "temperature": 0,
    });
    with(body, more)
}

fn tool(name: &str) -> Json {
    json!({ "type": "function", "name": name, "parameters": { "type": "object" }, "strict": true })
}

fn calling(more: Json) -> Json {
    let body = json!({
        "model": CALLER, "input": "What time is it?", "temperature": 0, "tools": [tool("clock"), tool("add")],
    });
    with(body, more)
}

/// The data of events. Checks names, numbers and, with OpenAI's description, forms.
fn events(answer: &Answer) -> Vec<Json> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{}", answer.text());
    let text = answer.text();
    let description = Description::open();
    let read = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Json = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        assert_eq!(data["sequence_number"], number);
        if let Some(description) = &description {
            description.assert("ResponseStreamEvent", &data);
        }
        data
    };
    text.split_terminator("\n\n").enumerate().map(read).collect()
}

fn send_to(server: &Served, method: &str, path: &str, key: &str) -> Answer {
    send(server.address(), &request(method, path, &[("x-api-key", key)], b""))
}

/// The types of items.
fn kinds(output: &Json) -> Vec<&str> {
    output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}

#[test]
fn a_text_is_answered_whole_or_in_events() {
    let server = serve();
    let metadata = json!({ "topic": "foxes" });
    let whole = server.ok(PATH, &tale(json!({ "metadata": metadata, "instructions": "Be brief." })));
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!((&whole["status"], &whole["object"]), (&json!("incomplete"), &json!("response")));
    assert_eq!(whole["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(whole["output"][0]["status"], "incomplete");
    assert_eq!((&whole["metadata"], &whole["instructions"]), (&metadata, &json!("Be brief.")));
    let usage = &whole["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!((count("output_tokens"), count("total_tokens")), (20, count("input_tokens") + 20));
    if let Some(description) = Description::open() {
        description.assert("Response", &whole);
    }

    let asked = tale(json!({ "stream": true, "instructions": "Be brief." }));
    let events = events(&server.post(PATH, &asked));
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds, expected);
    let streamed: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(streamed, text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["usage"]["input_tokens"], usage["input_tokens"]);
    let id = last["id"].as_str().unwrap();
    assert_eq!(&server.get(&format!("{PATH}/{id}")).json(), last);
}

#[test]
fn reasoning_text_and_calls_are_items() {
    let (_folder, server) = serve_caller();
    let whole = server.ok(PATH, &calling(json!({})));
    let output = &whole["output"];
    assert_eq!(kinds(output), ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "Hmm." }]));
    assert_eq!(
        (&output[1]["content"][0]["text"], &whole["status"]),
        (&json!("Let me see."), &json!("completed"))
    );
    let call = |at: usize| (output[at]["name"].as_str().unwrap(), output[at]["arguments"].as_str().unwrap());
    assert_eq!([call(2), call(3)], [("clock", "{\"zone\": \"UTC\"}"), ("add", "{\"b\": 1, \"a\": 2}")]);
    assert!(whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    assert_eq!((&whole["tools"][0]["strict"], &whole["tool_choice"]), (&json!(true), &json!("auto")));
    if let Some(description) = Description::open() {
        description.assert("Response", &whole);
    }

    let events = events(&server.post(PATH, &calling(json!({ "stream": true }))));
    let of_item = |at: usize| {
        let own = events.iter().filter(|event| event["output_index"] == at);
        let mut kinds: Vec<&str> = own.map(|event| event["type"].as_str().unwrap()).collect();
        kinds.dedup();
        kinds.into_iter().map(|kind| kind.strip_prefix("response.").unwrap()).collect::<Vec<_>>()
    };
    let expected = [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ];
    assert_eq!(of_item(0), expected);
    let expected = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ];
    assert_eq!((of_item(2), of_item(3)), (expected.to_vec(), expected.to_vec()));
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], kinds(&last["response"]["output"])),
        (&json!("response.completed"), kinds(output))
    );
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    assert_eq!(done.map(|event| event["item"].clone()).collect::<Json>(), last["response"]["output"]);

    let one = server.ok(PATH, &calling(json!({ "parallel_tool_calls": false })));
    assert_eq!(kinds(&one["output"]), ["reasoning", "message", "function_call"]);
    let none = server.ok(PATH, &calling(json!({ "tool_choice": "none" })));
    assert_eq!(kinds(&none["output"]), ["reasoning", "message"]);
}

#[test]
fn functions_of_namespaces_are_called_with_both_names() {
    let (_folder, model) = caller_of("sub__clock");
    let server = serve_with(|options| options.models.models.push(model));
    let namespace =
        json!({ "type": "namespace", "name": "sub", "description": "Agents.", "tools": [tool("clock")] });
    let asked = calling(json!({ "tools": [tool("add"), namespace] }));
    let whole = server.ok(PATH, &asked);
    let call = &whole["output"][1];
    assert_eq!((&call["namespace"], &call["name"]), (&json!("sub"), &json!("clock")), "{whole}");
    assert_eq!(whole["tools"][1]["tools"][0]["name"], "clock");
    // The call and its output, sent back.
    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "noon" });
    let mut again = asked.clone();
    again["input"] = json!([{ "role": "user", "content": "What time is it?" }, call, output]);
    assert_eq!(server.ok(PATH, &again)["output"][1]["namespace"], "sub");
    let twice = json!({ "tools": [tool("sub__clock"), namespace] });
    let refused = server.post(PATH, &calling(twice));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools")));
    let nested = json!({ "tools": [{ "type": "namespace", "name": "a", "tools": [namespace] }] });
    assert_eq!(server.post(PATH, &calling(nested)).json()["error"]["param"], "tools[0].tools[0].type");
}

#[test]
fn a_strict_function_must_have_a_schema_that_can_be_held() {
    let (_folder, server) = serve_caller();
    let schema = json!({ "type": "object", "properties": { "a": { "$ref": "https://example.org/a.json" } } });
    let of =
        |strict: bool| json!({ "type": "function", "name": "clock", "parameters": schema, "strict": strict });
    let ask = |strict: bool| server.post(PATH, &calling(json!({ "tools": [of(strict), tool("add")] })));
    let refused = ask(true);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("invalid_schema")));
    assert_eq!(ask(false).status, 200);
}

/// Codex offers a search that only finds what OpenAI has stored, unless it is configured otherwise.
#[test]
fn a_search_without_the_web_is_ignored_with_a_warning() {
    let (_folder, server) = serve_caller();
    let search = |access: bool| json!({ "type": "web_search", "external_web_access": access });
    let answer = server.post(PATH, &calling(json!({ "tools": [tool("clock"), tool("add"), search(false)] })));
    let warning = answer.header("x-akunu-warnings").unwrap();
    assert!(answer.status == 200 && warning.starts_with("ignored: web_search in tools;"), "{warning}");
    let refused = server.post(PATH, &calling(json!({ "tools": [search(true)] })));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools[0].type")));
}

#[test]
fn a_required_call_is_made_in_the_tools_schema() {
    let server = serve();
    let schema = json!({ "type": "object", "properties": { "zone": { "enum": ["UTC"] } }, "required": ["zone"],
        "additionalProperties": false });
    let tools = json!([tool("add"), { "type": "function", "name": "clock", "parameters": schema }]);
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "clock" }] });
    for choice in [json!({ "type": "function", "name": "clock" }), allowed] {
        let asked = tale(json!({ "tools": tools, "tool_choice": choice, "max_output_tokens": 200 }));
        let whole = server.ok(PATH, &asked);
        let call = &whole["output"][0];
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("clock")));
        let arguments: Json = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((arguments, &whole["tool_choice"]), (json!({ "zone": "UTC" }), &choice));
    }
}

#[test]
fn text_format_constrains_the_answer() {
    let server = serve();
    let schema = json!({ "type": "object", "properties": { "animal": { "enum": ["fox"] } },
        "required": ["animal"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "animal", "schema": schema, "strict": true });
    let whole = server.ok(PATH, &tale(json!({ "text": { "format": format }, "max_output_tokens": 100 })));
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Json>(text).unwrap(), json!({ "animal": "fox" }));
    assert_eq!((&whole["text"]["format"], &whole["status"]), (&format, &json!("completed")));
    if let Some(description) = Description::open() {
        description.assert("Response", &whole);
    }
}

#[test]
fn log_probabilities_are_included_on_demand() {
    let server = serve();
    let asked = tale(json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }));
    let whole = server.ok(PATH, &asked);
    let content = &whole["output"][0]["content"][0];
    let logprobs = content["logprobs"].as_array().unwrap();
    let text: String = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, content["text"].as_str().unwrap());
    assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
}

#[test]
fn a_response_continues_a_stored_one_as_if_all_were_sent() {
    let (_folder, server) = serve_caller();
    let first = server.ok(PATH, &calling(json!({})));
    let calls: Vec<&Json> =
        first["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call").collect();
    let outputs: Vec<Json> = calls
        .iter()
        .map(|call| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "noon" }))
        .collect();
    let second = server.ok(PATH, &calling(json!({ "input": outputs, "previous_response_id": first["id"] })));
    assert_eq!(second["previous_response_id"], first["id"]);
    let mut all = vec![json!({ "role": "user", "content": "What time is it?" })];
    all.extend(first["output"].as_array().unwrap().iter().cloned());
    all.extend(outputs.iter().cloned());
    let whole = server.ok(PATH, &calling(json!({ "input": all, "store": false })));
    assert_eq!(whole["usage"]["input_tokens"], second["usage"]["input_tokens"]);
    assert!(second["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());

    let at = |id: &Json| format!("{PATH}/{}", id.as_str().unwrap());
    assert_eq!(server.get(&at(&first["id"])).json(), first);
    assert_eq!(server.get(&at(&whole["id"])).status, 404);
    let page = |query: &str| server.get(&format!("{}/input_items{query}", at(&second["id"]))).json();
    let items = page("?order=asc");
    assert_eq!((kinds(&items["data"]).len(), &items["data"][1]["output"]), (2, &json!("noon")));
    let one = page("?limit=1");
    assert_eq!((&one["has_more"], &one["first_id"]), (&json!(true), &items["data"][1]["id"]));
    assert_eq!(page("?include%5B%5D=message.output_text.logprobs&order=asc"), items);
    let rest = page(&format!("?after={}", one["last_id"].as_str().unwrap()));
    assert_eq!((&rest["has_more"], &rest["data"]), (&json!(false), &json!([items["data"][0]])));
    if let Some(description) = Description::open() {
        description.assert("ResponseItemList", &items);
    }

    let deleted = send_to(&server, "DELETE", &at(&first["id"]), "").json();
    assert_eq!(deleted, json!({ "id": first["id"], "object": "response", "deleted": true }));
    assert_eq!(send_to(&server, "DELETE", &at(&first["id"]), "").status, 404);
    let refused = server.post(PATH, &calling(json!({ "input": "a", "previous_response_id": first["id"] })));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    // Later turns have what they need.
    let third = calling(json!({ "input": "Thanks.", "previous_response_id": second["id"] }));
    let answer = server.post(PATH, &third);
    // The calls of the second answer have no outputs.
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input")));
}

#[test]
fn stored_responses_belong_to_an_api_key() {
    let server = serve_with(|options| options.keys = Keys::new("one two"));
    let body = tale(json!({ "max_output_tokens": 1 })).to_string();
    let json_type = ("content-type", "application/json");
    let post = |path: &str, body: &str, key: &str| {
        let headers = [("x-api-key", key), json_type];
        send(server.address(), &request("POST", path, &headers, body.as_bytes()))
    };
    let made = post(PATH, &body, "one").json();
    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    let more = tale(json!({ "previous_response_id": made["id"] })).to_string();
    for (key, status, cancelled) in [("two", 404, 404), ("one", 200, 400)] {
        assert_eq!(send_to(&server, "GET", &path, key).status, status);
        assert_eq!(send_to(&server, "GET", &format!("{path}/input_items"), key).status, status);
        assert_eq!(send_to(&server, "POST", &format!("{path}/cancel"), key).status, cancelled);
        assert_eq!(post(PATH, &more, key).status, if key == "one" { 200 } else { 400 });
    }
    assert_eq!(send_to(&server, "DELETE", &path, "two").status, 404);
    assert_eq!(send_to(&server, "DELETE", &path, "one").status, 200);
}

#[test]
fn stored_responses_are_limited() {
    let server = serve_with(|options| {
        options.limits.responses = 2;
        options.limits.response_bytes = 20_000;
    });
    let short = tale(json!({ "max_output_tokens": 1 }));
    let ids: Vec<String> =
        (0..3).map(|_| server.ok(PATH, &short)["id"].as_str().unwrap().to_string()).collect();
    let statuses: Vec<u16> = ids.iter().map(|id| server.get(&format!("{PATH}/{id}")).status).collect();
    assert_eq!(statuses, [404, 200, 200]);
    let metadata = json!({ "input": "a ".repeat(6000), "truncation": "auto" });
    let refused = server.post(PATH, &tale(metadata));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (413, &json!("conversation_too_large")));
}

#[test]
fn truncation_leaves_out_the_first_turns() {
    let server = serve_with(|options| options.models.engine.context = Some(128));
    let turn = |text: &str| json!({ "role": "user", "content": text });
    let long = "the fox and the dog ".repeat(6);
    let mut input: Vec<Json> = (0..8).map(|_| turn(&long)).collect();
    input.push(turn("tell me a story about a fox"));
    let mut asked = tale(json!({ "input": input, "max_output_tokens": 4 }));
    let refused = server.post(PATH, &asked);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    asked["truncation"] = "auto".into();
    let whole = server.ok(PATH, &asked);
    assert!(whole["usage"]["input_tokens"].as_u64().unwrap() < 128);
    let alone = tale(json!({ "input": [turn(&long.repeat(20))], "truncation": "auto" }));
    assert_eq!(server.post(PATH, &alone).status, 400);
}

#[test]
fn errors_name_the_parameter() {
    let server = serve();
    let say = |part: Json| json!({ "input": [{ "role": "user", "content": [part] }] });
    let item = |item: Json| json!({ "input": [item] });
    for (fields, param) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 3 }), "input"),
        (item(json!(3)), "input[0]"),
        (item(json!({ "role": "king", "content": "a" })), "input[0].role"),
        (item(json!({ "content": "a" })), "input[0].role"),
        (item(json!({ "role": "user" })), "input[0].content"),
        (item(json!({ "role": "user", "content": 3 })), "input[0].content"),
        (say(json!({ "type": "input_image", "image_url": "a" })), "input[0].content[0]"),
        (say(json!({ "type": "input_file" })), "input[0].content[0]"),
        (say(json!({ "type": "input_text" })), "input[0].content[0]"),
        (say(json!("a")), "input[0].content[0]"),
        (item(json!({ "type": "item_reference", "id": "a" })), "input[0].type"),
        (item(json!({ "type": "web_search_call", "id": "a" })), "input[0].type"),
        (item(json!({ "type": "reasoning", "encrypted_content": "a" })), "input[0].encrypted_content"),
        (item(json!({ "type": "reasoning", "content": [3] })), "input[0].content"),
        (item(json!({ "type": "function_call", "call_id": "a", "name": "f" })), "input[0].arguments"),
        (item(json!({ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" })), "input"),
        (item(json!({ "type": "function_call_output", "call_id": "a", "output": "b" })), "input"),
        (item(json!({ "type": "function_call_output", "output": "b" })), "input[0].call_id"),
        (json!({ "instructions": 3 }), "instructions"),
        (json!({ "background": true }), "background"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "a" } }), "prompt"),
        (json!({ "max_tokens": 5 }), "max_tokens"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "n": 2 }), "n"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "truncation": "some" }), "truncation"),
        (json!({ "store": "yes" }), "store"),
        (json!({ "stream": 1 }), "stream"),
        (json!({ "stream_options": { "include_obfuscation": false } }), "stream_options"),
        (
            json!({ "stream": true, "stream_options": { "include_obfuscation": true } }),
            "stream_options.include_obfuscation",
        ),
        (json!({ "include": ["file_search_call.results"] }), "include"),
        (json!({ "include": [3] }), "include"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "metadata": { "a": 3 } }), "metadata"),
        (json!({ "metadata": { "a": "b".repeat(513) } }), "metadata"),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "reasoning": { "summary": "long" } }), "reasoning.summary"),
        (json!({ "reasoning": "high" }), "reasoning"),
        (json!({ "text": { "verbosity": "loud" } }), "text.verbosity"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema", "schema": {} } } }), "text.format.name"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "a" } } }), "text.format.schema"),
        (json!({ "text": { "format": { "type": "json_object" } }, "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "name": "f" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].name"),
        (json!({ "tools": [tool("not a name")] }), "tools[0].name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": "sometimes" }), "tool_choice"),
        (json!({ "tools": [tool("f")], "tool_choice": { "type": "function", "name": "g" } }), "tool_choice"),
        (json!({ "tool_choice": { "type": "file_search" } }), "tool_choice.type"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "model": 3 }), "model"),
    ] {
        let answer = server.post(PATH, &tale(fields.clone()));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{fields}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let unknown = server.post(PATH, &tale(json!({ "model": "other" })));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")] {
        let answer = send_to(&server, method, &format!("{PATH}/resp_1{path}"), "");
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("response_not_found")));
    }
    let made = server.ok(PATH, &tale(json!({ "max_output_tokens": 1 })));
    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    for (query, param) in [
        ("?stream=true", "stream"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=other", "after"),
    ] {
        let answer = server.get(&format!("{path}{query}"));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{query}");
    }
}

#[test]
fn items_become_messages_of_a_template() {
    let server = serve();
    let tokens = |more: Json| {
        let whole = server.ok(PATH, &tale(with(json!({ "max_output_tokens": 1 }), more)));
        whole["usage"]["input_tokens"].as_u64().unwrap()
    };
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    let (one, other, fox) = (
        say("system", "Be brief."),
        say("developer", "Be kind."),
        say("user", "tell me a story about a fox"),
    );
    let joined = say("system", "Be brief.\n\nBe kind.");
    assert_eq!(tokens(json!({ "input": [one, other, fox] })), tokens(json!({ "input": [joined, fox] })));
    let instructed = json!({ "input": [other, fox], "instructions": "Be brief." });
    assert_eq!(tokens(instructed), tokens(json!({ "input": [joined, fox] })));
    let chat = json!({ "model": TALES, "messages": [joined, fox], "max_tokens": 1 });
    let chat = server.ok("/v1/chat/completions", &chat);
    assert_eq!(chat["usage"]["prompt_tokens"], tokens(json!({ "input": [joined, fox] })));
}

#[test]
fn a_folder_keeps_responses_for_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || serve_with(|options| options.response_folder = Some(folder.path().join("responses")));
    let server = serve();
    let first = server.ok(PATH, &tale(json!({})));
    let id = first["id"].as_str().unwrap().to_string();
    let deleted = server.ok(PATH, &tale(json!({})))["id"].as_str().unwrap().to_string();
    let file = |id: &str| folder.path().join(format!("responses/{id}.json"));
    // They are written after the response.
    let until = Instant::now() + Duration::from_secs(20);
    while !(file(&id).exists() && file(&deleted).exists()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(send_to(&server, "DELETE", &format!("{PATH}/{deleted}"), "").status, 200);
    assert!(!file(&deleted).exists());
    drop(server);

    let server = serve();
    assert_eq!(send_to(&server, "GET", &format!("{PATH}/{id}"), "").json(), first);
    assert_eq!(send_to(&server, "GET", &format!("{PATH}/{deleted}"), "").status, 404);
    let next = server.ok(PATH, &tale(json!({ "input": "and then?", "previous_response_id": id })));
    let tokens = |answer: &Json| answer["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&next) > tokens(&first));
    let missing = server.post(PATH, &tale(json!({ "previous_response_id": deleted })));
    assert_eq!(missing.json()["error"]["code"], "previous_response_not_found");
}

#[test]
fn input_tokens_are_those_that_a_request_uses() {
    let server = serve();
    let count = |body: &Json| {
        let counted = server.ok("/v1/responses/input_tokens", body);
        assert_eq!(counted["object"], "response.input_tokens");
        counted["input_tokens"].clone()
    };
    let first = json!({ "model": TALES, "input": "tell me a story about a fox", "max_output_tokens": 5 });
    let answer = server.ok(PATH, &first);
    assert_eq!(count(&first), answer["usage"]["input_tokens"]);
    let mut next = json!({ "model": TALES, "input": "and then?", "previous_response_id": answer["id"] });
    next["max_output_tokens"] = 5.into();
    assert_eq!(count(&next), server.ok(PATH, &next)["usage"]["input_tokens"]);
    next["previous_response_id"] = "resp_nobody".into();
    assert_eq!(server.post("/v1/responses/input_tokens", &next).status, 400);
}
