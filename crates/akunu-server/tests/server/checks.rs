//! What a request cannot mean is refused in each protocol, in its own form.

use serde_json::{Value as Json, json};

use crate::http::{self, Answer};
use crate::serve::{Served, TALES, serve};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

/// A request that is answered.
fn body(path: &str, more: &Json) -> Json {
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let mut body = match path {
        RESPONSES => json!({ "input": "Hello", "max_output_tokens": 2 }),
        OLLAMA => json!({ "messages": messages, "stream": false, "options": { "num_predict": 2 } }),
        _ => json!({ "messages": messages, "max_tokens": 2 }),
    };
    body["model"] = TALES.into();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(server: &Served, path: &str, more: &Json) -> Answer {
    server.post(path, &body(path, more))
}

/// The error of a refused request, as its protocol writes it, with the field if the protocol has that.
fn refused(server: &Served, path: &str, more: &Json) -> (String, Option<String>) {
    let answer = ask(server, path, more);
    let json = answer.json();
    assert_eq!(answer.status, 400, "{path} {more}: {json}");
    let error = &json["error"];
    let message = match path {
        OLLAMA => error.as_str(),
        MESSAGES => {
            assert_eq!((&json["type"], &error["type"]), (&json!("error"), &json!("invalid_request_error")));
            error["message"].as_str()
        }
        _ => error["message"].as_str(),
    };
    (message.unwrap().to_string(), error["param"].as_str().map(str::to_string))
}

#[test]
fn two_tools_of_one_name_are_refused() {
    let server = serve();
    let chat =
        json!({ "type": "function", "function": { "name": "clock", "parameters": { "type": "object" } } });
    let responses = json!({ "type": "function", "name": "clock", "parameters": { "type": "object" } });
    let anthropic = json!({ "name": "clock", "input_schema": { "type": "object" } });
    for (path, tool, place) in [
        (CHAT, chat.clone(), "tools[1].function.name"),
        (OLLAMA, chat, "tools[1].function.name"),
        (RESPONSES, responses, "tools"),
        (MESSAGES, anthropic, "tools[1].name"),
    ] {
        let (message, param) = refused(&server, path, &json!({ "tools": [tool, tool] }));
        assert!(message.contains(place), "{path}: {message}");
        assert!(param.is_none_or(|param| param == place), "{path}");
        assert_eq!(ask(&server, path, &json!({ "tools": [tool] })).status, 200, "{path}");
    }
}

#[test]
fn calls_without_results_are_refused_as_the_protocols_servers_do() {
    let server = serve();
    let user = json!({ "role": "user", "content": "What time is it?" });
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "clock", "arguments": "{}" } });
    let called = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let result = json!({ "role": "tool", "tool_call_id": "c1", "content": "noon" });
    for messages in [json!([user, called]), json!([user, called, user])] {
        let (message, param) = refused(&server, CHAT, &json!({ "messages": messages }));
        assert!(message.contains("no result for the call \"c1\""), "{message}");
        assert_eq!(param.as_deref(), Some("messages"));
    }
    assert_eq!(ask(&server, CHAT, &json!({ "messages": [user, called, result] })).status, 200);
    // A conversation that is only rendered may end so.
    let closed = json!({ "messages": [user, called], "add_generation_prompt": false });
    assert_eq!(server.post("/apply-template", &body(CHAT, &closed)).status, 200);
    assert_eq!(
        server.post("/apply-template", &body(CHAT, &json!({ "messages": [user, called] }))).status,
        400
    );

    let call = json!({ "type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "call_id": "c1", "output": "noon" });
    for input in [json!([user, call]), json!([user, call, user])] {
        let (message, param) = refused(&server, RESPONSES, &json!({ "input": input }));
        assert!(message.contains("no output for the call \"c1\""), "{message}");
        assert_eq!(param.as_deref(), Some("input"));
    }
    assert_eq!(ask(&server, RESPONSES, &json!({ "input": [user, call, output] })).status, 200);

    let calls = |id: &str| {
        json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": id, "name": "clock", "input": {} } ] })
    };
    let results = |id: &str| {
        json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": id, "content": "noon" } ] })
    };
    let reminder = json!({ "role": "system", "content": "Be brief." });
    for (messages, words) in [
        (json!([user, calls("a")]), "no 'tool_result' for the 'tool_use' with the id \"a\""),
        (json!([user, calls("a"), user]), "'messages[2]' has no 'tool_result'"),
        (json!([user, calls("a"), calls("b"), results("a")]), "'messages[3]' has no 'tool_result'"),
        (json!([user, calls("a"), user, calls("b"), results("a")]), "'messages[2]' has no 'tool_result'"),
        (json!([user, calls("a"), calls("a"), results("a")]), "'messages[2].content[0].id' is that of"),
        (json!([user, results("a")]), "'messages[1].content[0].tool_use_id' must be the id"),
        (json!([user, calls("a"), results("b")]), "'messages[2].content[0].tool_use_id' must be the id"),
        (json!([user, calls("a"), results("a"), results("a")]), "'messages[3].content[0].tool_use_id'"),
    ] {
        let (message, _) = refused(&server, MESSAGES, &json!({ "messages": messages }));
        assert!(message.contains(words), "{message}");
    }
    for messages in [
        json!([user, calls("a"), results("a")]),
        json!([user, calls("a"), reminder, results("a")]),
        json!([user, calls("a"), calls("b"), results("b"), results("a")]),
    ] {
        let answer = ask(&server, MESSAGES, &json!({ "messages": messages }));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // Ollama's calls have no ids, and its server does not look for results.
    let call = json!({ "function": { "name": "clock", "arguments": {} } });
    let called = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
    assert_eq!(ask(&server, OLLAMA, &json!({ "messages": [user, called] })).status, 200);
}

#[test]
fn values_that_no_protocol_has_are_refused() {
    let server = serve();
    for (path, more, place) in [
        (CHAT, json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (RESPONSES, json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (RESPONSES, json!({ "reasoning": { "summary": "long" } }), "reasoning.summary"),
        (RESPONSES, json!({ "text": { "verbosity": "loud" } }), "text.verbosity"),
        (RESPONSES, json!({ "instructions": ["Be brief."] }), "instructions"),
        (RESPONSES, json!({ "background": true }), "background"),
        (RESPONSES, json!({ "metadata": 5 }), "metadata"),
        (MESSAGES, json!({ "output_config": { "effort": "none" } }), "output_config.effort"),
        (MESSAGES, json!({ "metadata": 5 }), "metadata"),
        (MESSAGES, json!({ "metadata": { "user_id": 5 } }), "metadata.user_id"),
        (
            MESSAGES,
            json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } }),
            "thinking.budget_tokens",
        ),
        (OLLAMA, json!({ "think": "none" }), "think"),
        (OLLAMA, json!({ "think": 3 }), "think"),
        (CHAT, json!({ "verbosity": "loud" }), "verbosity"),
        (CHAT, json!({ "metadata": 5 }), "metadata"),
        (CHAT, json!({ "metadata": { "a": 5 } }), "metadata"),
        (CHAT, json!({ "prediction": "x" }), "prediction"),
        (CHAT, json!({ "prediction": { "type": "other", "content": "x" } }), "prediction.type"),
        (CHAT, json!({ "prediction": { "type": "content" } }), "prediction.content"),
        (CHAT, json!({ "top_logprobs": 0 }), "top_logprobs"),
        (CHAT, json!({ "logprobs": false, "top_logprobs": 2 }), "top_logprobs"),
    ] {
        let (message, param) = refused(&server, path, &more);
        assert!(message.contains(&format!("'{place}'")), "{path} {more}: {message}");
        assert!(param.is_none_or(|param| param == place), "{path} {more}");
    }
    for (path, more) in [
        (CHAT, json!({ "reasoning_effort": "xhigh", "verbosity": "low", "metadata": { "a": "b" } })),
        (CHAT, json!({ "prediction": { "type": "content", "content": [{ "type": "text", "text": "a" }] } })),
        (
            RESPONSES,
            json!({ "reasoning": { "effort": "max", "summary": "detailed" }, "text": { "verbosity": "high" } }),
        ),
        (MESSAGES, json!({ "output_config": { "effort": "max" }, "metadata": { "user_id": "me" } })),
        (OLLAMA, json!({ "think": "max" })),
    ] {
        let answer = ask(&server, path, &more);
        assert_eq!(answer.status, 200, "{path} {more}: {}", answer.text());
    }
}

#[test]
fn a_budget_of_reasoning_leaves_tokens_for_the_answer() {
    let server = serve();
    let more = |max_tokens: u64| {
        json!({ "max_tokens": max_tokens, "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "stop_sequences": [" "] })
    };
    let (message, _) = refused(&server, MESSAGES, &more(1024));
    assert!(message.contains("'thinking.budget_tokens' is 1024"), "{message}");
    assert_eq!(ask(&server, MESSAGES, &more(1025)).status, 200);
    // Reasoning between calls may have more than one answer has.
    let beta = [("anthropic-beta", "files-api-2025-04-14, interleaved-thinking-2025-05-14")];
    let body = body(MESSAGES, &more(1024)).to_string();
    let request = http::request("POST", MESSAGES, &beta, body.as_bytes());
    assert_eq!(http::send(server.address(), &request).status, 200);
}

#[test]
fn what_has_no_effect_is_told() {
    let server = serve();
    let options = json!({ "num_predict": 2, "temprature": 0, "num_ctx": 64, "a b": 1, "\u{e9}": 2 });
    for (path, more, warning) in [
        (OLLAMA, json!({ "options": options }), "ignored: options.temprature, 2 more of 'options'"),
        (CHAT, json!({ "verbosity": "low" }), "ignored: verbosity"),
        (RESPONSES, json!({ "text": { "verbosity": "high" } }), "ignored: text.verbosity"),
        (RESPONSES, json!({ "reasoning": { "summary": "concise" } }), "ignored: reasoning.summary"),
    ] {
        let answer = ask(&server, path, &more);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.header("x-akunu-warnings"), Some(warning), "{path}");
    }
    let made = json!({ "model": "made", "from": TALES, "parameters": { "temprature": 0, "seed": 1 }, "stream": false });
    let made = server.post("/api/create", &made);
    assert_eq!((made.status, made.header("x-akunu-warnings")), (200, Some("ignored: options.temprature")));
    let plain = ask(&server, OLLAMA, &json!({}));
    assert_eq!(plain.header("x-akunu-warnings"), None);
}

#[test]
fn a_conversation_is_not_compacted() {
    let (message, _) = refused(&serve(), "/v1/responses/compact", &json!({}));
    assert!(message.contains("'/v1/responses/compact' is not supported"), "{message}");
}

#[test]
fn what_is_too_long_or_too_deep_is_named() {
    let server = serve();
    let long = "fox ".repeat(3000);
    let message = json!([{ "role": "user", "content": long }]);
    for (path, more, place) in [
        (CHAT, json!({ "messages": message }), "messages"),
        (RESPONSES, json!({ "input": message }), "input"),
        ("/v1/completions", json!({ "messages": null, "prompt": long }), "prompt"),
    ] {
        let answer = ask(&server, path, &more);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(place)), "{error}");
        assert_eq!(error["code"], "context_length_exceeded");
    }
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
    for path in [CHAT, RESPONSES, MESSAGES, OLLAMA] {
        let answer = server.post_bytes(path, deep.as_bytes());
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("nested more than 127 deep"), "{path}: {}", answer.text());
    }
}
