//! Who gets a slot first.

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

/// While one has the slot, a patient one comes, and then a hasty one: that is answered, and the patient one not yet.
fn assert_overtakes(server: &Served, [patient, hasty]: [(&str, Option<i64>); 2]) {
    let first = send(server, WATCHER, &body(ENDLESS, None));
    server.until(&["akunu_running_requests"], 1.0);
    let patient = send(server, patient.0, &body(ENDLESS, patient.1));
    server.until(&["akunu_queue_requests"], 1.0);
    let mut hasty = send(server, hasty.0, &body(3, hasty.1));
    server.until(&["akunu_queue_requests"], 2.0);
    drop(first);
    assert_eq!(answer(&mut hasty).status, 200);
    server.until(&["akunu_running_requests"], 1.0);
    drop(patient);
    server.until_idle();
}

#[test]
fn lower_ones_are_begun_first() {
    assert_overtakes(&one_slot(Keys::default()), [("", None), ("", Some(-1))]);
    assert_overtakes(&one_slot(Keys::default()), [("", Some(2)), ("", None)]);
}

#[test]
fn a_key_has_a_priority_and_its_requests_come_no_sooner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, format!("{WATCHER}\nhasty -3\npatient 4\n")).unwrap();
    let server = one_slot(Keys::from_file(&path).unwrap());
    assert_overtakes(&server, [("patient", None), (WATCHER, None)]);
    assert_overtakes(&server, [(WATCHER, None), ("hasty", None)]);
    assert_overtakes(&server, [("hasty", Some(9)), ("patient", Some(4))]);
    for (key, priority) in [("hasty", -4), (WATCHER, -1), ("patient", 0)] {
        let refused = answer(&mut send(&server, key, &body(1, Some(priority))));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("priority")), "{key}");
    }
}
