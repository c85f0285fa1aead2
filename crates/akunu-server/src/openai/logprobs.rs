//! Log probabilities in both of OpenAI's forms.

use akunu::schedule::TokenLogprob;
use akunu_tokenizer::Tokenizer;
use serde_json::{Map, Value as Json, json};

/// As `choices[].logprobs.content` of a chat completion.
pub(crate) fn of_chat(tokens: &[TokenLogprob], tokenizer: &dyn Tokenizer) -> Vec<Json> {
    let token = |id: u32, logprob: f32| {
        let bytes = bytes(tokenizer, id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": number(logprob), "bytes": bytes })
    };
    let entry = |of: &TokenLogprob| {
        let mut entry = token(of.id, of.logprob);
        entry["top_logprobs"] = of.top.iter().map(|&(id, logprob)| token(id, logprob)).collect();
        entry
    };
    tokens.iter().map(entry).collect()
}

/// As `choices[].logprobs` of a completion. `offset`: characters of text before these tokens; moved on past them.
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

/// What a token adds to a text; a control token is written out.
fn bytes(tokenizer: &dyn Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id) {
        Some(bytes) if !bytes.is_empty() => bytes.to_vec(),
        _ => tokenizer.token_text(id).unwrap_or_default().as_bytes().to_vec(),
    }
}

/// JSON has no infinity; OpenAI writes -9999 for what cannot be.
fn number(logprob: f32) -> Json {
    json!(if logprob.is_finite() { f64::from(logprob) } else { -9999.0 })
}
