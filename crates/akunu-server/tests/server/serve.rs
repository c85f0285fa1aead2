//! A server in this process, with the embedded model.

use std::net::SocketAddr;

use akunu::{DeviceChoice, EngineOptions};
use akunu_server::{ModelSpec, ModelsOptions, Options, Server};
use serde_json::Value as Json;

use crate::http::{self, Answer};

#[derive(Debug)]
pub struct Served(pub Server);

/// The name of the embedded model in these tests.
pub const TALES: &str = "tales";

/// An API key for requests of the tests themselves, used if the server accepts it.
pub const WATCHER: &str = "watcher";

pub fn options() -> Options {
    let tales = ModelSpec { name: TALES.into(), path: None, aliases: vec!["story-teller".into()] };
    let engine = EngineOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EngineOptions::default() };
    let engine = engine.batching(4);
    let models = ModelsOptions { models: vec![tales], engine, ..ModelsOptions::default() };
    Options { port: 0, models, ..Options::default() }
}

/// More tokens than can be generated during a test. A request for so many keeps its slot until it disconnects.
pub const ENDLESS: usize = 100_000;

pub fn serve() -> Served {
    serve_with(|_| {})
}

/// With a context of [`ENDLESS`] tokens.
pub fn serve_endless(change: impl FnOnce(&mut Options)) -> Served {
    serve_with(|options| {
        options.models.engine.context = Some(ENDLESS + 100);
        change(options);
    })
}

pub fn serve_with(change: impl FnOnce(&mut Options)) -> Served {
    let mut options = options();
    change(&mut options);
    Served(Server::start(options).unwrap())
}

impl Served {
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    pub fn get(&self, path: &str) -> Answer {
        http::send(self.address(), &http::request("GET", path, &[("x-api-key", WATCHER)], b""))
    }

    pub fn post(&self, path: &str, body: &Json) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        http::send(self.address(), &http::request("POST", path, &[], body))
    }

    /// Sends a request that must succeed.
    pub fn ok(&self, path: &str, body: &Json) -> Json {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The sum of a metric over its labels; 0 if it does not exist.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let lines = page.lines().filter(of_name);
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Waits until no request is running or queued.
    pub fn until_idle(&self) {
        self.until(&["akunu_queue_requests", "akunu_reading_requests", "akunu_running_requests"], 0.0);
    }

    /// Waits until all of the metrics have a value, which must be stable. Fails after a timeout.
    pub fn until(&self, names: &[&str], value: f64) {
        self.until_within(names, value..=value);
    }

    /// The same for a range.
    pub fn until_within(&self, names: &[&str], values: std::ops::RangeInclusive<f64>) {
        for _ in 0..6000 {
            if names.iter().all(|name| values.contains(&self.metric(name))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{names:?} are never {values:?}:\n{}", self.get("/metrics").text());
    }
}
