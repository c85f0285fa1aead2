//! Log probabilities in OpenAI's two formats.

use akunu::schedule::TokenLogprob;
use akunu_tokenizer::Tokenizer;
use serde_json::{Map, Value as Json, json};

/// `choices[].logprobs.content` of a chat completion.
pub(crate) fn of_chat(tokens: &[TokenLogprob], tokenizer: &dyn Tokenizer) -> Vec<Json> {
    let token = |id: u32, logprob: f32| {
        let bytes = bytes(tokenizer, id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": number(logprob), "bytes": bytes })
    };
    let entry = |logprob: &TokenLogprob| {
        let mut entry = token(logprob.id, logprob.logprob);
        entry["top_logprobs"] = logprob.top.iter().map(|&(id, logprob)| token(id, logprob)).collect();
        entry
    };
    tokens.iter().map(entry).collect()
}

/// `choices[].logprobs` of a completion. `offset` is the number of characters before these tokens, and is advanced past them.
pub(super) fn of_completion(tokens: &[TokenLogprob], tokenizer: &dyn Tokenizer, offset: &mut usize) -> Json {
    let text = |id: u32| String::from_utf8_lossy(&bytes(tokenizer, id)).into_owned();
    let (mut texts, mut offsets, mut tops) = (Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let written = text(token.id);
        offsets.push(*offset);
        *offset += written.chars().count();
        texts.push(written);
        let best = token.top.iter().map(|&(id, logprob)| (text(id), number(logprob)));
        tops.push(Json::Object(best.collect::<Map<_, _>>()));
    }
    let logprobs: Vec<Json> = tokens.iter().map(|token| number(token.logprob)).collect();
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// The bytes of a token; for a control token, its name.
fn bytes(tokenizer: &dyn Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id) {
        Some(bytes) if !bytes.is_empty() => bytes.to_vec(),
        _ => tokenizer.token_text(id).unwrap_or_default().as_bytes().to_vec(),
    }
}

/// JSON has no infinity; OpenAI writes -9999 for impossible tokens.
fn number(logprob: f32) -> Json {
    json!(if logprob.is_finite() { f64::from(logprob) } else { -9999.0 })
}
