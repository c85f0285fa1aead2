//! `bench-serve` with a small fake server.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use serde_json::{Value as Json, json};

use crate::common::{json as json_of, ok, refuses, run};

/// The response to a request, given its number.
type Answer = dyn Fn(usize, &Json, &mut TcpStream) + Send + Sync;

struct Fake {
    url: String,
    bodies: Arc<Mutex<Vec<Json>>>,
}

impl Fake {
    fn new(answer: impl Fn(usize, &Json, &mut TcpStream) + Send + Sync + 'static) -> Fake {
        let answer: Arc<Answer> = Arc::new(answer);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let fake = Fake { url, bodies: Arc::default() };
        let bodies = fake.bodies.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (bodies, answer) = (bodies.clone(), answer.clone());
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some((path, body)) = request(&stream) else { return };
                    if path == "/v1/models" {
                        let models = r#"{"object":"list","data":[{"id":"fake"},{"id":"other"}]}"#;
                        let _ = write!(
                            stream,
                            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{models}",
                            models.len()
                        );
                        return;
                    }
                    let number = {
                        let mut bodies = bodies.lock().unwrap();
                        bodies.push(json!({"path": path, "body": body}));
                        bodies.len() - 1
                    };
                    answer(number, &body, &mut stream);
                });
            }
        });
        fake
    }

    fn report(&self, args: &[&str]) -> Json {
        json_of(&[&["bench-serve", &self.url, "--json"], args].concat())
    }
}

fn request(stream: &TcpStream) -> Option<(String, Json)> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_string();
    let mut length = 0;
    loop {
        line.clear();
        lines.read_line(&mut line).ok()?;
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or(Json::Null)))
}

/// Sends each event in two chunks, split in the middle.
fn events(stream: &mut TcpStream, events: &[String]) {
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for event in events {
        let line = format!("data: {event}\n\n");
        let (head, tail) = line.split_at(line.len() / 2);
        for part in [head, tail] {
            let _ = write!(stream, "{:x}\r\n{part}\r\n", part.len());
            let _ = stream.flush();
        }
    }
    let _ = write!(stream, "0\r\n\r\n");
}

/// Generates as many tokens as requested.
fn obliging(_: usize, body: &Json, stream: &mut TcpStream) {
    let tokens = body["max_tokens"].as_u64().unwrap();
    let mut all: Vec<String> =
        (0..tokens).map(|_| json!({"choices": [{"text": "é!"}]}).to_string()).collect();
    all.push(json!({"choices": [{"text": "", "finish_reason": "length"}]}).to_string());
    let prompt = body["prompt"].as_str().map_or(5, |prompt| prompt.split(' ').count());
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 2}});
    all.push(json!({"choices": [], "usage": usage}).to_string());
    all.push("[DONE]".to_string());
    events(stream, &all);
}

#[test]
fn every_token_is_counted_and_the_first_request_is_not() {
    let fake = Fake::new(obliging);
    let args = ["-n", "20", "--rate", "400", "--prompt", "3..9", "--output", "2..6", "--seed", "7"];
    let report = fake.report(&args);
    let bodies = fake.bodies.lock().unwrap().clone();
    assert_eq!(bodies.len(), 21);
    let asked: Vec<&Json> = bodies[1..].iter().map(|asked| &asked["body"]).collect();
    let output: u64 = asked.iter().map(|body| body["max_tokens"].as_u64().unwrap()).sum();
    let prompt: usize = asked.iter().map(|body| body["prompt"].as_str().unwrap().split(' ').count()).sum();
    assert_eq!(
        (&report["model"], &report["completed"], &report["failed"]),
        (&json!("fake"), &json!(20), &json!(0))
    );
    assert_eq!((&report["output_tokens"], &report["prompt_tokens"]), (&json!(output), &json!(prompt)));
    assert_eq!((&report["cached_tokens"], &report["finish"]), (&json!(40), &json!({"length": 20})));
    for key in ["first_token_ms", "between_tokens_ms", "total_ms"] {
        let at = |name: &str| report[key][name].as_f64().unwrap();
        assert!(
            at("p50") > 0.0 && at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max")
        );
    }
    assert!(report["first_token_ms"]["p50"].as_f64() <= report["total_ms"]["p50"].as_f64());
    assert!(
        asked.iter().all(|body| body["stream_options"]["include_usage"] == true && body["model"] == "fake")
    );
}

