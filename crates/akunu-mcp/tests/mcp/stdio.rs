//! A server that is a process, and how it may misbehave.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use akunu_mcp::{Client, Error, Limits, Place, ServerConfig};
use serde_json::json;

const LIMITS: Limits = Limits { start: Duration::from_secs(20), call: Duration::from_secs(20), result: 1000 };

fn config(command: &str, kind: &str) -> ServerConfig {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server.sh");
    let args = vec![script.to_string(), kind.to_string()];
    let place = Place::Stdio { command: command.into(), args, env: vec![], folder: None };
    ServerConfig { name: "small".into(), place, ignored: vec![] }
}

fn connect(kind: &str) -> Client {
    Client::connect(&config("sh", kind), LIMITS, &AtomicBool::new(false)).unwrap()
}

fn call(client: &mut Client, tool: &str) -> Result<(String, bool), Error> {
    let arguments = json!({ "zone": "UTC" });
    let answer = client.call(tool, arguments.as_object().unwrap(), &AtomicBool::new(false))?;
    Ok((answer.text, answer.is_error))
}

#[test]
fn tools_are_listed_and_called() {
    let mut client = connect("");
    let names: Vec<&str> = client.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["clock", "fail", "die", "wait", "large", "kinds"]);
    assert_eq!(client.tools()[0].description, "Says the time.");
    assert_eq!(client.tools()[0].parameters["properties"]["zone"]["type"], "string");
    assert_eq!(call(&mut client, "clock").unwrap(), ("Noon in UTC.".into(), false));
    assert_eq!(call(&mut client, "fail").unwrap(), ("It failed.".into(), true));
    assert_eq!(call(&mut client, "none").unwrap(), ("Unknown tool".into(), true));
    let kinds = "[image of type image/png, which cannot be read here]\nin it\nc:d";
    assert_eq!(call(&mut client, "kinds").unwrap(), (kinds.into(), false));
    let large = "the result has 2000 bytes, but at most 1000 can be read";
    assert_eq!(call(&mut client, "large").unwrap(), (large.into(), true));
    // An error, which the model gets like a result.
    assert_eq!(call(&mut client, "verbose").unwrap(), (large.into(), true));
    assert_eq!(call(&mut client, "clock").unwrap().0, "Noon in UTC.");
}

#[test]
fn a_server_that_cannot_be_used_is_named_with_the_reason() {
    for (command, kind, expected) in [
        ("no-such-program", "", "the MCP server small cannot be started (no-such-program: "),
        ("sh", "quits", "the MCP server small has ended; it says: no licence was found"),
        (
            "sh",
            "prints",
            "does not keep to the protocol: it wrote \"Server is ready!\", which is not a message",
        ),
        ("sh", "old", "does not keep to the protocol: its version is \"1999-01-01\""),
        ("sh", "long", "a message is longer than 16777216 bytes"),
    ] {
        let refused = Client::connect(&config(command, kind), LIMITS, &AtomicBool::new(false));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{kind}: {error}");
    }
}

#[test]
fn a_server_that_dies_or_hangs_is_an_error_in_time() {
    let mut client = connect("");
    let error = call(&mut client, "die").unwrap_err().to_string();
    assert_eq!(error, "the MCP server small has ended; it says: out of ideas");
    let error = call(&mut client, "clock").unwrap_err().to_string();
    assert_eq!(error, "the MCP server small has ended");

    let limits = Limits { start: Duration::from_secs(1), ..LIMITS };
    let silent = Client::connect(&config("sh", "silent"), limits, &AtomicBool::new(false));
    assert_eq!(silent.unwrap_err().to_string(), "the MCP server small did not answer initialize within 1 s");
}

#[test]
fn waiting_ends_when_the_caller_wants_it_and_the_server_goes_on() {
    let mut client = connect("");
    let cancel = Arc::new(AtomicBool::new(false));
    let later = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        later.store(true, Ordering::SeqCst);
    });
    let begun = Instant::now();
    let error = client.call("wait", &serde_json::Map::new(), &cancel).unwrap_err();
    assert_eq!(error.to_string(), "the MCP server small was interrupted");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(call(&mut client, "clock").unwrap().0, "Noon in UTC.");
}
