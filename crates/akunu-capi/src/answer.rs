//! Answers to conversations: reasoning, text and tool calls, read by the engine's `AnswerReader`.

use std::collections::btree_map::Entry;
use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;

use akunu::chat::{AnswerOptions, ChatFormat, ChatRequest, ChatTemplates, Event, Responder, ToolChoice};
use akunu::{Error, FinishReason, GenerateOptions, ResponseFormat, Tool};
use serde_json::{Map, Value as Json};

use crate::arguments::{OutBuffer, optional_text, read_options};
use crate::boundary::{Failure, Status, guard, in_callback};
use crate::chat::read_conversation;
use crate::generate::{
    RunningGuard, check_stats, flow, generate_options, log_generation, stats_of, write_stats,
};
use crate::model::{Model, small};
use crate::session::SESSIONS;
use crate::structs::{
    AnswerDelta, AnswerFormat, AnswerSettings, DeltaKind, Finish, GenerateSettings, OnDelta, SessionHandle,
    Stats,
};
use crate::worker::{Emit, SessionState, Worker, keep_pending};

/// Generates the answer to a conversation, and gives reasoning, text and tool calls to `on_delta` as they come.
///
/// `conversation` is JSON as in akunu_apply_template. Its last message is the one to answer: a user's, or a tool's result.
/// With `tools` the model may call them. Nothing of the conversation that is in the session already is prefilled again.
/// `options` (may be null) has what is particular to answers, `generate` (may be null) has the limits. `on_delta` (may be
/// null) is called with `user`. `stats` may be null. Afterwards akunu_answer_message has the answer as a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_generate_answer(
    session: *mut SessionHandle,
    conversation: *const c_char,
    options: *const AnswerSettings,
    generate: *const GenerateSettings,
    on_delta: OnDelta,
    user: *mut c_void,
    stats: *mut Stats,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: guaranteed by the caller.
        let (messages, tools, variables) = unsafe { read_conversation(conversation) }?;
        if messages.last().is_none_or(|last| last["role"] == "assistant") {
            return Err(Error::NothingToAnswer.into());
        }
        // SAFETY: guaranteed by the caller.
        let settings = unsafe { read_options(options) }?;
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { answer_options(&settings, tools) }?;
        // SAFETY: guaranteed by the caller.
        let template = unsafe { optional_text(settings.template_name, "the template's name") }?;
        // SAFETY: guaranteed by the caller.
        let limits = unsafe { read_options(generate) }?;
        if limits.format != AnswerFormat::Text as u32 || limits.logprobs != 0 {
            return Err(Failure::argument(
                "the format of an answer is set in akunu_answer_options, and answers have no log probabilities",
            ));
        }
        // SAFETY: guaranteed by the caller.
        let mut options = unsafe { generate_options(&limits, session.sampling()) }?;
        // SAFETY: guaranteed by the caller.
        unsafe { check_stats(stats) }?;
        let running = RunningGuard::new(&session)?;
        options.cancel = Some(running.cancel().clone());

        let stop_ids = options.stop_ids.clone();
        let request = Request {
            model: session.model.clone(),
            number: session.number,
            template: template.map(str::to_string),
            messages,
            variables,
            answer,
            options,
            has_listener: on_delta.is_some(),
        };
        let task = move |worker: &mut Worker, emit: Emit<'_, Delta>| request.run(worker, emit);
        let on_emit = |delta: Delta| match on_delta {
            None => ControlFlow::Continue(()),
            // SAFETY: the caller's function, called as it is declared; the delta outlives the call.
            Some(on_delta) => flow(in_callback(|| delta.give(|delta| unsafe { on_delta(delta, user) }))),
        };
        let answered = session.model.queue()?.run_streaming(task, on_emit)?;
        log_generation(&answered.generated);
        // SAFETY: guaranteed by the caller.
        unsafe { write_stats(stats, &answered.stats(&stop_ids)) }
    })
}

