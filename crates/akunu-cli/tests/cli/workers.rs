//! `akunu worker`: a model that several processes share out between them.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use crate::common::{akunu, file, ok};
use crate::serve::{ask, request, signal};

const SECRET: &str = "a secret of these tests";

/// A process with the first rank.
struct Leader {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Where workers join.
    joining: String,
    /// Of a server.
    serving: String,
}

const DEVICE: [&str; 4] = ["--device", "cpu", "-t", "1"];

fn lead(args: &[&str], world: &str) -> Leader {
    let hosts = ["--world", world, "--listen", "127.0.0.1:0"];
    let mut command = with_secret(akunu(&[args, &hosts, &DEVICE].concat()), SECRET);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let (mut joining, mut serving) = (String::new(), String::new());
    while joining.is_empty() || (args[0] == "serve" && serving.is_empty()) {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        if let Some((_, address)) = line.split_once("waiting for workers at ") {
            joining = address.trim().to_string();
        } else if let (Some((_, address)), true) = (line.split_once(" at http://"), serving.is_empty()) {
            serving = address.trim().to_string();
        }
    }
    Leader { child, stderr, joining, serving }
}

fn with_secret(mut command: Command, secret: &str) -> Command {
    command.env("AKUNU_WORKER_SECRET", secret);
    command
}

impl Leader {
    fn worker(&self, rank: &str, world: &str, model: &[&str], secret: &str) -> Child {
        let place = ["--rank", rank, "--world", world, "--join", &self.joining];
        let mut command = with_secret(akunu(&[&["worker"], &place[..], model, &DEVICE].concat()), secret);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The error of a worker that may not join.
    fn refuses(&self, rank: &str, world: &str, secret: &str) -> String {
        let refused = ended(self.worker(rank, world, &[], secret));
        assert_eq!(refused.0, 1, "{}", refused.1);
        refused.1
    }

    fn output(mut self) -> (Output, String) {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        (self.child.wait_with_output().unwrap(), stderr)
    }
}

/// The exit code, and what was written to stderr.
fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code().unwrap(), stderr)
}

#[test]
fn two_processes_write_the_text_of_two_ranks_after_refusing_others() {
    let story = ["run", "Once upon a time", "-n", "60", "--temp", "0"];
    let together = ok(&[&story[..], &["--device", "cpu", "-t", "2", "--tensor-parallel", "2"]].concat());
    let leader = lead(&story, "2");
    let stranger = leader.refuses("1", "2", "another secret of tests");
    assert!(stranger.contains("this worker does not know the secret"), "{stranger}");
    let other_world = leader.refuses("1", "3", SECRET);
    assert!(other_world.contains("it has --world 2, and this worker --world 3"), "{other_world}");
    let mut garbage = TcpStream::connect(&leader.joining).unwrap();
    garbage.write_all(&[0xff; 100]).unwrap();
    let worker = leader.worker("1", "2", &[], SECRET);
    let (output, stderr) = leader.output();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), together);
    let (code, notes) = ended(worker);
    assert!(code == 0 && notes.ends_with("the leader has ended\n"), "{code}: {notes}");
}

#[test]
fn three_processes_compute_the_logits_of_three_ranks() {
    let model = file("testdata/models/qwen2-moe-shared");
    let model = model.to_str().unwrap();
    let logits = ["logits", model, "--ids", "1,2,3,4,5,6,7", "--all", "--json"];
    let together = ok(&[&logits[..], &["--device", "cpu", "-t", "3", "--tensor-parallel", "3"]].concat());
    let leader = lead(&logits, "3");
    let workers = ["2", "1"].map(|rank| leader.worker(rank, "3", &[model], SECRET));
    let (output, stderr) = leader.output();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), together);
    assert_eq!(workers.map(|worker| ended(worker).0), [0, 0]);
}

