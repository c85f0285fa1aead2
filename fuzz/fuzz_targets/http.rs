//! Arbitrary bytes as a request, in this process: the first byte selects the route. Every response is in the form of its
//! protocol, and no request is answered with an internal error.
#![no_main]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use akunu::EngineOptions;
use akunu_fixtures::scripted;
use akunu_plan::mock::MockDevice;
use akunu_plan::{Capabilities, InPlace, KeyOrder};
use akunu_server::fuzzing::{InProcess, Uri};
use akunu_server::{Limits, ModelSpec, ModelsOptions, Options};
use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;

/// Selected by [`LETTERS`]. What is in braces is the first line of the input, which may have a query; so is the query of those
/// that end in `?`.
const ROUTES: [(&str, &str); LETTERS.len()] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/api/show"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/embed"),
    ("POST", "/rerank"),
    ("POST", "/"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/api/create"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/audio/translations"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/completions/render"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/blobs/{digest}"),
    ("HEAD", "/api/blobs/{digest}"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{*name}"),
    ("GET", "/api/v0/models"),
    ("GET", "/api/v0/models/{*name}"),
    ("GET", "/v1/responses/{id}"),
    ("DELETE", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("GET", "/v1/responses/{id}/input_items"),
    ("POST", "/slots/{id}"),
    ("GET", "/slots?"),
    ("GET", "/props?"),
    ("GET", "/get_model_info?"),
    ("GET", "/model_info?"),
    ("GET", "/get_server_info?"),
    ("GET", "/server_info?"),
    ("GET", "/get_load"),
    ("GET", "/get_loads"),
    ("GET", "/v1/loads"),
    ("POST", "/flush_cache"),
    ("GET", "/is_sleeping"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/mcp/tools"),
    ("POST", "/mcp/call"),
    ("PUT", "/v1/chat/completions"),
    ("GET", "/{unknown}"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/infill"),
];

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+";

/// The next token that the device finds.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The tokens that it finds one after the other: reasoning, an answer and a call, in [`scripted`]'s vocabulary.
const FOUND: [u32; 8] = [6, 264, 7, 265, 100, 266, 40, 5];
const VOCABULARY: usize = 288;

/// Fills what the host reads from a device that computes nothing: rows of logits, or ids.
fn found(bytes: &mut [u8]) {
    let next = || FOUND[NEXT.fetch_add(1, Ordering::Relaxed) % FOUND.len()];
    let row = VOCABULARY * size_of::<f32>();
    if bytes.len() < row {
        bytes.chunks_exact_mut(4).for_each(|id| id.copy_from_slice(&next().to_le_bytes()));
        return;
    }
    bytes.fill(0);
    for logits in bytes.chunks_exact_mut(row) {
        logits[next() as usize * size_of::<f32>()..][..4].copy_from_slice(&9f32.to_le_bytes());
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        name: "mock",
        detail: String::new(),
        folds: false,
        half_products: None,
        packed_products: None,
        eight_products: None,
        keys: KeyOrder::PositionMajor,
        block: 16,
        in_place: InPlace::All,
        samples: false,
        chain: 1,
        prefill_rows: 512,
        workspace_bytes: 0,
        workspace_row_bytes: 0,
        streaming_bytes: 0,
        ranks: 1,
        host: None,
        stages: Vec::new(),
        available_bytes: Some(u64::MAX),
    }
}

/// A model that answers [`FOUND`].
static SERVER: LazyLock<InProcess> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("akunu-scripted-{}.gguf", std::process::id()));
    let words = ["Hmm.", "Yes.", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"];
    scripted::write(&path, Some(&format!("{}{{# <think> <tool_call> #}}", scripted::CHATML)), &words);
    let engine = EngineOptions { context: Some(128), ..EngineOptions::default() };
    let spec = ModelSpec { name: "m".into(), path: Some(path), aliases: Vec::new() };
    let models = ModelsOptions {
        models: vec![spec],
        engine: engine.batching(2),
        device: |_| Ok(Box::new(MockDevice::new(capabilities()).unrecorded(found))),
        ..ModelsOptions::default()
    };
    let limits = Limits { request: Some(Duration::from_secs(2)), ..Limits::default() };
    InProcess::new(Options { models, limits, ..Options::default() }).expect("a server")
});

/// A route's path with what is in braces, or with a query.
fn with_line(route: &str, line: &str) -> Option<Uri> {
    let path = match (route.split_once('{'), route.strip_suffix('?')) {
        (Some((before, rest)), _) => format!("{before}{line}{}", rest.split_once('}')?.1),
        (None, Some(path)) => format!("{path}?{line}"),
        (None, None) => return None,
    };
    path.parse().ok()
}

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
    let Some((letter, mut body)) = data.split_first() else { return };
    let Some(place) = LETTERS.iter().position(|of| of == letter) else { return };
    let (method, route) = ROUTES[place];
    let path = if route.contains('{') || route.ends_with('?') {
        let end = body.iter().position(|&byte| byte == b'\n').unwrap_or(body.len());
        let line = std::str::from_utf8(&body[..end]).ok().and_then(|line| with_line(route, line));
        body = body.get(end + 1..).unwrap_or_default();
        line
    } else {
        route.parse().ok()
    };
    let Some(path) = path else { return };
    let is_form = route.starts_with("/v1/audio/");
    let form = if is_form { "multipart/form-data; boundary=b" } else { "application/json" };
    NEXT.store(0, Ordering::Relaxed);
    let (status, kind, response) = SERVER.send(method, path, form, body).expect("a response");
    let text = std::str::from_utf8(&response).expect("a response in UTF-8");
    assert_ne!(status, 500, "{route}: {text}");
    assert!((200..=504).contains(&status), "{route}: {status}");
    if method == "HEAD" {
        return;
    }
    if status < 400 {
        let takes_json = method == "POST" && !is_form && route != "/flush_cache";
        assert!(!takes_json || serde_json::from_slice::<Json>(body).is_ok(), "{route}: {text}");
        if ["application/json", "application/x-ndjson", "text/event-stream"].contains(&kind.as_str()) {
            assert!(!values(text).is_empty(), "{route}: no response");
        }
        return;
    }
    let values = values(text);
    let message = if let [value] = &values[..] { error_message(value) } else { None };
    let message = message.unwrap_or_else(|| panic!("{route}: {status} without a message: {text}"));
    assert!(!message.is_empty(), "{route}: {text}");
});
