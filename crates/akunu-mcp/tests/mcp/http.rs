//! A server over HTTP.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use akunu_mcp::{Client, Limits, Place, ServerConfig};
use serde_json::{Value as Json, json};

/// What a request had: its method, its headers in lower case, and its body.
type Seen = Arc<Mutex<Vec<(String, String, Json)>>>;

type Respond = fn(&Json) -> String;

/// A server whose responses are made by a function of each message.
fn serve(respond: Respond) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let seen = Seen::default();
    let kept = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let kept = kept.clone();
            std::thread::spawn(move || answer(stream.unwrap(), respond, &kept));
        }
    });
    (url, seen)
}

fn answer(mut stream: TcpStream, respond: Respond, seen: &Seen) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return;
        }
    }
    let head = head.to_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let message = serde_json::from_slice(&body).unwrap_or_default();
    let method = head.split(' ').next().unwrap().to_string();
    seen.lock().unwrap().push((method, head, Json::clone(&message)));
    stream.write_all(respond(&message).as_bytes()).unwrap();
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

const JSON: &str = "content-type: application/json\r\n";
const EVENTS: &str = "content-type: text/event-stream; charset=utf-8\r\nmcp-session-id: s-1\r\n";

fn result(message: &Json, result: Json) -> Json {
    json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })
}

fn good(message: &Json) -> String {
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => {
            let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} } });
            let note = json!({ "jsonrpc": "2.0", "method": "notifications/message" });
            let events = format!(
                ": hello\r\n\r\nevent: message\r\ndata: {note}\r\n\r\nid: 2\r\ndata: {}\r\n\r\n",
                result(message, hello)
            );
            response("200 OK", EVENTS, &events)
        }
        "tools/list" => {
            let clock = json!({ "name": "clock", "inputSchema": { "type": "object" } });
            response("200 OK", JSON, &result(message, json!({ "tools": [clock] })).to_string())
        }
        "tools/call" if message["params"]["arguments"]["zone"] == "x" => {
            response("500 Internal Server Error", JSON, "out of order")
        }
        "tools/call" => {
            let noon = json!({ "content": [], "structuredContent": { "time": "noon" } });
            let text = serde_json::to_string_pretty(&result(message, noon)).unwrap();
            let data = text.lines().map(|line| format!("data: {line}\n")).collect::<String>();
            response("200 OK", EVENTS, &format!("{data}\n"))
        }
        _ => response("202 Accepted", "", ""),
    }
}

fn connect(url: &str) -> Result<Client, String> {
    connect_within(url, Duration::from_secs(2))
}

fn connect_within(url: &str, start: Duration) -> Result<Client, String> {
    let headers = vec![("Authorization".to_string(), "Bearer secret".to_string())];
    let config =
        ServerConfig { name: "web".into(), place: Place::Http { url: url.into(), headers }, ignored: vec![] };
    let limits = Limits { start, call: Duration::from_secs(2), result: 1000 };
    Client::connect(&config, limits, &AtomicBool::new(false)).map_err(|error| error.to_string())
}

#[test]
fn tools_are_listed_and_called_in_a_session() {
    let (url, seen) = serve(good);
    let mut client = connect(&url).unwrap();
    assert_eq!(client.tools()[0].name, "clock");
    let mut call = |zone: &str| {
        let arguments = json!({ "zone": zone });
        client.call("clock", arguments.as_object().unwrap(), &AtomicBool::new(false))
    };
    assert_eq!(call("UTC").unwrap().text, r#"{"time":"noon"}"#);
    let error = call("x").unwrap_err().to_string();
    assert_eq!(error, "the MCP server web answered with HTTP status 500; it says: out of order");
    drop(client);
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(_, head, _)| head.contains("authorization: bearer secret\r\n")));
    assert!(seen[0].1.contains("accept: application/json, text/event-stream\r\n"));
    assert!(!seen[0].1.contains("mcp-session-id"));
    for (method, head, message) in &seen[1..] {
        assert!(head.contains("mcp-session-id: s-1\r\n"), "{message}");
        assert!(method == "delete" || head.contains("mcp-protocol-version: 2025-06-18\r\n"), "{message}");
    }
    assert_eq!(seen.last().unwrap().0, "delete");
    assert!(seen.iter().any(|(_, _, message)| message["method"] == "notifications/initialized"));
}

#[test]
fn a_server_that_misbehaves_is_named_with_the_reason() {
    let cases: [(Respond, &str); 5] = [
        (|_| response("401 Unauthorized", JSON, "who?"), "answered with HTTP status 401; it says: who?"),
        (|_| response("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", ""), "HTTP status 307"),
        (
            |_| response("200 OK", "content-type: text/html\r\n", "<p>"),
            "its answer has the type \"text/html\"",
        ),
        (|_| response("200 OK", JSON, "nonsense"), "it wrote \"nonsense\", which is not a message"),
        (|_| response("200 OK", EVENTS, "data: {}\n\n"), "its stream ended without an answer"),
    ];
    for (respond, expected) in cases {
        let (url, _) = serve(respond);
        let error = connect(&url).unwrap_err();
        assert!(error.starts_with("the MCP server web ") && error.contains(expected), "{error}");
    }
    let (silent, _) = serve(|_| {
        std::thread::sleep(Duration::from_secs(4));
        String::new()
    });
    let error = connect_within(&silent, Duration::from_secs(1)).unwrap_err();
    assert!(error.contains("did not answer initialize within 1 s"), "{error}");
    let nowhere = connect("http://127.0.0.1:1/").unwrap_err();
    assert!(nowhere.starts_with("the MCP server web cannot be reached: "), "{nowhere}");
}
