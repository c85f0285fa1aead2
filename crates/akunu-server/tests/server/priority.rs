//! Priorities of requests.

use std::io::Write;
use std::net::TcpStream;

use akunu_server::Keys;
use serde_json::{Value as Json, json};

use crate::http::{answer, connect, request};
use crate::serve::{ENDLESS, Served, WATCHER, serve_endless};

const PATH: &str = "/v1/completions";

fn body(tokens: usize, priority: Option<i64>) -> Json {
    json!({ "prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "stream": true, "priority": priority })
}

fn send(server: &Served, key: &str, body: &Json) -> TcpStream {
    let mut stream = connect(server.address());
    stream.write_all(&request("POST", PATH, &[("x-api-key", key)], body.to_string().as_bytes())).unwrap();
    stream
}

fn one_slot(keys: Keys) -> Served {
    serve_endless(|options| {
        options.models.engine = options.models.engine.clone().batching(1);
        options.keys = keys;
    })
}

/// While the slot is taken, queues a request and then one with a higher priority, which has to be answered first.
fn assert_overtakes(server: &Served, [low, high]: [(&str, Option<i64>); 2]) {
    let first = send(server, WATCHER, &body(ENDLESS, None));
    server.until(&["akunu_running_requests"], 1.0);
    let low = send(server, low.0, &body(ENDLESS, low.1));
    server.until(&["akunu_queue_requests"], 1.0);
    let mut high = send(server, high.0, &body(3, high.1));
    server.until(&["akunu_queue_requests"], 2.0);
    drop(first);
    assert_eq!(answer(&mut high).status, 200);
    server.until(&["akunu_running_requests"], 1.0);
    drop(low);
    server.until_idle();
}

#[test]
fn lower_values_are_scheduled_first() {
    let server = one_slot(Keys::default());
    assert_overtakes(&server, [("", Some(2)), ("", None)]);
    assert_overtakes(&server, [("", Some(2)), ("", Some(1))]);
    // Without keys no client may precede the others.
    let refused = answer(&mut send(&server, "", &body(1, Some(-1))));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("priority")));
}

#[test]
fn requests_cannot_precede_the_priority_of_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, format!("{WATCHER}\nhigh -3\nlow 4\n")).unwrap();
    let server = one_slot(Keys::from_file(&path).unwrap());
    assert_overtakes(&server, [("low", None), (WATCHER, None)]);
    assert_overtakes(&server, [(WATCHER, None), ("high", None)]);
    assert_overtakes(&server, [("high", Some(9)), ("low", Some(4))]);
    for (key, priority) in [("high", -4), (WATCHER, -1), ("low", 0)] {
        let refused = answer(&mut send(&server, key, &body(1, Some(priority))));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("priority")), "{key}");
    }
}