/// Responds only when this many requests are pending; the first request, which is sent separately, gets a response
/// immediately.
fn together(count: usize) -> Fake {
    let barrier = Barrier::new(count);
    Fake::new(move |number, body, stream| {
        if number > 0 {
            barrier.wait();
        }
        obliging(number, body, stream);
    })
}

#[test]
fn streams_ask_again_when_they_are_answered() {
    let fake = together(4);
    let args = ["--streams", "4", "-n", "12", "--chat", "--model", "mine", "--ignore-eos", "--timeout", "60"];
    let report = fake.report(&args);
    assert_eq!((&report["completed"], &report["most_at_once"]), (&json!(12), &json!(4)));
    for asked in fake.bodies.lock().unwrap().iter() {
        assert_eq!(asked["path"], "/v1/chat/completions");
        assert_eq!((&asked["body"]["model"], &asked["body"]["ignore_eos"]), (&json!("mine"), &json!(true)));
        assert_eq!(asked["body"]["messages"][0]["role"], "user");
    }
}

#[test]
fn arrivals_do_not_wait_for_answers_unless_connections_run_out() {
    let args = ["-n", "6", "--rate", "1000", "--timeout", "60"];
    let report = together(6).report(&args);
    assert_eq!((&report["completed"], &report["most_at_once"]), (&json!(6), &json!(6)));
    let report = together(2).report(&[&args[..], &["--concurrency", "2"]].concat());
    assert_eq!((&report["completed"], &report["most_at_once"]), (&json!(6), &json!(2)));
}

#[test]
fn what_fails_is_counted_by_kind() {
    let fake = Fake::new(|number, body, stream| {
        let text = json!({"choices": [{"text": "a"}]}).to_string();
        let finish = json!({"choices": [{"text": "", "finish_reason": "stop"}]}).to_string();
        let refused = r#"{"error":{"message":"too many","type":"rate_limit"}}"#;
        match number {
            1 => {
                let length = refused.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 429 Too Many Requests\r\nContent-Length: {length}\r\n\r\n{refused}"
                );
            }
            2 => events(stream, &[text, finish]),
            3 => events(stream, &[text, "{".into()]),
            4 => events(stream, &[text, json!({"error": {"message": "it broke"}}).to_string()]),
            5 => events(stream, &[text, "[DONE]".into()]),
            6 => {}
            // Blocks until the client closes the connection.
            7 => drop(stream.read(&mut [0])),
            _ => obliging(number, body, stream),
        }
    });
    let done = run(&["bench-serve", &fake.url, "-n", "10", "--streams", "1", "--timeout", "2", "--json"]);
    let report: Json = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (1, ""));
    let errors = json!({"cut off": 1, "malformed": 3, "reported": 1, "status 429": 1, "timeout": 1});
    assert_eq!((&report["errors"], &report["failed"], &report["completed"]), (&errors, &json!(7), &json!(3)));
    assert_eq!(report["examples"]["status 429"], "too many");
    assert_eq!(report["examples"]["reported"], "it broke");
}

#[test]
fn text_output_is_a_table() {
    let fake = Fake::new(obliging);
    let text = ok(&["bench-serve", &fake.url, "-n", "5", "--streams", "2", "--output", "3", "--prompt", "4"]);
    for words in [
        "fake at http://",
        "2 at once",
        "5 completed (5 length), 0 failed",
        "20 in (10 from the cache), 15 out",
        "first token",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn fatal_errors_are_reported_before_the_load() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    refuses(
        &["bench-serve", &format!("http://{free}")],
        1,
        &["connect", "hint: check that the server is running"],
    );
    refuses(&["bench-serve", "https://localhost"], 2, &["without TLS"]);
    for args in [["--rate", "0"], ["--streams", "0"], ["--prompt", "9..3"], ["--temp", "-1"]] {
        assert_eq!(run(&[&["bench-serve", "http://localhost"], &args[..]].concat()).code, 2, "{args:?}");
    }
    let fake = Fake::new(|_, _, stream| {
        let _ =
            write!(stream, "HTTP/1.1 401 Unauthorized\r\n\r\n{{\"error\":{{\"message\":\"who are you\"}}}}");
    });
    refuses(&["bench-serve", &fake.url], 1, &["status 401: who are you"]);
}
