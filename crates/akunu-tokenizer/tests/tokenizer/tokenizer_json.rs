//! `tokenizer.json` files: which are done in the general form, and what is refused. `oracle/` compares ids and texts with
//! the library `tokenizers`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use akunu_tokenizer::{EncodeOptions, HfTokenizer, Sidecar, Tokenizer};
use serde_json::{Value, json};

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn read(test: &str, file: &str) -> Option<Value> {
    let path = akunu_testing::data(test, &format!("tokenizers/{file}"))?;
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
}

fn added(id: usize, content: &str, flags: &str) -> Value {
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    json!({"id": id, "content": content, "special": has("special"), "normalized": has("normalized"),
        "lstrip": has("lstrip"), "rstrip": has("rstrip"), "single_word": has("single_word")})
}

#[test]
fn unknown_files_use_the_general_form_and_give_the_reason() {
    let test = "unknown_files_use_the_general_form_and_give_the_reason";
    let Some(json) = read(test, "tiny/tiny_bpe_split_cl100k_tokenizer.json") else { return };
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 7] = [
        (
            |json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\S+|\s+"),
            "expression",
        ),
        (|json| json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = json!("MergedWithNext"), "split"),
        (|json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true), "space"),
        (|json| json["normalizer"] = json!({"type": "Lowercase"}), "Lowercase"),
        (
            |json| {
                let merge = &json["model"]["merges"][0];
                let made = match merge {
                    Value::String(pair) => pair.replace(' ', ""),
                    pair => format!("{}{}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
                };
                let id = json["model"]["vocab"][&made].as_u64().unwrap() as usize;
                json["added_tokens"].as_array_mut().unwrap().push(added(id, &made, "special"))
            },
            "special token",
        ),
        (
            |json| {
                let first = json["model"]["merges"][3].clone();
                json["model"]["merges"].as_array_mut().unwrap().push(first)
            },
            "duplicate",
        ),
        (
            |json| json["post_processor"] = json!({"type": "TemplateProcessing", "single": ["$A", "$A"], "pair": ["$A", "$B"], "special_tokens": {}}),
            "single",
        ),
    ];
    for (change, why) in changes {
        let mut json = json.clone();
        change(&mut json);
        let bytes = serde_json::to_vec(&json).unwrap();
        let ours = match HfTokenizer::from_bytes(&bytes, &Sidecar::default()) {
            Ok(ours) => ours,
            Err(error) => {
                assert!(why == "single" && error.to_string().contains("single"), "{error}");
                continue;
            }
        };
        assert!(ours.is_general() && ours.describe().contains(why), "{}", ours.describe());
    }
}

#[test]
fn decoders_over_several_tokens_are_refused() {
    let texts = ["u", "a", "▁a", "a▁", "▁", "▁▁b", "##", "##b", "b", "</w>"];
    let vocab: Value = texts.iter().enumerate().map(|(id, text)| (text.to_string(), json!(id))).collect();
    let file = |decoder: &Value| {
        let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "u"});
        let json = json!({"version": "1.0", "added_tokens": [], "model": model, "decoder": decoder});
        serde_json::to_vec(&json).unwrap()
    };
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let (marks, fuse, bytes) = (replace("▁", " "), json!({"type": "Fuse"}), json!({"type": "ByteLevel"}));
    let strip = |content: &str, start: usize, stop: usize| json!({"type": "Strip", "content": content, "start": start, "stop": stop});
    let sequence = |decoders: &[&Value]| json!({"type": "Sequence", "decoders": decoders});
    let pieces =
        |prefix: &str, cleanup: bool| json!({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup});
    for decoder in [
        sequence(&[&marks, &fuse, &strip(" ", 2, 0)]),
        sequence(&[&marks, &fuse, &strip(" ", 1, 1)]),
        sequence(&[&marks, &strip("a", 1, 0)]),
        sequence(&[&fuse, &replace("a▁", "x")]),
        sequence(&[&bytes, &replace("a", "x")]),
        sequence(&[&fuse, &pieces("##", true)]),
    ] {
        let error = HfTokenizer::from_bytes(&file(&decoder), &Sidecar::default()).unwrap_err().to_string();
        assert!(error.contains("decoder"), "{decoder}: {error}");
    }
}

/// Not timed: with quadratic run time this test would not finish.
#[test]
fn a_megabyte_of_any_text_is_encoded_quickly() {
    let test = "a_megabyte_of_any_text_is_encoded_quickly";
    let mut tokenizers = Vec::new();
    for file in [
        "gpt2.json",
        "llama2.json",
        "bert-base-uncased.json",
        "tiny/tiny_unigram_tokenizer.json",
        "tiny/tiny_bpe_bytelevel_noregex_tokenizer.json",
    ] {
        let Some(json) = read(test, file) else { return };
        let ours = HfTokenizer::from_bytes(&serde_json::to_vec(&json).unwrap(), &Sidecar::default()).unwrap();
        assert!(!ours.is_general());
        tokenizers.push((file, ours));
    }
    for unit in [" ", "\n", "a", "7", "中", "=", "e\u{301}", "\u{301}", "<", " a", "</s"] {
        let text = unit.repeat((1 << 20) / unit.len());
        for (file, tokenizer) in &tokenizers {
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, WHOLE).unwrap();
            println!("{file} {unit:?}: {} tokens, {:?}", ids.len(), start.elapsed());
        }
    }
}
