//! Messages that a server sent, read by threads.

use std::io::{BufRead, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value as Json;

use crate::error::Reason;

/// Longest message in bytes.
pub const MAX_MESSAGE: u64 = 16 << 20;
/// Messages that wait; a server that sends more is not read until they were taken. Each may take much more memory than its
/// bytes.
const WAITING: usize = 4;

#[derive(Debug)]
pub struct Incoming {
    /// The request that failed, if it was a certain one.
    pub request: Option<u64>,
    pub message: Result<Json, Reason>,
}

pub type Outlet = SyncSender<Incoming>;

#[derive(Debug)]
pub struct Inbox(Receiver<Incoming>);

impl Inbox {
    pub fn new() -> (Outlet, Inbox) {
        let (outlet, inbox) = sync_channel(WAITING);
        (outlet, Inbox(inbox))
    }

    /// `None`: nothing came in that time.
    pub fn next(&self, wait: Duration) -> Option<Incoming> {
        match self.0.recv_timeout(wait) {
            Ok(incoming) => Some(incoming),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Incoming { request: None, message: Err(Reason::Ended(String::new())) })
            }
        }
    }
}

/// The next line without its end; `None` after the last one.
pub fn line(from: &mut impl BufRead) -> Result<Option<String>, Reason> {
    let mut bytes = Vec::new();
    let read = from.by_ref().take(MAX_MESSAGE).read_until(b'\n', &mut bytes);
    read.map_err(|error| Reason::Unreachable(error.to_string()))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop_if(|last| *last == b'\n').is_none() && bytes.len() as u64 == MAX_MESSAGE {
        return Err(Reason::Protocol(format!("a message is longer than {MAX_MESSAGE} bytes")));
    }
    bytes.pop_if(|last| *last == b'\r');
    String::from_utf8(bytes).map(Some).map_err(|_| Reason::Protocol("a message is not UTF-8".into()))
}

/// A message of JSON-RPC.
pub fn message(text: &str) -> Result<Json, Reason> {
    let shown: String = text.chars().take(100).collect();
    match serde_json::from_str(text) {
        Ok(json @ (Json::Object(_) | Json::Array(_))) => Ok(json),
        _ => Err(Reason::Protocol(format!("it wrote {shown:?}, which is not a message"))),
    }
}
