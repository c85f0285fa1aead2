//! OpenAI's API.

use serde_json::{Value as Json, json};

use crate::serve::{TALES, serve};

fn messages(text: &str) -> Json {
    json!([{ "role": "user", "content": text }])
}

#[test]
fn health_and_models_are_reported() {
    let server = serve();
    assert_eq!(server.get("/health").json(), json!({ "status": "ok" }));
    assert_eq!(server.get("/ready").json(), json!({ "status": "ready" }));
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(TALES)));
    assert_eq!(server.get("/v1/models/story-teller").json()["id"], "story-teller");
    let missing = server.get("/v1/models/other");
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("model_not_found")));
    let nowhere = server.get("/v1/nowhere");
    assert_eq!((nowhere.status, &nowhere.json()["error"]["type"]), (404, &json!("invalid_request_error")));
    assert_eq!(server.get("/v1/completions").status, 405);
    let page = server.get("/metrics").text();
    for line in [
        r#"akunu_requests_total{route="/v1/models",status="200"} 1"#,
        r#"akunu_requests_total{route="/v1/models/{*name}",status="404"} 1"#,
        r#"akunu_requests_total{route="other",status="404"} 1"#,
    ] {
        assert!(page.lines().any(|written| written == line), "{line}\n{page}");
    }
}

#[test]
fn a_stream_has_the_text_of_the_unstreamed_response() {
    let server = serve();
    let mut body = json!({
        "model": TALES, "messages": messages("tell me a story about a fox"), "max_tokens": 40, "temperature": 0,
    });
    let whole = server.ok("/v1/chat/completions", &body);
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.contains("fox"), "{text}");
    assert_eq!(
        (&choice["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(40))
    );

    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let mut events = answer.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let chunks: Vec<Json> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let streamed: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(streamed, text);
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(40)));
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == last["id"]));
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(rest.iter().all(|chunk| chunk.get("timings").is_none()));
    for (answer, usage) in [(&whole, &whole["usage"]), (last, &last["usage"])] {
        let timings = &answer["timings"];
        let number = |name: &str| timings[name].as_f64().unwrap();
        assert_eq!(timings["predicted_n"], usage["completion_tokens"]);
        assert_eq!(timings["cache_n"], usage["prompt_tokens_details"]["cached_tokens"]);
        assert_eq!(number("prompt_n") + number("cache_n"), usage["prompt_tokens"].as_f64().unwrap());
        // 39 steps follow the token that the prompt ends with.
        let rate = number("predicted_per_second") * number("predicted_ms") / 1e3;
        assert!(number("prompt_ms") > 0. && (rate - 39.).abs() < 1e-6, "{timings}");
    }
}

#[test]
fn a_completion_continues_its_prompt() {
    let server = serve();
    let body = json!({ "model": TALES, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
    let whole = server.ok("/v1/completions", &body);
    let text = whole["choices"][0]["text"].as_str().unwrap().to_string();
    assert!(!text.is_empty());
    let mut echoed = body.clone();
    echoed["echo"] = true.into();
    let echoed = server.ok("/v1/completions", &echoed);
    assert_eq!(echoed["choices"][0]["text"], format!("Once upon a time{text}"));
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = server.post("/v1/completions", &streamed).events();
    let pieces = events.iter().filter_map(|event| serde_json::from_str::<Json>(event).ok());
    let pieces: String =
        pieces.filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_string)).collect();
    assert_eq!(pieces, text);
}
