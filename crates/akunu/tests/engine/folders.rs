//! Tokenizers in Hugging Face folders: where they are found, and those that do not match the model.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;

use crate::common::shared;
use akunu::Model;

/// A copy of the trained model's folder without a tokenizer.
fn folder() -> Option<tempfile::TempDir> {
    let source = shared("stories260K/hf")?;
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(folder.path().join(name), std::fs::read(source.join(name)).unwrap()).unwrap();
    }
    Some(folder)
}

fn reason(folder: &Path) -> String {
    Model::open(folder).unwrap().tokenizer().unwrap_err().to_string()
}

/// A bytes field of a protocol buffer, of at most 127 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// The vocabulary of a GGUF file in the format of SentencePiece.
fn model_file(gguf: &Model) -> Vec<u8> {
    let (tokenizer, metadata) = (gguf.tokenizer().unwrap(), gguf.metadata().unwrap());
    let scores = metadata.f32s("tokenizer.ggml.scores").unwrap().unwrap();
    let mut file = Vec::new();
    for (id, score) in (0u32..).zip(scores) {
        let mut piece = field(1, tokenizer.token_text(id).unwrap().as_bytes());
        piece.push(2 << 3 | 5);
        piece.extend(score.to_le_bytes());
        piece.extend([3 << 3, tokenizer.token_kind(id).unwrap() as u8]);
        file.extend(field(1, &piece));
    }
    file.extend(field(2, &[3 << 3, 2])); // BPE
    file.extend(field(3, &[4 << 3, 0])); // keep spaces
    file
}

#[test]
fn a_folder_with_a_tokenizer_encodes_like_its_gguf_file() {
    let Some(folder) = folder() else { return };
    let Some(gguf) = shared("stories260K/stories260K.gguf") else { return };
    let gguf = Model::open(gguf).unwrap();
    std::fs::write(folder.path().join("tokenizer.model"), model_file(&gguf)).unwrap();
    for path in [folder.path().to_path_buf(), folder.path().join("model.safetensors")] {
        let model = Model::open(path).unwrap();
        for text in ["Once upon a time, there was", " two  spaces", "", "naïve 😀"] {
            let ids = gguf.encode(text).unwrap();
            assert_eq!(model.encode(text).unwrap(), ids, "{text:?}");
            assert_eq!(model.decode(&ids).unwrap(), text);
        }
        assert!(model.eos_ids().contains(&2));
    }
}

#[test]
fn a_missing_or_wrong_tokenizer_is_reported() {
    let Some(folder) = folder() else { return };
    assert!(reason(folder.path()).contains("neither a tokenizer.json nor a tokenizer.model"));

    let json = folder.path().join("tokenizer.json");
    std::fs::write(&json, "not json").unwrap();
    assert!(reason(folder.path()).contains("`tokenizer.json` is not valid JSON"));
    for (vocabulary, expected) in [
        ("tokenizers/llama2.json", "32000 tokens and the embedding only 512 rows"),
        (
            "tokenizers/tiny/tiny_wordpiece_tokenizer.json",
            "smaller than the embedding, 255 tokens for 512 rows",
        ),
    ] {
        let Some(vocabulary) = shared(vocabulary) else { return };
        std::fs::write(&json, std::fs::read(vocabulary).unwrap()).unwrap();
        assert!(reason(folder.path()).contains(expected), "{}", reason(folder.path()));
    }
}
