//! A minimal HTTP/1.1 client for streamed completions, over TCP without TLS.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value as Json;

/// Maximum size in bytes of a line, or of a body that is not streamed.
const MAX_BYTES: u64 = 16 << 20;
const MAX_HEADERS: usize = 256;

/// An OpenAI-compatible server.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port`
    authority: String,
    /// The path before `/v1`.
    prefix: String,
    key: Option<String>,
    /// Timeout without any received byte.
    timeout: Duration,
}

/// The reason why a request failed.
#[derive(Debug)]
pub struct ClientError {
    /// The category for counting errors: `connect`, `timeout`, `status 429`, `cut off`, `malformed`, `reported`.
    pub kind: String,
    pub detail: String,
}

impl ClientError {
    pub fn new(kind: impl Into<String>, detail: impl Into<String>) -> ClientError {
        ClientError { kind: kind.into(), detail: detail.into() }
    }

    fn malformed(detail: impl Into<String>) -> ClientError {
        ClientError::new("malformed", detail)
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        let kind = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "timeout",
            ErrorKind::InvalidData => "malformed",
            _ => "cut off",
        };
        ClientError::new(kind, error.to_string())
    }
}

impl Server {
    /// `http://host[:port][/prefix][/v1]`
    pub fn new(url: &str, key: Option<String>, timeout: Duration) -> Result<Server, &'static str> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err("only http:// is supported, without TLS"),
            None => url,
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let prefix = path.trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix);
        let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !visible(rest) {
            return Err("it is not a valid URL");
        }
        if !key.as_deref().is_none_or(visible) {
            return Err("the key cannot be sent: it contains whitespace or non-ASCII characters");
        }
        let port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if port { authority.to_string() } else { format!("{authority}:80") };
        Ok(Server { authority, prefix: prefix.to_string(), key, timeout })
    }

    pub fn get(&self, path: &str) -> Result<Json, ClientError> {
        let body = self.ask("GET", path, None)?;
        serde_json::from_reader(body.take(MAX_BYTES))
            .map_err(|error| ClientError::malformed(error.to_string()))
    }

    /// Sends a POST request and calls the handler for each event of the streamed response. A stream that ends without
    /// `[DONE]` is incomplete.
    pub fn stream(
        &self,
        path: &str,
        body: &Json,
        mut on_event: impl FnMut(&Json) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut lines = self.ask("POST", path, Some(body))?;
        while let Some(line) = line(&mut lines)? {
            let Some(data) = line.strip_prefix("data:") else { continue };
            if data.trim() == "[DONE]" {
                return Ok(());
            }
            let event: Json =
                serde_json::from_str(data).map_err(|e| ClientError::malformed(format!("{e}: {data}")))?;
            if let Some(error) = event.get("error") {
                return Err(ClientError::new("reported", error_message(error)));
            }
            on_event(&event)?;
        }
        Err(ClientError::new("cut off", "the stream ended without [DONE]"))
    }

    /// The body of a response with status 200.
    fn ask(&self, method: &str, path: &str, body: Option<&Json>) -> Result<Box<dyn BufRead>, ClientError> {
        let mut stream = self.connect().map_err(|error| ClientError::new("connect", error.to_string()))?;
        let body = body.map(Json::to_string).unwrap_or_default();
        let mut head = format!("{method} {}{path} HTTP/1.1\r\nHost: {}\r\n", self.prefix, self.authority);
        if let Some(key) = &self.key {
            head.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        head.push_str("Connection: close\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let (status, mut body) = answer(BufReader::new(stream))?;
        if status != 200 {
            let mut text = String::new();
            let _ = (&mut body).take(MAX_BYTES).read_to_string(&mut text);
            let error = serde_json::from_str::<Json>(&text)
                .ok()
                .and_then(|json| json.get("error").map(error_message));
            return Err(ClientError::new(format!("status {status}"), error.unwrap_or(text)));
        }
        Ok(body)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host name has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, self.timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(self.timeout))?;
                    stream.set_write_timeout(Some(self.timeout))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The message in an OpenAI error object, or the whole object.
fn error_message(error: &Json) -> String {
    error["message"].as_str().map_or_else(|| error.to_string(), str::to_string)
}

/// Parses the status and decodes the body.
fn answer(mut from: impl BufRead + 'static) -> Result<(u16, Box<dyn BufRead>), ClientError> {
    let first = line(&mut from)?.unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(|| ClientError::malformed(format!("no status line: {first:?}")))?;
    let (mut chunked, mut length) = (false, None);
    for _ in 0..MAX_HEADERS {
        let header = line(&mut from)?
            .ok_or_else(|| ClientError::new("cut off", "the response header is incomplete"))?;
        if header.is_empty() {
            let body: Box<dyn BufRead> = match (chunked, length) {
                (true, _) => Box::new(BufReader::new(Chunked { from, left: 0, state: Chunk::First })),
                (false, Some(length)) => Box::new(from.take(length)),
                (false, None) => Box::new(from),
            };
            return Ok((status, body));
        }
        let (name, value) = header.split_once(':').unwrap_or((&header, ""));
        match name.to_ascii_lowercase().as_str() {
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            "content-length" => length = value.trim().parse().ok(),
            _ => {}
        }
    }
    Err(ClientError::malformed("too many headers"))
}

/// A line without its end. `None` at the end of the stream.
fn line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    while bytes.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        bytes.pop();
    }
    String::from_utf8(bytes).map(Some).map_err(|_| ErrorKind::InvalidData.into())
}

