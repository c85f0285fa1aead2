//! Tools of MCP servers: who may call them, and what a server may do.
#![cfg(unix)]

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use akunu_mcp::{Limits, Place, ServerConfig};
use akunu_server::{Cors, Keys, McpServers, Server};
use serde_json::{Value as Json, json};

use crate::http::{connect, request, send};
use crate::serve::{Served, options, serve, serve_with};

const TOOLS: &str = "/mcp/tools";
const CALL: &str = "/mcp/call";

/// The small server of the tests of `akunu-mcp`, started by a shell that first runs `before`.
pub fn small(before: &str, call: Duration) -> McpServers {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu-mcp/tests/server.sh");
    let args = vec!["-c".into(), format!("{before}\nexec sh '{}'", script.display())];
    let place = Place::Stdio { command: "sh".into(), args, env: Vec::new(), folder: None };
    let config = ServerConfig { name: "small".into(), place, ignored: Vec::new() };
    let limits = Limits { call, result: 1000, ..Limits::default() };
    McpServers::start(vec![config], limits, &AtomicBool::new(false)).unwrap()
}

fn with_tools() -> Served {
    serve_with(|options| options.mcp = Some(small("", Duration::from_secs(60))))
}

fn clock() -> Json {
    json!({ "name": "clock", "arguments": { "zone": "UTC" } })
}

fn calls(tool: &str) -> Json {
    json!({ "name": tool, "arguments": {} })
}

#[test]
fn tools_are_listed_and_called() {
    let server = with_tools();
    let listed = server.get(TOOLS).json();
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["clock", "fail", "die", "wait", "large", "kinds"]);
    let schema = json!({ "type": "object", "properties": { "zone": { "type": "string" } } });
    let function = json!({ "name": "clock", "description": "Says the time.", "parameters": schema });
    assert_eq!(tools[0], json!({ "type": "function", "function": function, "server": "small" }));
    assert_eq!(server.ok(CALL, &clock()), json!({ "content": "Noon in UTC.", "is_error": false }));
    assert_eq!(server.ok(CALL, &calls("fail")), json!({ "content": "It failed.", "is_error": true }));
    let large = server.ok(CALL, &calls("large"));
    assert_eq!(large["content"], "the result has 2000 bytes, but at most 1000 can be read");
}

#[test]
fn calls_that_are_wrong_are_refused() {
    let server = with_tools();
    for (body, status, code, param) in [
        (json!({ "name": "none", "arguments": {} }), 404, "tool_not_found", "name"),
        (json!({ "name": "clock" }), 400, "missing_required_parameter", "arguments"),
        (json!({ "arguments": {} }), 400, "missing_required_parameter", "name"),
        (json!({ "name": 7, "arguments": {} }), 400, "invalid_value", "name"),
        (json!({ "name": "clock", "arguments": "{}" }), 400, "invalid_value", "arguments"),
    ] {
        let refused = server.post(CALL, &body);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"], &error["param"]), (status, &json!(code), &json!(param)));
    }
}

#[test]
fn a_server_without_tools_has_none_and_says_how_to_have_them() {
    let server = serve();
    assert_eq!(server.get(TOOLS).json(), json!({ "tools": [] }));
    let refused = server.post(CALL, &clock());
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (403, &json!("mcp_disabled")));
    assert!(error["message"].as_str().unwrap().contains("--mcp FILE"));
}

