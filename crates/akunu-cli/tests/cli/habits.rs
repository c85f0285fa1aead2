//! Forms of commands and options that people know from other programs.

use crate::common::{akunu, finish, ok, refuses, run, with_stdin};

const EMBEDDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../akunu/embedded/akunu-tales.gguf");

#[test]
fn help_and_version_are_commands_too() {
    assert_eq!(ok(&["version"]), ok(&["--version"]));
    assert_eq!(ok(&["help", "plan"]), ok(&["plan", "--help"]));
    assert_eq!(ok(&["help"]), ok(&["--help"]));
}

#[test]
fn commands_have_the_names_that_others_use() {
    assert_eq!(ok(&["show", EMBEDDED]), ok(&["inspect", EMBEDDED]));
    let folder = tempfile::tempdir().unwrap();
    let list = |name: &str| {
        let mut command = akunu(&[name, "--json"]);
        command.env("HF_HUB_CACHE", folder.path());
        let done = finish(command);
        assert_eq!(done.code, 0, "{name}: {}", done.stderr);
        done.stdout
    };
    assert!(list("ls") == list("models") && list("list") == list("models"));
}

#[test]
fn the_model_may_be_an_option() {
    let ids = ok(&["tokenize", EMBEDDED, "Once upon"]);
    assert_eq!(ok(&["tokenize", "-m", EMBEDDED, "Once upon"]), ids);
    assert_eq!(
        ok(&["detokenize", "--model", EMBEDDED, ids.trim()]),
        ok(&["detokenize", EMBEDDED, ids.trim()])
    );
    assert_eq!(ok(&["plan", "-m", EMBEDDED, "--for", "cpu"]), ok(&["plan", EMBEDDED, "--for", "cpu"]));
    let text = ["run", "Once", "-n", "5", "--temp", "0", "-q", "-m", EMBEDDED];
    assert_eq!(ok(&text), ok(&["run", EMBEDDED, "Once", "-n", "5", "--temp", "0", "-q"]));
    assert_eq!(run(&["plan", EMBEDDED, "-m", EMBEDDED]).code, 2);
    let none = run(&["run", "-m", EMBEDDED]);
    assert_eq!(none.code, 2);
    assert!(!none.stderr.contains("use -p"), "{}", none.stderr);
}

