//! Vocabularies that lack something do as the library does.

use akunu_format::{Array, Metadata, Strings, Value};
use akunu_tokenizer::{EncodeOptions, HfTokenizer, Sidecar, TokenKind, Tokenizer, from_gguf};
use serde_json::json;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

fn gguf(model: &str, tokens: &[(&str, TokenKind)], more: &[(&str, Value)]) -> Metadata {
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

fn few_bytes(pre: &str) -> Metadata {
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

#[test]
fn missing_bytes_are_dropped_as_in_the_tokenizers_crate_and_never_become_special() {
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
    let json = serde_json::to_vec(&json).unwrap();
    let library = crate::library(&json);
    let ours = HfTokenizer::from_bytes(&json, &Sidecar::default()).unwrap();
    assert!(!ours.is_general(), "{}", ours.describe());
    let gguf = from_gguf(&few_bytes("gpt-2")).unwrap();
    for text in [
        "ab",
        "aba",
        "a\u{1}ba",
        "a\u{1}b",
        "\0",
        "é",
        "aèb",
        "xaxbx a",
        "日ab本a",
        "aжbжжa",
        "a\nb",
        "<|endoftext|",
        "",
    ] {
        let expected = library.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(ours.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        assert_eq!(gguf.encode(text, PLAIN).unwrap(), expected, "{text:?}");
        assert!(!expected.contains(&0), "{text:?}");
    }
    assert_eq!(gguf.encode("aжbжжa", PLAIN).unwrap(), [5]);
    assert!(gguf.encode("<|endoftext|>", PLAIN).unwrap().is_empty());
    assert_eq!(gguf.encode("a<|endoftext|>", SPECIAL).unwrap(), [1, 0]);
}

/// In the published `tokenizer.json` special tokens consume the whitespace after them (`rstrip`), except for these three.
#[test]
fn special_tokens_of_phi_3_consume_the_whitespace_after_them() {
    use TokenKind::{Control, Normal, Unknown};
    let special =
        [("<unk>", false), ("<s>", false), ("<|endoftext|>", false), ("<|user|>", true), ("<|end|>", true)];
    let words = ["▁", "a", "\n", "▁a"];
    let added: Vec<_> = (0..)
        .zip(special)
        .map(|(id, (text, strips)): (u32, _)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": strips,
                "normalized": false, "special": true})
        })
        .collect();
    let texts = special.iter().map(|token| token.0).chain(words);
    let vocabulary: serde_json::Map<_, _> =
        texts.clone().enumerate().map(|(id, text)| (text.to_string(), json!(id))).collect();
    let json = json!({
        "version": "1.0", "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "vocab": vocabulary, "merges": ["▁ a"]},
    });
    let library = crate::library(&serde_json::to_vec(&json).unwrap());
    let kind = |id: usize| [Unknown, Control, Control, Control, Control].get(id).copied().unwrap_or(Normal);
    let tokens: Vec<_> = texts.enumerate().map(|(id, text)| (text, kind(id))).collect();
    let more = [
        ("general.architecture", Value::String("phi3".into())),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![-1.0; tokens.len()]))),
    ];
    let tokenizer = from_gguf(&gguf("llama", &tokens, &more)).unwrap();
    for text in [
        "<|user|>\na<|end|>\n<|user|> \n a<|endoftext|>\na",
        "a <|end|>  ",
        "<s> a<s>\n",
        "<|end|><|end|>\n\na",
    ] {
        let expected = library.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(tokenizer.encode(text, SPECIAL).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn first_tokens_decode_as_in_the_tokenizers_crate() {
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
    for json in [word_piece, metaspace] {
        let json = serde_json::to_vec(&json).unwrap();
        let library = crate::library(&json);
        let ours = HfTokenizer::from_bytes(&json, &Sidecar::default()).unwrap();
        for a in 1..6 {
            for b in 1..6 {
                assert_eq!(ours.decode(&[a, b, a]), library.decode(&[a, b, a], true).unwrap(), "{a} {b}");
            }
        }
    }
}
