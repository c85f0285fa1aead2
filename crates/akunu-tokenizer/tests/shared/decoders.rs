//! Files that differ in their decoder only.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

/// The tokens of [`decoder_file`].
pub const DECODED: [&str; 10] = ["u", "a", "▁a", "a▁", "▁", "▁▁b", "##", "##b", "b", "</w>"];

pub fn decoder_file(decoder: &Value) -> Vec<u8> {
    let vocab: Value = DECODED.iter().enumerate().map(|(id, text)| (text.to_string(), json!(id))).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "u"});
    let json = json!({"version": "1.0", "added_tokens": [], "model": model, "decoder": decoder});
    serde_json::to_vec(&json).unwrap()
}

pub fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

pub fn strip(content: &str, start: usize, stop: usize) -> Value {
    json!({"type": "Strip", "content": content, "start": start, "stop": stop})
}

pub fn sequence(decoders: &[&Value]) -> Value {
    json!({"type": "Sequence", "decoders": decoders})
}

pub fn pieces(prefix: &str, cleanup: bool) -> Value {
    json!({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup})
}
