//! Models of the hub: named wherever a MODEL is, pulled, listed, removed; against a hub on loopback.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

#[allow(dead_code)]
#[path = "../../../akunu-hub/tests/hub/server.rs"]
mod server;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use self::server::{COMMIT, FakeHub, Fault, sha256};
use crate::common::{Done, akunu, finish, path};

const NAME: &str = "hf:tiny/model-GGUF";
const MODEL: &[u8] = include_bytes!("../../../akunu/embedded/akunu-tales.gguf");

fn command(fake: &FakeHub, cache: &Path, args: &[&str]) -> Command {
    let mut command = akunu(args);
    for name in ["HF_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", &fake.url).env("HF_HUB_CACHE", cache).env("HF_TOKEN_PATH", cache.join("none"));
    command
}

fn run(fake: &FakeHub, cache: &Path, args: &[&str]) -> Done {
    finish(command(fake, cache, args))
}

#[test]
fn a_model_of_the_hub_runs_and_then_runs_offline() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("tales-Q8_0.gguf", MODEL)]));
    let story = ["run", NAME, "Once", "-n", "4", "--temp", "0", "-q"];
    let first = run(&fake, cache.path(), &story);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let asked = fake.requests("").len();
    for args in [[&story[..], &["--offline"]].concat(), ["--offline"].iter().chain(&story).copied().collect()]
    {
        assert_eq!(run(&fake, cache.path(), &args).stdout, first.stdout);
    }
    let tokens = run(&fake, cache.path(), &["tokenize", NAME, "Once", "--offline"]);
    assert_eq!(tokens.code, 0, "{}", tokens.stderr);
    assert_eq!(fake.requests("").len(), asked);
    let alone = run(&fake, cache.path(), &["run", NAME]);
    assert_eq!(alone.code, 2);
    assert!(alone.stderr.contains("a prompt is missing"), "{}", alone.stderr);
}

#[test]
fn pull_prints_the_path_and_models_and_rm_know_of_it() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    let at = |args: &[&str]| run(&fake, cache.path(), args);
    assert!(at(&["models"]).stderr.contains("no models"));
    for how in ["downloaded and checked", "in the cache already"] {
        let done = at(&["pull", &format!("{NAME}:q8_0")]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(done.stderr.contains(how), "{}", done.stderr);
        assert_eq!(std::fs::read(done.stdout.trim_end()).unwrap(), MODEL);
    }
    let listed = at(&["models", "--files"]).stdout;
    for word in [NAME, "main", &COMMIT[..8], "  a-Q8_0.gguf"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let json: serde_json::Value = serde_json::from_str(&at(&["models", "--json"]).stdout).unwrap();
    assert_eq!(json["models"][0]["name"], NAME);
    assert_eq!(json["models"][0]["revisions"][0]["files"][0]["bytes"], MODEL.len());

    let asked = at(&["rm", NAME]);
    assert_eq!(asked.code, 2);
    assert!(asked.stderr.contains("--yes"), "{}", asked.stderr);
    assert_eq!(at(&["rm", &format!("{NAME}:a-Q8_0.gguf"), "--yes"]).code, 2);
    assert_eq!(at(&["rm", &format!("{NAME}@other"), "--yes"]).code, 1);
    let removed = at(&["rm", NAME, "--yes"]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    assert!(removed.stdout.starts_with("removed hf:tiny/model-GGUF"), "{}", removed.stdout);
    assert!(at(&["models"]).stdout.is_empty());
}

#[test]
fn refusals_are_one_line_and_a_hint() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    for (args, code, words) in [
        (&["inspect", "hf:nonsense"][..], 2, &["names no model on the hub", "hint: write hf:OWNER/NAME"][..]),
        (&["pull", "owner/name"], 2, &["does not begin with hf:"]),
        (&["inspect", "hf:tiny/other"], 1, &["no repository tiny/other", "hint: "]),
        (
            &["inspect", "hf:tiny/model-GGUF:Q4_0"],
            1,
            &["nothing there is called Q4_0", "a-Q8_0.gguf", "hint: "],
        ),
        (&["inspect", NAME, "--offline"], 1, &["not in the cache", "hint: "]),
    ] {
        let done = run(&fake, cache.path(), args);
        assert_eq!(done.code, code, "{args:?}: {}", done.stderr);
        assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
        for word in words {
            assert!(done.stderr.contains(word), "{args:?} should say {word:?}: {}", done.stderr);
        }
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_has_arrived_and_exits_130() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    fake.fault("/resolve/", Fault::Stall(1_000_000, Duration::from_secs(60)), 1);
    let mut child = command(&fake, cache.path(), &["bench", NAME])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let blobs = cache.path().join("models--tiny--model-GGUF/blobs");
    let part = blobs.join(format!("{}.incomplete", sha256(MODEL)));
    while !part.metadata().is_ok_and(|about| about.len() == 1_000_000) {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(5));
    }
    let kill = Command::new("sh").arg("-c").arg(format!("kill -INT {}", child.id())).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("what has arrived is kept"), "{stderr}");
    let pulled = run(&fake, cache.path(), &["pull", NAME, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&pulled.stdout).unwrap();
    assert_eq!(json["downloaded"], MODEL.len() - 1_000_000);
    assert!(Path::new(json["path"].as_str().unwrap()).starts_with(path(cache.path())));
}
