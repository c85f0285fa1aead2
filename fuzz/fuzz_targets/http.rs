//! Arbitrary bytes as a request's body, in this process: the first byte selects the path. Every response is in the form
//! of its protocol, and no request is answered with an internal error.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use akunu::{DeviceChoice, EngineOptions};
use akunu_fixtures::scripted;
use akunu_server::fuzzing::InProcess;
use akunu_server::{Limits, ModelSpec, ModelsOptions, Options};
use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;

/// Selected by `a`, `b`, … .
const PATHS: [&str; 20] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/v1/rerank",
    "/v2/rerank",
    "/embed",
    "/rerank",
    "/",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    AUDIO,
    "/api/create",
];

/// Takes a form instead of JSON.
const AUDIO: &str = "/v1/audio/transcriptions";

/// A model with scripted answers, which a device of plain loops runs in moments.
static SERVER: LazyLock<InProcess> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("akunu-scripted-{}.gguf", std::process::id()));
    let chain = [
        "\n",
        "<think>",
        "Hmm.",
        "</think>",
        "Yes.",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
    ];
    scripted::write(&path, Some(&format!("{}{{# <think> <tool_call> #}}", scripted::CHATML)), &chain);
    let engine = EngineOptions { device: DeviceChoice::Reference, ..EngineOptions::default() };
    let engine = EngineOptions { context: Some(128), ..engine.batching(2) };
    let spec = ModelSpec { name: "m".into(), path: Some(path), aliases: Vec::new() };
    let models = ModelsOptions { models: vec![spec], engine, rerank: false, ..ModelsOptions::default() };
    let limits = Limits { request: Some(Duration::from_secs(2)), ..Limits::default() };
    InProcess::new(Options { models, limits, ..Options::default() }).expect("a server")
});

/// The JSON values of a response: one, or those of its events or lines.
fn values(text: &str) -> Vec<Json> {
    if let Ok(value) = serde_json::from_str(text) {
        return vec![value];
    }
    let data = text.lines().filter(|line| !line.is_empty() && !line.starts_with("event: "));
    let data = data.map(|line| line.strip_prefix("data: ").unwrap_or(line)).filter(|line| *line != "[DONE]");
    data.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))).collect()
}

/// The message of an error, in the form of any of the protocols.
fn error_message(value: &Json) -> Option<&str> {
    let error = &value["error"];
    error["message"].as_str().or(error.as_str()).or(value["message"].as_str())
}

fuzz_target!(|data: &[u8]| {
    let Some((path, body)) = data.split_first() else { return };
    let Some(path) = PATHS.get(usize::from(path.wrapping_sub(b'a'))) else { return };
    let is_form = *path == AUDIO;
    let kind = if is_form { "multipart/form-data; boundary=b" } else { "application/json" };
    let (status, response) = SERVER.post(path, kind, body).expect("a response");
    let text = std::str::from_utf8(&response).expect("a response in UTF-8");
    assert_ne!(status, 500, "{path}: {text}");
    let values = values(text);
    if !is_form && serde_json::from_slice::<Json>(body).is_err() {
        assert_eq!(status, 400, "{path}: {text}");
    }
    if status == 200 {
        assert!(!values.is_empty(), "{path}: no response");
    } else {
        assert!((400..=504).contains(&status), "{path}: {status}");
        let message = if let [value] = &values[..] { error_message(value) } else { None };
        let message = message.unwrap_or_else(|| panic!("{path}: {status} without a message: {text}"));
        assert!(!message.is_empty(), "{path}: {text}");
    }
});