#[test]
fn another_model_is_refused_on_both_sides() {
    let model = file("testdata/models/llama-hd64-gqa2");
    let leader = lead(&["run", "Once upon a time"], "2");
    let worker = leader.worker("1", "2", &[model.to_str().unwrap()], SECRET);
    let (output, stderr) = leader.output();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("rank 1 of 2 failed") && stderr.contains("it has another model"), "{stderr}");
    // In words, not as the program writes its values.
    assert!(!stderr.contains("Some(") && !stderr.contains(" { ") && !stderr.contains("_"), "{stderr}");
    assert!(stderr.lines().all(|line| line.len() < 300), "{stderr}");
    let (code, stderr) = ended(worker);
    assert!(stderr.lines().all(|line| line.len() < 300), "{stderr}");
    assert!(code == 1 && stderr.contains("the leader has another model"), "{stderr}");
}

/// The answer of a server to a request.
fn answer(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_whose_worker_is_killed_ends_its_answers_and_is_not_ready() {
    let mut leader = lead(&["serve", "--port", "0", "--parallel", "2", "-c", "100100"], "2");
    let ready = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(answer(&leader.serving, ready).contains("the models are being loaded"));
    let mut worker = leader.worker("1", "2", &[], SECRET);
    while !answer(&leader.serving, ready).starts_with("HTTP/1.1 200") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Two at once, in one pass.
    let texts = [30, 30].map(|tokens| ask(&leader.serving, tokens)).map(|mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    assert!(texts.iter().all(|text| text.contains("data: [DONE]")), "{texts:?}");
    let body = br#"{"prompt": "Once", "max_tokens": 100000, "ignore_eos": true}"#;
    let mut whole = TcpStream::connect(&leader.serving).unwrap();
    whole.write_all(&request("/v1/completions", body)).unwrap();
    let mut long = ask(&leader.serving, 100_000);
    let mut first = [0; 1000];
    long.read_exact(&mut first).unwrap();
    worker.kill().unwrap();
    let mut rest = String::new();
    long.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("rank 1 of 2 failed: the connection was closed"), "{rest}");
    let mut failed = String::new();
    whole.read_to_string(&mut failed).unwrap();
    assert!(failed.starts_with("HTTP/1.1 503") && failed.contains("\"device_failed\""), "{failed}");
    let not_ready = answer(&leader.serving, ready);
    assert!(not_ready.starts_with("HTTP/1.1 503") && not_ready.contains("has failed"), "{not_ready}");
    let health = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(answer(&leader.serving, health).starts_with("HTTP/1.1 503"));
    let later = request("/v1/completions", br#"{"prompt": "Once", "max_tokens": 2}"#);
    let later = answer(&leader.serving, &later);
    assert!(later.starts_with("HTTP/1.1 503") && later.contains("\"device_failed\""), "{later}");
    assert!(later.contains("no longer usable, because rank 1 of 2 failed"), "{later}");
    signal(&leader.child, "TERM");
    assert_eq!(leader.child.wait().unwrap().code(), Some(0));
    worker.wait().unwrap();
}

/// Nothing asks the model when it is lost.
#[test]
fn a_server_says_that_a_worker_is_lost_while_idle_and_nothing_when_it_ends() {
    let ready = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    for is_killed in [true, false] {
        let mut leader = lead(&["serve", "--port", "0", "-c", "64"], "2");
        let mut worker = leader.worker("1", "2", &[], SECRET);
        while !answer(&leader.serving, ready).starts_with("HTTP/1.1 200") {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if is_killed {
            worker.kill().unwrap();
            let mut line = String::new();
            while !line.contains("is no longer usable") {
                line.clear();
                assert!(leader.stderr.read_line(&mut line).unwrap() > 0, "the log has ended");
            }
            let reason = "rank 1 of 2 failed: the connection was closed; the server has to be started again";
            assert!(line.starts_with("error: ") && line.trim_end().ends_with(reason), "{line}");
        }
        signal(&leader.child, "TERM");
        let (output, log) = leader.output();
        assert!(output.status.success() && !log.contains("is no longer usable"), "{log}");
        let code = worker.wait().unwrap().code();
        assert!(is_killed || code == Some(0), "{code:?}");
    }
}

#[test]
fn a_worker_that_ends_before_all_have_joined_is_named_with_its_reason() {
    let mut leader = lead(&["run", "Once upon a time", "-n", "4"], "4");
    let mut worker = leader.worker("2", "4", &[], SECRET);
    let mut told = BufReader::new(worker.stderr.take().unwrap()).lines();
    // It has its place.
    while !told.next().unwrap().unwrap().contains("this is rank 2 of 4") {}
    worker.kill().unwrap();
    let mut line = String::new();
    leader.stderr.read_line(&mut line).unwrap();
    let expected = "note: rank 2 of 4 failed: the connection was closed; another worker may take its place\n";
    assert_eq!(line, expected);
    let workers = ["2", "1", "3"].map(|rank| leader.worker(rank, "4", &[], SECRET));
    let (output, stderr) = leader.output();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(workers.map(|worker| ended(worker).0), [0; 3]);
    worker.wait().unwrap();
}

#[test]
fn a_worker_whose_leader_is_killed_ends_with_an_error() {
    let mut leader = lead(&["run", "Once upon a time", "--ignore-eos", "--context-shift=4"], "2");
    let worker = leader.worker("1", "2", &[], SECRET);
    leader.child.stdout.as_mut().unwrap().read_exact(&mut [0; 100]).unwrap();
    leader.child.kill().unwrap();
    let (code, stderr) = ended(worker);
    assert!(code == 1 && stderr.contains("error: the leader has gone: "), "{code}: {stderr}");
    leader.child.wait().unwrap();
}

/// Before workers have joined, nothing is there to be completed.
#[test]
fn ctrl_c_ends_a_leader_that_waits() {
    let out = std::env::temp_dir().join(format!("akunu-imatrix-{}", std::process::id()));
    let text = file("README.md");
    let measure = ["imatrix", "-f", text.to_str().unwrap(), "-o", out.to_str().unwrap(), "--chunks", "1"];
    for args in [&["run", "Once upon a time"][..], &measure] {
        let leader = lead(args, "2");
        signal(&leader.child, "INT");
        let (output, stderr) = leader.output();
        assert!(matches!(output.status.code(), None | Some(130)), "{args:?} {:?}: {stderr}", output.status);
    }
    assert!(!out.exists());
}

#[test]
fn command_lines_that_cannot_work_say_why() {
    let refused = |args: &[&str]| ended(akunu(args).stderr(Stdio::piped()).spawn().unwrap());
    let (code, stderr) = refused(&["run", "x", "--world", "2", "--listen", "0.0.0.0:0"]);
    assert!(code == 1 && stderr.contains("set AKUNU_WORKER_SECRET or --secret-file"), "{stderr}");
    let (code, stderr) = refused(&["run", "x", "--world", "2"]);
    assert!(code == 2 && stderr.contains("--listen"), "{stderr}");
    let hosts = ["--world", "2", "--listen", "127.0.0.1:0"];
    let (code, stderr) = refused(&[&["serve", "embedded", "--idle-unload", "9"], &hosts[..]].concat());
    assert!(code == 2 && stderr.contains("workers have one model"), "{stderr}");
    let (code, stderr) = refused(&[&["run", "x", "--secret-file", "/nowhere"], &hosts[..]].concat());
    assert!(code == 2 && stderr.contains("No such file"), "{stderr}");
    let (code, stderr) = refused(&[&["embed", "embedded", "--ids", "1,2"], &hosts[..]].concat());
    assert!(code == 1 && stderr.contains("only models that generate text"), "{stderr}");
    let (code, stderr) = refused(&["worker", "--rank", "2", "--world", "2", "--join", "127.0.0.1:1"]);
    assert!(code == 1 && stderr.contains("the ranks of workers are 1 to 1"), "{stderr}");
}
