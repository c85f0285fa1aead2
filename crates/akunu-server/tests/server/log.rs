//! The request log.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use akunu_server::{Keys, LogFormat, RequestLog};
use serde_json::{Value as Json, json};

use crate::http::{connect, request, send};
use crate::serve::{ENDLESS, Served, TALES, serve_endless, serve_with};

#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn log(&self, format: LogFormat, is_verbose: bool) -> Option<RequestLog> {
        Some(RequestLog::new(format, is_verbose, Box::new(self.clone()), |_| {}).unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines, once there are this many.
    fn lines(&self, count: usize) -> Vec<String> {
        let began = Instant::now();
        loop {
            let text = self.text();
            let lines: Vec<String> = text.lines().map(str::to_string).collect();
            if lines.len() >= count && text.ends_with('\n') {
                assert_eq!(lines.len(), count, "{text}");
                return lines;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{count} lines: {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn json(&self, count: usize) -> Vec<Json> {
        self.lines(count).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn logged() -> (Served, Lines) {
    let lines = Lines::default();
    let server = serve_with(|options| options.log = lines.log(LogFormat::Json, false));
    (server, lines)
}

const SECRET: &str = "a secret about a fox";

fn prompt(more: Json) -> Json {
    let mut body = json!({ "model": TALES, "prompt": SECRET, "max_tokens": 12, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_line_has_what_a_request_was_and_cost() {
    let (server, lines) = logged();
    let whole = server.ok("/v1/completions", &prompt(json!({})));
    let streamed = server.post("/v1/completions?secret=x", &prompt(json!({ "stream": true })));
    assert_eq!(streamed.status, 200);
    let all = lines.json(2);
    for line in &all {
        assert_eq!(
            (&line["status"], &line["method"], &line["finish"]),
            (&json!(200), &json!("POST"), &json!("length"))
        );
        assert_eq!(
            (&line["path"], &line["model"], &line["from"]),
            (&json!("/v1/completions"), &json!(TALES), &json!("127.0.0.1"))
        );
        assert_eq!(line["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        assert_eq!(line["output_tokens"], 12);
        let (first, total) = (line["first_token_ms"].as_f64().unwrap(), line["total_ms"].as_f64().unwrap());
        assert!(first > 0.0 && first < total, "{line}");
        assert!(line["key"].is_null() && line["error"].is_null(), "{line}");
    }
    assert_eq!(all[0]["cached_tokens"], 0);
    assert!(!lines.text().contains("secret") && !lines.text().contains("sampling"), "{}", lines.text());
}

#[test]
fn prompts_count_once_and_choices_together() {
    let (server, lines) = logged();
    let body = prompt(json!({ "prompt": ["Once", "There"], "n": 3, "max_tokens": 4 }));
    let usage = server.ok("/v1/completions", &body)["usage"].clone();
    let line = lines.json(1).remove(0);
    assert_eq!((&line["prompt_tokens"], &line["output_tokens"]), (&usage["prompt_tokens"], &json!(24)));
    assert_eq!(line["cached_tokens"], usage["prompt_tokens_details"]["cached_tokens"]);
}

#[test]
fn refused_requests_are_logged_without_their_messages() {
    let (server, lines) = logged();
    for (path, body, status) in [
        ("/v1/completions", prompt(json!({ "model": SECRET })), 404),
        ("/v1/completions", prompt(json!({ "temperature": SECRET })), 400),
        ("/v1/nothing", json!({}), 404),
        ("/api/chat", json!({ "model": "a\nb \u{9b}" }), 404),
    ] {
        assert_eq!(server.post(path, &body).status, status);
    }
    assert_eq!(server.get("/v1/completions").status, 405);
    let all = lines.json(5);
    let of = |name: &str| all.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("status"), [404, 400, 404, 404, 405]);
    assert_eq!(of("error")[0], "model_not_found");
    assert_eq!(of("param")[..2], [json!("model"), json!("temperature")]);
    // What was asked for as a model is no text.
    assert_eq!(of("model"), [json!(SECRET), Json::Null, Json::Null, json!("a\nb \u{9b}"), Json::Null]);
    assert!(of("output_tokens").iter().chain(&of("finish")).all(Json::is_null));
}

#[test]
fn who_asked_is_the_name_of_a_key_and_never_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "hidden-one name=alice\nhidden-two\n").unwrap();
    let lines = Lines::default();
    let server = serve_with(|options| {
        options.keys = Keys::from_file(&path).unwrap();
        options.log = lines.log(LogFormat::Text, false);
    });
    for key in ["hidden-one", "hidden-two", "hidden-three"] {
        send(server.address(), &request("GET", "/v1/models", &[("x-api-key", key)], b""));
    }
    let all = lines.lines(3);
    assert!(all[0].contains(" 200 GET /v1/models from=127.0.0.1 key=alice total="), "{all:?}");
    assert!(all[1].contains(" key=key-2 "), "{all:?}");
    assert!(
        all[2].contains(" 401 ") && all[2].contains("error=invalid_api_key") && !all[2].contains("key="),
        "{all:?}"
    );
    assert!(!lines.text().contains("hidden"), "{all:?}");
}

#[test]
fn a_client_that_hangs_up_is_logged_with_what_it_cost() {
    let lines = Lines::default();
    let server = serve_endless(|options| options.log = lines.log(LogFormat::Json, false));
    for stream in [true, false] {
        let body = prompt(json!({ "max_tokens": ENDLESS, "ignore_eos": true, "stream": stream }));
        let mut client = connect(server.address());
        client.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
        server.until(&["akunu_running_requests"], 1.0);
        let generated = server.metric("akunu_generated_tokens_total");
        server.until_within(&["akunu_generated_tokens_total"], generated + 1.0..=f64::MAX);
        drop(client);
        server.until_idle();
    }
    let all = lines.json(2);
    assert_eq!((&all[0]["status"], &all[1]["status"]), (&json!(200), &Json::Null));
    for line in all {
        assert_eq!((&line["finish"], &line["model"]), (&json!("disconnected"), &json!(TALES)));
        assert!(line["output_tokens"].as_u64().unwrap() > 0, "{line}");
    }
}

#[test]
fn health_checks_and_sampling_are_for_verbose_logs() {
    let (server, lines) = logged();
    for path in ["/health", "/ready", "/metrics", "/api/version"] {
        assert_eq!(server.get(path).status, 200);
    }
    assert_eq!(lines.json(1)[0]["path"], "/api/version");

    let verbose = Lines::default();
    let server = serve_with(|options| options.log = verbose.log(LogFormat::Json, true));
    let head = [("user-agent", "curl/8 \u{7f}")];
    send(server.address(), &request("GET", "/health", &[], b""));
    let body = prompt(json!({ "seed": 7, "top_p": 0.9 })).to_string();
    send(server.address(), &request("POST", "/v1/completions", &head[..0], body.as_bytes()));
    let all = verbose.json(2);
    assert_eq!(all[0]["path"], "/health");
    let sampling = &all[1]["sampling"];
    assert_eq!((&sampling["seed"], &sampling["top_p"]), (&json!(7), &json!(0.9)));
    assert_eq!((&sampling["temperature"], &sampling["max_tokens"]), (&json!(0.0), &json!(12)));
}

#[test]
fn embeddings_have_tokens_and_errors_in_streams_are_errors() {
    let lines = Lines::default();
    let server = serve_with(|options| {
        options.log = lines.log(LogFormat::Json, false);
        options.models.pooling = Some(akunu::Pooling::Mean);
    });
    let usage = server.ok("/v1/embeddings", &json!({ "input": ["Once upon", "a time"] }))["usage"].clone();
    let line = lines.json(1).remove(0);
    assert_eq!((&line["prompt_tokens"], &line["output_tokens"]), (&usage["prompt_tokens"], &Json::Null));

    let lines = Lines::default();
    let server = serve_endless(|options| {
        options.log = lines.log(LogFormat::Json, false);
        options.limits.request = Some(Duration::from_millis(300));
    });
    let body = prompt(json!({ "max_tokens": ENDLESS, "ignore_eos": true, "stream": true }));
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    let line = lines.json(1).remove(0);
    assert_eq!(
        (&line["status"], &line["finish"], &line["error"]),
        (&json!(200), &json!("error"), &json!("timeout"))
    );
}

#[test]
fn lines_are_written_before_the_server_has_stopped() {
    let lines = Lines::default();
    let server = serve_with(|options| options.log = lines.log(LogFormat::Text, false));
    // Long enough to be seen while it runs.
    let body = prompt(json!({ "stream": true, "max_tokens": 450, "ignore_eos": true })).to_string();
    let mut client = connect(server.address());
    client.write_all(&request("POST", "/v1/completions", &[], body.as_bytes())).unwrap();
    server.until_within(&["akunu_running_requests", "akunu_generated_tokens_total"], 1.0..=f64::MAX);
    server.0.stop();
    let text = lines.text();
    assert!(text.contains(" 200 POST /v1/completions ") && text.contains(" finish=length\n"), "{text}");
}

#[test]
fn the_page_has_the_fields_of_the_log() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server-log.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, page) = page.split_once("\n## Fields\n").unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let lines = Lines::default();
    let server = serve_with(|options| options.log = lines.log(LogFormat::Json, true));
    server.ok("/v1/completions", &prompt(json!({})));
    let line = lines.json(1).remove(0);
    let mut found: BTreeSet<String> = line.as_object().unwrap().keys().cloned().collect();
    found.remove("sampling");
    found.extend(line["sampling"].as_object().unwrap().keys().map(|name| format!("sampling.{name}")));
    assert_eq!(documented, found.iter().map(String::as_str).collect());
}
