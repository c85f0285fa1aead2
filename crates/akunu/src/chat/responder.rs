//! The answer to a conversation: rendered, tokenized, generated and read, in one place for the engine, the CLI and the C API.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use akunu_tokenizer::chat::Rendered;
use serde_json::{Map, Value as Json};

use super::{AnswerDelta, AnswerOptions, ChatFormat, Draft, Part, TokenizedHistory};
use crate::constraint::Constraints;
use crate::{Engine, Error, FinishReason, GenerateOptions, Generated, Session, Timings};

/// What happens while an answer is generated.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// `done` of the prompt's `total` tokens are in the session.
    Reading { done: usize, total: usize },
    /// Text as it was generated, tags and white space included.
    Part(Part<'a>),
    /// What the answer has gained: reasoning, text and tool calls, without tags.
    Delta(&'a AnswerDelta),
}

/// Called with each event. A break ends the answer, and after [`Event::Reading`] only the reports of the prefill.
pub type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// A conversation to be answered.
#[derive(Clone, Copy, Debug)]
pub struct ChatRequest<'a> {
    pub messages: &'a [Json],
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
    pub answer: &'a AnswerOptions,
}

/// A rendered conversation and its token ids.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    pub rendered: Rendered,
    pub ids: Vec<u32>,
}

/// A finished answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// `finish` is [`FinishReason::Complete`] where [`AnswerOptions::one_call`] ended the answer.
    pub generated: Generated,
    /// The message to append to the conversation. `None`: cancelled before the first token.
    pub message: Option<Json>,
    pub calls: usize,
    pub reasoning_tokens: usize,
}

/// Answers conversations in one session. It remembers the token ids of the latest conversation, so that a longer one
/// which begins with it is found in the session's KV cache up to the last token.
#[derive(Clone, Debug)]
pub struct Responder {
    chat_format: Arc<ChatFormat>,
    constraints: Constraints,
    history: TokenizedHistory,
}

impl Responder {
    pub fn new(chat_format: Arc<ChatFormat>, constraints: Constraints) -> Responder {
        Responder { chat_format, constraints, history: TokenizedHistory::default() }
    }

    /// Renders and tokenizes a conversation.
    pub fn prompt(&mut self, request: &ChatRequest<'_>) -> Result<ChatPrompt, Error> {
        let tools = request.answer.tools.as_deref();
        let rendered = self.chat_format.prompt(request.messages, tools, request.variables)?;
        let ids = self.history.encode(&rendered, &**self.chat_format.tokenizer())?.to_vec();
        Ok(ChatPrompt { rendered, ids })
    }

    /// Generates the answer to `prompt`, which [`Responder::prompt`] made of the same request.
    pub fn respond(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        request: &ChatRequest<'_>,
        prompt: &ChatPrompt,
        options: &GenerateOptions,
        on_event: OnEvent<'_>,
    ) -> Result<Response, Error> {
        crate::check_prompt(&prompt.ids, engine.vocab_size(), engine.context())?;
        let mut options = options.clone();
        let text = &prompt.rendered.text;
        let mut reader = self.chat_format.answer(text, request.answer, &self.constraints, &mut options)?;
        let feed = prefill(engine, session, &prompt.ids, options.cancel.as_deref(), on_event)?;

        let mut generated = engine.generate(session, &prompt.ids, &options, &mut |piece| {
            let mut on_part = |part: Part<'_>| on_event(Event::Part(part));
            let (deltas, flow) = reader.push(piece.text, piece.ids.len(), &mut on_part);
            flow?;
            send(&deltas, on_event)?;
            if reader.is_complete() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // The text of the last ids may be missing after a break, and a stop string is missing in the text.
        let has_all_text = !matches!(generated.finish, FinishReason::StopString(_) | FinishReason::Callback);
        if generated.finish == FinishReason::Callback && reader.is_complete() {
            generated.finish = FinishReason::Complete;
        }
        if generated.finish != FinishReason::Callback {
            let deltas = reader.finish(&mut |part| on_event(Event::Part(part)));
            // Generation has ended already, so a break has nothing left to end.
            let _ = send(&deltas, on_event);
        }
        let timings = &mut generated.timings;
        timings.prompt_s += feed.prompt_s;
        timings.ttft_s += feed.prompt_s;
        timings.reused_tokens -= feed.prompt_tokens.min(timings.reused_tokens);

        if has_all_text {
            self.history.append(&reader.draft().raw, &generated.ids);
        }
        let is_kept = !generated.ids.is_empty() || generated.finish != FinishReason::Cancelled;
        let message = is_kept.then(|| self.message(request, reader.draft()));
        let (calls, reasoning_tokens) = (reader.draft().calls.len(), reader.reasoning_tokens());
        Ok(Response { generated, message, calls, reasoning_tokens })
    }

    /// The answer as a message. Templates usually strip or add the white space around an answer, so it is trimmed, except
    /// where only the untrimmed answer renders to the text that is in the KV cache.
    fn message(&self, request: &ChatRequest<'_>, draft: &Draft) -> Json {
        let trimmed = draft.message(draft.answer.trim());
        let renders_the_same = |answer: &Json| {
            let messages = [request.messages, std::slice::from_ref(answer)].concat();
            let tools = request.answer.tools.as_deref();
            let rendered = self.chat_format.transcript(&messages, tools, request.variables);
            rendered.is_ok_and(|rendered| self.history.begins(&rendered))
        };
        if renders_the_same(&trimmed) {
            return trimmed;
        }
        let mut untrimmed = trimmed.clone();
        untrimmed["content"] = draft.answer.as_str().into();
        if renders_the_same(&untrimmed) { untrimmed } else { trimmed }
    }
}

fn send(deltas: &[AnswerDelta], on_event: OnEvent<'_>) -> ControlFlow<()> {
    deltas.iter().try_for_each(|delta| on_event(Event::Delta(delta)))
}

/// Prefills all but the last pass of a long prompt and reports each pass. Generation then finds it in the session.
fn prefill(
    engine: &mut Engine,
    session: &mut Session,
    ids: &[u32],
    cancel: Option<&AtomicBool>,
    on_event: OnEvent<'_>,
) -> Result<Timings, Error> {
    let chunk = engine.plan().options.prefill_rows;
    let started = Instant::now();
    let shared = session.tokens().iter().zip(ids).take_while(|(a, b)| a == b).count();
    let mut done = shared;
    let is_cancelled = || cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
    while done + chunk < ids.len() && !is_cancelled() {
        if on_event(Event::Reading { done, total: ids.len() }).is_break() {
            break;
        }
        done += chunk;
        engine.prefill(session, &ids[..done])?;
    }
    let prompt_s = if done > shared { started.elapsed().as_secs_f64() } else { 0.0 };
    Ok(Timings { prompt_tokens: done - shared, prompt_s, ..Timings::default() })
}
