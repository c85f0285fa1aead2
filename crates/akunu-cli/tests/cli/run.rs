//! `run`: text on stdout, everything else on stderr.

use crate::common::{ok, run, with_stdin};

#[test]
fn the_command_in_the_readme_works() {
    let done = run(&["run", "Once upon a time", "-n", "24"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.starts_with("Once upon a time"), "{}", done.stdout);
    assert!(done.stdout.len() > "Once upon a time\n".len() + 20, "{}", done.stdout);
    assert!(done.stdout.ends_with('\n'));
    assert!(done.stderr.contains("tok/s") && done.stderr.contains("seed"), "{}", done.stderr);
}

#[test]
fn greedy_text_is_the_same_each_time_whatever_the_threads_and_chunks() {
    let base = ["run", "Once upon a time", "-n", "40", "--temp", "0"];
    let first = ok(&base);
    for more in [&["-t", "1"][..], &["-t", "3"], &["--chunk", "1"], &["--chunk", "3", "--seed", "9"]] {
        assert_eq!(ok(&[&base[..], more].concat()), first, "{more:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let seeded = |seed: &str| ok(&["run", "The dog", "-n", "40", "--temp", "1", "--seed", seed]);
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
}

#[test]
fn the_prompt_may_come_from_an_option_a_file_or_stdin() {
    let tail = ["-n", "12", "--temp", "0"];
    let story = ok(&[&["run", "Once upon a time"], &tail[..]].concat());
    assert_eq!(ok(&[&["run", "-p", "Once upon a time"], &tail[..]].concat()), story);
    let piped = with_stdin(&[&["run", "-f", "-"], &tail[..]].concat(), b"Once upon a time\n");
    assert_eq!(piped.stdout, story);
    let ids = ok(&["tokenize", "Once upon a time"]);
    let continued = ok(&[&["run", "--prompt-ids", ids.trim()], &tail[..]].concat());
    assert_eq!(format!("Once upon a time{continued}"), story);
}

#[test]
fn without_echo_only_the_continuation_is_printed() {
    let story = ok(&["run", "Once upon a time", "-n", "12", "--temp", "0"]);
    let rest = ok(&["run", "Once upon a time", "-n", "12", "--temp", "0", "--no-echo"]);
    assert_eq!(format!("Once upon a time{rest}"), story);
}

#[test]
fn ids_are_those_of_the_text() {
    let rest = ok(&["run", "Once upon a time", "-n", "12", "--temp", "0", "--no-echo"]);
    let ids = ok(&["run", "Once upon a time", "-n", "12", "--temp", "0", "--ids"]);
    assert_eq!(ids.split_whitespace().count(), 12);
    assert_eq!(ok(&["detokenize", ids.trim()]), rest);
}

#[test]
fn statistics_come_as_json_too() {
    let done = run(&["run", "Once upon a time", "-n", "8", "--temp", "0", "--stats", "json"]);
    let line = done.stderr.lines().last().unwrap();
    let stats: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(stats["generated_tokens"], 8);
    assert_eq!(stats["finish"], "max_tokens");
    assert_eq!(stats["model"], "embedded");
    assert!(stats["generate_tok_s"].as_f64().unwrap() > 0.0, "{stats}");
}

#[test]
fn quiet_leaves_stderr_empty() {
    let done = run(&["run", "Once upon a time", "-n", "8", "-q"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let story = ok(&["run", "Once upon a time", "-n", "60", "--temp", "0"]);
    let (head, _) = story.split_once('.').expect("a sentence ends within 60 tokens");
    let done = run(&["run", "Once upon a time", "-n", "60", "--temp", "0", "--stop", "."]);
    assert_eq!(done.stdout, format!("{head}\n"));
    assert!(done.stderr.contains("--stop"), "{}", done.stderr);
}

#[test]
fn a_full_context_ends_the_text_unless_it_may_shift() {
    let base = ["run", "Once upon a time", "-c", "24", "--ignore-eos", "--temp", "0"];
    let full = run(&base);
    assert_eq!(full.code, 0, "{}", full.stderr);
    assert!(full.stderr.contains("the context is full"), "{}", full.stderr);
    let shifted = run(&[&base[..], &["--context-shift=2", "-n", "60", "--stats", "json"]].concat());
    assert_eq!(shifted.code, 0, "{}", shifted.stderr);
    assert!(shifted.stderr.contains("\"generated_tokens\":60"), "{}", shifted.stderr);
}

#[test]
fn options_override_the_suggested_sampling() {
    let folder = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/llama-hd64-gqa2");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{model}/{file}"), folder.path().join(file)).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let temperature = |more: &[&str]| {
        let base = ["run", path, "--prompt-ids", "5,6,7", "-n", "6", "--ids", "--stats", "json", "-q"];
        let done = run(&[&base[..], more].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        let line = done.stderr.lines().find(|line| line.starts_with('{')).unwrap();
        let stats: serde_json::Value = serde_json::from_str(line).unwrap();
        (stats["temperature"].as_f64().unwrap(), done.stdout)
    };
    let suggest = |text: &str| std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
    assert!((temperature(&[]).0 - 0.8).abs() < 1e-6);
    let greedy = temperature(&["--temp", "0"]);
    suggest(r#"{"do_sample": false}"#);
    assert_eq!(temperature(&[]), greedy);
    // At this temperature only top-k keeps the text deterministic.
    suggest(r#"{"do_sample": true, "temperature": 64, "top_k": 1}"#);
    assert_eq!(temperature(&[]), (64.0, greedy.1.clone()));
    assert_eq!(temperature(&["--temp", "0.5"]), (0.5, greedy.1.clone()));
    assert_ne!(temperature(&["--top-k", "0", "--seed", "1"]).1, greedy.1);
    assert!(ok(&["inspect", path]).contains("temperature 64.0, top_k 1"));
}
