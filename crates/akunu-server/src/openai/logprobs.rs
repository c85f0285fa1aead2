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
        *offset += width(tokenizer, token.id, false);
        texts.push(written);
        let best = token.top.iter().map(|&(id, logprob)| (text(id), number(logprob)));
        tops.push(Json::Object(best.collect::<Map<_, _>>()));
    }
    let logprobs: Vec<Json> = tokens.iter().map(|token| number(token.logprob)).collect();
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// The same for a prompt and its continuation. The prompt's first token has no log probability, and its first
/// that is text begins it, so without the space that encoding adds there.
pub(super) fn of_echo(
    first: u32,
    (prompt, answer): (&[TokenLogprob], &[TokenLogprob]),
    tokenizer: &dyn Tokenizer,
) -> Json {
    let mut offset = width(tokenizer, first, true);
    let is_begun = tokenizer.token_bytes(first).is_some_and(|bytes| !bytes.is_empty());
    let mut all = match prompt.split_first() {
        Some((second, rest)) if !is_begun => {
            let space = width(tokenizer, second.id, false) - width(tokenizer, second.id, true);
            let mut all = of_completion(std::slice::from_ref(second), tokenizer, &mut offset);
            offset -= space;
            append(&mut all, of_completion(rest, tokenizer, &mut offset));
            all
        }
        _ => of_completion(prompt, tokenizer, &mut offset),
    };
    append(&mut all, of_completion(answer, tokenizer, &mut offset));
    let text = String::from_utf8_lossy(&bytes(tokenizer, first)).into_owned();
    for (name, value) in [
        ("tokens", text.into()),
        ("token_logprobs", Json::Null),
        ("top_logprobs", Json::Null),
        ("text_offset", 0.into()),
    ] {
        if let Some(list) = all[name].as_array_mut() {
            list.insert(0, value);
        }
    }
    all
}

/// vLLM's `prompt_logprobs`: for each token of a prompt an object of its log probability and the
/// alternatives', by their ids; null for the first. Ranks are those among the alternatives; null: none of
/// them.
pub(super) fn of_prompt(scores: &[TokenLogprob], best: usize, tokenizer: &dyn Tokenizer) -> Json {
    let entry = |id: u32, logprob: f32, rank: Option<usize>| {
        let text = String::from_utf8_lossy(&bytes(tokenizer, id)).into_owned();
        (id.to_string(), json!({ "logprob": number(logprob), "rank": rank, "decoded_token": text }))
    };
    let of_token = |score: &TokenLogprob| {
        let top = || score.top.iter().take(best).zip(1..);
        let mut all: Map<String, Json> =
            top().map(|(&(id, logprob), rank)| entry(id, logprob, Some(rank))).collect();
        if !top().any(|((id, _), _)| *id == score.id) {
            all.extend([entry(score.id, score.logprob, None)]);
        }
        Json::Object(all)
    };
    [Json::Null].into_iter().chain(scores.iter().map(of_token)).collect()
}

/// Appends the lists of log probabilities that follow.
fn append(all: &mut Json, more: Json) {
    let (Json::Object(all), Json::Object(more)) = (all, more) else { return };
    for (name, more) in more {
        if let (Some(Json::Array(list)), Json::Array(more)) = (all.get_mut(&name), more) {
            list.extend(more);
        }
    }
}

/// The characters that a token adds to a text, at its beginning or later. A control token adds none.
fn width(tokenizer: &dyn Tokenizer, id: u32, is_first: bool) -> usize {
    let bytes = if is_first { tokenizer.first_bytes(id) } else { tokenizer.token_bytes(id) };
    bytes.map_or(0, |bytes| String::from_utf8_lossy(bytes).chars().count())
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
