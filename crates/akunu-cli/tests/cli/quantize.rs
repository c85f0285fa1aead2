//! `quantize`: the files can be run, and invalid options are rejected before anything is written.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::fs;
use std::path::{Path, PathBuf};

use akunu_format::quantise::MIXES;
use akunu_format::{DType, Gguf};
use akunu_testing::some_of;

use crate::common::{ok, path, refuses, run, write_small_model};

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn embedded() -> PathBuf {
    repository("crates/akunu/embedded/akunu-tales.gguf")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn the_quantised_embedded_model_generates_stories() {
    let dir = tempfile::tempdir().unwrap();
    for (quant, alike) in [("Q8_0", true), ("F16", false), ("Q5_1", false), ("Q4_K_M", false)] {
        let file = dir.path().join(format!("{quant}.gguf"));
        let done = run(&["quantize", path(&embedded()), path(&file), "--type", quant]);
        assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{}", done.stderr);
        let story = ok(&["run", path(&file), "Once upon a time", "-n", "24", "--temp", "0", "-q"]);
        assert!(story.starts_with("Once upon a time") && story.len() > 40, "{quant}: {story}");
        if alike {
            assert_eq!(story, ok(&["run", "Once upon a time", "-n", "24", "--temp", "0", "-q"]), "{quant}");
        }
    }
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
}

#[test]
fn every_type_makes_a_file_that_can_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (dir.path().join("source.gguf"), dir.path().join("out.gguf"));
    ok(&["synth", "tiny", path(&source), "-q", "F32", "--layers", "2"]);
    for mix in some_of(MIXES, 2) {
        ok(&["quantize", path(&source), path(&file), "--type", mix.name, "--force"]);
        let gguf = Gguf::open(&file).unwrap();
        assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), Some(mix.file_type));
        let made = gguf.tensor("blk.1.ffn_up.weight").unwrap();
        // The type of this mix is that of experts, which the model has none of.
        let expected = if mix.name == "MXFP4_MOE" { DType::Q8_0 } else { mix.base };
        assert_eq!(made.dtype, expected, "{}", mix.name);
        let ids = ok(&["run", path(&file), "--prompt-ids", "1,2,3", "-n", "4", "--ids", "-q"]);
        assert_eq!(ids.split_whitespace().count(), 4, "{}: {ids}", mix.name);
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let make = |threads: &str| {
        let file = dir.path().join(threads);
        ok(&["quantize", path(&embedded()), path(&file), "--type", "q4_k_m", "-t", threads]);
        fs::read(file).unwrap()
    };
    assert!(make("1") == make("3"));
}

#[test]
fn a_dry_run_lists_the_mix_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (dir.path().join("source.gguf"), dir.path().join("out.gguf"));
    ok(&["synth", "tiny", path(&source), "-q", "F16", "--layers", "3"]);
    let listed = ok(&["quantize", path(&source), path(&file), "--type", "Q4_K_M", "--dry-run"]);
    insta::assert_snapshot!(listed);
    assert!(!file.exists());
}

#[test]
fn a_folder_becomes_a_file_with_another_files_vocabulary_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository("testdata/models/llama-hd64-gqa2");
    let file = dir.path().join("model.gguf");
    let base = ["quantize", path(&folder), path(&file), "--type", "Q8_0"];
    refuses(&base, 1, &["tokenizer.json", "--vocab", "--no-vocab"]);
    let tales = embedded();
    let other = [&base[..], &["--vocab", path(&tales)]].concat();
    refuses(&other, 1, &["tokens", "another model"]);
    assert!(names(dir.path()).is_empty());
    ok(&[&base[..], &["--no-vocab"]].concat());
    let ids = ok(&["run", path(&file), "--prompt-ids", "1,2,3", "-n", "2", "--ids", "-q", "--ignore-eos"]);
    assert_eq!(ids.split_whitespace().count(), 2);
    refuses(&["run", path(&file), "Once"], 1, &["token ids only"]);
}

