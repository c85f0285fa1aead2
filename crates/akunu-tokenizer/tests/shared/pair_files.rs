//! Small tokenizers with each post-processor of the golden file for pairs of texts.

#![allow(clippy::unwrap_used)]

use akunu_tokenizer::{HfTokenizer, Sidecar, Tokenizer as _};
use serde_json::Value;

/// Made by `golden/pairs.py`.
pub fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/pairs.json")).unwrap()
}

/// A small tokenizer of the golden file, with one of its post-processors.
pub fn file(golden: &Value, model: &str, post: &str) -> Value {
    let mut file = golden["models"][model].clone();
    file["post_processor"] = golden["posts"][post].clone();
    file
}

pub fn both_ways(file: &Value) -> [HfTokenizer; 2] {
    let bytes = serde_json::to_vec(file).unwrap();
    let sidecar = Sidecar::default();
    let native = HfTokenizer::from_bytes(&bytes, &sidecar).unwrap();
    assert!(!native.is_general(), "{}", native.describe());
    [native, HfTokenizer::from_bytes_in_general_form(&bytes, &sidecar).unwrap()]
}
