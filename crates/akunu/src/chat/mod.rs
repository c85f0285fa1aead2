//! Conversations. Only new messages are processed by the model.
//!
//! ```text
//! messages ─template─▶ text ─TokenizedHistory─▶ ids ─generate─▶ pieces ─AnswerReader─▶ reasoning, answer, calls ─▶ message
//! ```

mod adapted;
mod answer;
mod call_json;
mod call_literals;
mod call_stream;
mod call_tags;
mod calls;
mod chat_format;
pub mod conversation;
mod families;
mod generic_tools;
mod history;
mod prefill;
mod reasoning;
mod responder;
mod settings;
#[cfg(test)]
mod transcripts;

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::constraint::Constraints;
use crate::{Engine, Error, FinishReason, GenerateOptions, Session, Timings};
pub use akunu_tokenizer::chat::{ChatError, ChatTemplate, ChatTemplates, Rendered};
pub use answer::{AnswerDelta, AnswerOptions, AnswerReader, CallProgress, Draft, ToolChoice};
pub use calls::{Call, CallReader, OnSegment, Segment};
pub use chat_format::{ChatFormat, render};
use conversation::message;
pub use families::CallMarks;
pub use history::TokenizedHistory;
pub use prefill::render_open;
pub use reasoning::{Kind, OnPart, Part, Splitter, Tags};
pub use responder::{ChatPrompt, ChatRequest, Event, OnEvent, Responder, Response};
pub use settings::reads_effort;

/// A conversation, and the session in which it is answered.
#[derive(Debug)]
pub struct Chat {
    responder: Responder,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Json>,
    /// Tools that the model may call, and the format that its answers must have.
    pub answer: AnswerOptions,
    /// Where a conversation no longer fits the context: drop its oldest messages (never the system's) until a quarter of
    /// the context is free for the answer. [`Turn::forgotten`] counts them. Otherwise it is an error.
    pub forget_oldest: bool,
    messages: Vec<Json>,
    session: Session,
}

/// How a request was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub finish: FinishReason,
    pub timings: Timings,
    /// Messages that were dropped to make room.
    pub forgotten: usize,
    /// False: cancelled before the first token, so the conversation is unchanged.
    pub kept: bool,
}

impl Chat {
    /// Takes a free slot of the engine.
    pub fn new(engine: &mut Engine, template: ChatTemplate) -> Result<Chat, Error> {
        let chat_format = Arc::new(ChatFormat::new(engine.model(), template)?);
        let constraints = Constraints::new(engine.model().clone());
        Ok(Chat {
            responder: Responder::new(chat_format, constraints),
            session: engine.session()?,
            variables: Map::new(),
            answer: AnswerOptions::default(),
            forget_oldest: false,
            messages: Vec::new(),
        })
    }

    pub fn messages(&self) -> &[Json] {
        &self.messages
    }

    /// Replaces the conversation. What the two share is not prefilled again.
    pub fn set_messages(&mut self, messages: Vec<Json>) {
        self.messages = messages;
    }

    /// The content of the system message at the beginning, if there is one.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| is_system(first))?["content"].as_str()
    }

    pub fn set_system(&mut self, text: Option<&str>) {
        if self.messages.first().is_some_and(is_system) {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, message("system", text));
        }
    }

    /// Removes all messages except the system's.
    pub fn reset(&mut self) {
        let kept = self.messages.iter().take_while(|message| is_system(message)).count();
        self.messages.truncate(kept);
    }

    /// Keeps the conversation's blocks of the KV cache on disk, if there is a folder for that.
    pub fn keep(&mut self, engine: &mut Engine) -> Result<(), Error> {
        engine.keep_session(&mut self.session)
    }

    /// Tokens in the KV cache.
    pub fn context_used(&self) -> usize {
        self.session.len()
    }

    /// Answers a message of the user. After an error the conversation is unchanged.
    pub fn ask(
        &mut self,
        engine: &mut Engine,
        text: &str,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        self.push(engine, vec![message("user", text)], options, on_event)
    }

    /// Appends messages, such as the results of tool calls, and answers them. After an error the conversation is unchanged.
    pub fn push(
        &mut self,
        engine: &mut Engine,
        more: Vec<Json>,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let mut messages = self.messages.clone();
        messages.extend(more);
        self.turn(engine, messages, options, on_event)
    }

    /// Replaces the latest answer with another one. After an error the conversation is unchanged.
    pub fn regenerate(
        &mut self,
        engine: &mut Engine,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let mut messages = self.messages.clone();
        while messages.last().is_some_and(|last| last["role"] == "assistant") {
            messages.pop();
        }
        if messages.last().is_none_or(is_system) {
            return Err(Error::NothingToAnswer);
        }
        self.turn(engine, messages, options, on_event)
    }

    /// Answers `messages`, and makes them and the answer the conversation.
    fn turn(
        &mut self,
        engine: &mut Engine,
        mut messages: Vec<Json>,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let (prompt, forgotten) = self.prompt(&mut messages, engine.context())?;
        let Chat { responder, session, variables, answer, .. } = self;
        let request = ChatRequest { messages: &messages, variables, answer };
        let response = responder.respond(engine, session, &request, &prompt, options, on_event)?;
        let kept = response.message.is_some();
        if let Some(message) = response.message {
            messages.push(message);
            self.messages = messages;
        }
        Ok(Turn { finish: response.generated.finish, timings: response.generated.timings, forgotten, kept })
    }

    /// The prompt, and how many messages were dropped to make it fit.
    fn prompt(&mut self, messages: &mut Vec<Json>, context: usize) -> Result<(ChatPrompt, usize), Error> {
        let mut forgotten = 0;
        loop {
            let request = ChatRequest { messages, variables: &self.variables, answer: &self.answer };
            let prompt = self.responder.prompt(&request)?;
            let room = context.saturating_sub(prompt.ids.len());
            if self.forget_oldest && room < context / 4 {
                let oldest = forget_exchange(messages);
                forgotten += oldest;
                if oldest > 0 {
                    continue;
                }
            }
            return Ok((prompt, forgotten));
        }
    }
}

/// Drops the oldest message of the user and its answer, unless it is the last one.
fn forget_exchange(messages: &mut Vec<Json>) -> usize {
    let first = messages.iter().take_while(|message| is_system(message)).count();
    let is_user = |message: &Json| message["role"] == "user";
    match messages.iter().skip(first + 1).position(is_user) {
        Some(len) => messages.drain(first..=first + len).count(),
        None => 0,
    }
}

fn is_system(message: &Json) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}
