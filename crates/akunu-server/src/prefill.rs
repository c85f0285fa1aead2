//! Conversations whose last message is the assistant's and is continued.

use std::sync::Arc;

use akunu::chat::ToolChoice;
use serde_json::Value as Json;

use crate::fields::Fields;
use crate::job::{Conversation, Ending};
use crate::memory::{Charge, RequestMemory, copy_bytes};
use crate::refusal::Refusal;
use crate::response_format::RequestedFormat;

/// What cannot be combined with a continued message, or be continued.
enum Problem {
    NotAssistant,
    Calls,
    Empty,
    Thinking,
}

impl Problem {
    fn text(&self) -> &'static str {
        match self {
            Problem::NotAssistant => "the last message is not the assistant's",
            Problem::Calls => "the last message has tool calls: give their results",
            Problem::Empty => "the last message has no content: leave it out",
            Problem::Thinking => "reasoning precedes an answer, and this one has begun: turn 'thinking' off",
        }
    }
}

/// Why the last message cannot be continued.
fn problem(conversation: &Conversation) -> Option<Problem> {
    let last = conversation.messages.last().filter(|last| last["role"] == "assistant");
    let Some(last) = last else { return Some(Problem::NotAssistant) };
    let has_calls = last["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    let is_empty = last["content"].as_str().is_none_or(str::is_empty);
    let thinks = ["enable_thinking", "thinking"];
    let thinks = thinks.iter().any(|name| conversation.variables.get(*name) == Some(&Json::Bool(true)));
    match () {
        () if has_calls => Some(Problem::Calls),
        () if is_empty => Some(Problem::Empty),
        () if thinks => Some(Problem::Thinking),
        () => None,
    }
}

fn refuse(param: &str, problem: &Problem) -> Refusal {
    let message = format!("'{param}': the assistant's message cannot be continued: {}", problem.text());
    Refusal::invalid(message).param(param).code("invalid_value")
}

/// The ending that a request of OpenAI's protocol asks for, by the fields of vLLM. Without them, an
/// assistant's last message is continued, as llama.cpp does.
pub(crate) fn requested(fields: &Fields<'_>, conversation: &Conversation) -> Result<Ending, Refusal> {
    const CONTINUE: &str = "continue_final_message";
    const PROMPT: &str = "add_generation_prompt";
    let (continues, prompt) = (fields.flag(CONTINUE)?, fields.flag(PROMPT)?);
    match (continues, prompt) {
        (Some(true), Some(true)) => {
            let message = format!("'{CONTINUE}' together with '{PROMPT}' is contradictory: give one");
            Err(Refusal::invalid(message).param(CONTINUE).code("invalid_value"))
        }
        (Some(true), _) => match problem(conversation) {
            None => Ok(Ending::Open),
            Some(problem) => Err(refuse(CONTINUE, &problem)),
        },
        (Some(false), Some(false)) => Ok(Ending::Closed),
        (Some(false), _) | (None, Some(true)) => Ok(Ending::Answer),
        (None, prompt) => match implied(conversation)? {
            Ending::Answer if prompt == Some(false) => Ok(Ending::Closed),
            ending => Ok(ending),
        },
    }
}

/// The ending of a conversation whose request says nothing of it: an assistant's last message is continued if
/// it can be.
pub(crate) fn implied(conversation: &Conversation) -> Result<Ending, Refusal> {
    match problem(conversation) {
        None => Ok(Ending::Open),
        Some(Problem::Thinking) => {
            let message = "'messages' ends with the assistant's message, which is continued, and reasoning \
                           precedes an answer: turn reasoning off, or ask for a new answer \
                           ('continue_final_message': false)";
            Err(Refusal::invalid(message).param("messages").code("invalid_value"))
        }
        Some(_) => Ok(Ending::Answer),
    }
}

/// The ending in a protocol that always continues an assistant's last message.
pub(crate) fn always(conversation: &Conversation) -> Result<Ending, Refusal> {
    match problem(conversation) {
        None => Ok(Ending::Open),
        Some(Problem::NotAssistant) => Ok(Ending::Answer),
        Some(problem @ Problem::Thinking) => Err(refuse("thinking", &problem)),
        Some(problem) => Err(refuse("messages", &problem)),
    }
}

/// Takes the memory for the copy of the messages of which the last one is changed to be rendered.
pub(crate) fn charge(conversation: &Conversation, memory: &Arc<RequestMemory>) -> Result<Charge, Refusal> {
    let charge = Charge::new(memory);
    if conversation.ending == Ending::Open {
        charge.take(conversation.messages.iter().map(copy_bytes).fold(0, usize::saturating_add))?;
    }
    Ok(charge)
}

/// Refuses a format of the whole answer together with a beginning that is given.
pub(crate) fn check_format(
    conversation: &Conversation,
    format: Option<&RequestedFormat>,
) -> Result<(), Refusal> {
    if conversation.ending == Ending::Open && conversation.tool_choice != ToolChoice::Auto {
        let message = "'tool_choice' requires a call, and 'messages' ends with an answer that is continued: end \
                       with another message";
        return Err(Refusal::invalid(message).param("tool_choice").code("invalid_value"));
    }
    match format.filter(|_| conversation.ending == Ending::Open) {
        None => Ok(()),
        Some(RequestedFormat { param, .. }) => {
            let message = format!(
                "'{param}' is for whole answers, and 'messages' ends with one that is continued: end with another \
                 message"
            );
            Err(Refusal::invalid(message).param(*param).code("invalid_value"))
        }
    }
}
