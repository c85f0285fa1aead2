//! A server without a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use akunu_server::{Local, LocalAnswer, LocalEvent, ModelSpec};
use serde_json::{Value as Json, json};

use crate::serve::options;

const LONG: Duration = Duration::from_secs(60);

/// The status and the text of an answer.
fn whole(answer: &LocalAnswer) -> (u16, String) {
    let Some(LocalEvent::Status(status)) = answer.next(LONG) else { panic!("no status") };
    let mut text = Vec::new();
    loop {
        match answer.next(LONG).unwrap() {
            LocalEvent::Bytes(bytes) => text.extend(bytes),
            LocalEvent::End => return (status, String::from_utf8(text).unwrap()),
            LocalEvent::Status(_) => panic!("two statuses"),
        }
    }
}

fn ask(local: &Local, path: &str, body: &Json) -> LocalAnswer {
    local.request(path, "application/json", Some(body.to_string().into_bytes()), None)
}

#[test]
fn requests_are_answered_as_over_a_socket() {
    let local = Local::start(options()).unwrap();
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0 });
    let (status, text) = whole(&ask(&local, "/v1/completions", &body));
    let answer: Json = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(5)));
    let (status, text) = whole(&ask(&local, "/v1/completions", &json!({ "prompt": "a", "top_p": 7 })));
    assert!(status == 400 && text.contains("top_p"), "{text}");
    assert_eq!(whole(&local.request("/v1/models", "", None, None)).0, 200);
    assert_eq!(whole(&local.request("not a path", "", None, None)).0, 400);
    assert_eq!(whole(&ask(&local, "/none", &json!({}))).0, 404);

    // Each part is announced.
    let announced = Arc::new(AtomicUsize::new(0));
    let counter = announced.clone();
    let notify = Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let body = Some(streamed.to_string().into_bytes());
    let answer = local.request("/v1/completions", "application/json", body, Some(notify));
    let (mut parts, mut text) = (0, Vec::new());
    loop {
        parts += 1;
        match answer.next(LONG).unwrap() {
            LocalEvent::Status(status) => assert_eq!(status, 200),
            LocalEvent::Bytes(bytes) => text.extend(bytes),
            LocalEvent::End => break,
        }
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    // A part is there before it is announced.
    let until = Instant::now() + LONG;
    while announced.load(Ordering::SeqCst) < parts {
        assert!(Instant::now() < until);
    }
    assert_eq!(announced.load(Ordering::SeqCst), parts);
    assert_eq!(answer.next(LONG), Some(LocalEvent::End));
}

#[test]
fn a_dropped_answer_ends_its_request() {
    let mut options = options();
    options.models.engine.context = Some(100_100);
    let local = Local::start(options).unwrap();
    let body = json!({ "prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": true });
    let answer = ask(&local, "/v1/completions", &body);
    assert_eq!(answer.next(LONG), Some(LocalEvent::Status(200)));
    let running = || -> u64 {
        let (_, text) = whole(&local.request("/get_load", "", None, None));
        serde_json::from_str::<Json>(&text).unwrap()[0]["num_reqs"].as_u64().unwrap()
    };
    assert_eq!(running(), 1);
    drop(answer);
    let until = Instant::now() + LONG;
    while running() > 0 {
        assert!(Instant::now() < until);
    }
    // Models are gone with their requests.
    let _running = ask(&local, "/v1/completions", &body);
    drop(local);
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error() {
    let mut options = options();
    let missing =
        ModelSpec { name: "missing".into(), path: Some("/missing.gguf".into()), aliases: Vec::new() };
    options.models.models = vec![missing];
    assert!(Local::start(options).unwrap_err().to_string().contains("/missing.gguf"));
}
