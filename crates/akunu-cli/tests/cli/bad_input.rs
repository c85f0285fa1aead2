//! Invalid input: each kind has an error line and an exit code, 1 for failures and 2 for invalid command lines.

use std::fs;

use crate::common::{path, refuses, run, with_stdin, write_small_model};

#[test]
fn an_empty_prompt() {
    refuses(&["run", ""], 1, &["the prompt is empty", "hint: "]);
    refuses(&["run", "-p", ""], 1, &["the prompt is empty"]);
    refuses(&["run", "--prompt-ids", ""], 1, &["the prompt is empty"]);
    refuses(&["logits", "--ids", ""], 1, &["empty"]);
}

#[test]
fn no_prompt_at_all() {
    refuses(&["run"], 2, &["no prompt was given", "hint: "]);
}

#[test]
fn a_model_without_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    fs::write(&file, b"GGUF").unwrap();
    refuses(&["run", path(&file)], 2, &["a prompt is missing", "hint: ", "-p"]);
}

#[test]
fn an_id_outside_the_vocabulary() {
    refuses(
        &["run", "--prompt-ids", "1,99999", "-n", "1"],
        1,
        &["token id 99999 (number 2 of the prompt)", "valid ids are 0 to"],
    );
    refuses(&["logits", "--ids", "4000000000"], 1, &["token id 4000000000", "outside the vocabulary"]);
    refuses(&["detokenize", "99999"], 1, &["token id 99999"]);
    refuses(&["run", "--prompt-ids", "1,x"], 2, &["\"x\" is not a token id"]);
    refuses(&["detokenize", "1", "2x"], 2, &["\"2x\" is not a token id"]);
    refuses(&["run", "Once", "--logit-bias", "99999=1"], 1, &["token id 99999", "logit bias"]);
}

#[test]
fn a_prompt_longer_than_the_context_gives_both_numbers() {
    let prompt = "Once upon a time there was a little cat who liked to play in the garden all day";
    let done = refuses(&["run", prompt, "-c", "8"], 1, &["the context only 8", "hint: ", "-c "]);
    assert!(done.stdout.is_empty(), "nothing is printed before it is known to fit: {}", done.stdout);
    let count = done.stderr.split(" tokens").next().and_then(|s| s.rsplit(' ').next()).unwrap();
    assert!(count.parse::<usize>().unwrap() > 8, "{}", done.stderr);
    refuses(
        &["logits", "--ids", "1,2,3,4", "-c", "2"],
        1,
        &["the prompt has 4 tokens, but the context only 2"],
    );
}

#[test]
fn a_context_larger_than_memory_comes_with_the_plan() {
    refuses(&["run", "Once", "-c", "2000000000"], 1, &["KV cache", "available", "hint: ", "-c"]);
    let plan = run(&["plan", "-c", "2000000000"]);
    assert_eq!(plan.code, 0, "{}", plan.stderr);
    assert!(plan.stdout.contains("Does not fit"), "{}", plan.stdout);
}

#[test]
fn a_missing_file() {
    refuses(&["inspect", "no/such/model.gguf"], 1, &["there is no file no/such/model.gguf", "hint: "]);
    refuses(&["run", "no/such/model.gguf", "Once"], 1, &["there is no file"]);
    refuses(&["run", "no-such-model.gguf"], 1, &["there is no file", "-p"]);
    refuses(&["run", "-f", "no/such/prompt.txt"], 1, &["no/such/prompt.txt"]);
    refuses(&["perplexity", "no/such/text.txt"], 1, &["no/such/text.txt"]);
    refuses(&["imatrix", "-f", "no/such/text.txt"], 1, &["no/such/text.txt"]);
}

#[test]
fn an_unknown_device() {
    refuses(&["run", "Once", "--device", "abacus"], 2, &["abacus", "reference"]);
    refuses(&["bench", "--device", "abacus"], 2, &["abacus"]);
    let icb = ["bench", "--metal-icb", "-p", "0", "-n", "1", "--device"];
    refuses(&[&icb[..], &["cpu"]].concat(), 1, &["on cpu", "--metal-icb", "--device metal"]);
}

#[test]
fn weights_that_are_not_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nan.gguf");
    write_small_model(&file, |_| {}, Some("blk.0.ffn_down.weight"));
    refuses(
        &["run", path(&file), "--prompt-ids", "1,2,3", "-n", "4", "--temp", "0", "--ids"],
        1,
        &["not finite"],
    );
    refuses(&["run", path(&file), "--prompt-ids", "1,2,3", "-n", "4", "--ids"], 1, &["not finite"]);
    refuses(&["logits", path(&file), "--ids", "1,2,3"], 1, &["not finite"]);
}

