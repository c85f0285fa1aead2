//! `inspect` of files that cannot be run: what can be read is shown.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::{Path, PathBuf};

use akunu_format::{DType, GgufWriter, Metadata, TensorSpec, Value};
use serde_json::Value as Json;

use crate::common::{json, ok, path, refuses, write_small_model};

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama-hd64-gqa2").join(name)
}

/// The JSON of a file, whose listing has these words.
#[track_caller]
fn shown(file: &Path, words: &[&str]) -> Json {
    let listing = ok(&["inspect", path(file), "--tensors", "--metadata"]);
    for word in words {
        assert!(listing.contains(word), "{word:?} is not in {listing}");
    }
    let found = json(&["inspect", path(file), "--tensors", "--metadata", "--json"]);
    assert_eq!(found["supported"], false);
    found
}

#[test]
fn a_vocabulary_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vocabulary.gguf");
    let model = akunu::Model::embedded().unwrap();
    let bytes = GgufWriter::new(Vec::new(), model.metadata().unwrap(), Vec::new()).unwrap().finish().unwrap();
    fs::write(&file, bytes).unwrap();
    let tokens = model.config().vocab_size;
    let found = shown(&file, &["vocabulary (GGUF)", "a GGUF file without tensors", "llama.block_count"]);
    let vocabulary = found["facts"]["vocabulary"].as_str().unwrap().replace(',', "");
    assert!(vocabulary.ends_with(&format!(" {tokens} tokens")), "{vocabulary}");
    assert!(found["weights"].is_null() && found["metadata"]["general.architecture"] == "llama", "{found}");
}

#[test]
fn unknown_architectures_and_types_have_metadata_and_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("martian.gguf");
    let change = |metadata: &mut Metadata| {
        metadata.insert("general.architecture", text("martian"));
        metadata.insert("martian.arms", Value::U32(6));
    };
    write_small_model(&file, change, None);
    let found = shown(
        &file,
        &["model (GGUF)", "cannot be run", "architecture", "martian.arms", "blk.0.attn_q.weight"],
    );
    assert_eq!((&found["architecture"], &found["facts"]["martian.arms"]), (&"martian".into(), &6.into()));
    assert_eq!(found["tensors"].as_array().unwrap().len(), 11);
    assert_eq!(found["weights"]["parameters"], 16 * 32 + 7 * 32 * 32 + 3 * 32);
    assert!(found["reason"].as_str().unwrap().contains("martian"), "{found}");

    write_small_model(&file, |_| (), None);
    let mut bytes = fs::read(&file).unwrap();
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    // After the name: the number of dimensions, one dimension, and the type.
    let kind = at + name.len() + 4 + 8;
    bytes[kind..kind + 4].copy_from_slice(&34u32.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let found = shown(&file, &["tensor output_norm.weight is TQ1_0, which is not supported", "unknown"]);
    assert_eq!(found["weights"]["dtypes"]["TQ1_0"]["tensors"], 1);
}

#[test]
fn a_single_part_of_a_split_model_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model-00002-of-00003.gguf");
    let change = |metadata: &mut Metadata| {
        metadata.insert("split.no", Value::U16(1));
        metadata.insert("split.count", Value::U16(3));
    };
    write_small_model(&file, change, None);
    let found = shown(&file, &["part 2 of 3 of a split model", "part 1 of 3 is missing"]);
    assert_eq!(found["weights"]["tensors"], 11);
}

#[test]
fn an_importance_matrix_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("imatrix.gguf");
    let mut metadata = Metadata::default();
    metadata.insert("general.type", text("imatrix"));
    metadata.insert("imatrix.chunk_count", Value::U32(7));
    let specs = ["in_sum2", "counts"]
        .map(|name| TensorSpec::new(format!("blk.0.attn_q.weight.{name}"), DType::F32, [4]));
    let mut writer = GgufWriter::new(Vec::new(), &metadata, specs.to_vec()).unwrap();
    for _ in &specs {
        writer.tensor(|out| out.write_all(&[0; 16])).unwrap();
    }
    fs::write(&file, writer.finish().unwrap()).unwrap();
    let found =
        shown(&file, &["importance matrix (GGUF)", "imatrix.chunk_count", "blk.0.attn_q.weight.in_sum2"]);
    assert_eq!(
        (&found["facts"]["imatrix.chunk_count"], &found["weights"]["parameters"]),
        (&7.into(), &8.into())
    );
    assert_eq!(found["reason"], "it is for akunu quantize --imatrix");
}

