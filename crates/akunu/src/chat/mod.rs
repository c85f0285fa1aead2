//! Conversations: messages in, an answer out, and only what is new goes through the model.
//!
//! ```text
//! messages ─template─▶ text ─TokenizedHistory─▶ ids ─generate─▶ pieces ─AnswerReader─▶ reasoning, answer, calls ─▶ one message more
//! ```

mod answer;
mod call_tags;
mod calls;
pub mod conversation;
mod form;
mod history;
mod reasoning;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Map, Value as Json};

use crate::constrain::Constraints;
use crate::{Engine, Error, FinishReason, GenerateOptions, Session, Timings};
pub use akunu_tokenizer::chat::{ChatError, ChatTemplate, ChatTemplates, Rendered};
pub use answer::{AnswerDelta, AnswerOptions, AnswerReader, Draft};
pub use calls::{Call, CallMarks, CallReader, OnSpoken, Spoken};
use conversation::message;
pub use form::{ChatForm, render};
pub use history::TokenizedHistory;
pub use reasoning::{Kind, OnPart, Part, Splitter, Tags};

/// A conversation and the session that it goes through.
#[derive(Debug)]
pub struct Chat {
    form: ChatForm,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Json>,
    /// Where a conversation no longer fits the context: forget its oldest messages (never what the system says) until it
    /// leaves a quarter of the context for the answer. [`Turn::forgotten`] counts them. Otherwise it is an error.
    pub forget_oldest: bool,
    messages: Vec<Json>,
    session: Session,
    constraints: Constraints,
    history: TokenizedHistory,
}

/// Something that happens while an answer is made.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// So many tokens of the prompt are read.
    Reading {
        done: usize,
        total: usize,
    },
    Part(Part<'a>),
}

pub type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// What was said.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub finish: FinishReason,
    pub timings: Timings,
    /// Messages that were forgotten to make room.
    pub forgotten: usize,
    /// False: it was cancelled before anything was said, and the conversation is as before.
    pub kept: bool,
}

impl Chat {
    /// Takes a free slot of the engine.
    pub fn new(engine: &mut Engine, template: ChatTemplate) -> Result<Chat, Error> {
        Ok(Chat {
            form: ChatForm::new(engine.model(), template)?,
            session: engine.session()?,
            constraints: Constraints::new(engine.model().clone()),
            variables: Map::new(),
            forget_oldest: false,
            messages: Vec::new(),
            history: TokenizedHistory::default(),
        })
    }

    pub fn messages(&self) -> &[Json] {
        &self.messages
    }

    /// Goes on with another conversation. What the two share is not read again.
    pub fn set_messages(&mut self, messages: Vec<Json>) {
        self.messages = messages;
    }

    /// What the model was told before the conversation.
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

    /// Forgets everything but what the system says.
    pub fn reset(&mut self) {
        let kept = self.messages.iter().take_while(|message| is_system(message)).count();
        self.messages.truncate(kept);
    }

    /// Tokens that stand in the context.
    pub fn context_used(&self) -> usize {
        self.session.len()
    }

    /// Asks, and has the answer. After an error the conversation is as before.
    pub fn ask(
        &mut self,
        engine: &mut Engine,
        text: &str,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let mut messages = self.messages.clone();
        messages.push(message("user", text));
        self.turn(engine, messages, options, on_event)
    }

    /// Answers the last message anew. After an error the conversation is as before.
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

    fn turn(
        &mut self,
        engine: &mut Engine,
        messages: Vec<Json>,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let before = std::mem::replace(&mut self.messages, messages);
        let turn = self.answer(engine, options, on_event);
        if !matches!(&turn, Ok(turn) if turn.kept) {
            self.messages = before;
        }
        turn
    }

