//! All errors have one form, whether an argument was wrong for the parser or for the command.

use crate::common::{Done, ok, run};
#[cfg(unix)]
use crate::{common::akunu, terminal::Terminal};

const EMBEDDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../akunu/embedded/akunu-tales.gguf");

/// The names of all commands, from the overview.
fn commands() -> Vec<String> {
    let overview = ok(&["--help"]);
    let listed = overview.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty()).filter(|line| line.as_bytes()[2] != b' ');
    let names = listed.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_string).collect()
}

/// One line of error, which a listing may follow, then hints.
fn check(done: &Done, code: i32, what: &[&str]) {
    let stderr = &done.stderr;
    assert_eq!(done.code, code, "{what:?}: {stderr}");
    assert_eq!(done.stdout, "", "{what:?}");
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with("error: ") && first.len() > "error: ".len(), "{what:?}: {stderr}");
    assert!(!first.ends_with(['.', ':']) || stderr.lines().nth(1).is_some_and(|line| line.starts_with("  ")));
    let mut hints = lines.skip_while(|line| line.starts_with("  "));
    assert!(hints.all(|line| line.starts_with("hint: ")), "{what:?}: {stderr}");
    for word in ["Usage:", "tip:", "For more information", "\u{1b}"] {
        assert!(!stderr.contains(word), "{what:?}: {stderr}");
    }
}

fn check_usage(arguments: &[&str], command: &str, words: &[&str]) {
    let done = run(arguments);
    check(&done, 2, arguments);
    let last = format!("hint: see {command} --help\n");
    assert!(done.stderr.ends_with(&last), "{arguments:?}: {}", done.stderr);
    assert_eq!(done.stderr.matches("--help").count(), 1, "{arguments:?}: {}", done.stderr);
    for word in words {
        assert!(done.stderr.contains(word), "{arguments:?} should say {word:?}: {}", done.stderr);
    }
}

#[test]
fn every_command_refuses_an_unknown_option_in_the_same_form() {
    let commands = commands();
    assert!(commands.len() >= 23 && commands.iter().any(|name| name == "chat"), "{commands:?}");
    for name in &commands {
        let words = ["error: unexpected argument '--no-such-option' found"];
        check_usage(&[name, "--no-such-option"], &format!("akunu {name}"), &words);
    }
}

/// At its start, and not at the first request.
#[test]
fn a_server_refuses_a_model_that_cannot_be_divided_as_stated() {
    let dense = ["serve", "--port", "0", "--device", "reference", "--cpu-moe"];
    let no_gpu = ["serve", "--port", "0", "--device", "cpu", "--gpu-layers", "1"];
    for (what, reason) in [(&dense[..], "no experts"), (&no_gpu[..], "the CPU is the only device")] {
        let done = run(what);
        check(&done, 1, what);
        assert!(done.stderr.contains(reason), "{}", done.stderr);
    }
}

