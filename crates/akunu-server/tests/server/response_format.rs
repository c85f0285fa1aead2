//! Response formats in three protocols.

use serde_json::{Value as Json, json};

use crate::calls::joined;
use crate::schema::Description;
use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

const CHAT: &str = "/v1/chat/completions";

fn body(more: Json) -> Json {
    let mut body = json!({
        "model": TALES, "messages": [{ "role": "user", "content": "tell me about a fox" }],
        "temperature": 0, "max_tokens": 200,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn fox() -> Json {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": { "name": { "type": "string", "maxLength": 20 }, "age": { "type": "integer", "minimum": 1, "maximum": 9 } },
    })
}

fn assert_fox(text: &str) {
    let fox: Json = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(fox["name"].is_string() && (1..=9).contains(&fox["age"].as_i64().unwrap()), "{fox}");
    assert_eq!(fox.as_object().unwrap().len(), 2);
}

fn format(schema: &Json) -> Json {
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "fox", "schema": schema, "strict": true } } })
}

fn tools() -> Json {
    let tool = |name: &str, parameters: Json| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let clock = json!({ "type": "object", "properties": { "zone": { "enum": ["UTC", "CET"] } }, "required": ["zone"], "additionalProperties": false });
    json!([tool("clock", clock), tool("add", json!({ "type": "object", "additionalProperties": false }))])
}

