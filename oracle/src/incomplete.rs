//! Vocabularies that lack something do as the library does.

use akunu_format::{Array, Value};
use akunu_tokenizer::{EncodeOptions, HfTokenizer, Sidecar, TokenKind, Tokenizer, from_gguf};
use serde_json::json;

use crate::few_tokens::{few_bytes, few_bytes_file, first_token_files, gguf};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

#[test]
fn missing_bytes_are_dropped_as_in_the_tokenizers_crate_and_never_become_special() {
    let json = few_bytes_file();
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
    for json in first_token_files() {
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
