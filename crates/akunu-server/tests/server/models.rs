//! Several models in one server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use akunu_server::ModelSpec;
use serde_json::{Value as Json, json};

use crate::http::{connect, request};
use crate::serve::{ENDLESS, Served, TALES, serve_endless, serve_with};

/// A copy of the model inside the binary.
fn copy(folder: &Path) -> PathBuf {
    let path = folder.join("copy.gguf");
    let tales = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu/embedded/akunu-tales.gguf");
    std::fs::copy(tales, &path).unwrap();
    path
}

fn spec(name: &str, path: &Path) -> ModelSpec {
    ModelSpec { name: name.into(), path: Some(path.into()), aliases: Vec::new() }
}

fn ask(server: &Served, model: &str) -> (u16, Json) {
    let body = json!({ "model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0 });
    let answer = server.post("/v1/completions", &body);
    (answer.status, answer.json())
}

fn loaded(server: &Served, model: &str) -> bool {
    let page = server.get("/metrics").text();
    let line = format!("akunu_model_loaded{{model=\"{model}\"}} 1");
    page.lines().any(|written| written == line)
}

#[test]
fn models_go_by_name_or_alias_and_are_loaded_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve_with(|options| options.models.models.push(spec("copy", &copy(folder.path()))));
    assert!(!loaded(&server, TALES) && !loaded(&server, "copy"));
    let (_, first) = ask(&server, "story-teller");
    assert_eq!(first["model"], "story-teller");
    assert!(loaded(&server, TALES) && !loaded(&server, "copy"));
    let (_, second) = ask(&server, "copy");
    assert_eq!(first["choices"], second["choices"]);
    assert!(loaded(&server, "copy"));
    let (status, missing) = ask(&server, "gpt-4o");
    let error = &missing["error"];
    assert_eq!((status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("tales, copy"), "{error}");
}

#[test]
fn a_file_that_disappears_is_that_requests_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    let server = serve_with(|options| options.models.models.push(spec("copy", &path)));
    std::fs::remove_file(&path).unwrap();
    let (status, answer) = ask(&server, "copy");
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("copy.gguf"), "{answer}");
    assert_eq!(ask(&server, TALES).0, 200);
    // What is back can be asked for, and what is loaded needs no file.
    copy(folder.path());
    assert_eq!(ask(&server, "copy").0, 200);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ask(&server, "copy").0, 200);
}

#[test]
fn a_file_that_is_no_model_is_that_requests_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, b"GGUF and nothing else").unwrap();
    let server = serve_with(|options| options.models.models.push(spec("broken", &path)));
    assert_eq!(ask(&server, "broken").0, 503);
    assert_eq!(ask(&server, TALES).0, 200);
}

#[test]
fn what_nobody_asks_for_is_put_away_and_comes_back() {
    let server = serve_with(|options| options.models.idle_unload = Some(Duration::ZERO));
    assert_eq!(ask(&server, TALES).0, 200);
    server.until(&["akunu_model_loaded"], 0.0);
    assert_eq!(ask(&server, TALES).0, 200);
}

#[test]
fn memory_for_one_is_given_to_the_one_that_is_asked_for_unless_the_other_is_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let one = {
        let server = serve_endless(|_| {});
        assert_eq!(ask(&server, TALES).0, 200);
        let lease = server.get("/metrics").text();
        let line = lease.lines().find_map(|line| line.strip_prefix("akunu_model_bytes{model=\"tales\"} "));
        line.unwrap().parse::<f64>().unwrap() as u64
    };
    let server = serve_endless(|options| {
        options.models.models.push(spec("copy", &copy(folder.path())));
        options.models.memory = Some(one + one / 2);
    });
    assert_eq!(ask(&server, TALES).0, 200);
    assert_eq!(ask(&server, "copy").0, 200);
    assert!(!loaded(&server, TALES) && loaded(&server, "copy"));
    let body = json!({ "model": "copy", "prompt": "Once", "max_tokens": ENDLESS, "ignore_eos": true, "stream": true });
    let mut at_work = connect(server.address());
    at_work.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
    server.until(&["akunu_running_requests"], 1.0);
    let (status, answer) = ask(&server, TALES);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_not_loaded")));
    drop(at_work);
    server.until_idle();
    assert_eq!(ask(&server, TALES).0, 200);
}

#[test]
fn a_model_without_a_chat_template_says_where_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    // The key by another name of the same length.
    let mut bytes = std::fs::read(&path).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(b"tokenizer.chat_nothing!");
    std::fs::write(&path, bytes).unwrap();
    let server = serve_with(|options| options.models.models.push(spec("plain", &path)));
    let body = json!({ "model": "plain", "messages": [{ "role": "user", "content": "Hello" }] });
    let answer = server.post("/v1/chat/completions", &body);
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("no_chat_template")));
    assert!(error["message"].as_str().unwrap().contains("/v1/completions"), "{error}");
    assert_eq!(ask(&server, "plain").0, 200);
}