/// The session's latest answer as a message in the form of the OpenAI API, in JSON: with `content`, and where there are
/// any, `reasoning_content` and `tool_calls`, whose `arguments` are objects. Append it to the conversation's messages before
/// the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_answer_message(
    session: *const SessionHandle,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let number = session.number;
        let message = session.model.queue()?.run(move |worker| {
            let (_, state) = worker.session(number)?;
            let message = state.message.as_ref();
            let missing = || Failure::argument("the session has no answer: call akunu_generate_answer first");
            message.map(Json::to_string).ok_or_else(missing)
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(message.as_bytes()) }
    })
}

/// # Safety
/// The schema is null or a text.
unsafe fn answer_options(
    settings: &AnswerSettings,
    tools: Option<Vec<Json>>,
) -> Result<AnswerOptions, Failure> {
    // SAFETY: guaranteed by the caller.
    let schema = unsafe { optional_text(settings.schema, "the schema") }?;
    let one_call = settings.one_call != 0;
    if settings.format == AnswerFormat::ToolCall as u32 {
        if tools.iter().flatten().filter_map(Tool::from_openai).next().is_none() {
            return Err(Failure::argument("AKUNU_ANSWER_FORMAT_TOOL_CALL needs tools in the conversation"));
        }
        return Ok(AnswerOptions { tools, tool_choice: ToolChoice::Required, one_call: true, format: None });
    }
    let format = response_format(settings.format, schema)?;
    Ok(AnswerOptions { tools, tool_choice: ToolChoice::Auto, format, one_call })
}

/// The format that an akunu_answer_format names.
pub(crate) fn response_format(format: u32, schema: Option<&str>) -> Result<Option<ResponseFormat>, Failure> {
    Ok(match format {
        f if f == AnswerFormat::Text as u32 => None,
        f if f == AnswerFormat::JsonObject as u32 => Some(ResponseFormat::Object),
        f if f == AnswerFormat::JsonSchema as u32 => {
            let schema =
                schema.ok_or_else(|| Failure::argument("AKUNU_ANSWER_FORMAT_JSON_SCHEMA needs a schema"))?;
            let schema = serde_json::from_str(schema)
                .map_err(|error| Failure::argument(format!("the schema is not JSON: {error}")))?;
            Some(ResponseFormat::Schema(schema))
        }
        f if f == AnswerFormat::Regex as u32 => {
            let regex =
                schema.ok_or_else(|| Failure::argument("AKUNU_ANSWER_FORMAT_REGEX needs a schema"))?;
            Some(ResponseFormat::Regex(regex.into()))
        }
        f if f == AnswerFormat::Grammar as u32 => {
            let grammar =
                schema.ok_or_else(|| Failure::argument("AKUNU_ANSWER_FORMAT_GRAMMAR needs a schema"))?;
            Some(ResponseFormat::from_grammar(grammar))
        }
        f if f == AnswerFormat::ToolCall as u32 => {
            return Err(Failure::argument(
                "AKUNU_ANSWER_FORMAT_TOOL_CALL needs tools, which only conversations have",
            ));
        }
        other => return Err(Failure::argument(format!("{other} is not an akunu_answer_format"))),
    })
}

/// An owned [`AnswerDelta`], on its way from the engine's thread to the caller's.
#[derive(Debug)]
struct Delta {
    kind: DeltaKind,
    text: String,
    name: Option<String>,
    index: usize,
}

impl Delta {
    fn give<T>(self, callback: impl FnOnce(*const AnswerDelta) -> T) -> T {
        let terminated = |mut text: String| {
            text.push('\0');
            text
        };
        let text_length = self.text.len();
        let (text, name) = (terminated(self.text), self.name.map(terminated));
        let delta = AnswerDelta {
            size: small(size_of::<AnswerDelta>()),
            kind: self.kind as u32,
            text: text.as_ptr().cast(),
            text_length,
            name: name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr().cast()),
            index: small(self.index),
            reserved: 0,
        };
        callback(&raw const delta)
    }
}

