//! Control characters in the strings of files never reach the terminal. `terminal.rs` tests those of generated text.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::{Path, PathBuf};

use akunu_fixtures::scripted;
use akunu_format::{Array, Metadata, Value};
use akunu_hub_testing::FakeHub;
use serde_json::{Value as Json, json};

use crate::common::{Done, akunu, finish, path, run, with_stdin, write_small_model};

/// Clears a screen, sets a title, is DEL, and clears it with a character of C1.
const EVIL: &str = "x\u{1b}[2J\u{1b}]0;title\u{7}\r\u{8}\u{7f}\u{9b}2Jy";

fn assert_clean(what: &[&str], stream: &str) {
    let wild = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!stream.contains(wild), "{what:?}: {stream:?}");
}

/// Runs a command; neither its listing nor its messages may have control characters.
fn clean(args: &[&str]) -> Done {
    let done = run(args);
    assert_clean(args, &done.stdout);
    assert_clean(args, &done.stderr);
    done
}

/// All commands that list a model or fail for it.
fn clean_everywhere(model: &Path) {
    let model = path(model);
    for args in [
        &["inspect", model, "--tensors", "--metadata"][..],
        &["inspect", model, "--tensors", "--metadata", "--json"],
        &["plan", model, "-c", "16"],
        &["table", model, "-c", "16", "--json"],
        &["tokenize", model, "x"],
        &["run", model, "x", "-n", "1", "-c", "16", "--device", "nothing\u{1b}[2J"],
        &["quantize", model, "/no/such/folder\u{1b}[2J", "-q", "Q8_0"],
        &["quantize", model, "out", "-q", "Q8_0", "--dry-run"],
    ] {
        clean(args);
    }
}

fn string(text: &str) -> Value {
    Value::String(text.into())
}

/// A vocabulary of 16 tokens.
fn vocabulary(metadata: &mut Metadata) {
    let tokens: Vec<String> = (0..16).map(|n| format!("{EVIL}{n}")).collect();
    metadata.insert("tokenizer.ggml.model", string("gpt2"));
    metadata.insert("tokenizer.ggml.pre", string("gpt-2"));
    metadata.insert(
        "tokenizer.ggml.tokens",
        Value::Array(Array::Strings(tokens.iter().map(String::as_str).collect())),
    );
    metadata.insert("tokenizer.ggml.merges", Value::Array(Array::Strings(std::iter::once("a b").collect())));
}

#[test]
fn of_a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join(format!("{EVIL}.gguf"));
    let all = |metadata: &mut Metadata| {
        vocabulary(metadata);
        for key in ["general.name", "general.author", "tokenizer.chat_template", EVIL] {
            metadata.insert(key, string(EVIL));
        }
    };
    write_small_model(&model, all, None);
    let shown = clean(&["inspect", path(&model), "--metadata"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains("x\\u{1b}[2J"), "{}", shown.stdout);
    clean_everywhere(&model);
    for args in [
        &["profile", path(&model), "--passes", "1", "-c", "16"][..],
        &["verify", path(&model), "--device", "cpu", "-c", "16"],
        &["logits", path(&model), "--ids", "1,2"],
        &["bench", path(&model), "-p", "4", "-n", "4", "-r", "1", "--device", "cpu"],
        &["perplexity", path(&model), path(&model)],
        &["chat", path(&model), "--prompt", "x"],
        &["embed", path(&model), "x"],
        &["serve", path(&model), "--host", EVIL],
    ] {
        clean(args);
    }
    for (name, more) in [("run", EVIL), ("inspect", "--\u{1b}[2J"), ("\u{9b}2J", "x")] {
        assert_eq!(clean(&[name, path(&model), more, "--no-such-option\u{1b}[2J"]).code, 2);
    }
    // Each string that decides how a file is read, or is named if it is wrong.
    let place = |key: &str, value: Value| {
        write_small_model(&model, |metadata| drop((all(metadata), metadata.insert(key, value))), None);
        clean_everywhere(&model);
    };
    for key in [
        "general.architecture",
        "llama.rope.scaling.type",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.eos_token_id",
        "llama.context_length",
        "split.count",
    ] {
        place(key, string(EVIL));
    }
    write_small_model(
        &model,
        |metadata| {
            drop(
                metadata
                    .insert(EVIL.repeat(2), Value::Array(Array::Strings(std::iter::once(EVIL).collect()))),
            )
        },
        None,
    );
    let bytes = fs::read(&model).unwrap();
    for length in (0..bytes.len().min(2000)).step_by(50) {
        fs::write(&model, &bytes[..length]).unwrap();
        clean(&["inspect", path(&model)]);
    }
    // The name of a tensor.
    let at = bytes.windows(12).position(|window| window == b"output_norm.").unwrap();
    let mut renamed = bytes.clone();
    renamed[at..at + 6].copy_from_slice(b"\x1b[2J\x7f\x07");
    fs::write(&model, renamed).unwrap();
    assert_eq!(clean(&["inspect", path(&model), "--tensors", "--metadata"]).code, 0);
}

