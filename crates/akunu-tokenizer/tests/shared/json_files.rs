//! `tokenizer.json` files of the test data, and changed ones.

#![allow(clippy::unwrap_used)]

use akunu_tokenizer::{HfTokenizer, Sidecar, Tokenizer as _};
use serde_json::{Value, json};

pub fn read(test: &str, file: &str) -> Option<Value> {
    let path = akunu_testing::data(test, &format!("tokenizers/{file}"))?;
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
}

pub fn added(id: usize, content: &str, flags: &str) -> Value {
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    json!({"id": id, "content": content, "special": has("special"), "normalized": has("normalized"),
        "lstrip": has("lstrip"), "rstrip": has("rstrip"), "single_word": has("single_word")})
}

/// Changes of a file for which there is no quicker form, each with a word of the reason. Files that are refused are left out.
pub fn unknown_files(json: &Value) -> Vec<(&'static str, Value)> {
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
    let mut files = Vec::new();
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
        files.push((why, json));
    }
    files
}
