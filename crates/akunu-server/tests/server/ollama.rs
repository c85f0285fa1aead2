//! Ollama's API.

use serde_json::{Value as Json, json};

use crate::serve::{Served, TALES, serve, serve_with};
use crate::thinker::{THINKER, thinker};

fn lines(server: &Served, path: &str, body: &Json) -> Vec<Json> {
    let answer = server.post(path, body);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"), "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat(more: Json) -> Json {
    let mut body = json!({
        "model": TALES, "messages": [{ "role": "user", "content": "tell me a story about a fox" }],
        "options": { "temperature": 0, "num_predict": 20 },
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn responses_are_streamed_by_default() {
    let server = serve();
    let whole = server.ok("/api/chat", &chat(json!({ "stream": false })));
    let text = whole["message"]["content"].as_str().unwrap();
    assert!(text.contains("fox"), "{text}");
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("length"), &json!(20))
    );
    for key in ["total_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"] {
        assert!(whole[key].as_u64().unwrap() > 0, "{key}: {whole}");
    }
    let lines = lines(&server, "/api/chat", &chat(json!({})));
    let (last, rest) = lines.split_last().unwrap();
    assert!(rest.iter().all(|line| line["done"] == false && line["model"] == TALES) && last["done"] == true);
    assert_eq!(
        rest.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect::<String>(),
        text
    );
    assert_eq!((&last["message"]["content"], &last["eval_count"]), (&json!(""), &json!(20)));
    let created = last["created_at"].as_str().unwrap();
    assert!(created.len() == 27 && created.ends_with('Z') && created.as_bytes()[10] == b'T', "{created}");
}

#[test]
fn generate_uses_the_chat_template_unless_raw() {
    let server = serve();
    let options = json!({ "temperature": 0, "num_predict": 12 });
    let generate = |more: Json| {
        let mut body =
            json!({ "model": TALES, "prompt": "Once upon a time", "options": options, "stream": false });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/api/generate", &body)["response"].clone()
    };
    let completion =
        json!({ "model": TALES, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12 });
    assert_eq!(
        generate(json!({ "raw": true })),
        server.ok("/v1/completions", &completion)["choices"][0]["text"]
    );
    let messages = json!([
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "Once upon a time" },
    ]);
    let body = chat(json!({ "messages": messages, "options": options, "stream": false }));
    assert_eq!(
        generate(json!({ "system": "Be brief." })),
        server.ok("/api/chat", &body)["message"]["content"]
    );
    let both = json!({ "model": TALES, "prompt": "Once", "raw": true, "system": "Be brief." });
    let refused = server.post("/api/generate", &both);
    assert!(refused.status == 400 && refused.text().contains("'system'"), "{}", refused.text());
}

#[test]
fn thinking_is_a_separate_field() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let whole = server.ok("/api/chat", &chat(json!({ "model": THINKER, "stream": false })));
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": "Yes.", "thinking": "Hmm." }));
    assert_eq!(whole["done_reason"], "stop");
    let lines = lines(
        &server,
        "/api/generate",
        &json!({ "model": THINKER, "prompt": "Why?", "options": { "temperature": 0 } }),
    );
    let all = |key: &str| lines.iter().filter_map(|line| line[key].as_str()).collect::<String>();
    assert_eq!((all("thinking").as_str(), all("response").as_str()), ("Hmm.", "Yes."));
}

#[test]
fn options_work_as_in_ollama() {
    let server = serve();
    let ended = |options: Json| {
        let whole = server.ok("/api/chat", &chat(json!({ "stream": false, "options": options })));
        (whole["message"]["content"].as_str().unwrap().to_string(), whole["done_reason"].clone())
    };
    let drawn = |seed: i64| {
        ended(json!({ "seed": seed, "temperature": 1.0, "num_predict": 12, "repeat_last_n": -1 })).0
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
    let whole = ended(json!({ "temperature": 0, "num_predict": 12 })).0;
    let word = whole.split(' ').nth(2).unwrap();
    let stopped = ended(json!({ "temperature": 0, "num_predict": 12, "stop": [word] }));
    assert_eq!(stopped, (whole[..whole.find(word).unwrap()].to_string(), json!("stop")));
    let refused = |more: Json, words: &str| {
        let answer = server.post("/api/chat", &chat(more));
        let error = answer.json()["error"].as_str().unwrap().to_string();
        assert!(answer.status == 400 && error.contains(words), "{} {error}", answer.status);
    };
    for (more, words) in [
        (json!({ "options": { "temperature": "hot" } }), "options.temperature"),
        (json!({ "options": { "num_predict": -3 } }), "options.num_predict"),
        (json!({ "options": { "mirostat": 1 } }), "options.mirostat"),
        (json!({ "options": { "tfs_z": 0.9 } }), "options.tfs_z"),
        (json!({ "options": { "typical_p": 2 } }), "options.typical_p"),
        (json!({ "options": { "stop": [""] } }), "options.stop"),
        (json!({ "format": "yaml" }), "format"),
        (
            json!({ "messages": [{ "role": "user", "content": "a", "images": ["aGk="] }] }),
            "messages[0].images",
        ),
        (json!({ "model": "" }), "model"),
    ] {
        refused(more, words);
    }
    // Options of Ollama's runner are ignored.
    ended(
        json!({ "num_ctx": 64, "num_gpu": 1, "mirostat": 0, "typical_p": 1.0, "num_predict": 1, "seed": -1 }),
    );
    let missing = server.post("/api/chat", &chat(json!({ "model": "none" })));
    assert_eq!(missing.status, 404);
    assert!(missing.json()["error"].is_string());
}

#[test]
fn models_are_listed_and_described() {
    let (_folder, model) = thinker();
    let server = serve_with(|options| options.models.models.push(model));
    let tags = server.get("/api/tags").json();
    let names: Vec<&Json> = tags["models"].as_array().unwrap().iter().map(|model| &model["model"]).collect();
    assert_eq!(names, ["tales:latest", "story-teller:latest", "thinker:latest"]);
    assert!(tags["models"][2]["size"].as_u64().unwrap() > 1000);
    let shown = server.ok("/api/show", &json!({ "model": THINKER }));
    assert_eq!(shown["capabilities"], json!(["completion", "thinking"]));
    assert_eq!((&shown["details"]["family"], &shown["details"]["format"]), (&json!("llama"), &json!("gguf")));
    assert_eq!(shown["model_info"]["llama.block_count"], 1);
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(server.post("/api/show", &json!({ "model": "none" })).status, 404);
    let version = server.get("/api/version").json();
    assert_eq!(
        (&version["version"], &version["akunu"]),
        (&json!("0.13.0"), &json!(env!("CARGO_PKG_VERSION")))
    );
    let loaded = server.ok("/api/generate", &json!({ "model": format!("{TALES}:latest") }));
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
    assert!(server.get("/api/nothing").json()["error"].is_string());
}
