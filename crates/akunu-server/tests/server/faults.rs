//! Misbehaving clients, which must not affect the server.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use akunu::chat::ChatTemplates;
use akunu_testing::fewest_or;
use serde_json::{Value as Json, json};

use crate::http::{answer, connect, request, send};
use crate::serve::{ENDLESS, Served, TALES, serve, serve_endless, serve_with};

fn story(tokens: usize) -> Json {
    json!({
        "model": TALES, "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
    })
}

fn streamed(tokens: usize) -> Vec<u8> {
    let mut body = story(tokens);
    body["stream"] = true.into();
    request("POST", "/v1/completions", &[], body.to_string().as_bytes())
}

/// Checks that the server still works.
fn assert_healthy(server: &Served) {
    let answer = server.ok("/v1/completions", &story(3));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn an_invalid_body_is_400() {
    let server = serve();
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"3",
        b"{\"prompt\": \"a\"} trailing",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        &deep,
    ];
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize"] {
        for body in bodies {
            let answer = server.post_bytes(path, body);
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")), "{error}");
            assert!(error["message"].as_str().unwrap().len() < 300);
        }
    }
    assert_healthy(&server);
}

#[test]
fn a_prompt_of_ten_megabytes_is_refused_with_the_context_length() {
    let server = serve();
    let text = "Once upon a time there was a fox. ".repeat(300_000);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": text })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": text }] })),
    ] {
        let answer = server.post(path, &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert!(error["message"].as_str().unwrap().contains("2048"), "{error}");
    }
    assert_healthy(&server);
}

#[test]
fn a_conversation_that_cannot_fit_is_refused_before_it_is_rendered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.jinja");
    std::fs::write(&path, "{{ raise_exception('it is rendered') }}").unwrap();
    let server = serve_with(|options| {
        options.models.chat_templates = Some(ChatTemplates::from_file(&path).unwrap());
    });
    for (len, code, words) in
        [(10, Json::Null, "it is rendered"), (100_000, json!("context_length_exceeded"), "100000 bytes")]
    {
        let messages = json!([{ "role": "user", "content": "a".repeat(len) }]);
        let answer = server.post("/v1/chat/completions", &json!({ "messages": messages }));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"], &error["param"]), (400, &code, &json!("messages")));
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
}

#[test]
fn a_prompt_as_long_as_the_context_gets_one_token() {
    let server = serve_with(|options| options.models.engine.context = Some(16));
    let ask = |len: usize| {
        let body = json!({ "prompt": vec![5; len], "max_tokens": 9, "ignore_eos": true });
        server.post("/v1/completions", &body)
    };
    for (len, tokens) in [(15, 2), (16, 1)] {
        let answer = ask(len).json();
        let found = (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]);
        assert_eq!(found, (&json!(tokens), &json!("length")), "a prompt of {len}: {answer}");
    }
    let refused = ask(17);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[test]
fn a_body_over_the_limit_is_refused_and_not_stored() {
    let server = serve_with(|options| options.limits.body = 10_000);
    let fits = json!({ "prompt": "a", "padding": "x".repeat(9_000) });
    assert_eq!(server.post("/v1/completions", &fits).status, 200);
    let answer = server.post("/v1/completions", &json!({ "prompt": "x".repeat(20_000) }));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("body_too_large")));
}

