//! The format that a request asks of its answer, whatever the protocol.

use akunu::constrain::{ResponseFormat, Tool};
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::Conversation;
use crate::refusal::Refusal;

/// A format, and the field of the request that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedFormat {
    pub format: ResponseFormat,
    pub param: &'static str,
}

/// `{"type": "json_schema", …}` with the schema at `within`, or `{"type": "json_object"}`.
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
            let missing = |name: &str| format.refuse(name, "an object, the JSON Schema of the answer");
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

/// A call of one of a conversation's tools, or of just this one.
pub(crate) fn call(
    conversation: &Conversation,
    only: Option<&str>,
    param: &'static str,
) -> Result<RequestedFormat, Refusal> {
    let refuse = |message: String| Refusal::invalid(message).param(param).code("invalid_value");
    let tools = conversation.tools.as_deref().unwrap_or_default();
    let named = tools.iter().filter_map(|tool| {
        let function = &tool["function"];
        let name = function["name"].as_str()?.to_string();
        let parameters = function.get("parameters").filter(|parameters| parameters.is_object()).cloned();
        Some(Tool { name, parameters })
    });
    let wanted: Vec<Tool> = named.filter(|tool| only.is_none_or(|only| tool.name == only)).collect();
    match (only, wanted.is_empty()) {
        (_, false) => Ok(RequestedFormat { format: ResponseFormat::Call(wanted), param }),
        (Some(only), true) => Err(refuse(format!("'{param}' names \"{only}\", which is none of the tools"))),
        (None, true) => Err(refuse(format!("'{param}' asks for a call, and there is no tool to call"))),
    }
}

/// Refuses a format beside tools that may be called: no grammar says "a call of a tool, or else this format".
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
                "'{param}' beside tools that may be called is not supported: leave one out, or force a call"
            );
            Err(Refusal::invalid(message).param(*param).code("unsupported_parameter"))
        }
    }
}
