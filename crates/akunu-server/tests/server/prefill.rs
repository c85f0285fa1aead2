//! Answers that the model continues.

use serde_json::{Value as Json, json};

use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn user() -> Json {
    json!({ "role": "user", "content": "tell me a story about a fox" })
}

/// A greedy request whose conversation ends with `said`, if anything.
fn body(said: Option<&str>, tokens: u64) -> Json {
    let said = said.map(|text| json!({ "role": "assistant", "content": text }));
    let messages: Vec<Json> = [user()].into_iter().chain(said).collect();
    json!({ "model": TALES, "messages": messages, "max_tokens": tokens, "temperature": 0 })
}

fn with(mut body: Json, fields: &Json) -> Json {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn text(answer: &Json) -> String {
    let text = answer["choices"][0]["message"]["content"].as_str().or(answer["content"][0]["text"].as_str());
    text.unwrap().to_string()
}

fn ids(server: &Served, text: &str) -> usize {
    let tokens = server.ok("/tokenize", &json!({ "content": text, "parse_special": false }));
    tokens["tokens"].as_array().unwrap().len()
}

#[test]
fn the_first_half_of_an_answer_is_continued_by_the_second() {
    let server = serve();
    let whole = text(&server.ok(CHAT, &body(None, 40)));
    // Words begin with their space, so they are the same tokens alone.
    let spaces: Vec<usize> = whole.match_indices(' ').map(|(at, _)| at).collect();
    for at in [spaces[0], spaces[spaces.len() / 2]] {
        let (first, second) = whole.split_at(at);
        let rest = 40 - ids(&server, first) as u64;
        for path in [CHAT, MESSAGES] {
            assert_eq!(text(&server.ok(path, &body(Some(first), rest))), second, "{path}");
        }
        let fields = json!({ "continue_final_message": true, "add_generation_prompt": false });
        assert_eq!(text(&server.ok(CHAT, &with(body(Some(first), rest), &fields))), second);
        let chat = json!({
            "model": TALES, "messages": body(Some(first), 1)["messages"], "stream": false,
            "options": { "num_predict": rest, "temperature": 0 },
        });
        assert_eq!(server.ok("/api/chat", &chat)["message"]["content"], second);
    }
}

#[test]
fn prompts_end_as_requested() {
    let server = serve();
    let prompt = |fields: Json| {
        let body = with(body(Some("Once "), 1), &fields);
        server.ok("/apply-template", &body)["prompt"].as_str().unwrap().to_string()
    };
    let open = prompt(json!({}));
    assert!(open.ends_with("<|im_start|>assistant\nOnce "), "{open}");
    for (fields, end) in [
        (json!({ "add_generation_prompt": false }), ""),
        (json!({ "continue_final_message": true }), ""),
        (json!({ "continue_final_message": false, "add_generation_prompt": false }), "<|im_end|>\n"),
        (json!({ "continue_final_message": false }), "<|im_end|>\n<|im_start|>assistant\n"),
        (json!({ "add_generation_prompt": true }), "<|im_end|>\n<|im_start|>assistant\n"),
    ] {
        assert_eq!(prompt(fields.clone()), format!("{open}{end}"), "{fields}");
    }
    let closed = with(body(None, 1), &json!({ "add_generation_prompt": false }));
    let closed = server.ok("/apply-template", &closed)["prompt"].as_str().unwrap().to_string();
    assert!(closed.ends_with("about a fox<|im_end|>\n"), "{closed}");
    // What is counted is what is read.
    let counted = server.ok("/v1/messages/count_tokens", &body(Some("Once"), 1));
    let answered = server.ok(MESSAGES, &body(Some("Once"), 1));
    assert_eq!(counted["input_tokens"], answered["usage"]["input_tokens"]);
}

#[test]
fn what_contradicts_a_continued_message_is_refused() {
    let server = serve();
    let tool = json!({ "type": "function", "function": { "name": "clock" } });
    let call = json!({ "id": "a", "type": "function", "function": { "name": "clock", "arguments": "{}" } });
    let called = json!([user(), { "role": "assistant", "content": "So", "tool_calls": [call] }]);
    let thought = json!([user(), { "role": "assistant", "content": "", "reasoning_content": "Hm." }]);
    let both = json!({ "continue_final_message": true, "add_generation_prompt": true });
    for (said, fields, param) in [
        (Some("a"), both, "continue_final_message"),
        (Some("a"), json!({ "continue_final_message": "yes" }), "continue_final_message"),
        (Some("a"), json!({ "add_generation_prompt": 1 }), "add_generation_prompt"),
        (None, json!({ "continue_final_message": true }), "continue_final_message"),
        (None, json!({ "continue_final_message": true, "messages": called }), "continue_final_message"),
        (None, json!({ "continue_final_message": true, "messages": thought }), "continue_final_message"),
        (Some("a"), json!({ "chat_template_kwargs": { "enable_thinking": true } }), "messages"),
        (Some("a"), json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (Some("a"), json!({ "tools": [tool], "tool_choice": "required" }), "tool_choice"),
    ] {
        let answer = server.post(CHAT, &with(body(said, 2), &fields));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{fields}: {error}");
    }
    for fields in [
        json!({ "thinking": { "type": "adaptive" } }),
        json!({ "output_config": { "format": { "type": "json_schema", "schema": { "type": "object" } } } }),
        json!({ "messages": [user(), { "role": "assistant", "content": "" }] }),
    ] {
        let answer = server.post(MESSAGES, &with(body(Some("a"), 2), &fields));
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text());
    }
    // Without anything to continue, a new answer follows.
    let answer = server.ok(CHAT, &with(body(None, 2), &json!({ "messages": thought })));
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[test]
fn reasoning_that_has_begun_is_continued_as_reasoning() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let said = |text: &str| {
        let mut body = body(Some(text), 20);
        body["model"] = THINKER.into();
        server.ok(CHAT, &body)["choices"][0]["message"].clone()
    };
    // The model writes the same after each of its tokens: `<think>`, "Hmm.", `</think>`, "Yes.".
    let inside = said("<think>Hmm.");
    assert_eq!((&inside["content"], inside.get("reasoning_content")), (&json!("Yes."), None));
    let after = said("Hmm.");
    assert_eq!(after["content"], "</think>Yes.");
}