#[test]
fn invalid_command_lines_have_one_form() {
    let table: &[(&[&str], &str, &[&str])] = &[
        // From the parser.
        (&["sing"], "akunu", &["there is no command 'sing'"]),
        (&["help", "sing"], "akunu", &["there is no command 'sing'"]),
        // Commands for scripts, such as __complete, are not suggested.
        (&["completion"], "akunu", &["hint: a similar command is 'completions'\n"]),
        (&["serv"], "akunu", &["hint: ", "'serve'"]),
        (&["--no-such-option"], "akunu", &["'--no-such-option'"]),
        (&["run", "Once", "--tempo", "1"], "akunu run", &["hint: ", "'--temp'"]),
        (&["run", "Once", "--temp"], "akunu run", &["a value is required for '--temp"]),
        (&["run", "Once", "--temp", "hot"], "akunu run", &["'hot'", "'--temp", "it must be a number\n"]),
        (&["run", "Once", "--temp="], "akunu run", &["it must be a number\n"]),
        (&["run", "Once", "--kv-type", "q3"], "akunu run", &["hint: possible values: f32, f16, q8_0"]),
        (&["run", "Once", "-n", "0"], "akunu run", &["it must be an integer from 1 to"]),
        (&["run", "-p", "c", "-f", "x"], "akunu run", &["cannot be used with"]),
        (&["--offline", "chat", "--set", "x"], "akunu chat", &["NAME=VALUE"]),
        (&["logits"], "akunu logits", &["were not provided", "\n  --ids <IDS>\n"]),
        (&["quantize"], "akunu quantize", &["were not provided"]),
        (&["show", "--no-such-option"], "akunu inspect", &[]),
        (&["serve", "--port", "70000"], "akunu serve", &["it must be an integer from 0 to 65535"]),
        (&["serve", "--parallel", "-1"], "akunu serve", &["it must be an integer from 1 to"]),
        (&["bench-serve", "http://x", "--rate", "-1"], "akunu bench-serve", &["it must be a number above 0"]),
        (
            &["pull", "OWNER/NAME"],
            "akunu pull",
            &["hint: a model on the Hugging Face hub is named hf:OWNER/NAME\n"],
        ),
        // From the command.
        (&["run", "a", "b", "-p", "c"], "akunu run", &["two prompts were given"]),
        (&["run", "-q"], "akunu run", &["no prompt was given", "akunu chat"]),
        (&["run", EMBEDDED], "akunu run", &["a prompt is missing"]),
        (&["run", "Once", "--top-p", "2"], "akunu run", &["top-p is 2; it must be a number from 0 to 1"]),
        (&["chat", "--temp", "-1", "-p", "x"], "akunu chat", &["temperature is -1; it must be"]),
        (&["bench", "-p", "0", "-n", "0"], "akunu bench", &["no test was selected"]),
        (&["inspect", "hf:nonsense"], "akunu inspect", &["hf:OWNER/NAME"]),
        (&["logits", "--ids", "1", "--out", "x.npy"], "akunu logits", &["x.npy", "--out x.safetensors"]),
        (
            &["embed", EMBEDDED, "--pooling", "mean", "x", "--out", "x"],
            "akunu embed",
            &["--out x.safetensors"],
        ),
        (&["rm", "hf:a/b:c", "--yes"], "akunu rm", &["cannot be removed alone"]),
    ];
    for (arguments, command, words) in table {
        check_usage(arguments, command, words);
    }
}

#[test]
fn other_failures_have_the_same_form_and_exit_code_1() {
    let table: &[&[&str]] = &[
        &["inspect", "no/such.gguf"],
        &["chat", "no/such.gguf", "-p", "x"],
        &["run", "-f", "no/such.txt"],
        &["run", ""],
        &["chat", "Hello"],
        &["logits", "--ids", "99999"],
        &["run", "Once", "-c", "1", "-q"],
        &["quantize", EMBEDDED, "/no/such/folder/out.gguf", "-q", "Q8_0"],
    ];
    for arguments in table {
        check(&run(arguments), 1, arguments);
    }
}

#[cfg(unix)]
#[test]
fn labels_are_coloured_on_a_terminal_that_may_have_colours() {
    let shown = |arguments: &[&str], no_color: &str, term: &str| {
        let mut command = akunu(arguments);
        command.env("NO_COLOR", no_color).env("TERM", term);
        let (code, shown) = Terminal::new(command, 80).end();
        assert_eq!(code, Some(2), "{shown}");
        shown
    };
    for arguments in [&["run", "a", "b", "-p", "c"][..], &["run", "--tempo", "1"]] {
        let coloured = shown(arguments, "", "xterm");
        assert!(coloured.starts_with("\u{1b}[1;31merror:\u{1b}[0m "), "{coloured:?}");
        assert!(coloured.contains("\r\n\u{1b}[1;32mhint:\u{1b}[0m see akunu run --help\r\n"), "{coloured:?}");
        for plain in [shown(arguments, "1", "xterm"), shown(arguments, "", "dumb")] {
            assert!(plain.starts_with("error: ") && !plain.contains('\u{1b}'), "{plain:?}");
        }
    }
    // Help follows the same rule.
    let help = |no_color: &str| {
        let mut command = akunu(&["run", "-h"]);
        command.env("NO_COLOR", no_color).env("TERM", "xterm");
        Terminal::new(command, 80).end().1
    };
    assert!(help("").contains('\u{1b}') && !help("1").contains('\u{1b}'));
}