/// A body with chunked transfer encoding.
struct Chunked<R> {
    from: R,
    left: u64,
    state: Chunk,
}

#[derive(PartialEq)]
enum Chunk {
    First,
    Later,
    End,
}

impl<R: BufRead> Chunked<R> {
    fn next(&mut self) -> io::Result<()> {
        if self.state == Chunk::Later {
            line(&mut self.from)?;
        }
        let size = line(&mut self.from)?.ok_or(ErrorKind::UnexpectedEof)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        self.left = u64::from_str_radix(size, 16).map_err(|_| ErrorKind::InvalidData)?;
        self.state = if self.left == 0 { Chunk::End } else { Chunk::Later };
        Ok(())
    }
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.state != Chunk::End {
            self.next()?;
        }
        if self.state == Chunk::End || out.is_empty() {
            return Ok(0);
        }
        let read = (&mut self.from).take(self.left).read(out)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Result<Server, &'static str> {
        Server::new(url, None, Duration::from_secs(1))
    }

    #[test]
    fn an_address_may_name_port_prefix_and_version() {
        for (url, authority, prefix) in [
            ("http://localhost:8080", "localhost:8080", ""),
            ("localhost:8080/v1/", "localhost:8080", ""),
            ("http://[::1]:1/models/v1", "[::1]:1", "/models"),
            ("http://host/", "host:80", ""),
        ] {
            let server = server(url).unwrap();
            assert_eq!((server.authority.as_str(), server.prefix.as_str()), (authority, prefix), "{url}");
        }
        for url in ["https://host", "http://", "ftp://host", "http://me@host", "http://a b"] {
            assert!(server(url).is_err(), "{url}");
        }
    }

    fn body(bytes: &'static [u8]) -> Result<(u16, String), ClientError> {
        let (status, mut body) = answer(bytes)?;
        let mut text = String::new();
        body.read_to_string(&mut text)?;
        Ok((status, text))
    }

    #[test]
    fn bodies_come_in_chunks_by_length_or_until_the_end() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"[..],
            b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nabcdefgh",
            b"HTTP/1.1 200 OK\n\nabcde",
        ] {
            assert_eq!(body(bytes).unwrap(), (200, "abcde".to_string()));
        }
        for (bytes, kind) in [
            (&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc"[..], "cut off"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nabc", "malformed"),
            (b"HTTP/1.1 200 OK\r\nA: b", "cut off"),
            (b"SSH-2.0\r\n", "malformed"),
            (b"", "malformed"),
        ] {
            assert_eq!(body(bytes).unwrap_err().kind, kind, "{}", String::from_utf8_lossy(bytes));
        }
    }
}