/// Writes a vocabulary of letters for a model with 64 embeddings, and a config with its end token.
fn write_vocabulary(folder: &Path) {
    let mut texts: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##at"].map(String::from).into();
    texts.extend(('a'..='z').flat_map(|c| [c.to_string(), format!("##{c}")]));
    let special = |(id, text): (usize, &String)| {
        serde_json::json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let vocab: serde_json::Map<String, serde_json::Value> =
        texts.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": texts[..4].iter().enumerate().map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
    let config = r#"{"eos_token": "[SEP]", "sep_token": "[SEP]", "chat_template": "{{ 1 }}"}"#;
    fs::write(folder.join("tokenizer_config.json"), config).unwrap();
}

#[test]
fn a_folder_brings_its_own_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("folder"), dir.path().join("model.gguf"));
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(repository("testdata/models/llama-hd64-gqa2")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    write_vocabulary(&folder);
    ok(&["quantize", path(&folder), path(&file), "--type", "F32"]);
    let gguf = Gguf::open(&file).unwrap();
    assert_eq!(gguf.metadata().str("tokenizer.ggml.model").unwrap(), Some("bert"));
    assert_eq!(gguf.metadata().str("tokenizer.chat_template").unwrap(), Some("{{ 1 }}"));
    for text in ["the cat and the dog, naïve 中文", "  \n x<|end|>"] {
        let ids = |model: &Path| ok(&["tokenize", path(model), text]);
        assert_eq!(ids(&file), ids(&folder));
    }
    let story = |model: &Path| ok(&["run", path(model), "the cat", "-n", "5", "--temp", "0", "-q", "--ids"]);
    assert_eq!(story(&file), story(&folder));
}

#[test]
fn a_vocabulary_can_come_from_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("folder"), dir.path().join("model.gguf"));
    let model = akunu::Model::embedded().unwrap();
    ok(&["quantize", path(&embedded()), path(&folder), "--type", "Q8_0", "--vocab", path(&embedded())]);
    ok(&["quantize", path(&folder), path(&file), "--type", "Q8_0", "--force"]);
    let story = |file: &Path| ok(&["run", path(file), "Once", "-n", "9", "--temp", "0", "-q"]);
    assert_eq!(story(&file), story(&embedded()));
    assert_eq!(model.weights().tensors().len(), Gguf::open(&file).unwrap().tensors().len());
}

#[test]
fn rows_that_do_not_fit_get_a_type_that_does_and_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository("testdata/models/mistral-hd96-gqa2-window");
    let file = dir.path().join("model.gguf");
    let done = run(&["quantize", path(&folder), path(&file), "--type", "Q4_K", "--no-vocab"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains("not a multiple of 256"), "{}", done.stderr);
}

#[test]
fn quantising_twice_prints_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let done = run(&["quantize", path(&embedded()), path(&file), "--type", "Q4_0"]);
    assert!(done.stderr.contains("quantised already"), "{}", done.stderr);
}

#[test]
fn invalid_output_paths_are_rejected_early() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("model.gguf"), dir.path().join("out.gguf"));
    fs::copy(embedded(), &model).unwrap();
    let quantize = |from: &Path, to: &Path, more: &[&str], code: i32, words: &[&str]| {
        let base = ["quantize", path(from), path(to), "--type", "Q4_0"];
        refuses(&[&base[..], more].concat(), code, words);
    };
    let missing = dir.path().join("missing.gguf");
    quantize(&missing, &out, &[], 1, &["there is no file", "missing.gguf"]);
    quantize(&model, &model, &["--force"], 1, &["is a file of the model", "another output file"]);
    let roundabout = dir.path().join(".").join("model.gguf");
    quantize(&model, &roundabout, &["--force"], 1, &["is a file of the model"]);
    quantize(&model, dir.path(), &["--force"], 1, &["is a folder"]);
    quantize(&model, &dir.path().join("no/such/out.gguf"), &[], 1, &["cannot write", "no/such"]);
    fs::write(&out, "precious").unwrap();
    quantize(&model, &out, &[], 1, &["exists", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    let unknown = ["quantize", path(&model), path(&out), "--type", "Q9_K", "--force"];
    refuses(&unknown, 2, &["Q9_K", "Q4_K_M", "Q2_K", "BF16"]);
    assert_eq!(run(&["quantize", path(&model), path(&out)]).code, 2);
    assert_eq!(names(dir.path()).len(), 2, "{:?}", names(dir.path()));
    assert_eq!(fs::read(&model).unwrap(), fs::read(embedded()).unwrap());
}

#[test]
fn damaged_weights_are_named_and_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("nan.gguf"), dir.path().join("out.gguf"));
    write_small_model(&model, |_| {}, Some("blk.0.ffn_down.weight"));
    let words = ["blk.0.ffn_down.weight", "element 0 of row 0 is NaN"];
    refuses(&["quantize", path(&model), path(&out), "--type", "Q8_0"], 1, &words);
    assert_eq!(names(dir.path()), ["nan.gguf"]);
}
