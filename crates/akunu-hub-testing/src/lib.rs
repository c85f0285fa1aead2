//! A fake hub on loopback: a few repositories, and the failures of a real one. It is a dev-dependency only.
#![allow(clippy::unwrap_used, reason = "a test fails where its hub does")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::Digest;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const REPO: &str = "tiny/model-GGUF";

#[derive(Clone, Debug)]
pub enum Fault {
    /// Closes the connection after this many bytes of the body.
    Cut(usize),
    /// Flips a bit of the first byte.
    Damage,
    /// Ignores the requested range and sends everything.
    IgnoreRange,
    /// A status code with headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// Redirects to the same path on another host.
    Redirect(String),
    /// Declares the full length, sends this many bytes, then pauses.
    Stall(usize, Duration),
    /// Pauses after every this many bytes.
    Slow(usize, Duration),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct State {
    repo: String,
    /// Name, contents, and whether it is a large file with a SHA-256.
    files: Vec<(String, Vec<u8>, bool)>,
    commit: String,
    /// Applied to requests whose path contains this text, this many times.
    faults: Vec<(String, Fault, usize)>,
    requests: Vec<Request>,
    /// Files per page of the listing.
    page: usize,
}

#[derive(Clone, Debug)]
pub struct FakeHub {
    pub url: String,
    port: u16,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    pub fn new(files: &[(&str, &[u8])]) -> FakeHub {
        FakeHub::named(REPO, files)
    }

