//! `akunu serve`: the process itself, which the tests of the server crate do not cover.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use akunu_hub_testing::FakeHub;

use crate::common::{akunu, path, refuses};
use crate::hub;

/// Starts a server; also returns its address.
pub fn serve(more: &[&str]) -> (Child, String) {
    started(akunu(&[&ARGS[..], more].concat()))
}

const ARGS: [&str; 7] = ["serve", "--port", "0", "--device", "cpu", "-t", "1"];

pub fn started(mut command: Command) -> (Child, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
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

pub fn ask(address: &str, tokens: usize) -> TcpStream {
    let body = format!(
        r#"{{"prompt": "Once upon a time", "max_tokens": {tokens}, "ignore_eos": true, "stream": true}}"#
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&request("/v1/completions", body.as_bytes())).unwrap();
    stream
}

pub fn request(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub fn signal(child: &Child, name: &str) {
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
fn tools_of_mcp_servers_are_offered_and_a_bad_configuration_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers.json");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu-mcp/tests/server.sh");
    let config = |command: &str| {
        let servers = serde_json::json!({ "small": { "command": command, "args": [path(&script)] } });
        std::fs::write(&file, serde_json::json!({ "mcpServers": servers }).to_string()).unwrap();
    };
    config("sh");
    let (mut child, address) = serve(&["--mcp", path(&file)]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let call = br#"{"name": "clock", "arguments": {"zone": "UTC"}}"#;
    stream.write_all(&request("/mcp/call", call)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(r#"{"content":"Noon in UTC.","is_error":false}"#), "{answer}");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    refuses(&[&ARGS[..], &["--mcp", path(&file), "--host", "0.0.0.0"]].concat(), 1, &["--api-keys"]);
    config("no-such-program");
    refuses(&[&ARGS[..], &["--mcp", path(&file)]].concat(), 1, &["the MCP server small cannot be started"]);
}

/// The lines of a pipe that have a text, until there are `count`.
fn lines_with(pipe: impl Read, text: &str, count: usize) -> Vec<String> {
    BufReader::new(pipe).lines().map(Result::unwrap).filter(|line| line.contains(text)).take(count).collect()
}

#[test]
fn the_log_is_on_stderr_or_as_json_on_stdout() {
    let tell = |address: &str| {
        let mut answer = String::new();
        ask(address, 3).read_to_string(&mut answer).unwrap();
        assert!(answer.contains("data: [DONE]"), "{answer}");
    };
    for (args, variable) in [(&["--log", "json"][..], "off"), (&["-v"], "json")] {
        let mut command = akunu(&[&ARGS[..], args].concat());
        command.env("AKUNU_LOG", variable).stdout(Stdio::piped());
        let (mut child, address) = started(command);
        tell(&address);
        let line = lines_with(child.stdout.take().unwrap(), "", 1).remove(0);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["output_tokens"], &line["model"]), (&3.into(), &"akunu-tales".into()), "{line}");
        // The pipe is closed, and the server goes on.
        for _ in 0..3 {
            tell(&address);
        }
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    for (args, variable, count) in
        [(&[][..], "", 1), (&["--log", "off"], "", 0), (&["--log", "requests"], "off", 1)]
    {
        let mut command = akunu(&[&ARGS[..], args].concat());
        command.env("AKUNU_LOG", variable).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut banner = String::new();
        stderr.read_line(&mut banner).unwrap();
        let (_, address) = banner.split_once(" at http://").unwrap();
        tell(address.trim());
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let lines =
            lines_with(stderr, " 200 POST /v1/completions from=127.0.0.1 model=akunu-tales prompt=", 9);
        assert_eq!(lines.len(), count, "{args:?}");
        assert_eq!(lines_with(child.stdout.take().unwrap(), "", 1), [""; 0]);
    }
    let mut command = akunu(&ARGS);
    command.env("AKUNU_LOG", "all");
    let done = crate::common::finish(command);
    assert_eq!(done.code, 2);
    for said in
        ["invalid value 'all' for '--log <FORMAT>'", "possible values: requests, json, off", "AKUNU_LOG"]
    {
        assert!(done.stderr.contains(said), "{}", done.stderr);
    }
}

/// The answer to a GET.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: sesame\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Otherwise one that comes early ends the process as if it had not stopped in order.
#[cfg(target_os = "linux")]
#[test]
fn sigterm_is_handled_once_the_address_is_said() {
    let (mut child, _) = started(akunu(&ARGS));
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // SIGTERM is 15, the first signal 1.
    assert_ne!(u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14), 0, "{caught}");
}

#[test]
fn options_come_from_the_environment_too() {
    let variables = [
        ("AKUNU_PORT", "0"),
        ("AKUNU_DEVICE", "cpu"),
        ("AKUNU_THREADS", "1"),
        ("AKUNU_ALIAS", "one,two"),
        ("AKUNU_PARALLEL", "3"),
        ("AKUNU_PRELOAD", "yes"),
        ("AKUNU_SHARE_CACHE", "off"),
        ("AKUNU_CONTEXT", "300"),
        ("AKUNU_LOG", "off"),
        ("AKUNU_KV_EVENTS", "tcp://127.0.0.1:0"),
        ("AKUNU_API_KEY", "sesame"),
        // An empty one is unset.
        ("AKUNU_MAX_MEMORY", ""),
    ];
    // The command line comes first.
    let mut command = akunu(&["serve", "--parallel", "2"]);
    command.envs(variables);
    let (mut child, address) = started(command);
    while !get(&address, "/ready").starts_with("HTTP/1.1 200") {}
    let info = get(&address, "/get_server_info");
    for said in ["\"context_length\":300", "\"max_running_requests\":2"] {
        assert!(info.contains(said), "{info}");
    }
    let models = get(&address, "/v1/models");
    assert!(["\"one\"", "\"two\""].iter().all(|alias| models.contains(alias)), "{models}");
    assert!(get(&address, "/metrics").contains("akunu_kv_event_subscribers 0"));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wrong_variable_is_named_and_a_secret_is_not_shown() {
    for (name, value, said) in [
        ("AKUNU_PORT", "tcp://10.0.0.1:80", "enableServiceLinks: false"),
        ("AKUNU_PARALLEL", "many", "an integer"),
        ("AKUNU_PRELOAD", "perhaps", "--preload"),
        ("AKUNU_KV_EVENTS", "5557", "tcp://HOST:PORT"),
    ] {
        let mut command = akunu(&["serve"]);
        command.env(name, value);
        let done = crate::common::finish(command);
        assert_eq!(done.code, 2, "{name}");
        assert!(done.stderr.contains(said) && done.stderr.contains(name), "{}", done.stderr);
    }
    let mut command = akunu(&["serve", "--help"]);
    command.env("AKUNU_API_KEY", "sesame").env("AKUNU_API_KEYS", "/secret").env("AKUNU_TLS_KEY", "/secret");
    let help = crate::common::finish(command);
    assert!(help.code == 0 && !help.stdout.contains("sesame") && !help.stdout.contains("/secret"));
    // Options of other commands are only on the command line.
    let mut command = akunu(&["tokenize", "Once"]);
    command.env("AKUNU_THREADS", "none").env("AKUNU_MODEL", "/missing");
    assert!(!crate::common::finish(command).stderr.contains("AKUNU_THREADS"));
}

#[test]
fn a_model_that_cannot_be_loaded_first_ends_the_server() {
    let mut command = akunu(&[&ARGS[..], &["--preload", "--max-memory", "1"]].concat());
    command.stdin(Stdio::null());
    let done = crate::common::finish(command);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("--preload: the model needs"), "{}", done.stderr);
    refuses(
        &[
            "serve",
            "embedded",
            "--models",
            ".",
            "--kv-events",
            "tcp://127.0.0.1:0",
            "--kv-events-replay",
            "tcp://127.0.0.1:0",
        ],
        2,
        &["--kv-events-replay needs a server with one model"],
    );
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let mut child = akunu(&ARGS).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::with_capacity(1, child.stderr.take().unwrap());
    let mut banner = String::new();
    stderr.read_line(&mut banner).unwrap();
    let (_, address) = banner.trim().split_once(" at http://").unwrap();
    // More lines than a pipe holds.
    let path = "x".repeat(180);
    for _ in 0..500 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&request(&format!("/{path}"), b"{}")).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let lines = stderr.lines().map(Result::unwrap).filter(|line| line.contains(" 404 POST /xxx")).count();
    assert!((100..500).contains(&lines), "{lines}");
}

#[test]
fn startup_errors_are_reported_immediately() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refuses(&["serve", "--port", &port], 1, &["cannot listen on 127.0.0.1", "--port"]);
    refuses(&["serve", "/nowhere/model.gguf"], 1, &["there is no file /nowhere/model.gguf"]);
    refuses(
        &["serve", "--alias", "fast=other"],
        2,
        &["there is no model \"other\"", "hint: the models are akunu-tales"],
    );
    // The first would be downloaded.
    refuses(
        &["serve", "qwen3:0.6b", "qwne3:0.6b"],
        1,
        &["there is no file qwne3:0.6b", "hint: similar short names are qwen3:0.6b"],
    );
    refuses(&["serve", "--alias", "a", "--alias", "a"], 2, &["two models have the name \"a\""]);
    refuses(&["serve", "--tls-cert", "/nowhere"], 2, &["--tls-key"]);
    refuses(&["serve", "--tensor-parallel", "17"], 1, &["ranks is 17", "from 1 to 16"]);
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# none\n").unwrap();
    refuses(&["serve", "--api-keys", path(&keys)], 1, &["no API keys"]);
}