    /// Answers the messages that are there.
    fn answer(
        &mut self,
        engine: &mut Engine,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Turn, Error> {
        let (ids, text, forgotten) = self.prompt(engine.vocab_size(), engine.context())?;
        let mut options = options.clone();
        let wanted = AnswerOptions::default();
        let mut reader = self.form.answer(&text, &wanted, &self.constraints, &mut options)?;
        let feed = self.read(engine, &ids, options.cancel.as_deref(), on_event)?;

        let mut on_part = |part: Part<'_>| on_event(Event::Part(part));
        let mut generated = engine.generate(&mut self.session, &ids, &options, &mut |piece| {
            reader.push(piece.text, piece.ids.len(), &mut on_part).1
        })?;
        if generated.finish != FinishReason::Callback {
            reader.finish(&mut on_part);
        }
        let timings = &mut generated.timings;
        timings.prompt_s += feed.prompt_s;
        timings.ttft_s += feed.prompt_s;
        timings.reused_tokens -= feed.prompt_tokens.min(timings.reused_tokens);

        let kept = !generated.ids.is_empty() || generated.finish != FinishReason::Cancelled;
        if kept {
            self.remember(reader.draft(), &generated.ids, &generated.finish);
        }
        Ok(Turn { finish: generated.finish, timings: generated.timings, forgotten, kept })
    }

    /// The ids and the text of what is to be answered, and how many messages were forgotten for it to fit.
    fn prompt(&mut self, vocab: usize, context: usize) -> Result<(Vec<u32>, String, usize), Error> {
        let mut forgotten = 0;
        loop {
            let rendered = self.form.prompt(&self.messages, None, &self.variables)?;
            let ids = self.history.encode(&rendered, &**self.form.tokenizer())?.to_vec();
            let room = context.saturating_sub(ids.len());
            if self.forget_oldest && room < context / 4 {
                let oldest = self.forget_exchange();
                forgotten += oldest;
                if oldest > 0 {
                    continue;
                }
            }
            crate::check_prompt(&ids, vocab, context)?;
            return Ok((ids, rendered.text, forgotten));
        }
    }

    /// Forgets the oldest user's message and what was answered, unless it is the last.
    fn forget_exchange(&mut self) -> usize {
        let first = self.messages.iter().take_while(|message| is_system(message)).count();
        let asks = |message: &Json| message["role"] == "user";
        match self.messages.iter().skip(first + 1).position(asks) {
            Some(len) => self.messages.drain(first..=first + len).count(),
            None => 0,
        }
    }

    /// Reads all but the last pass of a long prompt, and tells of each pass. Generation then finds it in the session.
    fn read(
        &mut self,
        engine: &mut Engine,
        ids: &[u32],
        cancel: Option<&AtomicBool>,
        on_event: OnEvent<'_>,
    ) -> Result<Timings, Error> {
        let chunk = engine.plan().options.prefill_rows;
        let started = Instant::now();
        let shared = self.session.tokens().iter().zip(ids).take_while(|(a, b)| a == b).count();
        let mut done = shared;
        let is_cancelled = || cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        while done + chunk < ids.len() && !is_cancelled() {
            if on_event(Event::Reading { done, total: ids.len() }).is_break() {
                break;
            }
            done += chunk;
            engine.prefill(&mut self.session, &ids[..done])?;
        }
        let prompt_s = if done > shared { started.elapsed().as_secs_f64() } else { 0.0 };
        Ok(Timings { prompt_tokens: done - shared, prompt_s, ..Timings::default() })
    }

    /// Adds what was said to the conversation.
    fn remember(&mut self, draft: &Draft, ids: &[u32], finish: &FinishReason) {
        // A stop string was cut out of the text, and the ids have it still.
        if !matches!(finish, FinishReason::StopString(_) | FinishReason::Callback) {
            self.history.append(&draft.raw, ids);
        }
        // White space around an answer is usually the template's business. Where it then does not write back what the
        // model said, and would with all of it, all is kept: it need not be read again.
        let answers = [draft.answer.trim(), &draft.answer];
        let writes_back = |answer: &&str| {
            let mut messages = self.messages.clone();
            messages.push(draft.message(answer));
            let written = self.form.transcript(&messages, &self.variables);
            written.is_ok_and(|rendered| self.history.begins(&rendered))
        };
        let answer = answers.into_iter().find(writes_back).unwrap_or(answers[0]);
        self.messages.push(draft.message(answer));
    }
}

fn is_system(message: &Json) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}
