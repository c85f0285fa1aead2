//! Vocabularies of folders, written as GGUF and read back.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use akunu_format::{Gguf, GgufWriter, Value};
use akunu_tokenizer::{
    EncodeOptions, GgufVocabulary, NativeTokenizer, Tokenizer, TokenizerError, from_folder, from_gguf,
    gguf_vocabulary,
};

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// A folder with some files, from the test data or as given.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Folder {
        let path = std::env::temp_dir().join(format!("akunu-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(path.join(file), bytes).unwrap());
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Through a real file, as other programs would read it.
fn read_back(folder: &Path, vocabulary: &GgufVocabulary) -> NativeTokenizer {
    let path = folder.join("vocabulary.gguf");
    let file = std::fs::File::create(&path).unwrap();
    let mut metadata = vocabulary.metadata.clone();
    metadata.insert("general.architecture", Value::String("llama".into()));
    GgufWriter::new(file, &metadata, Vec::new()).unwrap().finish().unwrap();
    from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap()
}

fn texts() -> Vec<String> {
    let parts = [
        "The quick brown fox",
        "isn't",
        "HTTPServer2000",
        "3.14159",
        "Straße",
        "naïve café",
        "Ελληνικά",
        "Быстрая лиса",
        "中文文本",
        "日本語の。",
        "한국어",
        "العربية",
        "हिन्दी",
        "😀👍🏽",
        "½ ⅷ",
        "\n",
        "\n\n",
        "\t",
        "  ",
        "     ",
        "</s>",
        "<s>",
        "<|endoftext|>",
        "[SEP]",
        "<|im_end|>",
        "aaaaaaa",
        "▁",
        "<0x0A>",
        "==========",
        "\u{301}",
    ];
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut texts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
    for _ in 0..500 {
        texts.push(
            (0..1 + next(8)).map(|_| format!("{}{}", parts[next(parts.len())], ["", " "][next(2)])).collect(),
        );
    }
    texts.extend((0..120).map(|count| " ".repeat(count)));
    texts.extend((0..120).map(|count| "a".repeat(count)));
    texts
}

fn same_ids(name: &str, original: &dyn Tokenizer, again: &dyn Tokenizer, composed: bool) {
    for text in texts() {
        if composed && text.contains('\u{301}') {
            continue;
        }
        for options in [WHOLE, PLAIN] {
            assert_eq!(
                again.encode(&text, options).unwrap(),
                original.encode(&text, options).unwrap(),
                "{name} {text:?}"
            );
        }
    }
    let (a, b) = (again.special(), original.special());
    assert_eq!((a.add_bos, a.bos.filter(|_| a.add_bos)), (b.add_bos, b.bos.filter(|_| b.add_bos)), "{name}");
    // In encoder files the separator is also the end-of-text token.
    if original.describe() != "WordPiece" {
        assert_eq!(again.end_of_generation(), original.end_of_generation(), "{name}");
        assert_eq!(a.eos, b.eos, "{name}");
    }
}

#[test]
fn vocabularies_of_every_kind_round_trip() {
    let test = "vocabularies_of_every_kind_round_trip";
    let mut refused = Vec::new();
    let Some(cases) = akunu_testing::data(test, "tokenizers/tiny/hf_tokenizer_cases.json") else { return };
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&cases).unwrap()).unwrap();
    let mut files: Vec<PathBuf> = json
        .as_object()
        .unwrap()
        .values()
        .map(|family| cases.with_file_name(family["tokenizer"].as_str().unwrap()))
        .collect();
    for name in ["llama2.json", "gpt2.json", "bert-base-uncased.json"] {
        files.push(cases.parent().unwrap().with_file_name(name));
    }
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        let target = if name.ends_with(".model") { "tokenizer.model" } else { "tokenizer.json" };
        let bytes = std::fs::read(&file).unwrap();
        let folder = Folder::new(&name, &[(target, &bytes)]);
        let original = from_folder(&folder.0).unwrap();
        let rows = original.vocab_size() + 3;
        match gguf_vocabulary(&folder.0, rows) {
            Ok(vocabulary) => {
                let again = read_back(&folder.0, &vocabulary);
                assert_eq!(again.vocab_size(), rows, "{name}");
                // These two files do not compose text, unlike the models of this family.
                let composed = name.contains("qwen35");
                assert_eq!(vocabulary.notes.len(), composed as usize, "{name}: {:?}", vocabulary.notes);
                assert!(vocabulary.notes.iter().all(|note| note.contains("NFC")), "{:?}", vocabulary.notes);
                same_ids(&name, &*original, &again, composed);
            }
            Err(error @ TokenizerError::NoGguf { .. }) => {
                println!("{name}: {error}");
                refused.push(name);
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    refused.sort();
    // A space prefix; `Digits` after bytes; word boundaries between marks; scores that do not follow from the merges;
    // single digits, which GGUF's DeepSeek groups; a regular expression that no GGUF pre-tokenizer has; whitespace
    // cleanup, which GGUF's `llama` does not do; Unigram without its SentencePiece file.
    assert_eq!(
        refused,
        [
            "tiny_bpe_bytelevel_noregex_tokenizer.json",
            "tiny_bpe_falcon_seq_tokenizer.json",
            "tiny_bpe_metaspace_pretok_tokenizer.json",
            "tiny_bpe_metaspace_tokenizer.json",
            "tiny_bpe_split_deepseek_tokenizer.json",
            "tiny_bpe_split_o200k_tokenizer.json",
            "tiny_spm_bpe.model",
            "tiny_unigram_tokenizer.json",
        ]
    );
}

#[test]
fn config_files_give_roles_ends_and_chat_templates() {
    let test = "config_files_give_roles_ends_and_chat_templates";
    let Some(json) = akunu_testing::data(test, "tokenizers/tiny/tiny_bpe_split_qwen2_tokenizer.json") else {
        return;
    };
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    let next = json["model"]["vocab"].as_object().unwrap().len();
    let token = |id: usize, content: &str, rstrip: bool| serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": rstrip, "normalized": false, "special": true});
    for (at, text) in ["<|stop|>", "<|halt|>", "<|over|>", "<|done|>"].into_iter().enumerate() {
        json["added_tokens"].as_array_mut().unwrap().push(token(next + at, text, at == 3));
    }
    let config = serde_json::json!({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"},
        "add_bos_token": true, "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tools", "template": "{{ tools }}"}]});
    let generation = serde_json::json!({"eos_token_id": [1, next, next + 1, next + 2]});
    let folder = Folder::new(
        "roles",
        &[
            ("tokenizer.json", &serde_json::to_vec(&json).unwrap()),
            ("tokenizer_config.json", &serde_json::to_vec(&config).unwrap()),
            ("generation_config.json", &serde_json::to_vec(&generation).unwrap()),
        ],
    );
    let GgufVocabulary { metadata, notes } = gguf_vocabulary(&folder.0, 512).unwrap();
    let id = |key: &str| metadata.u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
    assert_eq!((id("bos"), id("eos"), id("padding"), id("eot")), (Some(0), Some(1), Some(0), Some(1)));
    assert_eq!(id("eom"), Some(next as u32));
    assert_eq!(metadata.str("tokenizer.ggml.pre").unwrap(), Some("qwen2"));
    assert_eq!(metadata.str("tokenizer.chat_template").unwrap(), Some("{{ messages }}"));
    assert_eq!(metadata.str("tokenizer.chat_template.tools").unwrap(), Some("{{ tools }}"));
    assert_eq!(metadata.get("tokenizer.ggml.add_bos_token"), Some(&Value::Bool(true)));
    let said = notes.join("\n");
    // The name `qwen2` implies NFC.
    assert!(!said.contains("NFC") && said.contains("1 added tokens"), "{said}");
    assert!(said.contains(&format!("{} `<|halt|>`, {} `<|over|>`", next + 1, next + 2)), "{said}");
}

#[test]
fn unrepresentable_vocabularies_are_rejected_with_the_reason() {
    let test = "unrepresentable_vocabularies_are_rejected_with_the_reason";
    let Some(json) = akunu_testing::data(test, "tokenizers/tiny/tiny_bpe_bytelevel_tokenizer.json") else {
        return;
    };
    let bytes = std::fs::read(json).unwrap();
    let folder = Folder::new("refused", &[("tokenizer.json", &bytes)]);
    let error = gguf_vocabulary(&folder.0, 100).unwrap_err().to_string();
    assert!(error.contains("380 tokens, but the model has 100"), "{error}");
    std::fs::write(
        folder.0.join("tokenizer.json"),
        String::from_utf8(bytes).unwrap().replace("\"use_regex\": true", "\"use_regex\": false"),
    )
    .unwrap();
    let error = gguf_vocabulary(&folder.0, 400).unwrap_err().to_string();
    assert!(error.contains("no name for this pre-tokenizer"), "{error}");
    let empty = Folder::new("empty", &[]);
    assert!(matches!(gguf_vocabulary(&empty.0, 400), Err(TokenizerError::NoVocabulary { .. })));
}
