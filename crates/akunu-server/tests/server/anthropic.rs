//! Anthropic's API.

use serde_json::{Value as Json, json};

use crate::http::{request, send};
use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

fn body(more: Json) -> Json {
    let mut body = json!({
        "model": TALES, "messages": [{ "role": "user", "content": "tell me a story about a fox" }],
        "max_tokens": 20, "temperature": 0,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The data of events. Checks that an event's name is the type of its data.
fn events(server: &Served, body: &Json) -> Vec<Json> {
    let answer = server.post("/v1/messages", body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{}", answer.text());
    let text = answer.text();
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Json = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    });
    events.collect()
}

fn kinds(events: &[Json]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn a_message_is_whole_or_streamed_as_events() {
    let server = serve();
    let whole = server.ok("/v1/messages", &body(json!({})));
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("fox"), "{text}");
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!(TALES))
    );
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("max_tokens"), &Json::Null));
    assert!(whole["id"].as_str().unwrap().starts_with("msg"));
    let counted = server.ok("/v1/messages/count_tokens", &body(json!({})))["input_tokens"].as_u64().unwrap();
    let usage = |usage: &Json| {
        let count = |key: &str| usage[key].as_u64().unwrap();
        (count("input_tokens") + count("cache_read_input_tokens"), count("output_tokens"))
    };
    assert_eq!(usage(&whole["usage"]), (counted, 20));

    let events = events(&server, &body(json!({ "stream": true })));
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), expected);
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["usage"]["input_tokens"]), (&json!([]), &json!(counted)));
    let said = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect::<String>();
    assert_eq!(said, text);
    let last = &events[events.len() - 2];
    assert_eq!((&last["delta"]["stop_reason"], usage(&last["usage"])), (&json!("max_tokens"), (counted, 20)));
}

