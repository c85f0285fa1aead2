//! What `SECURITY.md` promises of a running server, with numbers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use akunu_fixtures::scripted;
use akunu_testing::{left_to_ci, some_of};
use serde_json::{Value as Json, json};

use crate::common::akunu;
use crate::serve::{ask, request, signal, started};

const MIB: u64 = 1 << 20;

struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(threads: &str, options: &[&str]) -> Server {
        let fixed = ["serve", "--port", "0", "--device", "cpu", "-t", threads];
        let (child, address) = started(akunu(&[&fixed, options].concat()));
        Server { child, address }
    }

    fn open(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may answer, and close, before all is sent.
        let _ = stream.write_all(&request(path, body.as_bytes()));
        stream
    }

    fn post(&self, path: &str, body: &str) -> String {
        let mut answer = Vec::new();
        let _ = self.open(path, body).read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }

    /// Bytes of a field of the process's status.
    fn status(&self, field: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// The bytes of memory that work of the server takes at most, besides what it has before.
    fn peak_of(&self, work: impl FnOnce()) -> u64 {
        // Sets the peak to what the process has now.
        fs::write(self.proc("clear_refs"), "5").unwrap();
        let before = self.status("VmRSS:");
        work();
        self.status("VmHWM:").saturating_sub(before)
    }

    /// Processor time of the process, in ticks of 10 ms.
    fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(self.proc("stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // After the name: the state is field 3, and times in user mode and in the kernel are fields 14 and 15.
        let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }

    /// A column of the scheduler's statistics of each thread: the time that it ran, and the time that it was ready and had
    /// no processor.
    fn statistics(&self, column: usize) -> HashMap<String, Duration> {
        let of_thread = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            let text = fs::read_to_string(path.join("schedstat")).ok()?;
            let time = text.split_whitespace().nth(column)?.parse().ok()?;
            Some((path.display().to_string(), Duration::from_nanos(time)))
        };
        fs::read_dir(self.proc("task")).unwrap().filter_map(of_thread).collect()
    }

    fn waits(&self) -> HashMap<String, Duration> {
        self.statistics(1)
    }

    /// Processor time of all threads that have not ended.
    fn running_time(&self) -> Duration {
        self.statistics(0).values().sum()
    }

    /// The processor time that the server takes until it rests.
    fn time_until_idle(&self) -> Duration {
        let start = self.processor_time();
        let (mut last, mut quiet) = (start, 0);
        while quiet < 3 {
            sleep(Duration::from_millis(50));
            let now = self.processor_time();
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
        }
        last - start
    }
}

const CHAT: &str = "/v1/chat/completions";

/// A request for an answer in a format.
fn chat(tokens: usize, format: Json) -> String {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "a fox" }], "temperature": 0, "max_tokens": tokens, "n": 2,
    });
    body.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
    body.to_string()
}

fn lines(rule: impl Fn(usize) -> String) -> String {
    (1..40).map(rule).collect::<Vec<_>>().join("\n")
}

/// Answers in formats that take long to compile, or whose masks take long.
fn costly_formats(tokens: usize) -> Vec<String> {
    let lark = lines(|n| format!("T{n}: T{0} T{0}", n - 1));
    let gbnf = lines(|n| format!("r{n} ::= r{0} r{0}", n - 1));
    let properties: serde_json::Map<_, _> =
        (0..1000).map(|n| (n.to_string(), json!({ "type": "string" }))).collect();
    let lengths: Vec<Json> = (1..=290).map(|most| json!({ "type": "string", "maxLength": most })).collect();
    let formats = [
        json!({ "guided_grammar": format!("start: T39\nT0: /[a-z]?/\n{lark}") }),
        json!({ "guided_grammar": format!("root ::= r39\nr0 ::= \"a\"\n{gbnf}") }),
        json!({ "guided_json": { "type": "object", "properties": properties } }),
        json!({ "guided_json": { "anyOf": lengths } }),
        json!({ "guided_grammar": "start: /([a-z]{3,90}|[b-y]{5,80}|[c-x ]{2,70}){2,9}/" }),
    ];
    formats.into_iter().map(|format| chat(tokens, format)).collect()
}

