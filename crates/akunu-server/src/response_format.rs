//! Reads the requested format of an answer, for all protocols.

use akunu::ResponseFormat;
use akunu::chat::ToolChoice;
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

/// Reads the format that a request of OpenAI's API asks for: in its own form, in vLLM's, or in llama.cpp's. Two are refused.
pub(crate) fn requested(fields: &Fields<'_>) -> Result<Option<RequestedFormat>, Refusal> {
    let response_format = fields.object("response_format")?;
    let within = response_format.map(|format| Fields::within(format, "response_format."));
    let mut all = Vec::from_iter(format(within.as_ref(), Some("json_schema"), "response_format")?);
    if let Some(outputs) = fields.object("structured_outputs")? {
        let outputs = Fields::within(outputs, "structured_outputs.");
        for (name, param, read) in STRUCTURED_OUTPUTS {
            all.extend(read(&outputs, name)?.map(|format| RequestedFormat { format, param }));
        }
    }
    for (param, read) in OTHER_FIELDS {
        all.extend(read(fields, param)?.map(|format| RequestedFormat { format, param }));
    }
    only(all)
}

/// The only one of several formats. Two are refused.
pub(crate) fn only(mut all: Vec<RequestedFormat>) -> Result<Option<RequestedFormat>, Refusal> {
    if let [one, other, ..] = &all[..] {
        let message = format!("'{}' together with '{}' is not supported: give one", one.param, other.param);
        return Err(Refusal::invalid(message).param(other.param).code("unsupported_parameter"));
    }
    Ok(all.pop())
}

type Read = fn(&Fields<'_>, &str) -> Result<Option<ResponseFormat>, Refusal>;

/// The fields of vLLM's `structured_outputs`.
const STRUCTURED_OUTPUTS: [(&str, &str, Read); 5] = [
    ("json", "structured_outputs.json", schema),
    ("json_object", "structured_outputs.json_object", any_object),
    ("regex", "structured_outputs.regex", regex),
    ("choice", "structured_outputs.choice", choice),
    ("grammar", "structured_outputs.grammar", grammar),
];

/// Earlier fields of vLLM, and llama.cpp's.
const OTHER_FIELDS: [(&str, Read); 6] = [
    ("guided_json", schema),
    ("guided_regex", regex),
    ("guided_choice", choice),
    ("guided_grammar", grammar),
    ("json_schema", schema),
    ("grammar", grammar),
];

/// Bytes of a schema in a string, with its white space.
const MAX_TEXT: usize = 1 << 20;

/// A JSON Schema, or a string that contains one.
fn schema(fields: &Fields<'_>, name: &str) -> Result<Option<ResponseFormat>, Refusal> {
    let refuse = || fields.refuse(name, "a JSON Schema, or a string that contains one");
    let schema = match fields.get(name) {
        None => return Ok(None),
        // Its values take many times its size, which is not charged to the request.
        Some(Json::String(text)) if text.len() > MAX_TEXT => {
            let message = format!("'{name}' has {} bytes, and the limit is {MAX_TEXT}", text.len());
            return Err(Refusal::invalid(message).param(name).code("invalid_schema"));
        }
        Some(Json::String(text)) => serde_json::from_str(text).map_err(|_| refuse())?,
        Some(schema) => schema.clone(),
    };
    match schema {
        Json::Object(_) | Json::Bool(_) => Ok(Some(ResponseFormat::Schema(schema))),
        _ => Err(refuse()),
    }
}

fn any_object(fields: &Fields<'_>, name: &str) -> Result<Option<ResponseFormat>, Refusal> {
    Ok(fields.flag(name)?.filter(|flag| *flag).map(|_| ResponseFormat::Object))
}

fn regex(fields: &Fields<'_>, name: &str) -> Result<Option<ResponseFormat>, Refusal> {
    Ok(fields.text(name)?.map(|text| ResponseFormat::Regex(text.into())))
}

fn choice(fields: &Fields<'_>, name: &str) -> Result<Option<ResponseFormat>, Refusal> {
    let Some(list) = fields.list(name)? else { return Ok(None) };
    let texts: Option<Vec<String>> = list.iter().map(|text| text.as_str().map(String::from)).collect();
    let texts = texts.ok_or_else(|| fields.refuse(name, "a list of strings"))?;
    Ok(Some(ResponseFormat::Choice(texts)))
}

/// A grammar in llama.cpp's syntax or in Lark's. An empty one counts as absent.
fn grammar(fields: &Fields<'_>, name: &str) -> Result<Option<ResponseFormat>, Refusal> {
    let text = fields.text(name)?.filter(|text| !text.trim().is_empty());
    Ok(text.map(ResponseFormat::from_grammar))
}

/// Requires a call of one of the conversation's tools, or of the one named `only`.
pub(crate) fn require_call(
    conversation: &mut Conversation,
    only: Option<&str>,
    param: &'static str,
) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::invalid(message).param(param).code("invalid_value"));
    let tools = conversation.tools.as_deref().unwrap_or_default();
    let has = |name: &str| tools.iter().any(|tool| tool["function"]["name"] == name);
    conversation.tool_choice = match only {
        Some(only) if !has(only) => return Err(not_in_tools(param, only)),
        None if tools.is_empty() => {
            return refuse(format!("'{param}' requires a tool call, and 'tools' is empty"));
        }
        Some(only) => ToolChoice::Named(only.into()),
        None => ToolChoice::Required,
    };
    Ok(())
}

/// A name in `param` that no tool has.
pub(crate) fn not_in_tools(param: &str, name: &str) -> Refusal {
    let message = format!("'{param}' names \"{name}\", which is not in 'tools'");
    Refusal::invalid(message).param(param).code("invalid_value")
}