#[test]
#[cfg(target_os = "linux")]
fn large_requests_fit_in_little_memory() {
    if akunu_testing::left_to_ci() {
        return;
    }
    const ADDRESS_SPACE_KIB: u32 = 2 << 20;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"")).arg("sh");
    shell.arg(env!("CARGO_BIN_EXE_akunu")).args(ARGS).args(["--max-request-memory", "256"]);
    let (mut child, address) = started(shell);
    let resident = |key: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
    };
    let idle = resident("VmRSS");
    let many = |text: &str, len: usize| text.repeat(len / text.len());
    const LEN: usize = 30 << 20;
    let bodies = [
        ("/tokenize", format!("{{\"content\": \"{}\", \"with_pieces\": true}}", many("a ", LEN))),
        ("/v1/completions", format!("{{\"prompt\": [{}0]}}", many("0,", LEN))),
        (
            "/v1/completions",
            format!("{{\"prompt\": \"a\", \"n\": 128, \"stop\": [{}\"a\"]}}", many("\"b\",", 2 << 20)),
        ),
        ("/v1/chat/completions", many("[", LEN)),
        ("/v1/embeddings", format!("{{\"input\": [{}\"a\"]}}", many("\"b\",", LEN))),
    ];
    // Many of a size of which some are accepted.
    let prompt = ("/v1/completions", format!("{{\"prompt\": \"{}\"}}", many("a ", 8 << 20)));
    std::thread::scope(|scope| {
        for (path, body) in bodies.iter().chain(&bodies).chain(std::iter::repeat_n(&prompt, 128)) {
            let address = &address;
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
                // The server may answer, and close, before all is sent.
                let _ = stream.write_all(&request(path, body.as_bytes()));
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                let is_refused = answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 503");
                assert!(is_refused || answer.is_empty(), "{path}: {answer}");
            });
        }
    });
    let mut answer = String::new();
    ask(&address, 3).read_to_string(&mut answer).unwrap();
    assert!(answer.contains("data: [DONE]"), "{answer}");
    // The allocator keeps some of what is freed.
    let peak = resident("VmHWM") - idle;
    assert!(peak <= 2 * 256 + 64, "{peak} MiB");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The names in `/v1/models` of a server.
