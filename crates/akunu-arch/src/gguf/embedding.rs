//! GGUF metadata of embedding models and rerankers.

use akunu_format::{FormatError, TensorInfo};

use super::config::Keys;
use crate::facts::Fact;
use crate::{EmbeddingFacts, Pooling};

/// llama.cpp has no keys for prompts and text lengths; these are specific to this engine.
pub(crate) const MAX_TEXT_TOKENS: &str = "sentence_transformers.max_seq_length";
pub(crate) const LOWER_CASE: &str = "sentence_transformers.do_lower_case";
pub(crate) const PROMPT_NAMES: &str = "sentence_transformers.prompt_names";
pub(crate) const PROMPT_TEXTS: &str = "sentence_transformers.prompt_texts";
pub(crate) const DEFAULT_PROMPT: &str = "sentence_transformers.default_prompt_name";

pub(crate) const POOLING: &str = "pooling_type";
pub(crate) const LABELS: &str = "classifier.output_labels";
/// Pooling type of rerankers. How the score is computed depends on the classifier or on the next token's logits.
pub(crate) const RANK: u32 = 4;

pub(super) fn embedding_facts(
    keys: &Keys<'_>,
    tensors: &[TensorInfo],
) -> Result<EmbeddingFacts, FormatError> {
    let metadata = keys.metadata;
    let stated = match keys.usize(POOLING)? {
        Some(number) if number == RANK as usize => None,
        other => other,
    };
    let scores = tensors.iter().any(|tensor| tensor.name == "cls.output.weight");
    let strings = |key: &str| -> Result<Vec<String>, FormatError> {
        Ok(metadata.strings(key)?.iter().flat_map(|list| list.iter()).map(str::to_string).collect())
    };
    let (names, texts) = (strings(PROMPT_NAMES)?, strings(PROMPT_TEXTS)?);
    if names.len() != texts.len() {
        let problem = format!("it has {} entries, but `{PROMPT_TEXTS}` has {}", names.len(), texts.len());
        return Err(FormatError::key(PROMPT_NAMES, problem));
    }
    Ok(EmbeddingFacts {
        pooling: stated.map(|number| pooling(keys, POOLING, number)).transpose()?,
        prompts: names.into_iter().zip(texts).collect(),
        default_prompt: metadata.str(DEFAULT_PROMPT)?.map(str::to_string),
        classifier_pooling: if scores { classifier_pooling(keys)? } else { None },
        labels: if scores { strings(&keys.name(LABELS))? } else { Vec::new() },
        lower_case: metadata.bool(LOWER_CASE)?.unwrap_or(false),
        max_text_tokens: metadata.u32(MAX_TEXT_TOKENS)?.map(|most| most as usize).filter(|&most| most > 0),
    })
}

fn pooling(keys: &Keys<'_>, key: &str, number: usize) -> Result<Pooling, FormatError> {
    let known = u32::try_from(number).ok().and_then(Pooling::from_number);
    known.ok_or_else(|| keys.unsupported(key, format!("is {number}")))
}

fn classifier_pooling(keys: &Keys<'_>) -> Result<Option<Pooling>, FormatError> {
    let key = keys.of(Fact::ClassifierPooling);
    let stated = if key.is_empty() { None } else { keys.usize(key)? };
    let default = keys.card.gguf_default(Fact::ClassifierPooling).map(|number| number as usize);
    stated.or(default).map(|number| pooling(keys, key, number)).transpose()
}