#[test]
fn a_prompt_may_come_from_a_pipe() {
    let arguments = ["run", "-n", "5", "--temp", "0", "-q"];
    let piped = |more: &[&str]| with_stdin(&[&arguments[..], more].concat(), b"Once upon\n").stdout;
    let expected = ok(&[&arguments[..], &["Once upon"]].concat());
    assert_eq!(piped(&[]), expected);
    assert_eq!(piped(&[EMBEDDED]), expected);
    let none = run(&["run", "-q"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("akunu chat"), "{}", none.stderr);
}

/// The note comes while the pipe is open, and the text of the pipe is before the prompt.
#[cfg(unix)]
#[test]
fn a_pipe_that_stays_open_is_said() {
    if akunu_testing::left_to_ci() {
        return;
    }
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::Stdio;

    let mut child = akunu(&["run", "and then", "-n", "1", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut note = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut note).unwrap();
    assert!(note.contains("waiting for the end of the text on stdin"), "{note}");
    child.stdin.take().unwrap().write_all(b"Once").unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success() && text.starts_with("Once\nand then"), "{text}");
}

#[test]
fn a_name_on_the_hub_without_its_prefix_gets_a_hint() {
    let done = run(&["run", "Qwen/Qwen3-0.6B-GGUF:Q8_0", "Once"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"), "{}", done.stderr);
    for other in ["no/such/model", "./no/model", "no/model.gguf"] {
        let done = run(&["run", other, "Once"]);
        assert!(done.code == 1 && !done.stderr.contains("hf:"), "{}", done.stderr);
    }
    // Alone it could be the prompt.
    for (only, hint) in
        [("Qwen/Qwen3-0.6B", "hf:Qwen/Qwen3-0.6B"), ("/no/such/model", "use -p"), ("./model", "use -p")]
    {
        let done = run(&["run", only]);
        assert!(done.code == 1 && done.stderr.contains(hint), "{}", done.stderr);
    }
    assert!(ok(&["run", "He said yes/no.", "-n", "1", "-q"]).starts_with("He said yes/no."));
}

#[test]
fn settings_out_of_range_are_refused_before_a_model_is_opened() {
    let settings = [
        ["--top-k", "-1"],
        ["--seed", "-1"],
        ["--repeat-last-n", "-1"],
        ["--top-p", "1.5"],
        ["--min-p", "-0.1"],
        ["--temp", "-1"],
        ["--repeat-penalty", "0"],
        ["--logit-bias", "5=inf"],
    ];
    for [option, value] in settings {
        for command in [["run", "no-such.gguf", "Once"], ["chat", "no-such.gguf", "-pOnce"]] {
            let done = run(&[&command[..], &[option, value]].concat());
            assert_eq!(done.code, 2, "{option} {value}: {}", done.stderr);
            assert!(!done.stderr.contains("no file"), "{}", done.stderr);
        }
    }
    for command in [
        &["run", "no-such.gguf", "Once", "--stop", ""][..],
        &["chat", "no-such.gguf", "-pOnce", "--stop", ""],
        &["logits", "no-such.gguf", "--ids", "1", "--out", "logits.csv"],
        &["embed", "no-such.gguf", "a text", "--out", "vectors.npy"],
    ] {
        let done = run(command);
        assert_eq!(done.code, 2, "{command:?}: {}", done.stderr);
        assert!(!done.stderr.contains("no file"), "{}", done.stderr);
    }
    // A file that cannot be read is a failure, but is found before a model is downloaded, too.
    let done = run(&["run", "no-such.gguf", "Once", "--json-schema", "no-such.json"]);
    assert!(done.code == 1 && done.stderr.contains("no-such.json"), "{}", done.stderr);
}

#[test]
fn a_plan_can_be_checked() {
    assert_eq!(run(&["plan", "--check"]).code, 0);
    let done = run(&["plan", "--check", "-c", "2000000000", "--json"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stdout.contains("\"fits\": false"), "{}", done.stdout);
    assert_eq!(run(&["plan", "-c", "2000000000"]).code, 0);
}

#[test]
fn names_of_other_programs_get_a_hint() {
    for (arguments, hint) in [
        (&["run", "Once", "--ctx-size", "100"][..], "-c N"),
        (&["run", "Once", "--n-predict=5"], "-n N"),
        (&["run", "Once", "-ngl", "99"], "--gpu-layers N"),
        (&["run", "Once", "-ngl", "99", "-n", "5"], "--gpu-layers N"),
        (&["run", "-hf", "Qwen/Qwen3-0.6B-GGUF"], "hf:OWNER/NAME"),
        (&["run", "-fa", "-p", "Once"], "leave it out"),
        (&["run", "Once", "-ctk", "q8_0"], "--kv-type"),
        (&["chat", "-sys", "Be brief."], "--system TEXT"),
        (&["serve", "-np", "4"], "--parallel N"),
        (&["run", "Once", "--lora", "a.gguf"], "not supported yet"),
        (&["chat", "--jinja"], "leave it out"),
        (&["ps"], "/api/ps"),
        (&["server"], "akunu serve"),
    ] {
        let done = run(arguments);
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(hint), "{arguments:?}: {}", done.stderr);
    }
}

#[test]
fn a_wrong_format_is_found_before_a_model_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_string()
    };
    let schema = file("schema.json", r#"{"type": "nonsense"}"#);
    let broken = file("broken.json", "{");
    let gbnf = file("rules.gbnf", "root ::= missing");
    let lark = file("rules.lark", "start: missing");
    for (option, value, word) in [
        ("--json-schema", &schema[..], "schema"),
        ("--json-schema", &broken, "is not JSON"),
        ("--grammar", &gbnf, "grammar"),
        ("--grammar", &lark, "grammar"),
        ("--regex", "(a", "regular expression"),
    ] {
        refuses(&["run", "no-such.gguf", "Once", option, value], 2, &[word]);
        refuses(&["chat", "no-such.gguf", "-p", "Hello", option, value], 2, &[word]);
    }
    refuses(&["run", "no-such.gguf", "Once", "--regex", "a+"], 1, &["no-such.gguf"]);
}

#[test]
fn piped_text_comes_before_a_prompt() {
    let options = ["--temp", "0", "-n", "4", "-q"];
    let expected = ok(&[&["run", "Once upon\na time"][..], &options].concat());
    let piped = |arguments: &[&str], text: &str| {
        let done = with_stdin(&[&["run"], arguments, &options].concat(), text.as_bytes());
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    };
    assert_eq!(piped(&["a time"], "Once upon\n"), expected);
    assert_eq!(piped(&[EMBEDDED, "a time"], "Once upon"), expected);
    assert_eq!(piped(&["-p", "a time"], "Once upon\n"), expected);
    assert_eq!(piped(&["Once upon\na time"], ""), expected);
    assert_eq!(piped(&["-f", "-"], "Once upon\na time\n"), expected);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    std::fs::write(&file, "Once upon\n").unwrap();
    let mut command = akunu(&[&["run", "a time"][..], &options].concat());
    command.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(finish(command).stdout, expected);
}

/// A device is not read, a closed stdin is none, and a socket that a parent keeps open is not waited for.
#[cfg(unix)]
#[test]
fn a_stdin_that_may_never_end_is_not_read_beside_a_prompt() {
    let arguments = ["run", "Once upon", "--temp", "0", "-n", "4", "-q"];
    let expected = ok(&arguments);
    let mut of_zeros = akunu(&arguments);
    of_zeros.stdin(std::fs::File::open("/dev/zero").unwrap());
    let (open, _kept) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut of_socket = akunu(&arguments);
    of_socket.stdin(std::os::fd::OwnedFd::from(open));
    let mut closed = std::process::Command::new("sh");
    closed.args(["-c", "exec \"$0\" \"$@\" <&-", env!("CARGO_BIN_EXE_akunu")]).args(arguments);
    for command in [of_zeros, of_socket, closed] {
        assert_eq!(finish(command).stdout, expected);
    }
}
