//! `akunu serve`: the process itself, which the tests of the server crate do not cover.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::common::{akunu, path, refuses};

/// Starts a server; also returns its address.
fn serve(more: &[&str]) -> (Child, String) {
    let args = ["serve", "--port", "0", "--device", "cpu", "-t", "1"];
    let mut child = akunu(&[&args[..], more].concat()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended before it served");
        if let Some((_, address)) = line.split_once("http://") {
            break address.trim().to_string();
        }
    };
    // Keep reading, so that later output of the server does not fail.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (child, address)
}

fn ask(address: &str, tokens: usize) -> TcpStream {
    let body = format!(
        r#"{{"prompt": "Once upon a time", "max_tokens": {tokens}, "ignore_eos": true, "stream": true}}"#
    );
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

fn signal(child: &Child, name: &str) {
    let kill = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", child.id())).status();
    assert!(kill.unwrap().success());
}

#[test]
fn sigterm_under_load_completes_requests_and_exits_0() {
    let (mut child, address) = serve(&["--drain", "300", "--parallel", "3"]);
    let mut streams: Vec<TcpStream> = (0..8).map(|n| ask(&address, 40 + 10 * n)).collect();
    // The server has accepted a request once its response has begun.
    let mut first = [0; 1];
    streams.iter_mut().for_each(|stream| stream.read_exact(&mut first).unwrap());
    signal(&child, "TERM");
    for mut stream in streams {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("data: [DONE]"), "{answer}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn ctrl_c_twice_ends_at_once() {
    // A response that takes very long.
    let (mut child, address) = serve(&["--drain", "300", "--parallel", "1", "-c", "100100"]);
    let mut stream = ask(&address, 100_000);
    stream.read_exact(&mut [0; 1]).unwrap();
    signal(&child, "INT");
    // The first signal has been handled when new connections are refused.
    while TcpStream::connect(&address).is_ok() {}
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn startup_errors_are_reported_immediately() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refuses(&["serve", "--port", &port], 1, &["cannot listen on 127.0.0.1", "--port"]);
    refuses(&["serve", "/nowhere/model.gguf"], 1, &["there is no file /nowhere/model.gguf"]);
    refuses(&["serve", "--alias", "fast=other"], 2, &["there is no model \"other\""]);
    refuses(&["serve", "--alias", "a", "--alias", "a"], 2, &["two models have the name \"a\""]);
    refuses(&["serve", "--tls-cert", "/nowhere"], 2, &["--tls-key"]);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# none\n").unwrap();
    refuses(&["serve", "--api-keys", path(&keys)], 1, &["no API keys"]);
}
