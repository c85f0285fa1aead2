//! Conversations to prompts.

use std::ffi::c_char;

use akunu::Error;
use akunu::chat::conversation::parse_with_rest;
use akunu::chat::{ChatTemplates, render};
use akunu_tokenizer::chat::Rendered;
use serde_json::{Map, Value as Json};

use crate::arguments::{AKUNU_TO_NULL, Room, text, wanted_text};
use crate::boundary::{Failure, Status, guard};
use crate::model::{MODELS, Model};
use crate::structs::ModelHandle;

/// A conversation as the model's own template writes it, for people to look at: akunu_encode_chat makes tokens of one.
///
/// `conversation` is JSON: a list of messages in the form of the OpenAI API, or an object with `messages`, and if wanted `tools`
/// and further variables of the template as `chat_template_kwargs`. `name` is that of a template, null for the usual one. With
/// `add_prompt` not 0 the text ends where the model is to answer.
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
        // SAFETY: the caller's word.
        let rendered = unsafe { rendered(&model, conversation, name, add_prompt != 0) }?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(rendered.text.as_bytes()) }
    })
}

/// The tokens of a conversation, as akunu_apply_template writes it. What reads like a special token in a message stays text:
/// nothing that a user writes ends a turn.
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
        // SAFETY: the caller's word.
        let rendered = unsafe { rendered(&model, conversation, name, add_prompt != 0) }?;
        let found = rendered.encode(model.tokenizer()?).map_err(Error::from)?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer: tokens, capacity, length: count }.fill(&found) }
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
    // SAFETY: the caller's word.
    let conversation = unsafe { text(conversation, AKUNU_TO_NULL, "the conversation") }?;
    // SAFETY: the caller's word.
    let name = unsafe { wanted_text(name, "the template's name") }?;
    let (messages, rest) = parse_with_rest(conversation)?;
    let (tools, variables) = beside_messages(rest)?;
    let templates =
        ChatTemplates::find(model.model.metadata(), model.path.as_deref()).map_err(Error::from)?;
    let template = templates.template(name, model.tokenizer()?).map_err(Error::from)?;
    Ok(render(&template, &messages, tools.as_deref(), add_prompt, &variables)?)
}

/// A conversation's tools, and further variables of the template.
type Beside = (Option<Vec<Json>>, Map<String, Json>);

/// What comes with a conversation's messages.
fn beside_messages(mut fields: Map<String, Json>) -> Result<Beside, Failure> {
    let refuse = |what| Failure::new(Status::Template, format!("this is not a saved conversation: {what}"));
    let tools = match fields.remove("tools") {
        None | Some(Json::Null) => None,
        Some(Json::Array(tools)) => Some(tools),
        Some(_) => return Err(refuse("\"tools\" is not a list")),
    };
    match fields.remove("chat_template_kwargs") {
        None | Some(Json::Null) => Ok((tools, Map::new())),
        Some(Json::Object(variables)) => Ok((tools, variables)),
        Some(_) => Err(refuse("\"chat_template_kwargs\" is not an object")),
    }
}
