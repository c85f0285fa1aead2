//! Completion scripts, in the shells that they are for, and manual pages.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{ok, path, refuses};
use crate::terminal::Terminal;

/// Whether a program is there. A test without it says so, past the harness, which captures what tests print.
fn is_there(test: &str, program: &[&str]) -> bool {
    let status =
        Command::new(program[0]).args(&program[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = status.is_ok_and(|status| status.success());
    if !there {
        let _ = writeln!(std::io::stderr(), "skipped: {test} needs {}", program[0]);
    }
    there
}

/// A folder with two files, a script, and a cache with a model.
fn scene(shell: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("story.gguf"), "").unwrap();
    fs::write(dir.path().join("two words.gguf"), "").unwrap();
    // No completion of `qwen3:8`, of which bash completes what follows the colon.
    fs::write(dir.path().join("8a"), "").unwrap();
    fs::write(dir.path().join("script"), ok(&["completions", shell])).unwrap();
    let commit = "0123456789012345678901234567890123456789";
    let repo = dir.path().join("cache/models--tiny--model-GGUF");
    let snapshot = repo.join("snapshots").join(commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), commit).unwrap();
    fs::write(snapshot.join("a.gguf"), "").unwrap();
    dir
}

/// A shell in that folder, with akunu on the path and no files of its user.
fn shell(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    let program = Path::new(env!("CARGO_BIN_EXE_akunu")).parent().unwrap();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(program.to_path_buf()).chain(std::env::split_paths(&paths));
    command.args(&words[1..]).current_dir(dir).env("PATH", std::env::join_paths(paths).unwrap());
    command.env("HF_HUB_CACHE", dir.join("cache")).env("HOME", dir).env("TERM", "xterm");
    for name in ["HF_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ENV", "BASH_ENV", "ZDOTDIR"] {
        command.env_remove(name);
    }
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_loads_the_script_and_completes() {
    if !is_there("bash_loads_the_script_and_completes", &["bash", "--version"]) {
        return;
    }
    let dir = scene("bash");
    // What bash itself does before it calls the function: it splits the words at its break characters too.
    let complete = |words: &[&str], line: &str, replaced: &str| {
        let script = format!(
            "source ./script; complete -p akunu >/dev/null || exit; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
             COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _akunu akunu '{replaced}' ''; \
             printf '%s\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
        );
        output(shell(dir.path(), &["bash", "--norc", "-c", &script]))
    };
    assert_eq!(complete(&["akunu", "per"], "akunu per", "per"), "perplexity\n");
    assert_eq!(complete(&["akunu", "run", "--kv-t"], "akunu run --kv-t", "--kv-t"), "--kv-type\n");
    let line = "akunu run --kv-type=q";
    assert_eq!(complete(&["akunu", "run", "--kv-type", "=", "q"], line, "q"), "q8_0\n");
    let line = "akunu  run -m hf:tiny/";
    assert_eq!(complete(&["akunu", "run", "-m", "hf", ":", "tiny/"], line, "tiny/"), "tiny/model-GGUF\n");
    let both = complete(&["akunu", "run", ""], "akunu run ", "");
    assert!(both.starts_with("hf:tiny/model-GGUF\n") && both.contains("\nstory.gguf\n"), "{both}");
    // Nothing: bash lists files itself.
    assert_eq!(complete(&["akunu", "run", "st"], "akunu run st", "st"), "\n");
}

/// Types a line and a tab, and lets the shell print what the line has become.
fn types(command: Command, prompt: &str, setup: &str) {
    let mut terminal = Terminal::new(command, 200);
    terminal.expect(prompt);
    terminal.type_keys(setup);
    for (typed, line) in TYPED {
        terminal.expect(prompt);
        // Ctrl-A goes to the beginning of the line.
        terminal.type_keys(&format!("akunu {typed}\t\x01echo \r"));
        terminal.expect(&format!("\nakunu {line}\r"));
    }
    terminal.expect(prompt);
    terminal.type_keys("exit\r");
    terminal.end();
}

const TYPED: [(&str, &str); 10] = [
    ("perp", "perplexity"),
    ("run --kv-t", "run --kv-type"),
    ("run --kv-type=q", "run --kv-type=q8_0"),
    ("run hf", "run hf:tiny/model-GGUF"),
    ("run -m hf:ti", "run -m hf:tiny/model-GGUF"),
    ("run qwen3:0", "run qwen3:0.6b"),
    ("run qwen3:8", "run qwen3:8b"),
    ("run st", "run story.gguf"),
    ("run tw", "run two words.gguf"),
    ("run --file=st", "run --file=story.gguf"),
];

#[test]
fn a_terminal_with_bash_completes_what_is_typed() {
    if !is_there("a_terminal_with_bash_completes_what_is_typed", &["bash", "--version"]) {
        return;
    }
    let dir = scene("bash");
    let mut command = shell(dir.path(), &["bash", "--norc", "--noprofile", "-i"]);
    command.env("PS1", "ready> ").env("INPUTRC", "/dev/null");
    types(command, "ready> ", "source ./script; bind 'set enable-bracketed-paste off'\r");
}

#[test]
fn a_terminal_with_zsh_completes_what_is_typed() {
    if !is_there("a_terminal_with_zsh_completes_what_is_typed", &["zsh", "--version"]) {
        return;
    }
    let dir = scene("zsh");
    // From $fpath, by its name, as packages install it.
    fs::create_dir(dir.path().join("functions")).unwrap();
    fs::rename(dir.path().join("script"), dir.path().join("functions/_akunu")).unwrap();
    let mut command = shell(dir.path(), &["zsh", "-f", "-i"]);
    command.env("PS1", "ready> ");
    types(command, "ready> ", "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D\r");
}

#[test]
fn fish_loads_the_script_and_completes() {
    if !is_there("fish_loads_the_script_and_completes", &["fish", "--version"]) {
        return;
    }
    let dir = scene("fish");
    let complete = |line: &str| {
        let script = format!("source ./script; complete --do-complete 'akunu {line}'");
        let shown = output(shell(dir.path(), &["fish", "--no-config", "--command", &script]));
        shown.lines().map(|line| line.split('\t').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(complete("per"), ["perplexity"]);
    assert_eq!(complete("run --kv-t"), ["--kv-type"]);
    assert_eq!(complete("run --kv-type=q"), ["--kv-type=q8_0"]);
    assert_eq!(complete("run -m hf"), ["hf:tiny/model-GGUF"]);
    assert_eq!(complete("run qwen3:0"), ["qwen3:0.6b"]);
    assert_eq!(complete("run sto"), ["story.gguf"]);
    assert_eq!(complete("run --file=sto"), ["--file=story.gguf"]);
}

#[test]
fn scripts_are_for_four_shells() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        assert!(ok(&["completions", shell]).contains("__complete"), "{shell}");
    }
    refuses(&["completions", "tcsh"], 2, &["bash", "zsh", "fish", "powershell"]);
}

#[test]
fn manual_pages_have_no_errors() {
    let dir = tempfile::tempdir().unwrap();
    ok(&["__man", path(dir.path())]);
    let pages: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|page| page.unwrap().path()).collect();
    assert_eq!(pages.len(), 28, "one for each command, and the overview");
    if is_there("manual_pages_have_no_errors", &["sh", "-c", "command -v mandoc"]) {
        let mut lint = Command::new("mandoc");
        // No date: a page is the same whenever it is generated.
        let output = lint.args(["-T", "lint", "-W", "warning"]).args(&pages).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let found: Vec<&str> = lines.lines().filter(|line| !line.contains("missing date")).collect();
        assert!(found.is_empty(), "{found:#?}");
    }
    if is_there("manual_pages_have_no_errors", &["man", "--version"]) {
        for page in pages {
            let mut man = Command::new("man");
            man.args(["--warnings", "--local-file"])
                .arg(&page)
                .env("MANPAGER", "cat")
                .env("LC_ALL", "C.UTF-8");
            let output = man.output().unwrap();
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(shown.contains("SYNOPSIS"), "{}: {shown}", page.display());
        }
    }
    refuses(&["__man", "/dev/null/pages"], 1, &["cannot write to /dev/null/pages"]);
}