fn served_names(command: Command) -> Vec<String> {
    let (mut child, address) = started(command);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let list: serde_json::Value = serde_json::from_str(body).unwrap();
    let names =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_string());
    let names = names.collect();
    // A model is loaded by its first request.
    ask(&address, 2).read_to_string(&mut String::new()).unwrap();
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    names
}

const MODEL: &[u8] = include_bytes!("../../../akunu/embedded/akunu-tales.gguf");

#[test]
fn the_models_of_a_folder_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    file("b.gguf", MODEL);
    file("publisher/model/a.gguf", MODEL);
    file("x/same.gguf", MODEL);
    file("y/same.gguf", MODEL);
    file("broken.gguf", b"GGUF and nothing else");
    file("mmproj-b.gguf", MODEL);
    file("readme.md", b"");
    file(".hidden/c.gguf", MODEL);
    let models = ["--models", path(folder.path())];
    assert_eq!(served_names(akunu(&[&ARGS[..], &models].concat())), ["b", "a", "x/same", "y/same"]);
    // What is named itself comes first.
    let named = ["embedded", "--alias", "tales=a"];
    let names = served_names(akunu(&[&ARGS[..], &models, &named].concat()));
    assert_eq!(names, ["akunu-tales", "b", "a", "tales", "x/same", "y/same"]);
    let empty = tempfile::tempdir().unwrap();
    refuses(&["serve", "--models", path(empty.path())], 1, &["there are no models in", "hint"]);
    refuses(&["serve", "--models", "/nowhere"], 1, &["cannot read /nowhere"]);
}

#[test]
fn the_models_of_the_hubs_cache_are_served() {
    let (cache, fake) =
        (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL), ("b-Q4_0.gguf", MODEL)]));
    let pull = |name: &str| {
        let done = crate::common::finish(hub::command(&fake, cache.path(), &["pull", name]));
        assert_eq!(done.code, 0, "{}", done.stderr);
    };
    let serve = |args: &[&str]| hub::command(&fake, cache.path(), &[&ARGS[..], args].concat());
    let done = crate::common::finish(hub::command(&fake, cache.path(), &["serve", "--models"]));
    assert!(done.code == 1 && done.stderr.contains("there are no models in"), "{}", done.stderr);
    pull(&format!("{}:Q8_0", hub::NAME));
    assert_eq!(served_names(serve(&["--models"])), [hub::NAME]);
    pull(&format!("{}:Q4_0", hub::NAME));
    let other = format!("{}:a-Q8_0.gguf", hub::NAME);
    assert_eq!(served_names(serve(&["--offline", "--models"])), [hub::NAME, other.as_str()]);
}
