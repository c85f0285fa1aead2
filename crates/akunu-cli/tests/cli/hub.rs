//! Models on the hub: as MODEL arguments, pulled, listed and removed, with a fake hub on loopback.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests
#![cfg_attr(not(unix), allow(unused_imports))] // what only tests of Unix need

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use akunu_hub_testing::{COMMIT, FakeHub, Fault, sha256};

use crate::common::{Done, akunu, finish, path};
#[cfg(unix)]
use crate::terminal::Terminal;

pub const NAME: &str = "hf:tiny/model-GGUF";
const MODEL: &[u8] = include_bytes!("../../../akunu/embedded/akunu-tales.gguf");

pub fn command(fake: &FakeHub, cache: &Path, args: &[&str]) -> Command {
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
fn a_hub_model_runs_and_then_runs_offline() {
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
fn pull_prints_the_path_and_models_lists_it_and_rm_removes_it() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    let at = |args: &[&str]| run(&fake, cache.path(), args);
    assert!(at(&["models"]).stderr.contains("no models"));
    for how in ["downloaded and verified", "already cached"] {
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
fn errors_have_one_line_and_a_hint() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    for (args, code, words) in [
        (
            &["inspect", "hf:nonsense"][..],
            2,
            &["is not a valid hub model name", "hint: write hf:OWNER/NAME"][..],
        ),
        (&["pull", "owner/name"], 2, &["is named hf:owner/name"]),
        (&["inspect", "hf:tiny/other"], 1, &["no repository tiny/other", "hint: "]),
        (
            &["inspect", "hf:tiny/model-GGUF:Q4_0"],
            1,
            &["no GGUF file has the quantisation Q4_0", "a-Q8_0.gguf", "hint: "],
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
fn ctrl_c_keeps_received_data_and_exits_130() {
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
    assert!(stderr.contains("received data is kept"), "{stderr}");
    let pulled = run(&fake, cache.path(), &["pull", NAME, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&pulled.stdout).unwrap();
    assert_eq!(json["downloaded"], MODEL.len() - 1_000_000);
    assert!(Path::new(json["path"].as_str().unwrap()).starts_with(path(cache.path())));
}

#[test]
fn safetensors_models_are_named_after_the_repository() {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/llama-hd64-gqa2"));
    let read = |name: &str| std::fs::read(model.join(name)).unwrap();
    let (config, weights) = (read("config.json"), read("model.safetensors"));
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::new(&[("config.json", &config), ("model.safetensors", &weights)]);
    let called = |name: &str| {
        let done = run(&fake, cache.path(), &["inspect", name, "--json"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        json["model"].as_str().unwrap().to_string()
    };
    assert_eq!(called(NAME), "tiny/model-GGUF");
    assert_eq!(called(&format!("{NAME}:model.safetensors")), "tiny/model-GGUF");
    let folder = cache.path().join("models--tiny--model-GGUF/snapshots").join(COMMIT);
    assert_eq!(called(path(&folder)), "tiny/model-GGUF");
    // A folder outside the cache has its own name.
    assert_eq!(called(path(model)), "llama-hd64-gqa2");
    let table = run(&fake, cache.path(), &["table", NAME, "--offline", "--json"]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    assert!(table.stdout.contains("tiny/model-GGUF") && !table.stdout.contains(COMMIT), "{}", table.stdout);
}

#[test]
fn environment_variables_of_hugging_face_are_used() {
    let (home, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    let at_home = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = command(&fake, home.path(), args);
        command.env_remove("HF_HUB_CACHE").env_remove("HUGGINGFACE_HUB_CACHE").env_remove("HF_TOKEN_PATH");
        command.env("HF_HOME", home.path()).envs(variables.iter().copied());
        finish(command)
    };
    let last_token = || fake.requests("").last().unwrap().headers.get("authorization").cloned();
    let pulled = at_home(&["pull", NAME], &[]);
    assert_eq!(pulled.code, 0, "{}", pulled.stderr);
    assert!(Path::new(pulled.stdout.trim_end()).starts_with(home.path().join("hub")), "{}", pulled.stdout);
    assert_eq!(last_token(), None);
    std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
    assert_eq!(at_home(&["pull", NAME], &[]).code, 0);
    assert_eq!(last_token().as_deref(), Some("Bearer hf_file"));
    assert_eq!(at_home(&["pull", NAME], &[("HF_TOKEN", "hf_variable")]).code, 0);
    assert_eq!(last_token().as_deref(), Some("Bearer hf_variable"));

    let asked = fake.requests("").len();
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_eq!(at_home(&["pull", NAME], &offline).stdout, pulled.stdout);
    let missing = at_home(&["pull", "hf:tiny/other"], &offline);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("offline mode is on"), "{}", missing.stderr);
    assert_eq!(fake.requests("").len(), asked);
}

#[cfg(unix)]
fn on_terminal(fake: &FakeHub, cache: &Path, args: &[&str]) -> Terminal {
    let mut command = command(fake, cache, args);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    Terminal::new(command, 80)
}

#[cfg(unix)]
#[test]
fn on_a_terminal_rm_asks_and_only_yes_is_yes() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    assert_eq!(run(&fake, cache.path(), &["pull", NAME]).code, 0);
    let answer = |keys: &str| {
        let mut terminal = on_terminal(&fake, cache.path(), &["rm", NAME]);
        terminal.expect("remove hf:tiny/model-GGUF (1 revision)? y or n");
        terminal.type_keys(keys);
        terminal.end()
    };
    // No, an empty line, another word, and the end of the input.
    for no in ["n\r", "\r", "yellow\r", "\x04"] {
        let (code, shown) = answer(no);
        assert_eq!(code, Some(0), "{shown}");
        assert!(shown.contains("nothing was removed"), "{shown}");
        assert!(run(&fake, cache.path(), &["models"]).stdout.contains(NAME));
    }
    let (code, shown) = answer("Y\r");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("removed hf:tiny/model-GGUF"), "{shown}");
    assert!(run(&fake, cache.path(), &["models"]).stdout.is_empty());
}

#[cfg(unix)]
#[test]
fn a_download_shows_progress_blocks_removal_and_is_resumed_after_ctrl_c() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    fake.fault("/resolve/", Fault::Stall(1 << 20, Duration::from_secs(60)), 1);
    let mut terminal = on_terminal(&fake, cache.path(), &["pull", NAME]);
    terminal.expect("downloading");
    terminal.expect("1.00 MiB/4.04 MiB");
    let refused = run(&fake, cache.path(), &["rm", NAME, "--yes"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.starts_with("error: tiny/model-GGUF is being downloaded"), "{}", refused.stderr);
    assert!(refused.stderr.contains("hint: try again"), "{}", refused.stderr);
    terminal.interrupt();
    terminal.expect("stopped; received data is kept");
    assert_eq!(terminal.end().0, Some(130));
    let blobs = cache.path().join("models--tiny--model-GGUF/blobs");
    let part = blobs.join(format!("{}.incomplete", sha256(MODEL)));
    assert!(std::fs::read(&part).unwrap() == MODEL[..1 << 20]);
    let pulled = run(&fake, cache.path(), &["pull", NAME]);
    assert_eq!(pulled.code, 0, "{}", pulled.stderr);
    assert_eq!(fake.requests("/resolve/")[1].headers["range"], "bytes=1048576-");
    assert!(!part.exists());
}

#[test]
fn short_names_stand_for_models_on_the_hub() {
    let cache = tempfile::tempdir().unwrap();
    let fake = FakeHub::named("Qwen/Qwen3-0.6B-GGUF", &[("Qwen3-0.6B-Q8_0.gguf", MODEL)]);
    let at = |args: &[&str]| run(&fake, cache.path(), args);
    let story = ["run", "qwen3:0.6b", "Once", "-n", "4", "--temp", "0", "-q"];
    let first = at(&story);
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert!(first.stdout.starts_with("Once"), "{}", first.stdout);
    for args in [
        &["inspect", "Qwen3:0.6B", "--offline"][..],
        &["tokenize", "-m", "qwen3:0.6b", "Once"],
        &["plan", "qwen3:0.6b", "-c", "64"],
        &["chat", "qwen3:0.6b", "-p", "Hello", "-n", "1"],
        &["pull", "qwen3:0.6b"],
    ] {
        let done = at(args);
        assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
    }
    let alone = at(&["run", "qwen3:0.6b"]);
    assert!(alone.code == 2 && alone.stderr.contains("akunu chat qwen3:0.6b"), "{}", alone.stderr);

    let listed = at(&["models", "--known"]).stdout;
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    assert!(row("qwen3:0.6b").contains("hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"), "{listed}");
    assert!(row("qwen3:0.6b").ends_with("cached") && !row("qwen3:8b").contains("cached"), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&at(&["models", "--known", "--json"]).stdout).unwrap();
    let known = json["known"].as_array().unwrap();
    assert_eq!(known.len(), listed.lines().count() - 1);
    assert_eq!(known.iter().filter(|row| row["cached"] == true).count(), 1);
    assert_eq!(at(&["models", "--known", "--files"]).code, 2);

    let removed = at(&["rm", "qwen3:0.6b", "--yes"]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    assert!(at(&["models"]).stdout.is_empty());
}

#[test]
fn unknown_and_uncached_names_list_what_there_is() {
    let (cache, fake) = (tempfile::tempdir().unwrap(), FakeHub::new(&[("a-Q8_0.gguf", MODEL)]));
    let says = |args: &[&str], code: i32, words: &[&str]| {
        let done = run(&fake, cache.path(), args);
        assert_eq!(done.code, code, "{args:?}: {}", done.stderr);
        for word in words {
            assert!(done.stderr.contains(word), "{args:?} should say {word:?}: {}", done.stderr);
        }
    };
    let near = ["qwen3:0.6b, qwen3:1.7b", "akunu models --known"];
    says(&["run", "qwen3:0.7b"], 1, &[&near[..], &["no model named qwen3:0.7b", "use -p"]].concat());
    says(&["run", "qwen3:0.7b", "Once"], 1, &[&near[..], &["no file qwen3:0.7b"]].concat());
    says(&["run", "qwen"], 1, &["qwen3:8b", "use -p"]);
    says(&["chat", "lama3.2:1b", "-p", "x"], 1, &["llama3.2:1b"]);
    says(&["serve", "smollm2", "--port", "0"], 1, &["smollm2:1.7b, smollm2:135m, smollm2:360m"]);
    says(&["pull", "gemma3"], 2, &["there is no model named gemma3", "gemma3:1b"]);
    says(&["rm", "gemma3:9b", "--yes"], 2, &["gemma3:4b"]);
    says(&["inspect", "no-such-model"], 1, &["akunu models --known"]);
    assert_eq!(run(&fake, cache.path(), &["run", "deep", "-n", "1", "-q"]).code, 0);

    assert_eq!(run(&fake, cache.path(), &["pull", NAME]).code, 0);
    let words = ["hf:Qwen/Qwen3-8B-GGUF is not in the cache", "offline", "in the cache: hf:tiny/model-GGUF"];
    says(&["chat", "qwen3:8b", "--offline"], 1, &words);
    // The hub of the test has no such repository.
    says(&["pull", "qwen3:8b"], 1, &["no repository Qwen/Qwen3-8B-GGUF"]);

    // A file of that name comes first.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("qwen3:8b"), MODEL).unwrap();
    let mut here = command(&fake, cache.path(), &["run", "qwen3:8b", "Once", "-n", "1", "-q"]);
    let done = finish({
        here.current_dir(folder.path());
        here
    });
    assert_eq!(done.code, 0, "{}", done.stderr);
}
