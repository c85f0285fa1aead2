//! How much a request wants the model to reason.

use serde_json::{Map, Value as Json};

use crate::fields::Fields;
use crate::refusal::Refusal;

/// OpenAI's values of an effort.
pub(crate) const OPENAI: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Anthropic's.
pub(crate) const ANTHROPIC: &[&str] = &["low", "medium", "high", "xhigh", "max"];
/// Ollama's, beside true and false.
pub(crate) const OLLAMA: &[&str] = &["low", "medium", "high", "max"];

/// Sets the variables of templates to the effort in a field, which must be one of `efforts`.
pub(crate) fn set_effort(
    fields: &Fields<'_>,
    name: &str,
    efforts: &[&str],
    variables: &mut Map<String, Json>,
) -> Result<(), Refusal> {
    let Some(effort) = fields.one_of(name, efforts)? else { return Ok(()) };
    variables.insert("reasoning_effort".into(), effort.into());
    if effort == "none" {
        variables.insert("enable_thinking".into(), false.into());
    }
    Ok(())
}
