//! `chat --mcp`: a scripted model calls the tool of a small server.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::path::{Path, PathBuf};

use akunu_fixtures::scripted;
use serde_json::json;

use crate::common::{Done, akunu, path, refuses, with_stdin};
use crate::terminal::Terminal;

/// The last character of a prompt says which text follows: a call, and words after its result.
const TEMPLATE: &str = "{# <think> </think> <tool_call> #}\
    {% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant{% if messages[-1].role == 'tool' or not tools %}:\
    {% else %}{{ '\n' }}{% endif %}{% endif %}";

struct Scene {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Scene {
    /// A model that calls `tool`.
    fn new(tool: &str) -> Scene {
        Scene::with(tool, &["\n"])
    }

    /// A model that writes something before the call.
    fn with(tool: &str, before: &[&str]) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model.gguf");
        let call = format!("<tool_call>\n{{\"name\": \"{tool}\", \"arguments\": {{\"zo");
        let rest = "ne\": \"UTC\"}}\n</tool_call>";
        let chain = [call.as_str(), rest, "<|im_end|>", ":", "It is", " noon.", "<|im_end|>"];
        scripted::write(&model, Some(TEMPLATE), &[before, &chain].concat());
        Scene { dir, model }
    }

    fn servers(&self, servers: &serde_json::Value) -> PathBuf {
        let file = self.dir.path().join("servers.json");
        std::fs::write(&file, json!({ "mcpServers": servers }).to_string()).unwrap();
        file
    }

    /// The small server of the tests of `akunu-mcp`.
    fn small(&self) -> PathBuf {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu-mcp/tests/server.sh");
        self.servers(&json!({ "small": { "command": "sh", "args": [path(&script)] } }))
    }

    fn args<'a>(&'a self, servers: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let args = ["chat", path(&self.model), "--temp", "0", "--device", "cpu", "--no-history", "--mcp"];
        [&args[..], &[path(servers)], more].concat()
    }

    fn chat(&self, more: &[&str], stdin: &str) -> Done {
        let servers = self.small();
        with_stdin(&self.args(&servers, more), stdin.as_bytes())
    }
}

#[test]
fn an_allowed_call_is_run_and_its_result_answered() {
    let scene = Scene::new("clock");
    let saved = scene.dir.path().join("saved.json");
    let save = format!("What time is it?\n/save {}\n", saved.display());
    let done = scene.chat(&["--mcp-allow"], &save);
    assert_eq!((done.code, done.stdout.as_str()), (0, "It is noon.\n"), "{}", done.stderr);
    for line in [
        "the MCP server small has clock, fail, die, wait, large, kinds",
        "call of clock by the MCP server small: {\"zone\":\"UTC\"}",
        "result: Noon in UTC.",
    ] {
        assert!(done.stderr.lines().any(|shown| shown == line), "{line}\n{}", done.stderr);
    }
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[2]["content"], "Noon in UTC.");
    assert_eq!(messages[2]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
    // Nothing but the answer, and what was called.
    let quiet = scene.chat(&["--mcp-allow", "-q"], "What time is it?\n");
    let call = "call of clock by the MCP server small: {\"zone\":\"UTC\"}\n";
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("It is noon.\n", call));
}

#[test]
fn reasoning_and_text_before_a_call_are_shown() {
    let scene = Scene::with("clock", &["\n", "<think>", "Which time?", "</think>", "I look."]);
    let done = scene.chat(&["--mcp-allow", "-q"], "What time is it?\n");
    assert_eq!(done.stdout, "<think>Which time?</think>\nI look.\nIt is noon.\n", "{}", done.stderr);
    let done = scene.chat(&["--mcp-allow", "-q", "--hide-reasoning"], "What time is it?\n");
    assert_eq!(done.stdout, "I look.\nIt is noon.\n", "{}", done.stderr);
}

#[test]
fn a_call_is_not_run_where_nobody_can_be_asked() {
    let scene = Scene::new("clock");
    for (more, stdin) in [(&["-q"][..], "What time is it?\n"), (&["-q", "-p", "What time is it?"], "")] {
        let done = scene.chat(more, stdin);
        assert_eq!((done.code, done.stdout.as_str()), (0, "It is noon.\n"));
        let expected = "call of clock by the MCP server small: {\"zone\":\"UTC\"}\n\
                        the call is not run, since there is no terminal to ask on: --mcp-allow runs calls unasked\n";
        assert_eq!(done.stderr, expected);
    }
}