struct Answered {
    generated: akunu::Generated,
    calls: usize,
    reasoning_tokens: usize,
}

impl Answered {
    fn stats(&self, stop_ids: &[u32]) -> Stats {
        let mut stats = stats_of(&self.generated);
        stats.reasoning_tokens = self.reasoning_tokens as u64;
        // The template's end of a turn is the model's own end of the answer.
        let is_end = match self.generated.finish {
            FinishReason::StopId(id) => !stop_ids.contains(&id),
            FinishReason::Eos(_) | FinishReason::Complete => true,
            _ => false,
        };
        if is_end {
            stats.finish = if self.calls > 0 { Finish::ToolCalls } else { Finish::End } as u32;
        }
        stats
    }
}

/// What the engine's thread needs to answer.
struct Request {
    model: Arc<Model>,
    number: usize,
    template: Option<String>,
    messages: Vec<Json>,
    variables: Map<String, Json>,
    answer: AnswerOptions,
    options: GenerateOptions,
    has_listener: bool,
}

impl Request {
    fn run(self, worker: &mut Worker, emit: Emit<'_, Delta>) -> Result<Answered, Failure> {
        let chat_format = self.chat_format(worker)?;
        let constraints = self.model.constraints.clone();
        let (engine, state) = worker.session(self.number)?;
        let SessionState { session, pending, responders, message } = state;
        *message = None;
        let responder = responders
            .entry(self.template.clone())
            .or_insert_with(|| Responder::new(chat_format, constraints));
        let request =
            ChatRequest { messages: &self.messages, variables: &self.variables, answer: &self.answer };
        let prompt = responder.prompt(&request)?;
        let mut calls = 0;
        let on_event = &mut |event: Event<'_>| match event {
            Event::Delta(delta) if self.has_listener => emit_all(delta, &mut calls, emit),
            _ => ControlFlow::Continue(()),
        };
        let respond =
            |session: &mut _| responder.respond(engine, session, &request, &prompt, &self.options, on_event);
        let response = keep_pending(session, pending, &prompt.ids, respond, |response| &response.generated)?;
        *message = response.message;
        let (calls, reasoning_tokens) = (response.calls, response.reasoning_tokens);
        Ok(Answered { generated: response.generated, calls, reasoning_tokens })
    }

    fn chat_format(&self, worker: &mut Worker) -> Result<Arc<ChatFormat>, Failure> {
        match worker.chat_formats.entry(self.template.clone()) {
            Entry::Occupied(chat_format) => Ok(chat_format.get().clone()),
            Entry::Vacant(place) => {
                let Model { model, path, .. } = &*self.model;
                let templates =
                    ChatTemplates::find(model.metadata(), path.as_deref()).map_err(Error::from)?;
                let template = templates
                    .template(self.template.as_deref(), self.model.tokenizer()?)
                    .map_err(Error::from)?;
                Ok(place.insert(Arc::new(ChatFormat::new(model, template)?)).clone())
            }
        }
    }
}

fn emit_all(delta: &akunu::chat::AnswerDelta, calls: &mut usize, emit: Emit<'_, Delta>) -> ControlFlow<()> {
    for (kind, text) in [(DeltaKind::Reasoning, &delta.reasoning), (DeltaKind::Answer, &delta.answer)] {
        if !text.is_empty() {
            emit(Delta { kind, text: text.clone(), name: None, index: 0 })?;
        }
    }
    if !delta.cut.is_empty() {
        emit(Delta { kind: DeltaKind::Answer, text: delta.cut.clone(), name: None, index: 0 })?;
    }
    for call in &delta.calls {
        let text = call.arguments.clone();
        let index = *calls;
        *calls += 1;
        emit(Delta { kind: DeltaKind::ToolCall, text, name: Some(call.name.clone()), index })?;
    }
    ControlFlow::Continue(())
}