/// Requests that are about as large as the memory of one request allows, with their paths.
fn large_requests(memory: usize) -> Vec<(&'static str, String)> {
    let list = |item: &str, cost: usize| vec![item; memory / cost].join(",");
    let (ids, texts) = (list("70", 725), list(r#""a""#, 725));
    let messages = list(r#"{"role":"user","content":"a"}"#, 3600);
    let (text, long) = ("a ".repeat(memory / 170), "a".repeat(memory / 3));
    let values: Vec<String> = (0..40_000).map(|n| format!("\"{n}\"")).collect();
    let user = r#""messages":[{"role":"user","content":"a"}]"#;
    let bodies = [
        ("/tokenize", format!(r#""content":"{text}","with_pieces":true"#)),
        ("/detokenize", format!(r#""tokens":[{ids}]"#)),
        ("/apply-template", format!(r#""messages":[{messages}]"#)),
        ("/v1/completions", format!(r#""prompt":"{text}""#)),
        ("/v1/completions", format!(r#""prompt":[{texts}]"#)),
        ("/v1/completions", format!(r#""prompt":"a","user":"{long}""#)),
        ("/v1/completions", r#""prompt":"a","n":128,"stop":["a","b","c","d"]"#.to_string()),
        (CHAT, format!(r#""messages":[{messages}]"#)),
        (CHAT, format!(r#"{user},"guided_json":{{"enum":[{}]}}"#, values.join(","))),
        ("/v1/messages", format!(r#""messages":[{messages}]"#)),
        ("/api/chat", format!(r#""messages":[{messages}],"stream":false"#)),
        ("/v1/embeddings", format!(r#""input":[{texts}]"#)),
        ("/v1/rerank", format!(r#""query":"a","documents":[{texts}]"#)),
    ];
    let body = |fields: &str| format!(r#"{{"model":"akunu-tales","max_tokens":1,{fields}}}"#);
    bodies.into_iter().map(|(path, fields)| (path, body(&fields))).collect()
}

#[test]
fn a_request_takes_half_of_the_memory_of_requests_and_64_mib() {
    if left_to_ci() {
        return;
    }
    const OF_ONE: u64 = 64 * MIB;
    let requests = large_requests(64 << 20).into_iter();
    let requests = requests.chain(costly_formats(20).into_iter().map(|body| (CHAT, body)));
    for (path, body) in some_of(requests, 2) {
        // Each in a process of its own: the next one would use what the allocator keeps.
        let server = Server::start("1", &["--max-request-memory", "128"]);
        server.post("/v1/completions", r#"{"prompt":"a","max_tokens":1}"#);
        let mut answer = String::new();
        let peak = server.peak_of(|| answer = server.post(path, &body));
        let status = answer.get(9..12).unwrap_or_default();
        println!("{path}, {} kB: {status}, {} MiB", body.len() >> 10, peak / MIB);
        assert!(status < "500" && !answer.is_empty(), "{path}: {answer}");
        assert!(peak <= OF_ONE + 64 * MIB, "{path}, {} bytes: {} MiB", body.len(), peak / MIB);
    }
}

#[test]
fn what_nobody_waits_for_ends_within_5_s() {
    if left_to_ci() {
        return;
    }
    const MOST: Duration = Duration::from_secs(5);
    let server = Server::start("1", &["-c", "131072"]);
    let text = |len: usize| "a ".repeat(len / 2);
    let messages = vec![r#"{"role":"user","content":"a"}"#; 170_000].join(",");
    let mut requests = vec![
        ("/tokenize", format!(r#"{{"content":"{}","with_pieces":true}}"#, text(1 << 20))),
        ("/apply-template", format!(r#"{{"messages":[{messages}]}}"#)),
        (CHAT, format!(r#"{{"messages":[{messages}]}}"#)),
        ("/v1/completions", format!(r#"{{"prompt":"a","user":"{}"}}"#, "\\\"".repeat(8 << 20))),
        ("/v1/completions", format!(r#"{{"prompt":"{}","max_tokens":1}}"#, text(180_000))),
        ("/v1/completions", r#"{"prompt":"a","n":128,"max_tokens":100000,"ignore_eos":true}"#.to_string()),
    ];
    requests.extend(costly_formats(10_000).into_iter().map(|body| (CHAT, body)));
    for (path, body) in &requests {
        for delay in [20, 200] {
            let stream = server.open(path, body);
            sleep(Duration::from_millis(delay));
            drop(stream);
            let took = server.time_until_idle();
            println!("{path}, {} kB, after {delay} ms: {took:?}", body.len() >> 10);
            assert!(took <= MOST, "{path}, {} bytes: {took:?} of processor time", body.len());
        }
    }
}

/// A conversation is tried in several forms if its template fails, and all of them together have the time of one.
#[test]
fn a_template_that_takes_long_in_every_form_ends_within_5_s() {
    if left_to_ci() {
        return;
    }
    const MOST: Duration = Duration::from_secs(5);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.gguf");
    let slow =
        "{% set t = 'aB' * 8000000 %}{% for i in range(100000) %}{% set x = t.upper().title() %}{% endfor %}";
    let call =
        |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "a" });
    let body = json!({
        "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "", "tool_calls": [call("a"), call("b")] },
            result("a"),
            result("b"),
        ],
        "tools": [{ "type": "function", "function": { "name": "f" } }],
    });
    for marks in ["", "{# <tool_call> #}{{ tools }}"] {
        scripted::write(&path, Some(&format!("{slow}{marks}")), &["a"]);
        let server = Server::start("1", &[path.to_str().unwrap()]);
        server.post("/v1/completions", r#"{"prompt":"a","max_tokens":1}"#);
        let before = server.processor_time();
        let answer = server.post(CHAT, &body.to_string());
        let took = server.processor_time() - before;
        // A fast processor reaches the limit of memory first, in each form.
        let limits = ["takes too long", "uses too much memory"];
        assert!(
            limits.iter().any(|limit| answer.contains(&format!("the chat template {limit}"))),
            "{answer}"
        );
        assert!(took <= MOST, "{marks:?}: {took:?} of processor time");
    }
}

/// The longest time between two pieces of a stream, without the time for which a thread of the server was ready and had
/// no processor: other programs want it, too.
fn longest_gap(server: &Server) -> Duration {
    let mut stream = ask(&server.address, 100);
    let (mut bytes, mut longest, mut all) = ([0; 1 << 12], Duration::ZERO, Vec::new());
    let mut last: Option<(Instant, HashMap<String, Duration>)> = None;
    loop {
        let len = stream.read(&mut bytes).unwrap();
        let (now, waits) = (Instant::now(), server.waits());
        if let Some((before, waits_before)) = &last {
            let waited = waits.iter().map(|(thread, wait)| {
                waits_before.get(thread).map_or(Duration::ZERO, |before| wait.saturating_sub(*before))
            });
            longest = longest.max((now - *before).saturating_sub(waited.max().unwrap_or_default()));
        }
        if len == 0 {
            break;
        }
        all.extend_from_slice(&bytes[..len]);
        // Before the first token it may wait for a slot.
        if last.is_some() || bytes[..len].windows(5).any(|part| part == b"data:") {
            last = Some((now, waits));
        }
    }
    assert!(String::from_utf8(all).unwrap().contains("data: [DONE]"));
    longest
}

#[test]
fn a_client_stalls_the_stream_of_another_by_at_most_250_ms() {
    if left_to_ci() {
        return;
    }
    const MOST: Duration = Duration::from_millis(250);
    let server = Server::start("2", &["-c", "4096"]);
    let text = "a ".repeat(2000);
    let messages = vec![r#"{"role":"user","content":"a"}"#; 50_000].join(",");
    let mut attacks = vec![
        ("/tokenize", format!(r#"{{"content":"{}","with_pieces":true}}"#, "a ".repeat(30_000))),
        (CHAT, format!(r#"{{"messages":[{messages}]}}"#)),
        ("/v1/completions", format!(r#"{{"prompt":"NUMBER {text}","max_tokens":1}}"#)),
        // Each token can be read in more ways than the one before, so its masks become slow.
        (
            "/v1/completions",
            json!({
                "prompt": "a",
                "n": 4,
                "max_tokens": 30,
                "guided_grammar": "start: e\ne: e e e | e e | T\nT: /[a-z ]/",
            })
            .to_string(),
        ),
        ("/v1/completions", r#"{"prompt":"a","n":16,"max_tokens":50}"#.to_string()),
    ];
    attacks.extend(costly_formats(20).into_iter().map(|body| (CHAT, body)));
    for (path, body) in some_of(&attacks, 3) {
        let done = AtomicBool::new(false);
        let gaps: Vec<Duration> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    // A prompt that is not cached.
                    server.post(path, &body.replacen("NUMBER", &number.to_string(), 1));
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            // Other programs may delay a stream, so one of several must hold.
            let mut gaps = Vec::new();
            while gaps.len() < 6 && gaps.last().is_none_or(|gap| *gap > MOST) {
                gaps.push(longest_gap(&server));
            }
            done.store(true, Ordering::Relaxed);
            gaps
        });
        println!("{path}, {} kB: {gaps:?}", body.len() >> 10);
        assert!(gaps.iter().any(|gap| *gap <= MOST), "{path}, {} bytes: {gaps:?}", body.len());
    }
}

#[test]
fn sigterm_ends_within_the_drain_and_1_s() {
    if left_to_ci() {
        return;
    }
    const MOST: Duration = Duration::from_secs(2);
    let mut times = Vec::new();
    // Other programs may delay it, so one of several must hold.
    while times.len() < 5 && times.last().is_none_or(|time| *time > MOST) {
        let mut server = Server::start("1", &["-c", "100100", "--drain", "1", "--parallel", "4"]);
        let endless: Vec<TcpStream> = (0..6).map(|_| ask(&server.address, 100_000)).collect();
        let whole = request("/tokenize", br#"{"content":"a"}"#);
        let dripping: Vec<TcpStream> = (0..20)
            .map(|part| {
                let mut stream = TcpStream::connect(&server.address).unwrap();
                stream.write_all(&whole[..whole.len() - 1 - part]).unwrap();
                stream
            })
            .collect();
        let messages = vec![r#"{"role":"user","content":"a"}"#; 100_000].join(",");
        let long: Vec<TcpStream> =
            (0..3).map(|_| server.open(CHAT, &format!(r#"{{"messages":[{messages}]}}"#))).collect();
        let costly: Vec<TcpStream> =
            costly_formats(10_000).iter().map(|body| server.open(CHAT, body)).collect();
        sleep(Duration::from_millis(50));
        let start = Instant::now();
        signal(&server.child, "TERM");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        times.push(start.elapsed());
        drop((endless, dripping, long, costly));
    }
    println!("{times:?}");
    assert!(times.iter().any(|time| *time <= MOST), "{times:?}");
}

/// Bodies of a number of parts, for each path that reads one.
fn bodies(parts: usize) -> Vec<(&'static str, String)> {
    let list = |item: &str| vec![item; parts].join(",");
    let (text, escaped) = ("a fox ".repeat(parts), "\\u00e9\\n".repeat(parts));
    let user = r#"{"role":"user","content":"a"}"#;
    let messages = format!(r#""messages":[{}]"#, list(user));
    let content =
        format!(r#""messages":[{{"role":"user","content":[{}]}}]"#, list(r#"{"type":"text","text":"a"}"#));
    let tool = r#"{"type":"function","function":{"name":"a","parameters":{"type":"object"}}}"#;
    let tools = format!(r#""messages":[{user}],"tools":[{}]"#, list(tool));
    let nested = format!(r#""user":{}{}"#, "[".repeat(parts.min(100)), "]".repeat(parts.min(100)));
    let (long, ids) = (format!(r#""prompt":"{text}""#), list("70"));
    let bodies = [
        ("/v1/completions", long.clone()),
        ("/v1/completions", format!(r#""prompt":"{escaped}""#)),
        ("/v1/completions", format!(r#""prompt":[{ids}]"#)),
        ("/v1/completions", format!(r#""prompt":"a",{nested},"unknown":[{}]"#, list("[[0]]"))),
        (CHAT, messages.clone()),
        (CHAT, content),
        (CHAT, tools.clone()),
        ("/v1/embeddings", format!(r#""input":[{}]"#, list(r#""a""#))),
        ("/v1/rerank", format!(r#""query":"a","documents":[{}]"#, list(r#""a""#))),
        ("/v1/messages", messages.clone()),
        ("/api/chat", messages.clone()),
        ("/api/generate", long),
        ("/api/embed", format!(r#""input":[{}]"#, list(r#""a""#))),
        ("/tokenize", format!(r#""content":"{text}","with_pieces":true"#)),
        ("/detokenize", format!(r#""tokens":[{ids}]"#)),
        ("/apply-template", messages),
        ("/apply-template", tools),
    ];
    let body = |fields: &str| format!(r#"{{"model":"akunu-tales","max_tokens":1,"stream":false,{fields}}}"#);
    bodies.into_iter().map(|(path, fields)| (path, body(&fields))).collect()
}

#[test]
fn twice_the_body_takes_at_most_two_and_a_half_times_as_long() {
    if left_to_ci() {
        return;
    }
    const PARTS: usize = 500;
    /// For three doublings.
    const MOST: f64 = 2.5 * 2.5 * 2.5;
    // Prompts are read, and do not fit.
    let server = Server::start("1", &["-c", "64"]);
    let seconds = |path: &str, body: &str| {
        let took = (0..3).filter_map(|_| {
            let before = server.running_time();
            assert!(server.post(path, body).starts_with("HTTP/1.1 "), "{path}");
            server.running_time().checked_sub(before)
        });
        took.min().unwrap_or_default().as_secs_f64()
    };
    for ((path, small), (_, large)) in some_of(bodies(PARTS).into_iter().zip(bodies(8 * PARTS)), 2) {
        // Other programs may disturb a measurement, so one of several must hold.
        let mut times = Vec::new();
        let grows = |(one, many): &(f64, f64)| *many <= MOST * one + 2e-3;
        while times.len() < 6 && !times.last().is_some_and(grows) {
            times.push((seconds(path, &small), seconds(path, &large)));
        }
        println!("{path}, {} and {} kB: {times:?}", small.len() >> 10, large.len() >> 10);
        assert!(times.iter().any(grows), "{path}, {} bytes: {times:?}", large.len());
    }
}
