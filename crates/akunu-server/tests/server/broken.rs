//! Failures of an engine: its requests get errors, and the next request gets a new engine.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use akunu::{Device, EngineOptions, Error};
use akunu_device_testing::FailingDevice;
use akunu_plan::reference::ReferenceDevice;
use serde_json::{Value as Json, json};

use crate::http::{Answer, answer, connect, request};
use crate::serve::{ENDLESS, Served, serve_endless};

#[derive(Default)]
struct Faults {
    failing: Arc<AtomicBool>,
    panicking: Arc<AtomicBool>,
}

/// The faults of the device that was opened last. A static, because `OpenDevice` is a plain function.
static FAULTS: Mutex<Option<Faults>> = Mutex::new(None);

fn open(_: &EngineOptions) -> Result<Box<dyn Device>, Error> {
    let device = FailingDevice::new(Box::new(ReferenceDevice::new()));
    *FAULTS.lock().unwrap() = Some(Faults { failing: device.failing(), panicking: device.panicking() });
    Ok(Box::new(device))
}

/// Triggers a fault with two running requests, one of them streamed, and a queued one. Returns how they end.
fn with_fault(server: &Served, fault: fn(&Faults) -> &AtomicBool) -> (Json, Answer, Answer) {
    let send = |stream: bool, tokens: usize| {
        let body = json!({ "prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "stream": stream });
        let mut socket = connect(server.address());
        socket.write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes())).unwrap();
        socket
    };
    let (mut streamed, mut whole) = (send(true, ENDLESS), send(false, ENDLESS));
    server.until(&["akunu_running_requests"], 2.0);
    let mut waiting = send(false, 2);
    server.until(&["akunu_queue_requests"], 1.0);
    fault(FAULTS.lock().unwrap().as_ref().unwrap()).store(true, Ordering::Relaxed);
    let events = answer(&mut streamed).events();
    (serde_json::from_str(events.last().unwrap()).unwrap(), answer(&mut whole), answer(&mut waiting))
}

fn assert_message(error: &Json, part: &str) {
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(part) && error["error"]["type"] == "server_error", "{error}");
}

#[test]
fn requests_of_a_failed_engine_get_errors_and_the_next_gets_a_new_engine() {
    let server = serve_endless(|options| {
        options.models.device = open;
        options.models.engine = options.models.engine.clone().batching(2);
    });
    // An error of the device fails the requests in the pass; the queued one is served.
    let (streamed, whole, waiting) = with_fault(&server, |faults| &faults.failing);
    assert_message(&streamed, "it failed on purpose");
    assert_eq!(whole.status, 500);
    assert_message(&whole.json(), "it failed on purpose");
    assert_eq!(waiting.status, 200);
    // A panic in the engine fails all of its requests.
    let (streamed, whole, waiting) = with_fault(&server, |faults| &faults.panicking);
    assert_message(&streamed, "the engine failed");
    for answer in [whole, waiting] {
        assert_eq!(answer.status, 500);
        assert_message(&answer.json(), "the engine failed");
    }
    let next = server.ok("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 2 }));
    assert_eq!(next["usage"]["completion_tokens"], 2);
}