    /// A hub whose only repository is `repo`.
    pub fn named(repo: &str, files: &[(&str, &[u8])]) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let large = |name: &str| name.ends_with(".gguf") || name.ends_with(".safetensors");
        let files =
            files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec(), large(name))).collect();
        let state = State {
            repo: repo.to_string(),
            files,
            commit: COMMIT.to_string(),
            page: 1000,
            ..State::default()
        };
        let hub =
            FakeHub { url: format!("http://127.0.0.1:{port}"), port, state: Arc::new(Mutex::new(state)) };
        let served = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = served.clone();
                std::thread::spawn(move || hub.serve(stream));
            }
        });
        hub
    }

    /// The same server under another host name, which must not get the token.
    pub fn other_host(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    pub fn fault(&self, part_of_path: &str, fault: Fault, times: usize) {
        self.state.lock().unwrap().faults.push((part_of_path.to_string(), fault, times));
    }

    pub fn page(&self, files: usize) {
        self.state.lock().unwrap().page = files;
    }

    /// Adds a commit with these files.
    pub fn commit(&self, commit: &str, files: &[(&str, &[u8])]) {
        let mut state = self.state.lock().unwrap();
        state.commit = commit.to_string();
        state.files = files.iter().map(|(n, b)| (n.to_string(), b.to_vec(), n.ends_with(".gguf"))).collect();
    }

    /// Requests so far whose path contains this text.
    pub fn requests(&self, part_of_path: &str) -> Vec<Request> {
        let state = self.state.lock().unwrap();
        state.requests.iter().filter(|r| r.path.contains(part_of_path)).cloned().collect()
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_string();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_string());
        }
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(Request { path: path.clone(), headers: headers.clone() });
            let due = state.faults.iter_mut().find(|(part, _, times)| *times > 0 && path.contains(&**part));
            due.map(|(_, fault, times)| {
                *times -= 1;
                fault.clone()
            })
        };
        match &fault {
            Some(Fault::Status(status, headers)) => return send(&mut stream, *status, headers, b"no", None),
            Some(Fault::Redirect(base)) => {
                let place = format!("{base}{path}");
                return send(&mut stream, 302, &[("location", &place)], b"", None);
            }
            _ => {}
        }
        self.answer(&mut stream, &path, &headers, fault)
    }

    fn answer(
        &self,
        stream: &mut TcpStream,
        path: &str,
        headers: &BTreeMap<String, String>,
        fault: Option<Fault>,
    ) -> Option<()> {
        let state = self.state.lock().unwrap();
        let (repo, commit, page) = (state.repo.clone(), state.commit.clone(), state.page);
        let files = state.files.clone();
        drop(state);
        let missing = |stream: &mut TcpStream, code| send(stream, 404, &[("x-error-code", code)], b"", None);
        let api = format!("/api/models/{repo}/");
        if let Some(rest) = path.strip_prefix(&api) {
            if let Some(revision) = rest.strip_prefix("revision/") {
                if revision != "main" && revision != "refs%2Fpr%2F1" && revision != commit {
                    return missing(stream, "RevisionNotFound");
                }
                return send(stream, 200, &[], format!("{{\"sha\":\"{commit}\"}}").as_bytes(), fault);
            }
            let query = rest.strip_prefix(&format!("tree/{commit}?recursive=1"))?;
            let from = query.strip_prefix("&cursor=").map_or(0, |n| n.parse::<usize>().unwrap());
            let entries: Vec<String> = files.iter().skip(from).take(page).map(entry).collect();
            let body = format!("[{{\"type\":\"directory\",\"oid\":\"\",\"size\":0,\"path\":\"d\"}}{}]", {
                entries.iter().map(|e| format!(",{e}")).collect::<String>()
            });
            let next = format!(
                "<{}/api/models/{repo}/tree/{commit}?recursive=1&cursor={}>; rel=\"next\"",
                self.url,
                from + page
            );
            let more = from + page < files.len();
            let link: &[(&str, &str)] = if more { &[("link", &next)] } else { &[] };
            return send(stream, 200, link, body.as_bytes(), fault);
        }
        let Some(name) = path.strip_prefix(&format!("/{repo}/resolve/{commit}/")) else {
            return missing(stream, "RepoNotFound");
        };
        let Some((_, bytes, _)) = files.iter().find(|(n, _, _)| n.replace(' ', "%20") == name) else {
            return missing(stream, "EntryNotFound");
        };
        let mut bytes = bytes.clone();
        if matches!(fault, Some(Fault::Damage)) {
            bytes[0] ^= 1;
        }
        let range = headers
            .get("range")
            .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        match range {
            Some(from) if !matches!(fault, Some(Fault::IgnoreRange)) => {
                let about = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                send(stream, 206, &[("content-range", &about)], &bytes[from..], fault)
            }
            _ => send(stream, 200, &[], &bytes, fault),
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

pub fn git_oid(bytes: &[u8]) -> String {
    let mut state = sha1::Sha1::new();
    state.update(format!("blob {}\0", bytes.len()));
    state.update(bytes);
    hex(&state.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn entry((name, bytes, large): &(String, Vec<u8>, bool)) -> String {
    let (size, oid) = (bytes.len(), git_oid(bytes));
    let lfs = if *large {
        format!(",\"lfs\":{{\"oid\":\"{}\",\"size\":{size},\"pointerSize\":130}}", sha256(bytes))
    } else {
        String::new()
    };
    format!("{{\"type\":\"file\",\"oid\":\"{oid}\",\"size\":{size},\"path\":\"{name}\"{lfs}}}")
}

fn send(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    fault: Option<Fault>,
) -> Option<()> {
    let mut head =
        format!("HTTP/1.1 {status} Whatever\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    match fault {
        Some(Fault::Cut(count)) => {
            stream.write_all(&body[..count.min(body.len())]).ok()?;
            stream.shutdown(Shutdown::Both).ok()?;
        }
        Some(Fault::Stall(count, pause)) => {
            stream.write_all(&body[..count.min(body.len())]).ok()?;
            std::thread::sleep(pause);
        }
        Some(Fault::Slow(count, pause)) => {
            for piece in body.chunks(count) {
                stream.write_all(piece).ok()?;
                std::thread::sleep(pause);
            }
        }
        _ => stream.write_all(body).ok()?,
    }
    Some(())
}
