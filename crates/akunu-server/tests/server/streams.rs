//! Many concurrent streams, each with the same text as when it runs alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::serve::{Served, TALES, serve};

const STREAMS: usize = 64;

/// Requests of mixed lengths, prompts and sampling settings; some are chats.
fn body(number: usize) -> (&'static str, Json) {
    let beginnings = ["Once upon a time", "The little fox", "One day, a boy named Tom", "Mia found a"];
    let temperature = [0.0, 0.7, 1.0][number % 3];
    let mut body = json!({
        "model": TALES, "max_tokens": 1 + (number * 37) % 60, "seed": number, "ignore_eos": number.is_multiple_of(3),
        "temperature": temperature, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let text = beginnings[number % 4];
    match number % 5 {
        0 => {
            body["messages"] = json!([{ "role": "user", "content": format!("tell me a story. {text}") }]);
            ("/v1/chat/completions", body)
        }
        _ => {
            body["prompt"] = text.repeat(1 + number % 7).into();
            ("/v1/completions", body)
        }
    }
}

/// The text, and its number of tokens as reported by the server.
fn run(server: &Served, number: usize) -> (String, u64) {
    let (path, body) = body(number);
    let answer = server.post(path, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut events = answer.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Json> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text = |chunk: &Json| {
        let choice = &chunk["choices"][0];
        choice["text"].as_str().or(choice["delta"]["content"].as_str()).map(str::to_string)
    };
    let tokens = chunks.last().unwrap()["usage"]["completion_tokens"].as_u64().unwrap();
    (chunks.iter().filter_map(text).collect(), tokens)
}

fn all_at_once(server: &Served, alone: &[(String, u64)], until: Instant) -> usize {
    let rounds = AtomicUsize::new(0);
    thread::scope(|scope| {
        for first in 0..STREAMS {
            let rounds = &rounds;
            scope.spawn(move || {
                let mut number = first;
                loop {
                    assert_eq!(run(server, number), alone[number], "stream {number}");
                    rounds.fetch_add(1, Ordering::Relaxed);
                    number = (number + 17) % STREAMS;
                    if Instant::now() >= until {
                        return;
                    }
                }
            });
        }
    });
    rounds.into_inner()
}

#[test]
fn each_of_64_streams_has_the_same_text_as_alone() {
    let server = serve();
    let alone: Vec<(String, u64)> = (0..STREAMS).map(|number| run(&server, number)).collect();
    assert_eq!(all_at_once(&server, &alone, Instant::now()), STREAMS);
}

/// `cargo test -p akunu-server -- --ignored --nocapture two_minutes`
#[test]
#[ignore = "takes two minutes"]
fn two_minutes_of_64_streams_do_not_leak() {
    let server = serve();
    let alone: Vec<(String, u64)> = (0..STREAMS).map(|number| run(&server, number)).collect();
    all_at_once(&server, &alone, Instant::now() + Duration::from_secs(10));
    let before = resident();
    let rounds = all_at_once(&server, &alone, Instant::now() + Duration::from_secs(120));
    let after = resident();
    println!("{rounds} streams; resident memory {before} KiB before and {after} KiB after");
    // Stacks of threads and the allocator's free memory vary.
    assert!(after < before + 16 * 1024, "{before} KiB, then {after} KiB");
}

/// Resident memory in KiB; 0 if unknown.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}