#[test]
fn safetensors_need_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    fs::copy(testdata("model.safetensors"), &file).unwrap();
    let alone = shown(&file, &["weights (SafeTensors)", "without config.json", "model.embed_tokens.weight"]);
    let folder = shown(dir.path(), &["weights without a configuration", "files"]);
    assert_eq!(alone["tensors"], folder["tensors"]);
    assert!(alone["weights"]["bytes"].as_u64().unwrap() > 0);
    fs::write(dir.path().join("config.json"), r#"{"model_type": "martian", "arms": 6}"#).unwrap();
    let folder = shown(dir.path(), &["configuration (SafeTensors)", "martian", "arms"]);
    assert_eq!((&folder["facts"]["arms"], &folder["tensors"]), (&6.into(), &alone["tensors"]));

    fs::remove_file(dir.path().join("config.json")).unwrap();
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    refuses(&["inspect", path(&file)], 1, &["without config.json"]);
}

#[test]
fn json_files_are_recognised_by_their_keys() {
    let config = shown(&testdata("config.json"), &["configuration (JSON)", "hidden_size", "llama"]);
    assert_eq!(config["architecture"], "llama");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokenizer.json");
    let vocab: serde_json::Map<String, Json> =
        ('a'..='z').zip(0..).map(|(c, id)| (c.to_string(), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    fs::write(&file, tokenizer.to_string()).unwrap();
    let found = shown(&file, &["tokenizer (JSON)", "NFC, Lowercase", "Whitespace"]);
    assert_eq!((&found["facts"]["vocabulary"], &found["facts"]["type"]), (&26.into(), &"BPE".into()));
    assert!(!found["facts"]["read as"].as_str().unwrap().contains("not supported"), "{found}");
    let mut split = tokenizer.clone();
    split["normalizer"] = Json::Null;
    split["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r#""a"|\w+"#}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    fs::write(&file, split.to_string()).unwrap();
    shown(&file, &[r#"(the expression "a"|\w+)"#]);
    fs::write(&file, r#"{"some": [1, 2], "other": {"a": 1}}"#).unwrap();
    let found = shown(&file, &["an object (JSON)", "[1,2]", "1 keys"]);
    assert_eq!(found["facts"]["some"], serde_json::json!([1, 2]));
    fs::write(&file, "[1, 2, 3]").unwrap();
    shown(&file, &["an array of 3 values"]);
    fs::write(&file, "{ broken").unwrap();
    refuses(&["inspect", path(&file)], 1, &["a JSON file"]);
}

/// A piece of a SentencePiece vocabulary: its text and its kind.
fn piece(text: &str, kind: u8) -> Vec<u8> {
    let piece = [&[0x0a, text.len() as u8], text.as_bytes(), &[0x18, kind]].concat();
    [&[0x0a, piece.len() as u8], &piece[..]].concat()
}

#[test]
fn a_vocabulary_of_sentencepiece_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokenizer.model");
    let pieces =
        [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1), ("b", 4)].map(|(text, kind)| piece(text, kind));
    // The trainer's field 3 is the type: 1 for Unigram, 2 for BPE, 4 for characters.
    let with_type = |kind: u8| [&pieces.concat()[..], &[0x12, 2, 0x18, kind]].concat();
    for (kind, name) in [(1, "Unigram"), (2, "BPE")] {
        fs::write(&file, with_type(kind)).unwrap();
        let found = shown(&file, &["tokenizer (SentencePiece)", "cannot be run", name, "pieces", "eos id"]);
        let facts = &found["facts"];
        assert_eq!(
            (&facts["type"], &facts["pieces"], &facts["control pieces"]),
            (&name.into(), &5.into(), &2.into())
        );
        assert_eq!(
            (&facts["unknown id"], &facts["bos id"], &facts["eos id"]),
            (&0.into(), &1.into(), &2.into())
        );
        assert_eq!((&facts["user-defined pieces"], &facts["read as"]), (&1.into(), &name.into()));
    }
    fs::write(&file, with_type(4)).unwrap();
    shown(&file, &["tokenizer (SentencePiece)", "not supported", "character model"]);
    fs::write(&file, [0x0a, 200]).unwrap();
    refuses(&["inspect", path(&file)], 1, &["tokenizer.model"]);
}
