//! Interruptions: by Ctrl-C, and by a closed pipe.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use akunu_fixtures::scripted;

use crate::common::akunu;

/// Runs an endless generation.
fn endless(more: &[&str]) -> Child {
    let args = ["run", "Once upon a time", "--ignore-eos", "--context-shift=4", "--seed", "1"];
    let mut command = akunu(&[&args[..], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

fn first_bytes(child: &mut Child, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut bytes).expect("the story goes on");
    bytes
}

fn interrupt(child: &Child) {
    signal(child, "INT");
}

pub fn signal(child: &Child, name: &str) {
    let kill = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", child.id())).status();
    assert!(kill.expect("there is a shell").success());
}

/// Waits for the first bytes of a file that is not complete.
pub fn wait_for_part(folder: &Path, child: &mut Child) {
    let has_bytes = |path: PathBuf| {
        path.extension().is_some_and(|e| e == "part") && path.metadata().is_ok_and(|about| about.len() > 0)
    };
    while !std::fs::read_dir(folder).unwrap().any(|entry| has_bytes(entry.unwrap().path())) {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ctrl_c_keeps_what_is_printed_gives_statistics_and_exits_130() {
    let mut child = endless(&[]);
    let mut story = first_bytes(&mut child, 100);
    interrupt(&child);
    child.stdout.take().unwrap().read_to_end(&mut story).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("tok/s") && stderr.contains("interrupted"), "{stderr}");
    let story = String::from_utf8(story).expect("whole characters only");
    assert!(story.starts_with("Once upon a time") && story.ends_with('\n'), "{story}");
}

#[test]
fn ctrl_c_leaves_no_half_written_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large.gguf");
    let args = ["synth", "llama-8b", file.to_str().unwrap(), "-q", "F32"];
    let mut child =
        akunu(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    wait_for_part(dir.path(), &mut child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn ctrl_c_leaves_no_half_quantised_model() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (dir.path().join("source.gguf"), dir.path().join("large.gguf"));
    let (source, out) = (source.to_str().unwrap(), file.to_str().unwrap());
    crate::common::ok(&["synth", "smollm2-135m", source, "-q", "Q8_0", "--layers", "1"]);
    let args = ["quantize", source, out, "-q", "Q3_K_L", "-t", "1"];
    let mut child =
        akunu(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    wait_for_part(dir.path(), &mut child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_closed_pipe_ends_the_story_quietly() {
    for more in [&[][..], &["--ids"]] {
        let mut child = endless(&[more, &["-q"]].concat());
        first_bytes(&mut child, 10);
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}

#[test]
fn a_pipe_closed_from_the_start_does_not_panic() {
    for args in [&["--help"][..], &["inspect", "--tensors"], &["table"], &["logits", "--ids", "1", "--json"]]
    {
        let mut child = akunu(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

/// Starts a conversation whose first answer does not end.
fn endless_chat(model: &Path) -> Child {
    scripted::write(model, Some(scripted::CHATML), &crate::chat::ENDLESS);
    let mut command = akunu(&["chat", model.to_str().unwrap(), "--temp", "0", "-c", "200000", "-q"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.as_mut().unwrap().write_all(b"Go\n").unwrap();
    child
}

#[test]
fn ctrl_c_ends_a_piped_conversation_after_the_partial_answer() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = endless_chat(&dir.path().join("model.gguf"));
    let mut said = first_bytes(&mut child, 20);
    interrupt(&child);
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(said.starts_with(b"tick tock tick tock ") && said.ends_with(b"\n"));
}

#[test]
fn a_closed_pipe_ends_a_conversation_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = endless_chat(&dir.path().join("model.gguf"));
    first_bytes(&mut child, 10);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}
