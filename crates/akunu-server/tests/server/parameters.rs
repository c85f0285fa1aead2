//! Parameters of OpenAI's API.

use serde_json::{Value as Json, json};

use crate::schema::Description;
use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A request with more fields.
fn with(path: &str, fields: &Json) -> Json {
    let mut body = match path {
        CHAT => json!({ "messages": [{ "role": "user", "content": "tell me a story about a dog" }] }),
        _ => json!({ "prompt": "Once upon a time" }),
    };
    body["model"] = TALES.into();
    body["max_tokens"] = 12.into();
    body["temperature"] = 0.into();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn ask(server: &Served, path: &str, fields: Json) -> Json {
    server.ok(path, &with(path, &fields))
}

fn text(answer: &Json) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap()
}

#[test]
fn errors_name_the_invalid_parameter() {
    let server = serve();
    for (path, fields, param) in [
        (CHAT, json!({ "messages": null }), "messages"),
        (CHAT, json!({ "messages": [] }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "king", "content": "a" }] }), "messages[0].role"),
        (CHAT, json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0]",
        ),
        (CHAT, json!({ "max_tokens": 5, "max_completion_tokens": 6 }), "max_tokens"),
        (CHAT, json!({ "max_tokens": 0 }), "max_tokens"),
        (CHAT, json!({ "top_logprobs": 3 }), "top_logprobs"),
        (CHAT, json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (CHAT, json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (CHAT, json!({ "tool_choice": "required" }), "tool_choice"),
        (CHAT, json!({ "functions": [{ "name": "f" }] }), "functions"),
        (TEXT, json!({ "prompt": null }), "prompt"),
        (TEXT, json!({ "prompt": [] }), "prompt"),
        (TEXT, json!({ "prompt": [-1] }), "prompt"),
        (TEXT, json!({ "suffix": "the end" }), "suffix"),
        (TEXT, json!({ "logprobs": 6 }), "logprobs"),
        (TEXT, json!({ "temperature": 2.5 }), "temperature"),
        (TEXT, json!({ "temperature": "hot" }), "temperature"),
        (TEXT, json!({ "top_p": -0.1 }), "top_p"),
        (TEXT, json!({ "presence_penalty": 3 }), "presence_penalty"),
        (TEXT, json!({ "logit_bias": { "5": 101 } }), "logit_bias"),
        (TEXT, json!({ "logit_bias": { "fox": 1 } }), "logit_bias"),
        (TEXT, json!({ "n": 0 }), "n"),
        (TEXT, json!({ "n": 129 }), "n"),
        (TEXT, json!({ "stop": [""] }), "stop"),
        (TEXT, json!({ "stop": 3 }), "stop"),
        (TEXT, json!({ "stop_token_ids": [99999999] }), "stop_token_ids"),
        (TEXT, json!({ "stop_token_ids": vec![1; 65] }), "stop_token_ids"),
        (TEXT, json!({ "stream": "yes" }), "stream"),
        (TEXT, json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (TEXT, json!({ "seed": 1.5 }), "seed"),
        (TEXT, json!({ "priority": 0.5 }), "priority"),
        (TEXT, json!({ "typical_p": 1.5 }), "typical_p"),
        (TEXT, json!({ "mirostat": 1 }), "mirostat"),
        (TEXT, json!({ "mirostat": 2, "mirostat_tau": 0 }), "mirostat_tau"),
        (TEXT, json!({ "dry_base": 0.5 }), "dry_base"),
        (TEXT, json!({ "dry_penalty_last_n": -2 }), "dry_penalty_last_n"),
        (TEXT, json!({ "dry_sequence_breakers": ["a", ""] }), "dry_sequence_breakers"),
        (TEXT, json!({ "dry_sequence_breakers": vec!["a"; 17] }), "dry_sequence_breakers"),
        (TEXT, json!({ "dry_sequence_breakers": ["a".repeat(65)] }), "dry_sequence_breakers"),
    ] {
        let answer = server.post(path, &with(path, &fields));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{fields}: {error}");
        assert!(error["code"].is_string() || param == "n", "{error}");
    }
    for (param, value) in [("logit_bias", json!({ "99999": 1 })), ("prompt", json!([99999]))] {
        let answer = server.post(TEXT, &with(TEXT, &json!({ param: value })));
        let error = &answer.json()["error"];
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("invalid_value")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("outside the vocabulary"), "{error}");
    }
}

