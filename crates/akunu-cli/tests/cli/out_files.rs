//! Output files: complete or absent whenever the process ends and whatever the disk does, and never the model's own
//! files.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use akunu_fixtures::scripted::{self, CHATML};
use akunu_hub_testing::FakeHub;

use crate::common::{akunu, ok, path, refuses, run, write_small_model};
use crate::signals::{signal, wait_for_part};

/// What happens when a file would grow beyond the limit.
#[derive(Clone, Copy, PartialEq)]
enum AtLimit {
    /// The system kills the process in the middle of the write.
    Kill,
    /// The write fails, as on a full disk.
    Fail,
}

/// Runs a command that can write only so many blocks of 512 bytes (of 1024 with some shells) to each file.
fn limited(command: &Command, blocks: usize, at_limit: AtLimit, stdin: &[u8]) -> Output {
    let trap = if at_limit == AtLimit::Fail { "trap '' XFSZ; " } else { "" };
    let script = format!("{trap}ulimit -c 0; ulimit -f {blocks}; exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    let mut child = shell.stdin(Stdio::piped()).stdout(stdout).stderr(stderr).spawn().unwrap();
    // The process may have ended before it reads.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

/// Runs a command with every limit until it has written all. After each failure, `old` is what stands at `out`, and a
/// failed write is an error with its reason. Returns the number of limits that were too small.
fn at_every_write(command: &Command, stdin: &[u8], out: &Path, old: Option<&[u8]>) -> usize {
    let others = || {
        let entries = fs::read_dir(out.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path != out).collect::<Vec<PathBuf>>()
    };
    let before = others();
    for blocks in 0.. {
        for at_limit in [AtLimit::Kill, AtLimit::Fail] {
            match old {
                Some(bytes) => fs::write(out, bytes).unwrap(),
                None => drop(fs::remove_file(out)),
            }
            let done = limited(command, blocks, at_limit, stdin);
            let stderr = String::from_utf8(done.stderr).unwrap();
            if done.status.success() {
                return blocks;
            }
            assert_eq!(fs::read(out).ok().as_deref(), old, "{blocks}: {stderr}");
            match at_limit {
                AtLimit::Kill => {
                    const SIGXFSZ: i32 =
                        if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 31 } else { 25 };
                    assert_eq!(done.status.signal(), Some(SIGXFSZ), "{blocks}: {stderr}");
                    for left in others().into_iter().filter(|path| !before.contains(path)) {
                        assert!(left.extension().is_some_and(|e| e == "part"), "{}", left.display());
                        fs::remove_file(left).unwrap();
                    }
                }
                AtLimit::Fail => {
                    assert_eq!(done.status.code(), Some(1), "{stderr}");
                    let expected = format!("cannot write {}: File too large", out.display());
                    assert!(stderr.contains(&expected), "{blocks}: {stderr}");
                    assert_eq!(others(), before, "{blocks}");
                }
            }
        }
    }
    unreachable!()
}

#[test]
fn quantize_leaves_no_wrong_model_at_any_write() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("source.gguf"), dir.path().join("out.gguf"));
    write_small_model(&source, |_| (), None);
    let quantize =
        |more: &[&str]| akunu(&[&["quantize", path(&source), path(&out), "-q", "Q8_0"], more].concat());
    let limits = at_every_write(&quantize(&[]), b"", &out, None);
    let whole = fs::read(&out).unwrap();
    assert!(limits >= whole.len() / 1024, "{limits}");
    at_every_write(&quantize(&["--force"]), b"", &out, Some(b"of before"));
    assert!(fs::read(&out).unwrap() == whole);
    assert_eq!(ok(&["run", path(&out), "--prompt-ids", "1,2", "-n", "1", "--ids", "-q"]).lines().count(), 1);
}

#[test]
fn a_saved_conversation_survives_every_failure_to_save_another() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("model.gguf"), dir.path().join("talk.json"));
    scripted::write(&model, Some(CHATML), &["Hello", "!"]);
    let old = br#"[{"role": "user", "content": "of before"}]"#;
    let stdin = format!("/system {}\n/save {}\n", "word ".repeat(400), path(&out));
    let chat = akunu(&["chat", path(&model), "-q", "--device", "cpu", "-t", "1"]);
    assert!(at_every_write(&chat, stdin.as_bytes(), &out, Some(old)) >= 2);
    assert!(fs::read_to_string(&out).unwrap().contains("word word"));
}

