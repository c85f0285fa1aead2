//! Reads the requested format of an answer, for all protocols.

use akunu::constrain::{ResponseFormat, Tool};
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::Conversation;
use crate::refusal::Refusal;

/// A format, and the field of the request that specifies it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedFormat {
    pub format: ResponseFormat,
    pub param: &'static str,
}

/// Reads `{"type": "json_object"}`, or `{"type": "json_schema", …}` with the schema in the field `within`.
pub(crate) fn format(
    format: Option<&Fields<'_>>,
    within: Option<&str>,
    param: &'static str,
) -> Result<Option<RequestedFormat>, Refusal> {
    let Some(format) = format else { return Ok(None) };
    let requested = |format| Ok(Some(RequestedFormat { format, param }));
    match format.text("type")? {
        Some("text") => Ok(None),
        Some("json_object") => requested(ResponseFormat::Object),
        Some("json_schema") => {
            let missing = |name: &str| format.refuse(name, "an object, a JSON Schema");
            let schema = match within {
                None => format.object("schema")?.ok_or_else(|| missing("schema"))?,
                Some(within) => {
                    let named = format.object(within)?.ok_or_else(|| missing(within))?;
                    let place = format!("{param}.{within}.");
                    let fields = Fields::within(named, &place);
                    fields.text("name")?;
                    fields.flag("strict")?;
                    let schema = named.get("schema").and_then(Json::as_object);
                    schema.ok_or_else(|| missing(&format!("{within}.schema")))?
                }
            };
            requested(ResponseFormat::Schema(Json::Object(schema.clone())))
        }
        _ => Err(format.refuse("type", "\"text\", \"json_object\" or \"json_schema\"")),
    }
}

/// A format that forces a call of one of the conversation's tools, or of the one named `only`.
pub(crate) fn call(
    conversation: &Conversation,
    only: Option<&str>,
    param: &'static str,
) -> Result<RequestedFormat, Refusal> {
    let refuse = |message: String| Refusal::invalid(message).param(param).code("invalid_value");
    let tools = conversation.tools.as_deref().unwrap_or_default();
    let named = tools.iter().filter_map(Tool::from_openai);
    let tools: Vec<Tool> = named.filter(|tool| only.is_none_or(|only| tool.name == only)).collect();
    match (only, tools.is_empty()) {
        (_, false) => Ok(RequestedFormat { format: ResponseFormat::Call(tools), param }),
        (Some(only), true) => Err(refuse(format!("'{param}' names \"{only}\", which is not in 'tools'"))),
        (None, true) => Err(refuse(format!("'{param}' requires a tool call, and 'tools' is empty"))),
    }
}

/// Refuses a format together with optional tool calls, which a grammar cannot combine.
pub(crate) fn check_one(
    requested: Option<&RequestedFormat>,
    conversation: &Conversation,
) -> Result<(), Refusal> {
    match requested.filter(|requested| {
        !matches!(requested.format, ResponseFormat::Call(_)) && conversation.tools.is_some()
    }) {
        None => Ok(()),
        Some(RequestedFormat { param, .. }) => {
            let message = format!(
                "'{param}' together with 'tools' is not supported: remove one, or force a call with 'tool_choice'"
            );
            Err(Refusal::invalid(message).param(*param).code("unsupported_parameter"))
        }
    }
}