#[test]
fn openai_responses_conform_to_their_schema() {
    let server = serve();
    for more in [
        json!({}),
        json!({ "temperature": 2, "seed": 1 }),
        json!({ "logprobs": true, "n": 3, "temperature": 1.5, "seed": 2 }),
    ] {
        let mut asked = body(format(&fox()));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.ok(CHAT, &asked);
        for choice in whole["choices"].as_array().unwrap() {
            assert_fox(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop");
        }
        asked["stream"] = true.into();
        let mut said = vec![String::new(); whole["choices"].as_array().unwrap().len()];
        for event in server.post(CHAT, &asked).events().iter().filter(|event| *event != "[DONE]") {
            let choice = serde_json::from_str::<Json>(event).unwrap()["choices"][0].clone();
            said[choice["index"].as_u64().unwrap() as usize] +=
                choice["delta"]["content"].as_str().unwrap_or_default();
        }
        let texts = whole["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["message"]["content"].as_str().unwrap());
        assert!(texts.eq(said.iter().map(String::as_str)), "{said:?}");
    }
    let object = server.ok(CHAT, &body(json!({ "response_format": { "type": "json_object" } })));
    assert!(object["choices"][0]["message"]["content"].as_str().unwrap().trim_start().starts_with('{'));
    let mut text = body(format(&fox()));
    text["prompt"] = "Once".into();
    assert_fox(server.ok("/v1/completions", &text)["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn a_tool_call_can_be_required() {
    let server = serve();
    let ask = |choice: Json, more: Json| {
        let mut asked = body(json!({ "tools": tools(), "tool_choice": choice }));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let single = json!({ "parallel_tool_calls": false });
    for (choice, more, names) in [
        (json!("required"), single.clone(), &["clock", "add"][..]),
        (named("clock"), json!({}), &["clock"]),
        (named("add"), json!({}), &["add"]),
        (
            json!("required"),
            json!({ "parallel_tool_calls": false, "response_format": { "type": "json_object" } }),
            &["clock", "add"],
        ),
    ] {
        let whole = server.ok(CHAT, &ask(choice.clone(), more.clone()));
        let choice_made = &whole["choices"][0];
        let message = &choice_made["message"];
        let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{whole}"));
        assert_eq!(
            (calls.len(), &message["content"], &choice_made["finish_reason"]),
            (1, &Json::Null, &json!("tool_calls"))
        );
        let called = calls[0]["function"]["name"].as_str().unwrap();
        assert!(names.contains(&called), "{called}");
        let arguments: Json =
            serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        match called {
            "clock" => assert!(arguments["zone"] == "UTC" || arguments["zone"] == "CET", "{arguments}"),
            _ => assert_eq!(arguments, json!({})),
        }
        if let Some(description) = Description::open() {
            description.assert("CreateChatCompletionResponse", &whole);
        }
        let mut asked = ask(choice, more);
        asked["stream"] = true.into();
        let events = server.post(CHAT, &asked).events();
        let chunks = events.iter().filter_map(|event| serde_json::from_str::<Json>(event).ok());
        let deltas: Vec<Json> = chunks
            .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array().cloned())
            .flatten()
            .collect();
        let streamed = joined(deltas.iter());
        assert_eq!(
            (streamed.as_array().unwrap().len(), &streamed[0]["function"]),
            (1, &calls[0]["function"])
        );
    }
    let allowed = |mode: &str| {
        let tools = json!([{ "type": "function", "function": { "name": "add" } }]);
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
    };
    let one = server.ok(CHAT, &ask(allowed("required"), json!({ "parallel_tool_calls": false })));
    assert_eq!(one["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "add");
    // Several calls may follow each other.
    let several =
        server.ok(CHAT, &ask(json!("required"), json!({ "temperature": 1, "seed": 3, "max_tokens": 400 })));
    let calls = several["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| ["clock", "add"].map(Json::from).contains(&call["function"]["name"])));
    // A call that is cut off is text.
    let cut = server.ok(CHAT, &ask(json!("required"), json!({ "max_tokens": 3 })));
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["choices"][0]["message"]["tool_calls"]),
        (&json!("length"), &Json::Null)
    );

    let tool = json!({ "name": "clock", "input_schema": tools()[0]["function"]["parameters"] });
    for choice in [
        json!({ "type": "any", "disable_parallel_tool_use": true }),
        json!({ "type": "tool", "name": "clock" }),
    ] {
        let message = server.ok("/v1/messages", &body(json!({ "tools": [tool], "tool_choice": choice })));
        let block = &message["content"][0];
        assert_eq!(
            (&block["type"], &block["name"], &message["stop_reason"]),
            (&json!("tool_use"), &json!("clock"), &json!("tool_use"))
        );
        assert!(["UTC", "CET"].map(Json::from).contains(&block["input"]["zone"]), "{block}");
    }
}

#[test]
fn other_protocols_support_formats() {
    let server = serve();
    for format in [fox(), json!("json")] {
        for (path, key) in [("/api/chat", "/message/content"), ("/api/generate", "/response")] {
            let asked = body(
                json!({ "prompt": "a fox", "format": format, "stream": false, "options": { "temperature": 0, "num_predict": 200 } }),
            );
            let whole = server.ok(path, &asked);
            let text = whole.pointer(key).unwrap().as_str().unwrap();
            match format.is_object() {
                true => assert_fox(text),
                false => assert!(text.trim_start().starts_with('{'), "{text}"),
            }
        }
    }
    let format = json!({ "type": "json_schema", "schema": fox() });
    for format in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        assert_fox(server.ok("/v1/messages", &body(format))["content"][0]["text"].as_str().unwrap());
    }
}

#[test]
fn reasoning_is_not_constrained() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let mut asked = body(format(&json!({ "enum": ["Yes.", "No."] })));
    asked["model"] = THINKER.into();
    let message = server.ok(CHAT, &asked)["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "Hmm.");
    let said: String = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(["Yes.", "No."].contains(&said.as_str()), "{said}");
}

type IsAllowed = fn(&str) -> bool;

/// Fields of vLLM's and llama.cpp's APIs with the answers that they allow.
fn other_fields() -> Vec<(Json, IsAllowed)> {
    let outputs = |name: &str, value: Json| json!({ "structured_outputs": { name: value } });
    let is_fox = |text: &str| text.parse::<Json>().is_ok_and(|fox| fox["age"].is_u64());
    let is_code = |text: &str| text.len() == 4 && text[1..].bytes().all(|byte| byte.is_ascii_digit());
    let gbnf = "root ::= [a-c] digits\ndigits ::= [0-9]{3}";
    let lark = "start: /[a-c]/ DIGIT DIGIT DIGIT\nDIGIT: \"0\"..\"9\"";
    vec![
        (outputs("json", fox()), is_fox),
        (outputs("json", fox().to_string().into()), is_fox),
        (outputs("regex", "[a-c]\\d{3}".into()), is_code),
        (outputs("choice", json!(["b123", "c456"])), is_code),
        (outputs("grammar", gbnf.into()), is_code),
        (outputs("json_object", true.into()), |text| text.trim_start().starts_with('{')),
        (json!({ "guided_json": fox() }), is_fox),
        (json!({ "guided_regex": "[a-c][0-9]{3}" }), is_code),
        (json!({ "guided_choice": ["b123"] }), is_code),
        (json!({ "guided_grammar": lark }), is_code),
        (json!({ "grammar": gbnf }), is_code),
        (json!({ "json_schema": fox() }), is_fox),
    ]
}

#[test]
fn fields_of_other_engines_mix_in_a_batch() {
    let server = serve();
    std::thread::scope(|scope| {
        for (more, is_right) in other_fields() {
            let server = &server;
            scope.spawn(move || {
                let whole = server.ok(CHAT, &body(more.clone()));
                let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
                assert!(is_right(text), "{more}: {text}");
            });
        }
    });
}

fn refused(server: &Served, path: &str, more: Json) -> Json {
    let answer = server.post(path, &body(more.clone()));
    assert_eq!(answer.status, 400, "{more}: {}", answer.text());
    answer.json()["error"].clone()
}

fn strict_tool(schema: Json) -> Json {
    json!({ "tools": [{ "type": "function", "function": { "name": "a", "strict": true, "parameters": schema } }] })
}

#[test]
fn an_answer_is_a_call_or_has_the_format() {
    let server = serve();
    for seed in 0..4 {
        let more = json!({ "tools": tools(), "temperature": 1.5, "seed": seed, "max_tokens": 300, "parallel_tool_calls": false });
        let mut asked = body(format(&fox()));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.ok(CHAT, &asked);
        let message = &answer["choices"][0]["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => assert_eq!((calls.len(), &message["content"]), (1, &Json::Null)),
            None => assert_fox(message["content"].as_str().unwrap()),
        }
    }
}

#[test]
fn unsupported_formats_are_400() {
    let server = serve();
    for (more, param, word) in [
        (json!({ "response_format": "json" }), "response_format", "object"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type", "json_schema"),
        (json!({ "response_format": {} }), "response_format.type", "json_schema"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema", "Schema"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
            "response_format.json_schema.schema",
            "Schema",
        ),
        (format(&json!({ "type": "string", "pattern": "(?<=a)b" })), "response_format", "pattern"),
        (
            format(&json!({ "properties": { "a": { "$ref": "#/nowhere" } } })),
            "response_format",
            "/properties/a",
        ),
        (format(&json!({ "type": "integer", "minimum": 2, "maximum": 1 })), "response_format", "no value"),
        (json!({ "tool_choice": "required" }), "tool_choice", "'tools' is empty"),
        (json!({ "tool_choice": "always", "tools": tools() }), "tool_choice", "required"),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [
                { "type": "function", "function": { "name": "sub" } }] } }, "tools": tools() }),
            "tool_choice",
            "sub",
        ),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "auto" } }, "tools": tools() }),
            "tool_choice",
            "allowed",
        ),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "sub" } }, "tools": tools() }),
            "tool_choice",
            "sub",
        ),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }),
            "tools[0].function.name",
            "letters",
        ),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "a".repeat(65) } }] }),
            "tools[0].function.name",
            "64",
        ),
        (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name", "letters"),
        (json!({ "tools": [{ "type": "custom", "custom": { "name": "a" } }] }), "tools[0].type", "function"),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "a", "parameters": 3 } }] }),
            "tools[0].function.parameters",
            "Schema",
        ),
        (
            strict_tool(json!({ "type": "object", "properties": { "a": { "$ref": "#/nowhere" } } })),
            "tools",
            "nowhere",
        ),
        (json!({ "guided_regex": "a", "grammar": "root ::= \"a\"" }), "grammar", "guided_regex"),
        (json!({ "guided_json": 3 }), "guided_json", "JSON Schema"),
        (json!({ "guided_choice": "a" }), "guided_choice", "list"),
        (json!({ "guided_regex": "(a" }), "guided_regex", "regular expression"),
        (json!({ "grammar": "root ::= root \"a\"" }), "grammar", "left recursion"),
        (
            json!({ "structured_outputs": { "structural_tag": "{}" } }),
            "structured_outputs.structural_tag",
            "not supported",
        ),
    ] {
        let error = refused(&server, CHAT, more.clone());
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(param), &json!("invalid_request_error")),
            "{more}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(word) && error["code"].is_string(), "{error}");
    }
    for format in [json!("yaml"), json!(3), json!({ "type": "text" }), json!({ "not": {} })] {
        let error = refused(&server, "/api/chat", json!({ "format": format }));
        assert!(error.as_str().is_some_and(|error| !error.is_empty()), "{error}");
    }
    for more in [
        json!({ "tool_choice": { "type": "any" } }),
        json!({ "tool_choice": { "type": "tool" }, "tools": [{ "name": "a", "input_schema": {} }] }),
        json!({ "output_config": { "format": { "type": "json_schema" } } }),
        json!({ "output_config": { "format": { "type": "json_schema", "schema": { "not": {} } } } }),
        json!({ "output_format": "json" }),
        json!({ "output_format": { "type": "yaml" } }),
        json!({ "output_format": { "type": "text" }, "output_config": { "format": { "type": "text" } } }),
    ] {
        assert_eq!(refused(&server, "/v1/messages", more)["type"], "invalid_request_error");
    }
}
