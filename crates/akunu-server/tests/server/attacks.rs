//! Attacks on the server's time, memory, and users.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use akunu_server::{Cors, Keys};
use serde_json::{Value as Json, json};

use crate::http::{Answer, answer, connect, request, send};
use crate::serve::{Served, WATCHER, serve, serve_with};

fn post_with(server: &Served, path: &str, headers: &[(&str, &str)], body: &Json) -> Answer {
    send(server.address(), &request("POST", path, headers, body.to_string().as_bytes()))
}

fn refused(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_string())
}

/// A test must end long before an attack's work could be done.
fn within<T>(seconds: u64, action: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = action();
    assert!(start.elapsed() < Duration::from_secs(seconds), "it took {:?}", start.elapsed());
    result
}

#[test]
fn texts_that_cannot_fit_the_context_are_refused_before_they_are_tokenized() {
    let server = serve();
    let text = "a ".repeat(8 << 20);
    for (path, body) in [
        ("/tokenize", json!({ "content": &text, "with_pieces": true })),
        ("/v1/completions", json!({ "prompt": &text })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": &text }] })),
    ] {
        let answer = within(20, || server.post(path, &body));
        assert_eq!(refused(&answer).0 / 100, 4, "{path}: {}", answer.text());
        assert!(answer.body.len() < 1000);
    }
    assert_eq!(server.metric("akunu_request_memory_bytes"), 0.0);
}

#[test]
fn lists_of_many_values_are_refused_before_they_are_parsed() {
    let server = serve();
    let zeros = format!("{{\"prompt\": [{}0]}}", "0,".repeat(8 << 20));
    let answer = within(20, || server.post_bytes("/v1/completions", zeros.as_bytes()));
    assert_eq!(refused(&answer), (413, "request_too_large".into()));
    let nested = "[".repeat(8 << 20);
    assert_eq!(server.post_bytes("/v1/completions", nested.as_bytes()).status, 413);
}

#[test]
fn requests_share_a_limit_of_memory() {
    let server = serve_with(|options| options.limits.memory = 64 << 10);
    let body = |len: usize| json!({ "content": "a".repeat(len) });
    assert_eq!(server.post("/tokenize", &body(50)).status, 200);
    assert_eq!(refused(&server.post("/tokenize", &body(1000))), (413, "request_too_large".into()));
    assert_eq!(refused(&server.post("/tokenize", &body(20_000))), (413, "request_too_large".into()));
    // Bodies that are being sent count.
    let half = |len: usize| {
        let mut stream = connect(server.address());
        let whole = request("POST", "/tokenize", &[], body(len).to_string().as_bytes());
        stream.write_all(&whole[..whole.len() - 10]).unwrap();
        stream
    };
    let open: Vec<TcpStream> = (0..4).map(|_| half(15_900)).collect();
    // What is allocated for a body that arrives in pieces is between what was sent and what was announced.
    let whole = body(15_900).to_string().len();
    let [sent, announced] = [whole - 10, whole].map(|len| 4.0 * len as f64);
    server.until_within(&["akunu_request_memory_bytes"], sent..=announced);
    assert_eq!(refused(&server.post("/tokenize", &body(5000))), (503, "server_busy".into()));
    drop(open);
    server.until(&["akunu_request_memory_bytes"], 0.0);
    assert_eq!(server.post("/tokenize", &body(50)).status, 200);
}

#[test]
fn tokens_with_pieces_are_streamed_as_valid_json() {
    let server = serve();
    let content = "Once upon a time, \"Lily\" found 100 \\ things. ".repeat(200);
    let plain = server.ok("/tokenize", &json!({ "content": content }));
    let pieces = server.ok("/tokenize", &json!({ "content": content, "with_pieces": true }));
    let list = pieces["tokens"].as_array().unwrap();
    assert!(list.len() > 1000 && pieces["count"] == list.len() && plain["count"] == list.len());
    let ids: Vec<Json> = list.iter().map(|token| token["id"].clone()).collect();
    assert_eq!(plain["tokens"], Json::Array(ids));
    assert_eq!(server.ok("/tokenize", &json!({ "content": "" })), json!({ "tokens": [], "count": 0 }));
}

#[test]
fn stop_strings_and_biases_are_limited() {
    let server = serve_with(|options| options.limits.biases = 3);
    let ask = |more: Json| {
        let mut body = json!({ "prompt": "Once", "max_tokens": 1, "n": 128 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/completions", &body);
        (answer.status, answer.json()["error"]["param"].clone())
    };
    let stops = |count: usize| json!({ "stop": (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>() });
    assert_eq!(ask(stops(4)).0, 200);
    assert_eq!(ask(stops(5)), (400, json!("stop")));
    assert_eq!(within(20, || ask(stops(400_000))), (400, json!("stop")));
    assert_eq!(ask(json!({ "stop": ["a".repeat(4097)] })), (400, json!("stop")));
    let biases = |count: usize| json!({ "logit_bias": (0..count).map(|id| (id.to_string(), 1.into())).collect::<serde_json::Map<_, Json>>() });
    assert_eq!(ask(biases(3)).0, 200);
    assert_eq!(ask(biases(4)), (400, json!("logit_bias")));
}

#[test]
fn pages_of_strangers_reach_nothing() {
    let server = serve();
    let body = json!({ "prompt": "Once", "max_tokens": 1 });
    let ask = |headers: &[(&str, &str)]| refused(&post_with(&server, "/v1/completions", headers, &body));
    let foreign = ("origin", "https://evil.example");
    assert_eq!(ask(&[]), (200, String::new()));
    assert_eq!(ask(&[foreign]), (403, "origin_not_allowed".into()));
    assert_eq!(ask(&[foreign, ("content-type", "text/plain")]), (403, "origin_not_allowed".into()));
    assert_eq!(ask(&[("sec-fetch-site", "cross-site")]), (403, "origin_not_allowed".into()));
    assert_eq!(ask(&[("origin", "http://localhost:3000")]).0, 200);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        assert_eq!(ask(&[("content-type", kind)]), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_eq!(ask(&[("content-type", "Application/JSON; charset=utf-8")]).0, 200);
    // Commands of Ollama's documentation send no type.
    let show =
        |headers: &[(&str, &str)]| post_with(&server, "/api/show", headers, &json!({ "model": "tales" }));
    assert_eq!(show(&[("content-type", "application/x-www-form-urlencoded")]).status, 200);
    assert_eq!(show(&[("content-type", "text/plain"), foreign]).status, 403);
    // An allowed origin may.
    let open = serve_with(|options| options.cors = Cors::Origins(vec!["https://evil.example".into()]));
    assert_eq!(post_with(&open, "/v1/completions", &[foreign], &body).status, 200);
}

#[test]
fn a_server_on_loopback_answers_to_its_own_names_only() {
    let server = serve_with(|options| options.allowed_hosts = vec!["models.lan".into()]);
    let ask = |hosts: &[&str]| {
        let mut text = "GET /v1/models HTTP/1.1\r\nconnection: close\r\n".to_string();
        hosts.iter().for_each(|host| text.push_str(&format!("host: {host}\r\n")));
        text.push_str("\r\n");
        refused(&send(server.address(), text.as_bytes()))
    };
    assert_eq!(ask(&["127.0.0.1:1"]).0, 200);
    assert_eq!(ask(&["models.lan"]).0, 200);
    assert_eq!(ask(&["evil.example"]), (403, "host_not_allowed".into()));
    assert_eq!(ask(&["localhost", "evil.example"]).0, 400);
    assert_eq!(ask(&[]).0, 400);
    let absolute =
        "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(refused(&send(server.address(), absolute.as_bytes())).0, 403);
}

/// Connections that send a part of a request, then a byte from time to time.
fn dripping(server: &Served, count: usize, part: &[u8]) -> Vec<TcpStream> {
    let open = (0..count).map(|_| {
        let mut stream = connect(server.address());
        stream.write_all(part).unwrap();
        stream
    });
    open.collect()
}

#[test]
fn slow_clients_do_not_keep_out_health_checks() {
    let server = serve_with(|options| options.limits.connections = 8);
    let whole = request("POST", "/tokenize", &[], b"{\"content\": \"a\"}");
    let bodies = dripping(&server, 40, &whole[..whole.len() - 5]);
    let heads = dripping(&server, 40, b"POST /tokenize HTTP/1.1\r\nhost: loc");
    for _ in 0..20 {
        assert_eq!(within(5, || server.get("/health")).status, 200);
        assert_eq!(within(5, || server.get("/ready")).status, 200);
    }
    drop((bodies, heads));
    server.until(&["akunu_request_memory_bytes"], 0.0);
}

#[test]
fn a_body_must_come_at_a_minimum_rate() {
    if akunu_testing::left_to_ci() {
        return;
    }
    let server = serve_with(|options| {
        options.limits.read = Duration::from_secs(1);
        options.limits.body_rate = 100;
    });
    let body = format!("{{\"content\": \"{}\"}}", "a".repeat(90));
    let whole = request("POST", "/tokenize", &[], body.as_bytes());
    let (head, body) = whole.split_at(whole.len() - body.len());
    // 100 bytes earn a second: fast enough.
    let mut stream = connect(server.address());
    stream.write_all(head).unwrap();
    for part in body.chunks(20) {
        stream.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(answer(&mut stream).status, 200);
    // A byte at a time, each long before the timeout for a part.
    let mut stream = connect(server.address());
    stream.write_all(head).unwrap();
    let mut sent = 0;
    for byte in body {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        sent += 1;
        std::thread::sleep(Duration::from_millis(50));
        stream.set_nonblocking(true).unwrap();
        let has_answer = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).unwrap();
        if has_answer {
            break;
        }
    }
    assert!(sent < 40, "{sent} bytes");
    assert_eq!(answer(&mut stream).status, 408);
}

#[test]
fn a_stop_is_not_delayed_by_slow_clients() {
    let server = serve_with(|options| {
        options.limits.connections = 8;
        options.drain = Duration::from_secs(1);
    });
    let whole = request("POST", "/tokenize", &[], b"{\"content\": \"a\"}");
    let open = dripping(&server, 12, &whole[..whole.len() - 5]);
    assert_eq!(server.get("/health").status, 200);
    within(3, || server.0.stop());
    drop(open);
}

#[test]
fn callers_do_not_learn_of_prompts_under_other_keys() {
    let secret =
        "Once upon a time there was a secret that nobody but the first key's owner was ever to learn.";
    let cached = |server: &Served, key: &str, salt: Option<&str>| {
        let body = json!({ "prompt": secret, "max_tokens": 1, "cache_salt": salt });
        let answer = post_with(server, "/v1/completions", &[("x-api-key", key)], &body).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let keys = Keys::new(&format!("{WATCHER} first second"));
    let server = serve_with(|options| options.keys = keys.clone());
    assert_eq!(cached(&server, "first", None), 0);
    assert_eq!(cached(&server, "second", None), 0);
    assert!(cached(&server, "first", None) > 0);
    assert!(cached(&server, "second", None) > 0);
    assert_eq!(cached(&server, "second", Some("a")), 0);
    assert!(cached(&server, "second", Some("a")) > 0);
    let sharing = serve_with(|options| (options.keys, options.share_cache) = (keys, true));
    assert_eq!(cached(&sharing, "first", None), 0);
    assert!(cached(&sharing, "second", None) > 0);
    assert_eq!(cached(&sharing, "second", Some("a")), 0);
}

#[test]
fn keys_cannot_be_guessed_at_any_rate() {
    let server = serve_with(|options| {
        options.keys = Keys::new(&format!("{WATCHER} other"));
        options.limits.wrong_keys = 5;
    });
    let guess =
        |key: &str| send(server.address(), &request("GET", "/v1/models", &[("x-api-key", key)], b"")).status;
    assert_eq!(guess(WATCHER), 200);
    let tries: Vec<u16> = (0..7).map(|n| guess(&format!("guess {n}"))).collect();
    assert_eq!(tries, [401, 401, 401, 401, 401, 429, 429]);
    // The right guess is not told, and whoever had a right key before is not kept out.
    assert_eq!((guess("other"), guess(WATCHER)), (429, 200));
}

#[test]
fn more_sequences_than_rows_of_a_chunk_are_served() {
    let server = serve_with(|options| {
        let engine = options.models.engine.clone();
        options.models.engine = akunu::EngineOptions { chunk: Some(7), ..engine }.batching(16);
    });
    let streams: Vec<TcpStream> = (0..16)
        .map(|_| {
            let body =
                json!({ "prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": true, "stream": true });
            let mut stream = connect(server.address());
            stream.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
            stream
        })
        .collect();
    for mut stream in streams {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("[DONE]"), "{text}");
    }
}

/// Lists of many values are read, copied and freed while others are served.
#[test]
fn long_requests_do_not_delay_others() {
    if akunu_testing::left_to_ci() {
        return;
    }
    let server = serve();
    let message = r#"{"role":"user","content":"a"},"#;
    let body = format!(r#"{{"messages":[{}{{}}]}}"#, message.repeat(60_000));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let long = || {
        assert_eq!(server.post_bytes("/v1/chat/completions", body.as_bytes()).status, 400);
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(long)).collect();
        while done.load(std::sync::atomic::Ordering::Relaxed) < all.len() {
            let start = Instant::now();
            assert_eq!(server.get("/health").status, 200);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn answers_that_are_much_longer_than_their_requests_are_charged() {
    let server = serve_with(|options| options.limits.memory = 1 << 20);
    let ids = server.ok("/tokenize", &json!({ "content": "start" }))["tokens"].clone();
    let tokens = |count: usize| json!({ "tokens": vec![ids[0].clone(); count] });
    assert_eq!(server.post("/detokenize", &tokens(50)).status, 200);
    let small = serve_with(|options| options.limits.memory = 128 << 10);
    assert_eq!(small.post("/detokenize", &tokens(50)).status, 200);
    let echo =
        |n: usize| json!({ "prompt": "Once upon a time ".repeat(8), "echo": true, "n": n, "max_tokens": 1 });
    assert_eq!(small.post("/v1/completions", &echo(1)).status, 200);
    assert_eq!(refused(&small.post("/v1/completions", &echo(128))), (413, "request_too_large".into()));
    assert_eq!(server.post("/v1/completions", &echo(128)).status, 200);
}

#[test]
fn escapes_that_are_not_utf_8_are_refused_in_the_form_of_errors() {
    let server = serve();
    for (method, path) in [
        ("GET", "/v1/models/%ff"),
        ("GET", "/api/v0/models/a%c3"),
        ("GET", "/v1/responses/%ff"),
        ("DELETE", "/v1/responses/%ff"),
        ("GET", "/v1/responses/%ff/input_items"),
        ("POST", "/v1/responses/%ff/cancel"),
        ("POST", "/slots/%ff?action=erase"),
    ] {
        let answer = send(server.address(), &request(method, path, &[], b"{}"));
        assert_eq!(answer.status, 400, "{method} {path}: {}", answer.text());
        let message = answer.json()["error"]["message"].clone();
        assert_eq!(message, "the path has an escape (%) that is not UTF-8", "{method} {path}");
    }
}

#[test]
fn error_messages_are_short() {
    let server = serve();
    let answer = server.post("/v1/completions", &json!({ "prompt": "a", "model": "\u{1}".repeat(1 << 20) }));
    assert_eq!(answer.status, 404);
    assert!(answer.body.len() < 32 << 10, "{}", answer.body.len());
}

#[test]
fn control_characters_of_requests_do_not_reach_terminals() {
    let server = serve();
    let hostile = "\u{1b}]0;a\u{7}\r\u{7f}\u{9b}2J\u{202e}";
    let messages = json!([{ "role": "user", "content": "a" }]);
    let with = |key: &str, value: Json| {
        let mut body = json!({ "messages": messages, "prompt": "a", "max_tokens": 1 });
        body[key] = value;
        body
    };
    for (path, body) in [
        ("/v1/completions", with("model", hostile.into())),
        ("/v1/completions", with("guided_regex", format!("({hostile}").into())),
        (CHAT, with("tool_choice", hostile.into())),
        (CHAT, ask(schema(json!({ "$ref": hostile })))),
        ("/v1/messages", with("model", hostile.into())),
        ("/api/chat", with("model", hostile.into())),
        ("/v1/responses", with("model", hostile.into())),
    ] {
        let answer = server.post(path, &body);
        let (text, error) = (answer.text(), answer.json()["error"].clone());
        let message = error["message"].as_str().or(error.as_str()).unwrap_or_default();
        assert!((400..500).contains(&answer.status), "{path} {body}: {text}");
        assert!(
            !message.is_empty()
                && !message.contains(['\u{1b}', '\u{7}', '\r', '\u{7f}', '\u{9b}', '\u{202e}']),
            "{text}"
        );
    }
}

const CHAT: &str = "/v1/chat/completions";

fn ask(more: Json) -> Json {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "a fox" }], "temperature": 0, "max_tokens": 40 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn schema(schema: Json) -> Json {
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": schema } } })
}

/// A grammar whose last rule stands for 2^40 letters.
fn doubling_grammar(rule: impl Fn(usize) -> String) -> Json {
    let rules: Vec<String> = (1..40).map(rule).collect();
    json!({ "grammar": rules.join("\n") })
}

#[test]
fn formats_that_are_costly_to_compile_delay_nobody() {
    if akunu_testing::left_to_ci() {
        return;
    }
    let server = serve();
    let values = |first: usize, count: usize| json!({ "enum": (first..first + count).collect::<Vec<_>>() });
    let twice = |count: usize| schema(json!({ "oneOf": [values(0, count), values(count, count)] }));
    let gbnf = doubling_grammar(|n| format!("r{n} ::= r{} r{}", n - 1, n - 1));
    let gbnf =
        json!({ "grammar": format!("root ::= r39\nr0 ::= \"a\"\n{}", gbnf["grammar"].as_str().unwrap()) });
    let lark = doubling_grammar(|n| format!("T{n}: T{} T{}", n - 1, n - 1));
    let lark =
        json!({ "grammar": format!("start: T39\nT0: /[a-z]?/\n{}", lark["grammar"].as_str().unwrap()) });
    for costly in [twice(45_000), twice(20_000), gbnf, lark] {
        for _ in 0..8 {
            let mut stream = connect(server.address());
            let request = request("POST", CHAT, &[], ask(costly.clone()).to_string().as_bytes());
            // The server may refuse the body before it is sent.
            let _ = stream.write_all(&request);
        }
        let simple = ask(schema(json!({ "type": "boolean" })));
        let answer = within(10, || server.post(CHAT, &simple));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = within(10, || server.post(CHAT, &ask(costly)));
        assert!(answer.status < 500, "{}", answer.text());
    }
    within(20, || server.until_idle());
}

#[test]
fn formats_that_are_too_large_are_refused_before_they_are_copied() {
    let server = serve();
    let texts: Vec<String> = (0..10_001).map(|n| n.to_string()).collect();
    for more in [
        json!({ "guided_json": " ".repeat(1 << 20) + "{}" }),
        json!({ "guided_choice": texts }),
        schema(json!({ "enum": (0..100_000).collect::<Vec<_>>() })),
    ] {
        let answer = within(10, || server.post(CHAT, &ask(more)));
        assert_eq!(refused(&answer), (400, "invalid_schema".into()), "{}", answer.text());
    }
}

#[test]
fn masks_that_are_costly_delay_no_neighbour() {
    let server = serve();
    let lengths = |count: usize| (1..=count).map(|most| json!({ "type": "string", "maxLength": most }));
    let strings = schema(json!({ "anyOf": lengths(290).collect::<Vec<_>>() }));
    let lark: Vec<String> =
        (1..=290).map(|most| format!("/\"[a-z ]{{0,{most}}}\"[{}]/", most % 10)).collect();
    let lark = json!({ "grammar": format!("start: {}", lark.join(" | ")) });
    for costly in [strings, lark] {
        std::thread::scope(|scope| {
            let attack = scope.spawn(|| {
                let more = json!({ "n": 3, "max_tokens": 30 });
                let mut asked = ask(costly.clone());
                asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                server.post(CHAT, &asked)
            });
            for _ in 0..3 {
                let answer = within(10, || server.post(CHAT, &ask(json!({ "stream": true }))));
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            let answer = attack.join().unwrap();
            assert!(answer.status < 500, "{}", answer.text());
        });
    }
}

#[test]
fn log_probabilities_of_a_whole_answer_take_memory_of_its_request() {
    let server = serve_with(|options| options.limits.memory = 1 << 20);
    let ask = |more: Json| {
        let mut body = json!({ "prompt": "Once", "max_tokens": 200, "ignore_eos": true, "logprobs": 5 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let refused = ask(json!({}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (413, &json!("request_too_large")));
    assert_eq!(ask(json!({ "max_tokens": 20 })).status, 200);
    // Those of a stream are written as they come.
    let streamed = ask(json!({ "stream": true }));
    assert!(streamed.status == 200 && streamed.text().ends_with("data: [DONE]\n\n"));
    server.until(&["akunu_request_memory_bytes"], 0.0);
}

#[test]
fn an_error_quotes_no_more_than_a_few_kilobytes() {
    let name = "a".repeat(1 << 20);
    let refused =
        serve().post("/v1/completions", &json!({ "prompt": "a", "structured_outputs": { name: 1 } }));
    assert!(refused.status == 400 && refused.text().len() < 10_000, "{}", refused.text().len());
}
