//! Classifier settings in `config.json`.

use akunu_format::{FormatError, TensorInfo, printable};

use super::config::Fields;
use crate::facts::Fact;
use crate::{EmbeddingFacts, Pooling};

/// Empty unless the weights contain a classifier: configurations of other models have such fields too.
pub(super) fn classifier_facts(
    fields: &Fields<'_>,
    tensors: &[TensorInfo],
) -> Result<EmbeddingFacts, FormatError> {
    let Some(output) = tensors.iter().find(|tensor| tensor.name == "cls.output.weight") else {
        return Ok(EmbeddingFacts::default());
    };
    let scores = output.shape.first().copied().unwrap_or(0);
    Ok(EmbeddingFacts {
        classifier_pooling: pooling(fields)?,
        labels: labels(fields, scores)?,
        ..EmbeddingFacts::default()
    })
}

fn pooling(fields: &Fields<'_>) -> Result<Option<Pooling>, FormatError> {
    let key = fields.key(Fact::ClassifierPooling);
    let stated = if key.is_empty() { None } else { fields.text.str(key)? };
    let Some(name) = stated else {
        let default = fields.kind.default(Fact::ClassifierPooling);
        return Ok(default.and_then(|number| Pooling::from_number(number as u32)));
    };
    let known = Pooling::from_name(name);
    known.map(Some).ok_or_else(|| fields.text.unsupported(key, format!("is {}", printable(name))))
}

/// `id2label`, if it has a label for every score.
fn labels(fields: &Fields<'_>, scores: usize) -> Result<Vec<String>, FormatError> {
    let Some(names) = fields.text.object("id2label")? else { return Ok(Vec::new()) };
    let mut labels = Vec::new();
    for id in 0..scores.min(names.keys().count()) {
        match names.str(&id.to_string())? {
            Some(label) => labels.push(label.to_string()),
            None => break,
        }
    }
    Ok(if labels.len() == scores { labels } else { Vec::new() })
}
