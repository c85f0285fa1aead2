//! Tests of the hub client with a fake hub on loopback.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

mod failures;
mod layout;

use std::path::Path;
use std::time::Duration;

use akunu_hub::{Hub, Observer, Reference, RetryPolicy, Settings};

/// Pseudorandom bytes, more than one buffer of them.
pub fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2654435761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

pub fn settings(url: &str, cache: &Path) -> Settings {
    let mut settings = Settings::new(url, cache).unwrap();
    settings.retry_policy = RetryPolicy {
        connect: Duration::from_secs(10),
        idle: Duration::from_secs(10),
        attempts: 3,
        backoff: Duration::from_millis(1),
        max_retry_after: Duration::from_secs(5),
    };
    settings
}

pub fn hub(url: &str, cache: &Path) -> Hub {
    Hub::new(settings(url, cache))
}

pub fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

/// Records all progress calls.
#[derive(Debug, Default)]
pub struct Notes {
    pub total: u64,
    pub done: u64,
    pub notes: Vec<String>,
}

impl Observer for Notes {
    fn begin(&mut self, total: u64) {
        self.total = total;
    }

    fn progress(&mut self, done: u64) {
        self.done = done;
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_string());
    }
}