#[test]
fn thinking_is_a_block_before_the_text() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let asked = body(
        json!({ "model": THINKER, "max_tokens": 2048, "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
    );
    let whole = server.ok("/v1/messages", &asked);
    let content = json!([
        { "type": "thinking", "thinking": "Hmm.", "signature": "" },
        { "type": "text", "text": "Yes.", "citations": null },
    ]);
    assert_eq!((&whole["content"], &whole["stop_reason"]), (&content, &json!("end_turn")));
    let mut asked = asked;
    asked["stream"] = true.into();
    let events = events(&server, &asked);
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected =
        [&["message_start", "ping"], &block[..], &block[..], &["message_delta", "message_stop"]].concat();
    assert_eq!(kinds(&events), expected);
    let at = |index: u64, key: &str| {
        let of = events.iter().filter(|event| event["index"] == index);
        of.filter_map(|event| event["delta"][key].as_str()).collect::<String>()
    };
    assert_eq!((at(0, "thinking").as_str(), at(1, "text").as_str()), ("Hmm.", "Yes."));
}

#[test]
fn a_stop_sequence_is_named() {
    let server = serve();
    let whole =
        server.ok("/v1/messages", &body(json!({})))["content"][0]["text"].as_str().unwrap().to_string();
    let word = whole.split(' ').nth(3).unwrap();
    let stopped =
        server.ok("/v1/messages", &body(json!({ "stop_sequences": ["nowhere to be found", word] })));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    assert_eq!(stopped["content"][0]["text"], whole[..whole.find(word).unwrap()]);
}

#[test]
fn a_system_prompt_is_a_string_or_blocks() {
    let server = serve();
    let count =
        |more: Json| server.ok("/v1/messages/count_tokens", &body(more))["input_tokens"].as_u64().unwrap();
    let blocks = json!([{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }]);
    assert_eq!(count(json!({ "system": "Be brief." })), count(json!({ "system": blocks })));
    assert!(count(json!({ "system": "Be brief." })) > count(json!({})));
}

#[test]
fn errors_have_anthropics_format() {
    let server = serve_with(|options| options.limits.body = 4000);
    let refused = |body: &Json, status: u16, kind: &str| {
        let answer = server.post("/v1/messages", body);
        let error = answer.json();
        assert_eq!(
            (answer.status, &error["type"], &error["error"]["type"]),
            (status, &json!("error"), &json!(kind))
        );
        error["error"]["message"].as_str().unwrap().to_string()
    };
    let invalid = "invalid_request_error";
    let without = |name: &str| {
        let mut body = body(json!({}));
        body.as_object_mut().unwrap().remove(name);
        body
    };
    for name in ["max_tokens", "messages", "model"] {
        assert!(refused(&without(name), 400, invalid).contains(&format!("'{name}' is missing")));
    }
    refused(&body(json!({ "temperature": 1.5 })), 400, invalid);
    refused(&body(json!({ "model": "claude" })), 404, "not_found_error");
    refused(&body(json!({ "system": "a".repeat(5000) })), 413, "request_too_large");
    refused(&json!([]), 400, invalid);
    let wrong = server.get("/v1/messages");
    assert_eq!((wrong.status, &wrong.json()["error"]["type"]), (405, &json!(invalid)));
    let locked = serve_with(|options| options.keys = akunu_server::Keys::new("sesame"));
    let answer = locked.post("/v1/messages", &body(json!({})));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
}

/// A turn of an agent for coding, which begins its system prompt with a header that differs in each request.
fn turn(number: usize, system: &str, messages: &Json) -> Json {
    let header = format!("x-anthropic-billing-header: cc_version=2.1.{number}; cch={number:x};");
    let mut blocks = vec![json!({ "type": "text", "text": header })];
    blocks.push(json!({ "type": "text", "text": system, "cache_control": { "type": "ephemeral" } }));
    body(json!({ "system": blocks, "messages": messages }))
}

/// The share of the prompt that was in the cache, in the second turn of a conversation with so long a system prompt.
fn cached_share(server: &Served, sentences: usize) -> f64 {
    let system = "The fox is kind to the dog and to the little bird. ".repeat(sentences);
    let mut messages = json!([{ "role": "user", "content": "tell me a story about a fox" }]);
    let first = server.ok("/v1/messages", &turn(1, &system, &messages));
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    let more = messages.as_array_mut().unwrap();
    more.push(json!({ "role": "assistant", "content": first["content"] }));
    more.push(json!({ "role": "user", "content": "and then?" }));
    let second = turn(2, &system, &messages);
    let usage = server.ok("/v1/messages", &second)["usage"].clone();
    let count = |name: &str| usage[name].as_f64().unwrap();
    let counted = server.ok("/v1/messages/count_tokens", &second)["input_tokens"].as_f64().unwrap();
    assert_eq!(count("input_tokens") + count("cache_read_input_tokens"), counted);
    assert!(counted > 10.0 * sentences as f64, "{counted}");
    count("cache_read_input_tokens") / counted
}

#[test]
fn a_header_that_changes_does_not_spoil_the_cache() {
    let with = |stable: bool| {
        serve_with(|options| {
            options.models.engine.context = Some(12_000);
            options.stable_prompts = stable;
        })
    };
    let share = cached_share(&with(true), 500);
    assert!(share >= 0.98, "{share}");
    let share = cached_share(&with(false), 200);
    assert!(share < 0.02, "{share}");
}

#[test]
fn beta_headers_and_queries_are_ignored() {
    let server = serve();
    let plain = server.ok("/v1/messages", &body(json!({})));
    let headers = [("anthropic-version", "2023-06-01"), ("anthropic-beta", "context-1m-2025-08-07,unknown")];
    let asked = body(json!({})).to_string();
    let answer =
        send(server.address(), &request("POST", "/v1/messages?beta=true", &headers, asked.as_bytes()));
    assert_eq!((answer.status, &answer.json()["content"]), (200, &plain["content"]));
}

/// What Anthropic's SDK reads of a list of models.
#[test]
fn models_are_listed_as_anthropic_does() {
    let list = serve().get("/v1/models").json();
    let model = &list["data"][0];
    let expected = json!([TALES, "model", TALES]);
    assert_eq!(json!([model["id"], model["type"], model["display_name"]]), expected);
    assert!(model["created_at"].as_str().unwrap().starts_with("20"), "{list}");
    let last = &list["data"].as_array().unwrap().last().unwrap()["id"];
    assert_eq!(json!([list["first_id"], list["last_id"], list["has_more"]]), json!([TALES, last, false]));
}
