//! GGUF metadata of embedding models and rerankers.

use akunu_format::{Array, FormatError, Strings, TensorInfo, Value};

use super::metadata::Keys;
use crate::WeightProvider;
use crate::facts::Fact;
use crate::gguf::embedding::{
    DEFAULT_PROMPT, LABELS, LOWER_CASE, MAX_TEXT_TOKENS, POOLING, PROMPT_NAMES, PROMPT_TEXTS, RANK,
};

/// llama.cpp's key; it is in the tokenizer's namespace although it describes the model.
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type_count";

pub(super) fn describe(weights: &dyn WeightProvider, keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let facts = &weights.config().embedding;
    let rows = |name: &str| weights.tensor(name).map(TensorInfo::rows);
    if let Some(scores) = rows("cls.output.weight") {
        keys.put(POOLING, Value::U32(RANK));
        let named = facts.labels.len() == scores;
        let label = |at: usize| if named { facts.labels[at].clone() } else { format!("LABEL_{at}") };
        keys.put(LABELS, strings((0..scores).map(label)));
        if let Some(pooling) = facts.classifier_pooling {
            keys.put(keys.card.gguf_key(Fact::ClassifierPooling), Value::U32(pooling.number()));
        }
    } else if let Some(pooling) = facts.pooling {
        keys.put(POOLING, Value::U32(pooling.number()));
    }
    for tensor in weights.tensors() {
        let Some(number) = tensor.name.strip_prefix("dense_").and_then(|rest| rest.strip_suffix(".weight"))
        else {
            continue;
        };
        keys.number(&format!("dense_{number}_feat_in"), tensor.cols())?;
        keys.number(&format!("dense_{number}_feat_out"), tensor.rows())?;
    }
    if !facts.prompts.is_empty() {
        keys.out.insert(PROMPT_NAMES, strings(facts.prompts.iter().map(|(name, _)| name.clone())));
        keys.out.insert(PROMPT_TEXTS, strings(facts.prompts.iter().map(|(_, text)| text.clone())));
    }
    if let Some(name) = &facts.default_prompt {
        keys.out.insert(DEFAULT_PROMPT, Value::String(name.clone()));
    }
    if facts.lower_case {
        keys.out.insert(LOWER_CASE, Value::Bool(true));
    }
    if let Some(most) = facts.max_text_tokens.and_then(|most| u32::try_from(most).ok()) {
        keys.out.insert(MAX_TEXT_TOKENS, Value::U32(most));
    }
    Ok(())
}

/// The number of token types, if the model has any.
pub(super) fn token_types(weights: &dyn WeightProvider) -> Option<(&'static str, Value)> {
    let rows = weights.tensor("token_types.weight")?.rows();
    Some((TOKEN_TYPES, Value::U32(u32::try_from(rows).ok()?)))
}

fn strings(texts: impl Iterator<Item = String>) -> Value {
    Value::Array(Array::Strings(texts.collect::<Strings>()))
}