#[test]
fn contents_that_are_not_text_are_refused_by_their_type() {
    let server = serve();
    let image = json!([{ "type": "image", "source": { "type": "url", "url": "https://example.org/a.png" } }]);
    let result = json!([
        { "role": "user", "content": "What is there?" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "look", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": image }] },
    ]);
    for (path, messages) in [
        (CHAT, json!([{ "role": "user", "content": image }])),
        ("/v1/messages", json!([{ "role": "user", "content": image }])),
        ("/v1/messages", result),
    ] {
        let answer = server.post(path, &json!({ "model": TALES, "messages": messages, "max_tokens": 1 }));
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("image"), "{}", answer.text());
    }
}

#[test]
fn unknown_and_null_fields_are_ignored() {
    let server = serve();
    let plain = ask(&server, CHAT, json!({}));
    let more = json!({
        "store": true, "metadata": { "a": "b" }, "user": "me", "service_tier": "auto", "stop": null, "n": null,
        "parallel_tool_calls": false, "response_format": { "type": "text" }, "tool_choice": "none", "whatever": [1],
    });
    assert_eq!(text(&ask(&server, CHAT, more)), text(&plain));
}

#[test]
fn the_same_seed_gives_the_same_answer_and_choices_have_seeds_of_their_own() {
    let server = serve();
    let fields = |seed: i64| json!({ "temperature": 1.5, "seed": seed, "max_tokens": 20 });
    let first = ask(&server, TEXT, fields(-7));
    assert_eq!(text(&ask(&server, TEXT, fields(-7))), text(&first));
    let second = ask(&server, TEXT, fields(-6));
    assert_ne!(text(&second), text(&first));
    let mut two = fields(-7);
    two["n"] = 2.into();
    let both = ask(&server, TEXT, two);
    let texts: Vec<&str> =
        both["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, [text(&first), text(&second)]);
    assert_eq!(both["usage"]["prompt_tokens"], first["usage"]["prompt_tokens"]);
    assert_eq!(both["usage"]["completion_tokens"], 40);
}

#[test]
fn samplers_change_the_text_and_off_is_off() {
    let server = serve();
    let base = json!({ "temperature": 1.2, "seed": 5, "max_tokens": 30 });
    let asked = |more: Json| {
        let mut fields = base.clone();
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        text(&ask(&server, TEXT, fields)).to_string()
    };
    let plain = asked(json!({}));
    let off = json!({
        "top_n_sigma": -1, "typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.3, "dynatemp_range": 0,
        "dry_multiplier": 0, "dry_base": 3, "dry_sequence_breakers": ["a"], "mirostat": 0, "mirostat_tau": 1,
    });
    assert_eq!(asked(off), plain);
    for more in [
        json!({ "top_n_sigma": 0.5 }),
        json!({ "typical_p": 0.3 }),
        json!({ "xtc_probability": 1, "xtc_threshold": 0.01 }),
        json!({ "dynatemp_range": 1.2, "dynatemp_exponent": 3 }),
        json!({ "mirostat": 2, "mirostat_tau": 0.5 }),
    ] {
        let other = asked(more.clone());
        assert_ne!(other, plain, "{more}");
        assert_eq!(asked(more), other);
    }
    // A token that is favoured, but would extend a repetition, unless a breaker is in between.
    let ids = server.ok("/tokenize", &json!({ "content": " found" }))["tokens"].clone();
    let mut repeats = json!({
        "prompt": "One day. The fox found a dog. The fox", "max_tokens": 1, "logit_bias": { ids[0].to_string(): 60 },
        "dry_multiplier": 100,
    });
    let lowered = text(&ask(&server, TEXT, repeats.clone())).to_string();
    repeats["dry_sequence_breakers"] = json!([" fox"]);
    let allowed = text(&ask(&server, TEXT, repeats.clone())).to_string();
    repeats["dry_multiplier"] = 0.into();
    assert_eq!(text(&ask(&server, TEXT, repeats)), allowed);
    assert_ne!(lowered, allowed);
}

#[test]
fn a_stop_sequence_ends_the_text() {
    let server = serve();
    let long = ask(&server, TEXT, json!({ "max_tokens": 60 }));
    let (before, _) = text(&long).split_once('.').unwrap();
    let stopped = ask(&server, TEXT, json!({ "max_tokens": 60, "stop": ["never", "."] }));
    assert_eq!((text(&stopped), &stopped["choices"][0]["finish_reason"]), (before, &json!("stop")));
}

#[test]
fn a_stop_token_ends_the_text() {
    let server = serve();
    let long = ask(&server, TEXT, json!({ "max_tokens": 60 }));
    let ids =
        server.ok("/tokenize", &json!({ "content": text(&long), "parse_special": false }))["tokens"].clone();
    let stopped = ask(&server, TEXT, json!({ "max_tokens": 60, "stop_token_ids": [ids[9]] }));
    assert!(text(&long).starts_with(text(&stopped)) && text(&stopped).len() < text(&long).len());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_bias_forces_or_excludes_a_token() {
    let server = serve();
    let ids = server.ok("/tokenize", &json!({ "content": " zebra" }))["tokens"].as_array().unwrap().clone();
    let id = ids[0].to_string();
    let forced = ask(&server, TEXT, json!({ "max_tokens": 3, "logit_bias": { id: 100 } }));
    let piece = server.ok("/detokenize", &json!({ "tokens": [ids[0], ids[0], ids[0]] }));
    assert_eq!(text(&forced).trim_start(), piece["content"].as_str().unwrap().trim_start());
}

#[test]
fn prompts_may_be_ids_or_many() {
    let server = serve();
    let one = ask(&server, TEXT, json!({}));
    let ids =
        server.ok("/tokenize", &json!({ "content": "Once upon a time", "add_special": true }))["tokens"]
            .clone();
    let same = ask(&server, TEXT, json!({ "prompt": ids }));
    assert_eq!(text(&same), text(&one));
    let many = ask(&server, TEXT, json!({ "prompt": ["The little fox", "Once upon a time"], "n": 2 }));
    let texts: Vec<&Json> =
        many["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts.len(), 4);
    assert_eq!((texts[2], texts[3]), (&one["choices"][0]["text"], &one["choices"][0]["text"]));
}

#[test]
fn log_probabilities_add_up_to_the_text() {
    let server = serve();
    let chat = ask(&server, CHAT, json!({ "logprobs": true, "top_logprobs": 2 }));
    let tokens = chat["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text(&chat));
    assert_eq!(tokens.len(), 12);
    for token in tokens {
        // Greedy takes the best.
        let best = &token["top_logprobs"][0];
        assert_eq!((&best["token"], &best["logprob"]), (&token["token"], &token["logprob"]));
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    let legacy = ask(&server, TEXT, json!({ "logprobs": 1 }));
    let logprobs = &legacy["choices"][0]["logprobs"];
    let pieces: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), text(&legacy));
    assert_eq!(logprobs["text_offset"][1], pieces[0].chars().count());
    assert_eq!(logprobs["top_logprobs"][0][pieces[0]], logprobs["token_logprobs"][0]);
}

#[test]
fn a_prompt_that_was_read_before_is_told_of_in_usage() {
    let server = serve();
    let first = ask(&server, CHAT, json!({}));
    let again = ask(&server, CHAT, json!({}));
    let cached = |answer: &Json| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!((cached(&first), cached(&again)), (0, prompt - 1));
    assert_eq!(text(&first), text(&again));
}

#[test]
fn a_conversation_with_tools_reaches_the_template() {
    let server = serve();
    let messages = json!([
        { "role": "developer", "content": [{ "type": "text", "text": "Be" }, { "type": "text", "text": "brief." }] },
        { "role": "user", "content": "What time is it?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "clock", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "1", "content": "noon" },
    ]);
    let body =
        json!({ "messages": messages, "tools": [{ "type": "function", "function": { "name": "clock" } }] });
    let prompt = server.ok("/apply-template", &body)["prompt"].as_str().unwrap().to_string();
    // The template has no tools, so they are text.
    for part in [
        "<|im_start|>system\nBe\nbrief.\n\nYou may call these tools",
        "\n{\"name\":\"clock\"}\n",
        "<|im_start|>assistant\n<tool_call>{\"name\":\"clock\",\"arguments\":{}}</tool_call><|im_end|>",
        "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>",
    ] {
        assert!(prompt.contains(part), "{prompt}");
    }
    let mut body = body;
    body["max_tokens"] = 3.into();
    let answer = server.post(CHAT, &body);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
    let warning = answer.header("x-akunu-warnings").unwrap_or_default();
    assert!(warning.starts_with("tools are described in the system message"), "{warning}");
}

#[test]
fn reasoning_that_a_template_knows_nothing_of_is_told() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let warning = |path: &str, model: &str, more: Json| {
        let mut body = json!({ "model": model, "messages": messages, "max_tokens": 2, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path} {more}: {}", answer.text());
        answer.header("x-akunu-warnings").map(str::to_string)
    };
    let thinking = json!({ "thinking": { "type": "adaptive" } });
    for (path, more) in [
        (CHAT, json!({ "reasoning_effort": "high" })),
        (CHAT, json!({ "chat_template_kwargs": { "enable_thinking": true } })),
        ("/v1/messages", thinking.clone()),
        ("/api/chat", json!({ "think": true, "options": { "num_predict": 2 } })),
    ] {
        let told = warning(path, TALES, more);
        assert!(told.as_ref().is_some_and(|told| told.starts_with("reasoning is as without")), "{told:?}");
    }
    for (path, model, more) in [
        (CHAT, TALES, json!({ "reasoning_effort": "none" })),
        ("/v1/messages", TALES, json!({ "thinking": { "type": "disabled" } })),
        // It reasons anyway.
        ("/v1/messages", THINKER, thinking),
    ] {
        assert_eq!(warning(path, model, more), None, "{path}");
    }
}

#[test]
fn answers_are_of_openais_form() {
    let Some(description) = Description::open() else { return };
    let server = serve();
    let fields = [json!({}), json!({ "n": 2, "logprobs": true, "top_logprobs": 2 })];
    for fields in fields {
        description.assert("CreateChatCompletionResponse", &ask(&server, CHAT, fields.clone()));
        let mut streamed = with(CHAT, &fields);
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({ "include_usage": true });
        let mut events = server.post(CHAT, &streamed).events();
        events.pop();
        for event in events {
            let chunk = serde_json::from_str(&event).unwrap();
            description.assert("CreateChatCompletionStreamResponse", &chunk);
        }
    }
    for fields in [json!({}), json!({ "n": 2, "logprobs": 2 })] {
        description.assert("CreateCompletionResponse", &ask(&server, TEXT, fields));
    }
    description.assert("ListModelsResponse", &server.get("/v1/models").json());
    for answer in [server.get("/v1/models/none"), server.post(TEXT, &json!({})), server.get("/nowhere")] {
        description.assert("ErrorResponse", &answer.json());
    }
}