#[test]
fn a_pull_that_was_killed_at_any_write_leaves_the_version_of_before_and_is_completed_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small.gguf");
    write_small_model(&small, |_| (), None);
    let model = fs::read(&small).unwrap();
    const NAME: &str = "small-F32.gguf";
    let fake = FakeHub::new(&[]);
    for at_limit in [AtLimit::Kill, AtLimit::Fail] {
        let cache = dir.path().join(if at_limit == AtLimit::Kill { "killed" } else { "full" });
        let pull = || crate::hub::command(&fake, &cache, &["pull", crate::hub::NAME]);
        let offline = || crate::hub::command(&fake, &cache, &["pull", crate::hub::NAME, "--offline"]);
        let pulled = |mut command: Command| {
            let done = command.output().unwrap();
            fs::read(String::from_utf8(done.stdout).unwrap().trim_end()).ok()
        };
        fake.commit(&"a".repeat(40), &[(NAME, b"of before")]);
        assert_eq!(pulled(pull()).as_deref(), Some(&b"of before"[..]));
        fake.commit(&"b".repeat(40), &[(NAME, &model)]);
        let mut failures = 0;
        // Continues where the one before has stopped, so each stops at another write.
        for blocks in (0..).step_by(8) {
            let done = limited(&pull(), blocks, at_limit, b"");
            let stderr = String::from_utf8_lossy(&done.stderr);
            if done.status.success() {
                break;
            }
            failures += 1;
            if at_limit == AtLimit::Fail {
                assert!(stderr.contains("cannot write ") && stderr.contains("File too large"), "{stderr}");
            }
            assert_eq!(pulled(offline()).as_deref(), Some(&b"of before"[..]), "{blocks}");
        }
        assert!(failures > 2, "{failures}");
        assert!(pulled(pull()).as_deref() == Some(&model));
        assert!(pulled(offline()).as_deref() == Some(&model));
    }
}

#[test]
fn of_two_conversions_to_one_file_one_is_refused_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (large, small, out) = (at("large.gguf"), at("small.gguf"), at("out.gguf"));
    ok(&["synth", "smollm2-135m", path(&large), "-q", "Q8_0", "--layers", "1"]);
    write_small_model(&small, |_| (), None);
    // The first one is stopped while it writes, until the second one has written its file.
    let mut first = akunu(&["quantize", path(&large), path(&out), "-q", "Q3_K_L", "-t", "1"]);
    let mut first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_part(dir.path(), &mut first);
    signal(&first, "STOP");
    ok(&["quantize", path(&small), path(&out), "-q", "Q8_0"]);
    let written = fs::read(&out).unwrap();
    signal(&first, "CONT");
    let first = first.wait_with_output().unwrap();
    let stderr = String::from_utf8(first.stderr).unwrap();
    assert_eq!(first.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("was created by another process meanwhile") && stderr.contains("--force"),
        "{stderr}"
    );
    assert!(fs::read(&out).unwrap() == written);

    fs::write(at("other"), "other").unwrap();
    symlink("other", at("out2.gguf.part")).unwrap();
    symlink("absent", at("out3.gguf")).unwrap();
    ok(&["quantize", path(&small), path(&at("out2.gguf")), "-q", "Q8_0"]);
    refuses(&["quantize", path(&small), path(&at("out3.gguf")), "-q", "Q8_0"], 1, &["out3.gguf exists"]);
    assert_eq!(fs::read(at("other")).unwrap(), b"other");
    symlink("/dev/null", at("device")).unwrap();
    let device = at("device");
    let replace = ["quantize", path(&small), path(&device), "-q", "Q8_0", "--force"];
    refuses(&replace, 1, &["device, a pipe or a folder"]);
    let parts =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(parts.filter(|name| name.ends_with(".part")).collect::<Vec<_>>(), ["out2.gguf.part"]);
}

#[test]
fn no_command_writes_to_a_file_of_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (folder, file) = (at("folder"), at("model.gguf"));
    fs::create_dir(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama-hd64-gqa2");
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    ok(&["quantize", path(&folder), path(&file), "-q", "Q8_0", "--no-vocab"]);
    fs::hard_link(folder.join("model.safetensors"), at("hard")).unwrap();
    symlink(folder.join("model.safetensors"), at("link")).unwrap();
    symlink(&file, at("linked.gguf")).unwrap();
    let before = |path: &Path| fs::read(path).unwrap();
    let (weights, config, gguf) =
        (before(&folder.join("model.safetensors")), before(&folder.join("config.json")), before(&file));
    let said = ["is a file of the model", "choose another output file"];
    for out in [&folder.join("model.safetensors"), &folder.join("config.json"), &at("hard"), &at("link")] {
        refuses(&["quantize", path(&folder), path(out), "-q", "Q8_0", "--no-vocab", "--force"], 1, &said);
        let shard = folder.join("model.safetensors");
        refuses(&["quantize", path(&shard), path(out), "-q", "Q8_0", "--no-vocab", "--force"], 1, &said);
        refuses(&["logits", path(&folder), "--ids", "1,2", "--out", path(out)], 1, &said);
    }
    let vocabulary = ["--vocab", path(&file), "--force"];
    refuses(
        &[&["quantize", path(&folder), path(&at("linked.gguf")), "-q", "Q8_0"], &vocabulary[..]].concat(),
        1,
        &said,
    );
    refuses(&["quantize", path(&file), path(&at("linked.gguf")), "-q", "Q8_0", "--force"], 1, &said);
    refuses(&["logits", path(&file), "--ids", "1,2", "--out", path(&at("linked.gguf"))], 1, &said);
    refuses(&["profile", path(&file), "--trace", path(&at("linked.gguf"))], 1, &said);
    refuses(&["embed", path(&file), "--pooling", "mean", "--ids", "1", "--out", path(&file)], 1, &said);
    assert!(
        before(&folder.join("model.safetensors")) == weights && before(&folder.join("config.json")) == config
    );
    assert!(before(&file) == gguf);
    // Another file beside the model is no obstacle.
    assert_eq!(
        run(&["logits", path(&file), "--ids", "1,2", "--out", path(&at("logits.safetensors"))]).code,
        0
    );
}

