//! Reads the conversations of OpenAI's API.

use akunu::chat::conversation::normalise;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::Conversation;
use crate::prefill;
use crate::refusal::Refusal;

/// A conversation whose contents are texts and whose tool calls have objects for arguments.
pub(crate) fn conversation(messages: &[Json]) -> Result<Conversation, Refusal> {
    if messages.is_empty() {
        return Err(refuse("messages", "is empty"));
    }
    let messages = normalise(messages).map_err(|invalid| refuse(invalid.place, &invalid.problem))?;
    Ok(Conversation { messages, ..Conversation::default() })
}

/// Reads messages, tools and template variables of a request.
pub(crate) fn conversation_of(fields: &Fields<'_>) -> Result<Conversation, Refusal> {
    let list = fields.list("messages")?.ok_or_else(|| {
        Refusal::invalid("'messages' is missing: give a list of messages")
            .param("messages")
            .code("missing_required_parameter")
    })?;
    let mut conversation = conversation(list)?;
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    if tools.is_some_and(|tools| !tools.iter().all(Json::is_object)) {
        return Err(fields.refuse("tools", "a list of objects"));
    }
    let may_call = fields.get("tool_choice").is_none_or(|choice| choice != "none");
    conversation.tools = tools.filter(|_| may_call).map(<[Json]>::to_vec);
    if let Some(effort) = fields.text("reasoning_effort")? {
        conversation.variables.insert("reasoning_effort".into(), effort.into());
    }
    let variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    conversation.variables.extend(variables);
    conversation.ending = prefill::requested(fields, &conversation)?;
    Ok(conversation)
}

fn refuse(param: impl Into<String>, what: &str) -> Refusal {
    let param = param.into();
    Refusal::invalid(format!("'{param}' {what}")).param(param).code("invalid_value")
}
