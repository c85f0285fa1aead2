//! Vocabularies of a few tokens.

#![allow(clippy::unwrap_used)]

use akunu_format::{Array, Metadata, Strings, Value};
use akunu_tokenizer::TokenKind;
use serde_json::json;

pub fn gguf(model: &str, tokens: &[(&str, TokenKind)], more: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::String(model.into()));
    let texts: Strings = tokens.iter().map(|token| token.0).collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Strings(texts)));
    let kinds = tokens.iter().map(|token| token.1 as i32).collect();
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    for (key, value) in more {
        metadata.insert(*key, value.clone());
    }
    metadata
}

/// Byte-level tokens with the merges `a b` and `ab a`; most bytes are missing.
const FEW: [&str; 8] = ["<|endoftext|>", "a", "b", "Ġ", "ab", "aba", "Ã", "©"];

pub fn few_bytes(pre: &str) -> Metadata {
    let tokens: Vec<(&str, TokenKind)> = FEW.iter().map(|text| (*text, TokenKind::Normal)).collect();
    let mut tokens = tokens;
    tokens[0].1 = TokenKind::Control;
    let merges = Value::Array(Array::Strings(["a b", "ab a"].into_iter().collect()));
    let id = || Value::U32(0);
    let more = [
        ("tokenizer.ggml.merges", merges),
        ("tokenizer.ggml.pre", Value::String(pre.into())),
        ("tokenizer.ggml.unknown_token_id", id()),
        ("tokenizer.ggml.eos_token_id", id()),
    ];
    gguf("gpt2", &tokens, &more)
}

/// The same as a `tokenizer.json`.
pub fn few_bytes_file() -> Vec<u8> {
    let vocabulary: serde_json::Map<_, _> =
        FEW.iter().enumerate().map(|(id, text)| (text.to_string(), json!(id))).collect();
    let json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", "ab a"]},
    });
    serde_json::to_vec(&json).unwrap()
}

/// Files whose first token of a text is decoded otherwise than the others: by pieces of words, and by marks of spaces.
pub fn first_token_files() -> [serde_json::Value; 2] {
    let word_piece = json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##a": 2, ".": 3, "##.": 4, "n't": 5}},
    });
    let metaspace = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
        "model": {"type": "BPE", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "▁": 2, "▁▁": 3, "▁a": 4, "▁a▁": 5},
            "merges": ["▁ ▁", "▁ a", "▁a ▁"]},
    });
    [word_piece, metaspace]
}
