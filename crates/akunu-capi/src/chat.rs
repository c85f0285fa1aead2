//! Conversations: reading them, and rendering them with the model's chat template.

use std::ffi::c_char;

use akunu::Error;
use akunu::chat::conversation::parse_with_rest;
use akunu::chat::{ChatTemplates, render};
use akunu_tokenizer::chat::Rendered;
use serde_json::{Map, Value as Json};

use crate::arguments::{AKUNU_TO_NULL, OutBuffer, optional_text, text};
use crate::boundary::{Failure, Status, guard};
use crate::model::{MODELS, Model};
use crate::structs::ModelHandle;

/// Renders a conversation with the model's chat template, as text to inspect. Use akunu_encode_chat for its tokens, and
/// akunu_generate_answer to answer it.
///
/// `conversation` is JSON: a list of messages in the form of the OpenAI API, or an object with `messages`, and optionally `tools`
/// and further variables of the template as `chat_template_kwargs`. `name` is the name of a template, or null for the default.
/// If `add_prompt` is not 0, the text ends with the prompt for an answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_apply_template(
    model: *const ModelHandle,
    conversation: *const c_char,
    name: *const c_char,
    add_prompt: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let rendered = unsafe { rendered(&model, conversation, name, add_prompt != 0) }?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(rendered.text.as_bytes()) }
    })
}

/// Tokenizes a conversation that is rendered as by akunu_apply_template. Special tokens that are spelled out in a message
/// are encoded as plain text, so a user cannot end a turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_encode_chat(
    model: *const ModelHandle,
    conversation: *const c_char,
    name: *const c_char,
    add_prompt: u32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let rendered = unsafe { rendered(&model, conversation, name, add_prompt != 0) }?;
        let ids = rendered.encode(model.tokenizer()?).map_err(Error::from)?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer: tokens, capacity, length: count }.fill(&ids) }
    })
}

/// # Safety
/// The texts end with a null character.
unsafe fn rendered(
    model: &Model,
    conversation: *const c_char,
    name: *const c_char,
    add_prompt: bool,
) -> Result<Rendered, Failure> {
    // SAFETY: guaranteed by the caller.
    let (messages, tools, variables) = unsafe { read_conversation(conversation) }?;
    // SAFETY: guaranteed by the caller.
    let name = unsafe { optional_text(name, "the template's name") }?;
    let templates =
        ChatTemplates::find(model.model.metadata(), model.path.as_deref()).map_err(Error::from)?;
    let template = templates.template(name, model.tokenizer()?).map_err(Error::from)?;
    Ok(render(&template, &messages, tools.as_deref(), add_prompt, &variables)?)
}

/// Messages, tools, and further variables of the template.
type Conversation = (Vec<Json>, Option<Vec<Json>>, Map<String, Json>);

/// # Safety
/// The text ends with a null character.
pub(crate) unsafe fn read_conversation(conversation: *const c_char) -> Result<Conversation, Failure> {
    // SAFETY: guaranteed by the caller.
    let conversation = unsafe { text(conversation, AKUNU_TO_NULL, "the conversation") }?;
    let (messages, mut fields) = parse_with_rest(conversation)?;
    let invalid = |what| Failure::new(Status::Template, format!("the conversation is invalid: {what}"));
    let tools = match fields.remove("tools") {
        None | Some(Json::Null) => None,
        Some(Json::Array(tools)) => (!tools.is_empty()).then_some(tools),
        Some(_) => return Err(invalid("\"tools\" is not a list")),
    };
    match fields.remove("chat_template_kwargs") {
        None | Some(Json::Null) => Ok((messages, tools, Map::new())),
        Some(Json::Object(variables)) => Ok((messages, tools, variables)),
        Some(_) => Err(invalid("\"chat_template_kwargs\" is not an object")),
    }
}
