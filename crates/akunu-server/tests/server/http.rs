//! A minimal HTTP client that sends exact bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Map, Value as Json};

/// Longer than any request takes, so that a hanging test fails.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Map<String, Json>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.as_str()
    }

    /// The data of server-sent events.
    pub fn events(&self) -> Vec<String> {
        let text = self.text();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        events.filter_map(|event| event.strip_prefix("data: ").map(str::to_string)).collect()
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The bytes of a request with `Connection: close`, and with JSON as the body's type unless `headers` have another.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let json = ("content-type", "application/json");
    let is_typed = headers.iter().any(|(name, _)| *name == json.0);
    for (name, value) in headers.iter().chain((!is_typed).then_some(&json)) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    [text.as_bytes(), body].concat()
}

/// Sends bytes, and reads the response.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    answer(&mut stream)
}

pub fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.trim().to_lowercase(), Json::from(value.trim()))
    };
    let mut headers = Map::new();
    for (name, value) in lines.map(header) {
        assert!(name == "vary" || !headers.contains_key(&name), "two headers {name} in {head}");
        headers.insert(name, value);
    }
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = &bytes[end + 4..];
    Answer { status, headers, body: if chunked { unchunk(body) } else { body.to_vec() } }
}

/// Panics if the last chunk is missing, because the response was aborted.
fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|part| part == b"\r\n").expect("a chunk's length");
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if len == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = &bytes[end + 2 + len + 2..];
    }
}