/// A copy of a checkpoint in a folder with a wild name.
fn folder(dir: &Path, name: &str) -> PathBuf {
    let folder = dir.join(EVIL);
    fs::create_dir(&folder).unwrap();
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)).unwrap()
    {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

#[test]
fn of_a_hugging_face_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), "models/llama-hd64-gqa2");
    let file = |name: &str| folder.join(name);
    let config: Json = serde_json::from_slice(&fs::read(file("config.json")).unwrap()).unwrap();
    let put = |name: &str, value: &Json| fs::write(file(name), value.to_string()).unwrap();
    clean_everywhere(&folder);
    let mut keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
    keys.extend(["rope_type", "hidden_act", "quantization_config", "layer_types", EVIL].map(String::from));
    for key in &keys {
        let mut changed = config.clone();
        changed[key] = json!(EVIL);
        put("config.json", &changed);
        clean(&["inspect", path(&folder)]);
        clean(&["inspect", path(&file("config.json"))]);
    }
    let mut changed = config.clone();
    changed["rope_scaling"] = json!({"rope_type": EVIL, EVIL: EVIL});
    put("config.json", &changed);
    assert_eq!(clean(&["plan", path(&folder)]).code, 1);
    put("config.json", &config);
    for (name, value) in [
        ("generation_config.json", json!({"eos_token_id": EVIL, "temperature": EVIL})),
        ("config_sentence_transformers.json", json!({"prompts": {EVIL: EVIL}, "default_prompt_name": EVIL})),
        ("modules.json", json!([{"type": EVIL, "path": EVIL}])),
        ("tokenizer.json", json!({"model": {"type": EVIL}, "added_tokens": [{"content": EVIL}]})),
        (
            "tokenizer_config.json",
            json!({"chat_template": format!("{{{{ raise_exception('{EVIL}') }}}}"), "eos_token": EVIL}),
        ),
    ] {
        put(name, &value);
        clean_everywhere(&folder);
        assert_eq!(clean(&["inspect", path(&file(name))]).code, 0);
        fs::remove_file(file(name)).unwrap();
    }
    fs::write(file("config.json"), format!("{{ {EVIL}")).unwrap();
    clean_everywhere(&folder);
    put("config.json", &config);
    fs::remove_file(file("model.safetensors")).unwrap();
    put(
        "model.safetensors.index.json",
        &json!({"weight_map": {EVIL: EVIL, "b": format!("{EVIL}.safetensors")}}),
    );
    assert_eq!(clean(&["inspect", path(&folder)]).code, 1);
}

#[test]
fn of_conversations_templates_and_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    scripted::write(&model, Some(&format!("{{{{ raise_exception('{EVIL}') }}}}")), &["Hello"]);
    let args = ["chat", path(&model), "--temp", "0", "--device", "cpu"];
    let talk = dir.path().join(format!("{EVIL}.json"));
    fs::write(&talk, json!([{"role": "user", "content": EVIL}]).to_string()).unwrap();
    let stdin = format!(
        "hello\n/load {}\n/history\n/system {EVIL}\n/system\n/{EVIL}\n/save /no/{EVIL}\n/stats\n",
        path(&talk).replace('\r', "")
    );
    let done = with_stdin(&args, stdin.as_bytes());
    assert_clean(&args, &done.stderr);
    assert!(done.stderr.contains("x\\u{1b}[2J"), "{}", done.stderr);

    let fake = FakeHub::new(&[("small-F32.gguf", b"no model"), (EVIL, b"x")]);
    let cache = dir.path().join(EVIL);
    for args in [
        &["pull", crate::hub::NAME][..],
        &["pull", EVIL],
        &["run", "hf:a/b\u{1b}[2J", "x"],
        &["models", "--files"],
    ] {
        let done = finish(crate::hub::command(&fake, &cache, args));
        assert_clean(args, &done.stdout);
        assert_clean(args, &done.stderr);
    }
    // An unknown command whose name is that of a file.
    assert_clean(&[EVIL], &finish(akunu(&[EVIL])).stderr);
}
