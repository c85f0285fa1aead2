//! Forms of commands and options that people know from other programs.

use crate::common::{akunu, finish, ok, run, with_stdin};

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
    assert_eq!(run(&["run", "-m", EMBEDDED]).code, 2);
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
        (&["chat", "--jinja"], "leave it out"),
        (&["ps"], "/api/ps"),
        (&["server"], "akunu serve"),
    ] {
        let done = run(arguments);
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(hint), "{arguments:?}: {}", done.stderr);
    }
}