/// Pages of other origins are refused, also those that `--cors` allows to do everything else.
#[test]
fn only_the_servers_own_page_calls_tools() {
    let server = serve_with(|options| {
        options.mcp = Some(small("", Duration::from_secs(60)));
        options.cors = Cors::Any;
    });
    let body = clock().to_string();
    let ask = |headers: &[(&str, &str)]| {
        let listed = send(server.address(), &request("GET", TOOLS, headers, b"")).status;
        let called = send(server.address(), &request("POST", CALL, headers, body.as_bytes())).status;
        assert_eq!(listed, called, "{headers:?}");
        called
    };
    for headers in [
        &[][..],
        &[("origin", "http://localhost")],
        &[("origin", "https://LOCALHOST"), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(ask(headers), 200, "{headers:?}");
    }
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "http://localhost:3000")],
        &[("origin", "http://localhost.evil.example")],
        &[("origin", "null")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "cross-site")],
        &[("origin", "http://localhost"), ("sec-fetch-site", "cross-site")],
    ] {
        assert_eq!(ask(headers), 403, "{headers:?}");
    }
    // What a page may send without asking first.
    let form = request("POST", CALL, &[("content-type", "text/plain")], body.as_bytes());
    assert_eq!(send(server.address(), &form).status, 415);
}

#[test]
fn tools_need_the_servers_key_and_one_where_others_can_reach_them() {
    let server = serve_with(|options| {
        options.mcp = Some(small("", Duration::from_secs(60)));
        options.keys = Keys::new("secret");
    });
    let body = clock().to_string();
    let call = |headers: &[(&str, &str)]| {
        send(server.address(), &request("POST", CALL, headers, body.as_bytes())).status
    };
    assert_eq!((call(&[]), call(&[("x-api-key", "secret")])), (401, 200));
    assert_eq!(send(server.address(), &request("GET", TOOLS, &[], b"")).status, 401);
    let open = |keys: &str| {
        let mut options = options();
        options.host = "0.0.0.0".into();
        options.mcp = Some(small("", Duration::from_secs(60)));
        options.keys = Keys::new(keys);
        Server::start(options).map(Server::stop).map_err(|error| error.to_string())
    };
    assert!(open("").unwrap_err().contains("without API keys"));
    assert!(open("secret").is_ok());
}

#[test]
fn a_server_that_dies_is_an_error_and_is_started_again() {
    let server = with_tools();
    let died = server.post(CALL, &calls("die"));
    let error = &died.json()["error"];
    assert_eq!((died.status, &error["code"]), (502, &json!("mcp_failed")));
    assert_eq!(error["message"], "the MCP server small has ended; it says: out of ideas");
    assert_eq!(server.ok(CALL, &clock())["content"], "Noon in UTC.");
}

#[test]
fn calls_end_when_they_are_late_or_their_client_is_gone() {
    let server = serve_with(|options| options.mcp = Some(small("", Duration::from_millis(300))));
    let late = server.post(CALL, &calls("wait"));
    assert_eq!((late.status, &late.json()["error"]["code"]), (504, &json!("mcp_failed")));
    assert_eq!(server.ok(CALL, &clock())["content"], "Noon in UTC.");
    // More than may wait for a server, and clients that hang up.
    let server = with_tools();
    let wait = request("POST", CALL, &[], calls("wait").to_string().as_bytes());
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect(server.address());
            std::io::Write::write_all(&mut stream, &wait).unwrap();
            stream
        })
        .collect();
    let refused = loop {
        // Until all four have arrived, this one waits in place of one of them, and hangs up.
        let mut stream = connect(server.address());
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        std::io::Write::write_all(&mut stream, &wait).unwrap();
        let mut bytes = Vec::new();
        if std::io::Read::read_to_end(&mut stream, &mut bytes).is_ok() {
            break String::from_utf8(bytes).unwrap();
        }
    };
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("too_many_calls"), "{refused}");
    drop(waiting);
    let done = loop {
        let answer = server.post(CALL, &clock());
        if answer.status != 429 {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(done.json()["content"], "Noon in UTC.");
}

#[test]
fn the_servers_end_with_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let before = format!("echo $$ > '{}'", file.display());
    let server = serve_with(|options| options.mcp = Some(small(&before, Duration::from_secs(60))));
    let pid = std::fs::read_to_string(file).unwrap();
    let lives = || {
        let asked = std::process::Command::new("kill").args(["-0", pid.trim()]).output().unwrap();
        asked.status.success()
    };
    assert!(lives());
    server.0.stop();
    assert!(!lives());
}