#[test]
fn a_flood_of_headers_is_cut_off() {
    let server = serve();
    let many: Vec<(String, String)> = (0..5000).map(|n| (format!("x-{n}"), "y".repeat(8))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let long = "y".repeat(1 << 20);
    for headers in [many, vec![("x-long", long.as_str())]] {
        let mut stream = connect(server.address());
        // The server may close before all of it is written.
        let _ = stream.write_all(&request("GET", "/health", &headers, b""));
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(bytes.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    }
    assert_healthy(&server);
}

#[test]
fn connections_without_http_are_closed() {
    let server = serve();
    for bytes in
        [&b"\0\x01\x02\x03\r\n\r\n"[..], b"GET /health\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"]
    {
        let mut stream = connect(server.address());
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    }
    assert_healthy(&server);
}

#[test]
fn a_thousand_connects_and_hang_ups_leave_nothing_behind() {
    let server = serve();
    let whole = streamed(1000);
    for number in 0..fewest_or(200, 1000, 1000) {
        let mut stream = connect(server.address());
        // Nothing, part of a head, a head, part of a body, and sometimes a whole request.
        let len = match number % 50 {
            0 => whole.len(),
            n => whole.len() * n / 60,
        };
        stream.write_all(&whole[..len]).unwrap();
    }
    server.until_idle();
    assert_healthy(&server);
}

#[test]
fn disconnecting_cancels_the_generation() {
    let server = serve_endless(|_| {});
    let mut stream = connect(server.address());
    stream.write_all(&streamed(ENDLESS)).unwrap();
    let mut some = [0; 2000];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    server.until_idle();
    assert!(server.metric("akunu_generated_tokens_total") < ENDLESS as f64);
    assert_healthy(&server);
}

#[test]
fn a_half_closed_connection_cancels_the_generation() {
    let server = serve_endless(|_| {});
    let mut stream = connect(server.address());
    stream.write_all(&streamed(ENDLESS)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    server.until_idle();
    assert_healthy(&server);
}

#[test]
fn a_slow_reader_gets_all_of_it() {
    let server = serve();
    let wanted = server.ok("/v1/completions", &story(400))["choices"][0]["text"].clone();
    let mut slow = connect(server.address());
    slow.write_all(&streamed(400)).unwrap();
    // Other requests are served in the meantime.
    assert_healthy(&server);
    assert_healthy(&server);
    let events = answer(&mut slow).events();
    let chunks = events.iter().filter_map(|event| serde_json::from_str::<Json>(event).ok());
    let text: String =
        chunks.filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_string)).collect();
    assert_eq!(Json::from(text), wanted);
}

#[test]
fn a_full_queue_is_429_with_retry_after() {
    let server = serve_endless(|options| {
        options.models.scheduler.queue = 1;
        options.models.engine = options.models.engine.clone().batching(1);
    });
    let mut first = connect(server.address());
    first.write_all(&streamed(ENDLESS)).unwrap();
    server.until(&["akunu_running_requests"], 1.0);
    let mut second = connect(server.address());
    second.write_all(&streamed(5)).unwrap();
    server.until(&["akunu_queue_requests"], 1.0);
    let third = send(server.address(), &streamed(5));
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")));
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    drop(first);
    assert_eq!(answer(&mut second).status, 200);
}

#[test]
fn answers_that_do_not_all_fit_the_queue_are_not_begun() {
    let server = serve_endless(|options| {
        options.models.scheduler.queue = 4;
        options.models.engine = options.models.engine.clone().batching(4);
    });
    let ask = |n: usize| {
        let mut body = story(3);
        body["n"] = n.into();
        server.post("/v1/completions", &body)
    };
    let mut endless = connect(server.address());
    endless.write_all(&streamed(ENDLESS)).unwrap();
    server.until(&["akunu_running_requests"], 1.0);
    let begun = || server.metric("akunu_prompt_tokens_total") + server.metric("akunu_reused_tokens_total");
    let before = begun();
    for _ in 0..10 {
        let refused = ask(8);
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("queue_full")));
        // More than there are places will never fit.
        let refused = ask(9);
        assert_eq!((refused.status, refused.header("retry-after")), (400, None));
        let error = refused.json()["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!("n"), &json!("invalid_value")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("9 answers") && message.contains("places for 8"), "{message}");
    }
    assert_eq!(begun(), before);
    drop(endless);
    server.until_idle();
    assert_eq!(ask(8).json()["choices"].as_array().unwrap().len(), 8);
}