#[test]
fn calls_are_asked_for_on_a_terminal() {
    let scene = Scene::new("clock");
    let servers = scene.small();
    let mut terminal = Terminal::new(akunu(&scene.args(&servers, &[])), 100);
    terminal.expect("> ");
    let question = "always this tool > ";
    terminal.type_keys("Time?\r");
    terminal.expect("call of clock by the MCP server small");
    terminal.expect(question);
    terminal.type_keys("what\r");
    terminal.expect(question);
    terminal.type_keys("n\r");
    terminal.expect("result: The user refused this call.");
    terminal.expect("noon.");
    terminal.type_keys("Time?\r");
    terminal.expect(question);
    terminal.type_keys("y\r");
    terminal.expect("result: Noon in UTC.");
    terminal.expect("noon.");
    // Ctrl-C takes the message back.
    terminal.type_keys("Time?\r");
    terminal.expect(question);
    terminal.type_keys("\x03");
    terminal.expect("interrupted: the message was removed");
    terminal.type_keys("/history\r");
    let answered = "assistant: It is noon.";
    let history = terminal.expect(answered) + &terminal.expect(answered);
    assert_eq!(history.matches("user: Time?").count(), 2, "{history}");
    terminal.type_keys("Time?\r");
    let after = terminal.expect(question);
    assert!(!after.contains("user: Time?"), "{after}");
    terminal.type_keys("a\r");
    terminal.expect("noon.");
    terminal.type_keys("Time?\r");
    let unasked = terminal.expect("result: Noon in UTC.");
    assert!(!unasked.contains(question), "{unasked}");
    terminal.expect("noon.");
    terminal.type_keys("/exit\r");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_call_that_fails_is_answered_and_a_server_that_dies_is_an_error() {
    let done = Scene::new("fail").chat(&["--mcp-allow"], "Try\n");
    assert!(done.stderr.contains("result: Error: It failed.\n"), "{}", done.stderr);
    assert_eq!((done.code, done.stdout.as_str()), (0, "It is noon.\n"));
    let scene = Scene::new("die");
    let done = scene.chat(&["--mcp-allow", "-q"], "Try\n/history\n");
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    let error = "error: the MCP server small has ended; it says: out of ideas\n";
    assert_eq!(done.stderr, format!("call of die by the MCP server small: {{\"zone\":\"UTC\"}}\n{error}"));
}

#[test]
fn configurations_that_are_wrong_are_refused() {
    let scene = Scene::new("clock");
    let refused = |servers: serde_json::Value, words: &[&str]| {
        let file = scene.servers(&servers);
        refuses(&scene.args(&file, &["-p", "Hi"]), 1, words);
    };
    refused(
        json!({ "a": {} }),
        &["servers.json", "the server \"a\" has neither a \"command\" nor a \"url\""],
    );
    refused(json!({ "a": { "command": "no-such-program" } }), &["the MCP server a cannot be started"]);
    refused(json!({ "a": { "url": "http://127.0.0.1:1/" } }), &["the MCP server a cannot be reached"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../akunu-mcp/tests/server.sh");
    let script = path(&script);
    refused(json!({ "a": { "command": "sh", "args": [script, "quits"] } }), &["no licence was found"]);
    let missing = scene.dir.path().join("missing.json");
    refuses(&scene.args(&missing, &["-p", "Hi"]), 1, &["cannot read", "missing.json"]);
    refuses(&["chat", path(&scene.model), "--mcp-allow", "-p", "Hi"], 2, &["--mcp"]);
    // Two servers with the same tools: the server's name is before them.
    let twice = json!({ "command": "sh", "args": [script] });
    let scene = Scene::new("b_clock");
    let file = scene.servers(&json!({ "a": twice, "b": twice }));
    let done = with_stdin(&scene.args(&file, &["-q", "--mcp-allow"]), b"Time?\n");
    assert_eq!((done.code, done.stdout.as_str()), (0, "It is noon.\n"), "{}", done.stderr);
}