#[test]
fn no_command_replaces_a_file_that_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (text, matrix) = (at("text"), at("matrix"));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu/embedded/akunu-tales.gguf");
    fs::write(&text, "of the user, and of nobody else").unwrap();
    symlink("text", at("link")).unwrap();
    fs::hard_link(&text, at("hard")).unwrap();
    let said = ["is an input, and would be replaced"];
    for out in [text.clone(), at("link"), at("hard"), dir.path().join(".").join("text")] {
        let out = path(&out);
        refuses(&["perplexity", path(&model), path(&text), "--save-logits", out], 2, &said);
        refuses(&["imatrix", path(&model), "-f", path(&text), "-o", out, "--force"], 2, &said);
    }
    ok(&["imatrix", path(&model), "-f", path(&text), "-o", path(&matrix)]);
    let importance = ["--imatrix", path(&matrix), "--force"];
    refuses(&[&["quantize", path(&model), path(&matrix), "-q", "Q8_0"], &importance[..]].concat(), 2, &said);
    let texts = at("texts.safetensors");
    fs::write(&texts, "a text").unwrap();
    refuses(
        &["embed", path(&model), "--pooling", "mean", "-f", path(&texts), "--out", path(&texts)],
        2,
        &said,
    );
    let (new, same) = (at("new"), dir.path().join(".").join("new"));
    refuses(&["profile", path(&model), "--trace", path(&new), "--html", path(&same)], 2, &["would both be"]);
    assert_eq!(fs::read(&text).unwrap(), b"of the user, and of nobody else");
    // A device is both at once.
    ok(&["perplexity", path(&model), path(&text), "--save-logits", "/dev/null"]);
}

fn endless(model: &Path, more: &[&str]) -> Child {
    let args = [
        "run",
        path(model),
        "Once upon a time",
        "--ignore-eos",
        "--context-shift=4",
        "--device",
        "cpu",
        "-q",
    ];
    let mut command = akunu(&[&args[..], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Truncates the file of a model while it generates. Returns how the process ends after an interrupt, or before.
fn truncated(more: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu/embedded/akunu-tales.gguf"), &model)
        .unwrap();
    let mut child = endless(&model, more);
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0; 50]).unwrap();
    fs::File::options().write(true).open(&model).unwrap().set_len(0).unwrap();
    // Far more text than was on its way.
    if stdout.read_exact(&mut [0; 2000]).is_ok() {
        signal(&child, "INT");
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_model_that_was_read_outlives_its_file() {
    let done = truncated(&["--no-mmap"]);
    assert_eq!(done.status.code(), Some(130), "{}", String::from_utf8_lossy(&done.stderr));
    // What --no-mmap is for.
    #[cfg(target_os = "linux")]
    {
        const SIGBUS: i32 = 7;
        assert_eq!(truncated(&[]).status.signal(), Some(SIGBUS));
    }
}

#[test]
fn a_server_outlives_the_file_of_a_model_that_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu/embedded/akunu-tales.gguf"), &model)
        .unwrap();
    let (mut child, address) = crate::serve::serve(&[path(&model), "--no-mmap"]);
    let answer = || {
        let mut answer = String::new();
        crate::serve::ask(&address, 20).read_to_string(&mut answer).unwrap();
        assert!(answer.contains("data: [DONE]"), "{answer}");
    };
    answer();
    fs::File::options().write(true).open(&model).unwrap().set_len(0).unwrap();
    answer();
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_plan_says_that_the_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    write_small_model(&model, |_| (), None);
    let json = |more: &[&str]| crate::common::json(&[&["plan", path(&model), "--json"], more].concat());
    let (mapped, read) = (json(&[]), json(&["--no-mmap"]));
    let bytes = fs::metadata(&model).unwrap().len();
    assert_eq!((mapped.get("files_read"), read["files_read"].as_u64()), (None, Some(bytes)));
    assert_eq!(read["allocated"].as_u64().unwrap(), mapped["allocated"].as_u64().unwrap() + bytes);
    assert!(ok(&["plan", path(&model), "--no-mmap"]).contains("read into memory (--no-mmap)"));
}