#[test]
fn requests_whose_turn_would_come_too_late_are_429_with_retry_after() {
    let server = serve_endless(|options| {
        options.models.scheduler.deadline = Some(Duration::from_millis(1));
        options.models.engine = options.models.engine.clone().batching(1);
    });
    let take_slot = || {
        let mut first = connect(server.address());
        first.write_all(&streamed(ENDLESS)).unwrap();
        server.until(&["akunu_running_requests"], 1.0);
        first
    };
    // As long as no request has ended, nothing is known, and all are queued.
    let first = take_slot();
    let mut second = connect(server.address());
    second.write_all(&streamed(5)).unwrap();
    server.until(&["akunu_queue_requests"], 1.0);
    drop(first);
    assert_eq!(answer(&mut second).status, 200);
    server.until_idle();
    // The slot is free, and then taken for as long as before.
    let first = take_slot();
    let refused = send(server.address(), &streamed(5));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!((&error["code"], &error["type"]), (&json!("too_late"), &json!("rate_limit_error")));
    drop(first);
    server.until_idle();
    assert_eq!(send(server.address(), &streamed(5)).status, 200);
}

#[test]
fn running_requests_finish_at_shutdown() {
    let server = serve_with(|options| options.drain = Duration::from_secs(600));
    let mut running = connect(server.address());
    running.write_all(&streamed(300)).unwrap();
    // The request is accepted once its response has started.
    running.peek(&mut [0]).unwrap();
    let address = server.address();
    server.0.stop();
    let events = answer(&mut running).events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn requests_that_exceed_the_drain_time_are_aborted() {
    let server = serve_endless(|options| options.drain = Duration::ZERO);
    let mut running = connect(server.address());
    running.write_all(&streamed(ENDLESS)).unwrap();
    server.until(&["akunu_running_requests"], 1.0);
    server.0.stop();
    let mut bytes = Vec::new();
    let _ = running.read_to_end(&mut bytes);
    assert!(!String::from_utf8_lossy(&bytes).contains("[DONE]"));
}

#[test]
fn a_request_that_exceeds_its_timeout_is_504() {
    let server = serve_endless(|options| options.limits.request = Some(Duration::ZERO));
    let whole = server.post("/v1/completions", &story(ENDLESS));
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (504, &json!("timeout")));
    let events = send(server.address(), &streamed(ENDLESS)).events();
    let last: Json = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "timeout");
}

#[test]
fn a_request_that_does_not_arrive_times_out() {
    let server = serve_with(|options| options.limits.read = Duration::from_secs(1));
    let whole = streamed(3);
    let body = whole.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    let sent = [(0, ""), (body - 10, ""), (body + 10, "HTTP/1.1 408")].map(|(len, expected)| {
        let mut stream = connect(server.address());
        stream.write_all(&whole[..len]).unwrap();
        (stream, len, expected)
    });
    for (mut stream, len, expected) in sent {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with(expected) && text.is_empty() == expected.is_empty(), "{len}: {text}");
    }
    assert_healthy(&server);
}

#[test]
fn a_client_that_does_not_read_times_out() {
    let server = serve_endless(|options| options.limits.write = Duration::from_millis(200));
    // More than the socket buffers hold.
    let body = json!({
        "messages": [{ "role": "user", "content": "tell me a story" }], "max_tokens": ENDLESS, "ignore_eos": true,
        "stream": true, "n": 4, "logprobs": true, "top_logprobs": 20,
    });
    let mut stream = connect(server.address());
    stream.write_all(&request("POST", "/v1/chat/completions", &[], body.to_string().as_bytes())).unwrap();
    stream.peek(&mut [0]).unwrap();
    server.until_idle();
    assert!(server.metric("akunu_generated_tokens_total") < 4.0 * ENDLESS as f64);
    assert_healthy(&server);
}

#[test]
fn connections_over_the_limit_are_refused_but_for_health_checks() {
    let server = serve_endless(|options| options.limits.connections = 1);
    let mut first = connect(server.address());
    first.write_all(&streamed(ENDLESS)).unwrap();
    first.read_exact(&mut [0; 1000]).unwrap();
    assert_eq!([server.get("/health").status, server.get("/ready").status], [200, 200]);
    let refused = server.get("/v1/models");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("too_many_connections")));
    assert!(refused.header("retry-after").is_some());
    drop(first);
    server.until_idle();
    // A connection counts until a moment after its answer, so each request may find the one before it still counted.
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = loop {
        let answer = server.post("/v1/completions", &story(3));
        if answer.status != 503 || Instant::now() > deadline {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((answer.status, &answer.json()["usage"]["completion_tokens"]), (200, &json!(3)));
}