#[test]
fn a_model_without_a_vocabulary_asks_for_ids() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiny.gguf");
    assert_eq!(run(&["synth", "tiny", path(&file)]).code, 0);
    refuses(&["run", path(&file), "Once"], 1, &["token ids only", "--prompt-ids"]);
    let done = refuses(&["tokenize", path(&file), "Once"], 1, &["token ids only"]);
    assert!(!done.stderr.contains("hint: "), "no command turns text into ids without one: {}", done.stderr);
    let text = dir.path().join("text.txt");
    fs::write(&text, "Once upon a time").unwrap();
    refuses(&["perplexity", path(&file), path(&text)], 1, &["token ids only", "akunu logits MODEL --ids"]);
}

#[test]
fn a_prompt_file_that_is_not_utf8() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latin1.txt");
    fs::write(&file, b"caf\xe9").unwrap();
    refuses(
        &["run", "-f", path(&file)],
        1,
        &["latin1.txt is not UTF-8", "the first bad byte is at 3", "hint: "],
    );
    let done = with_stdin(&["run", "-f", "-"], b"\xff");
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("stdin is not UTF-8"), "{}", done.stderr);
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../akunu/embedded/akunu-tales.gguf");
    refuses(&["perplexity", model], 1, &["akunu-tales.gguf is a GGUF file, not a text"]);
}

/// A file of 1 TiB that takes no space, and one that never ends.
#[cfg(unix)]
#[test]
fn files_of_options_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large.json");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    for file in [path(&large), "/dev/zero"] {
        for args in [
            &["run", "Once", "--json-schema", file][..],
            &["run", "Once", "--grammar", file],
            &["serve", "--port", "0", "--api-keys", file],
            &["serve", "--port", "0", "--tls-cert", file, "--tls-key", file],
            &["chat", "--mcp", file, "-p", "x"],
            &["chat", "--chat-template", file, "-p", "x"],
        ] {
            refuses(args, 1, &[file, "it has more than"]);
        }
    }
    refuses(&["run", "-f", path(&large)], 1, &["too large for a text"]);
    refuses(&["chat", "--load", path(&large), "-p", "x"], 1, &["too large for a saved conversation"]);
}

/// Opening a pipe waits for its other end.
#[cfg(unix)]
#[test]
fn devices_and_pipes_in_a_models_folder_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama-hd64-gqa2");
    for entry in fs::read_dir(source).unwrap() {
        let file = entry.unwrap().path();
        fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    for name in ["tokenizer.json", "config.json"] {
        let file = dir.path().join(name);
        let before = fs::read(&file).ok();
        let _ = fs::remove_file(&file);
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let done = run(&["chat", path(dir.path()), "-p", "x"]);
        assert!(done.code == 1 && done.stderr.contains(name), "{name}: {}", done.stderr);
        fs::remove_file(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status();
        if made.is_ok_and(|made| made.success()) {
            let done = run(&["chat", path(dir.path()), "-p", "x"]);
            assert!(done.code == 1 && done.stderr.contains(name), "{name}: {}", done.stderr);
            run(&["inspect", path(dir.path())]);
            fs::remove_file(&file).unwrap();
        }
        if let Some(bytes) = before {
            fs::write(&file, bytes).unwrap();
        }
    }
}

#[test]
fn zero_and_far_too_large_numbers() {
    for args in [
        ["-n", "0"],
        ["-n", "-1"],
        ["-n", "99999999999999999999"],
        ["-c", "0"],
        ["-c", "many"],
        ["-c", "99999999999"],
        ["-t", "0"],
        ["-t", "100000"],
        ["--chunk", "0"],
        ["--kv-type", "q3"],
    ] {
        refuses(&["run", "Once", args[0], args[1]], 2, &[args[1]]);
    }
}

#[test]
fn invalid_settings() {
    for (option, value) in [
        ("--temp", "-1"),
        ("--temp", "nan"),
        ("--top-p", "2"),
        ("--min-p", "-0.1"),
        ("--repeat-penalty", "0"),
    ] {
        refuses(&["run", "Once", option, value], 2, &["must be"]);
    }
    refuses(&["perplexity", "x.txt", "-c", "8", "--stride", "9"], 2, &["stride of 9"]);
    refuses(&["bench", "-p", "0", "-n", "0"], 2, &["no test was selected"]);
    refuses(&["run", "a", "b", "-p", "c"], 2, &["two prompts"]);
    refuses(&["run", "-p", "c", "-f", "x"], 2, &["cannot be used with"]);
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("precious.gguf");
    fs::write(&file, b"precious").unwrap();
    refuses(&["synth", "tiny", path(&file)], 1, &["exists", "--force"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    refuses(&["synth", "tiny", "/no/such/folder/x.gguf"], 1, &["/no/such/folder"]);
    refuses(&["synth", "giant", "x.gguf"], 2, &["giant", "llama-8b"]);
}
