//! The general form of `tokenizer.json`. `oracle/` compares it with the library `tokenizers` for any files and texts.

#![allow(clippy::unwrap_used)]

use akunu_tokenizer::{EncodeOptions, HfTokenizer, Sidecar, Tokenizer};
use serde_json::{Value, json};

/// Texts with special tokens, and as plain text.
const OPTIONS: [EncodeOptions; 2] = [
    EncodeOptions { add_special: true, parse_special: true },
    EncodeOptions { add_special: false, parse_special: false },
];

/// Made by `oracle/src/goldens.rs`: a line with all models, then files of random parts.
#[test]
fn files_of_random_parts_give_the_librarys_ids() {
    let lines: Vec<Value> = serde_json::from_str(include_str!("../golden/general_form.json")).unwrap();
    for line in &lines[1..] {
        let mut file = line["file"].clone();
        file["model"] = lines[0][file["model"].as_u64().unwrap() as usize].clone();
        let (file, sidecar) = (file.to_string(), Sidecar::default());
        for tokenizer in [HfTokenizer::from_bytes, HfTokenizer::from_bytes_in_general_form] {
            let tokenizer = tokenizer(file.as_bytes(), &sidecar).unwrap();
            for (text, expected) in line["texts"].as_object().unwrap() {
                let found = OPTIONS.map(|options| tokenizer.encode(text, options).ok());
                assert_eq!(json!(found), *expected, "{} in {text:?}", line["file"]);
            }
        }
    }
}

/// Files that are done in one pass, with some of their settings changed.
#[test]
fn known_files_give_the_ids_of_their_general_form() {
    let golden: Value = serde_json::from_str(include_str!("../golden/pairs.json")).unwrap();
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let level = |prefix: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let bert = |lower: bool, clean: bool| {
        json!({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": clean,
        "strip_accents": null, "lowercase": lower})
    };
    for (model, part, setting) in [
        ("bytes", "pre_tokenizer", level(true, true)),
        ("bytes", "pre_tokenizer", level(false, false)),
        ("bytes", "normalizer", json!({"type": "NFC"})),
        ("wordpiece", "normalizer", bert(false, true)),
        ("wordpiece", "normalizer", bert(true, false)),
        ("unigram", "pre_tokenizer", metaspace("always", true)),
        ("unigram", "pre_tokenizer", metaspace("never", false)),
    ] {
        let mut file = golden["models"][model].clone();
        file[part] = setting;
        let (file, sidecar) = (file.to_string(), Sidecar::default());
        let fast = HfTokenizer::from_bytes(file.as_bytes(), &sidecar).unwrap();
        let general = HfTokenizer::from_bytes_in_general_form(file.as_bytes(), &sidecar).unwrap();
        assert!(!fast.is_general() && general.is_general(), "{model} {part}: {}", fast.describe());
        for text in
            ["", " ", "the cats", " The  cat's\n", "e\u{301} é中文 ñ", "[SEP]the</s> [UNK]<s>", "a\u{0}b🚀"]
        {
            for options in OPTIONS {
                let found = [fast.encode(text, options).ok(), general.encode(text, options).ok()];
                assert_eq!(found[0], found[1], "{model} {part}: {text:?}");
            }
        }
    }
}

/// What cannot be read is refused by its name.
#[test]
fn parts_that_cannot_be_used_are_named() {
    let with = |key: &str, part: Value| {
        let model = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
        let mut file = json!({"version": "1.0", "model": model});
        file[key] = part;
        HfTokenizer::from_bytes(file.to_string().as_bytes(), &Sidecar::default()).unwrap_err().to_string()
    };
    let split = |pattern: Value| json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
    let regex = |text: &str| split(json!({"Regex": text}));
    for (error, expected) in [
        (with("version", json!("2.0")), "version 2.0"),
        (with("pre_tokenizer", json!({"type": "UnicodeScripts"})), "`UnicodeScripts`"),
        (with("pre_tokenizer", json!({"type": "FixedLength", "length": 0})), "`length`"),
        (with("pre_tokenizer", json!({"type": "Metaspace", "replacement": "ab"})), "`replacement`"),
        (with("pre_tokenizer", json!({"type": "Digits"})), "`individual_digits`"),
        (with("pre_tokenizer", json!({"type": "Punctuation", "behavior": "Gone"})), "`behavior`"),
        (with("pre_tokenizer", split(json!("a"))), "`Regex`"),
        (with("pre_tokenizer", regex("a(b")), "`a(b`"),
        (with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "?"})), "Base64"),
        (with("normalizer", json!({"type": "Replace", "pattern": {"String": "a"}})), "`content`"),
        (with("normalizer", json!({"a": 1})), "`normalizer`"),
        (with("model", json!({"type": "Unigram", "vocab": {"a": 0}})), "scores"),
        (
            with("model", json!({"type": "Unigram", "vocab": [["a", 0.5]], "unk_id": 7})),
            "`model.unk_id` is 7",
        ),
        (
            with("model", json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"})),
            "continuing_subword_prefix",
        ),
        (
            with("model", json!({"type": "WordLevel", "vocab": {"a": 0, "b": 0}, "unk_token": "a"})),
            "two tokens have the id 0",
        ),
        (with("model", json!({"type": "WordLevel", "vocab": {"a": 9000}, "unk_token": "a"})), "9000"),
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
