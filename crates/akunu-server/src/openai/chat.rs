//! `/v1/chat/completions`.

use akunu::FinishReason;
use akunu::chat::CallProgress;
use akunu::chat::conversation::call_id;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::options::{self, StreamOptions};
use super::{Head, Stream, Usage, logprobs, messages};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::job::{AnswerPiece, Conversation, Job, Output, OutputEvent, Prompt, Running, ToolCall};
use crate::refusal::Refusal;
use crate::response_format::{not_in_tools, require_call};
use crate::stream::{self, Writer};

pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::CHAT.check(&fields)?;
    let streaming = StreamOptions::read(&fields)?;
    let job = read(&fields)?;
    let has_logprobs = job.logprobs.is_some();
    let choices = job.choices;
    let running = app.start(job, caller).await.map_err(|refusal| refusal.too_long_in("messages"))?;
    let warnings = warnings.of(&running);
    let head = Head::new("chatcmpl", &fields, &running, has_logprobs)?;
    let response = match streaming.stream {
        true => {
            let stream = Stream::new("chat.completion.chunk", head, streaming);
            stream::respond(running, Chunks { stream, calls: vec![0; choices] })
        }
        false => collect(running, head, choices).await?,
    };
    Ok(warnings.on(response))
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    let mut conversation = messages::conversation_of(fields)?;
    choose_tool(fields, &mut conversation)?;
    let mut job = options::job(fields, Vec::new())?;
    job.prompts = vec![Prompt::Chat(conversation)];
    job.max_tokens = max_tokens(fields)?;
    let has_logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=20)?;
    if top.is_some() && !has_logprobs {
        return Err(Refusal::invalid("'top_logprobs' requires 'logprobs': true")
            .param("top_logprobs")
            .code("invalid_value"));
    }
    job.logprobs = has_logprobs.then(|| top.unwrap_or(0));
    job.one_call = fields.flag("parallel_tool_calls")? == Some(false);
    check_without_effect(fields)?;
    Ok(job)
}

/// Checks fields that have no effect, so that a wrong one is not taken to have had one elsewhere.
fn check_without_effect(fields: &Fields<'_>) -> Result<(), Refusal> {
    options::metadata(fields)?;
    fields.one_of("verbosity", options::VERBOSITIES)?;
    let Some(prediction) = fields.object("prediction")? else { return Ok(()) };
    let prediction = Fields::within(prediction, "prediction.");
    prediction.one_of("type", &["content"])?;
    let is_text = |part: &Json| part["type"] == "text" && part["text"].is_string();
    match prediction.get("content") {
        Some(Json::String(_)) => Ok(()),
        Some(Json::Array(parts)) if parts.iter().all(is_text) => Ok(()),
        _ => Err(prediction.refuse("content", "a text, or a list of parts that are text")),
    }
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, Refusal> {
    let old = fields.count("max_tokens", 1..=usize::MAX)?;
    let new = fields.count("max_completion_tokens", 1..=usize::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => Err(Refusal::invalid(format!(
            "'max_tokens' is {old} and 'max_completion_tokens' is {new}: give one"
        ))
        .param("max_tokens")
        .code("invalid_value")),
        (old, new) => Ok(new.or(old)),
    }
}

/// Reads `tool_choice`.
pub(crate) fn choose_tool(fields: &Fields<'_>, conversation: &mut Conversation) -> Result<(), Refusal> {
    const EXPECTED: &str =
        "\"auto\", \"none\", \"required\", or an object that names a function or the allowed tools";
    match fields.get("tool_choice") {
        None => Ok(()),
        Some(choice) if choice == "auto" || choice == "none" => Ok(()),
        Some(choice) if choice == "required" => require_call(conversation, None, "tool_choice"),
        Some(choice) if choice["type"] == "allowed_tools" => {
            let allowed = &choice["allowed_tools"];
            let list = allowed["tools"].as_array().ok_or_else(|| fields.refuse("tool_choice", EXPECTED))?;
            let names: Option<Vec<&str>> =
                list.iter().map(|tool| tool["function"]["name"].as_str()).collect();
            let names = names.ok_or_else(|| fields.refuse("tool_choice", EXPECTED))?;
            allow_only(conversation, &names)?;
            match allowed["mode"].as_str() {
                Some("auto") => Ok(()),
                Some("required") => require_call(conversation, None, "tool_choice"),
                _ => Err(fields.refuse("tool_choice", EXPECTED)),
            }
        }
        Some(choice) => match (choice["type"].as_str(), choice["function"]["name"].as_str()) {
            (Some("function"), Some(name)) => require_call(conversation, Some(name), "tool_choice"),
            _ => Err(fields.refuse("tool_choice", EXPECTED)),
        },
    }
}

/// Keeps the tools of these names.
fn allow_only(conversation: &mut Conversation, names: &[&str]) -> Result<(), Refusal> {
    let tools = conversation.tools.get_or_insert_default();
    let has = |name: &&str| tools.iter().any(|tool| tool["function"]["name"] == *name);
    if let Some(unknown) = names.iter().find(|name| !has(name)) {
        return Err(not_in_tools("tool_choice", unknown));
    }
    tools.retain(|tool| tool["function"]["name"].as_str().is_some_and(|name| names.contains(&name)));
    conversation.tools = conversation.tools.take().filter(|tools| !tools.is_empty());
    Ok(())
}

fn logprobs_of(head: &Head, piece: &AnswerPiece) -> Json {
    match &head.tokenizer {
        Some(tokenizer) => {
            json!({ "content": logprobs::of_chat(&piece.tokens, &**tokenizer), "refusal": null })
        }
        None => Json::Null,
    }
}

/// The finish reason of a choice with this many tool calls.
fn finish_reason(finish: &FinishReason, calls: usize) -> &'static str {
    match super::finish_reason(finish) {
        "stop" if calls > 0 => "tool_calls",
        reason => reason,
    }
}

fn call(ToolCall { id, call }: &ToolCall) -> Json {
    json!({ "id": id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}

/// A choice of a response that is not streamed.
#[derive(Debug, Default)]
struct Choice {
    piece: AnswerPiece,
    finish: &'static str,
}

async fn collect(mut running: Running, head: Head, choices_per_prompt: usize) -> Result<Response, Refusal> {
    let mut choices: Vec<Choice> = Vec::new();
    choices.resize_with(choices_per_prompt, Choice::default);
    let mut usage = Usage::default();
    while let Some(output) = running.next().await {
        let Output { choice, event } = output?;
        match event {
            OutputEvent::Piece(more) => choices[choice].piece.append(more),
            OutputEvent::Finished(finished) => {
                usage.add(choice == 0, &finished);
                let calls = choices[choice].piece.calls.len();
                choices[choice].finish = finish_reason(&finished.finish, calls);
            }
        }
    }
    let written = choices.iter().enumerate().map(|(index, Choice { piece, finish })| {
        let mut message = json!({ "role": "assistant", "content": piece.answer, "refusal": null });
        if !piece.reasoning.is_empty() {
            message["reasoning_content"] = piece.reasoning.trim_end().into();
        }
        if !piece.calls.is_empty() {
            message["tool_calls"] = piece.calls.iter().map(call).collect();
            if piece.answer.is_empty() {
                message["content"] = Json::Null;
            }
        }
        json!({ "index": index, "message": message, "logprobs": logprobs_of(&head, piece), "finish_reason": finish })
    });
    let mut answer = head.object("chat.completion", written.collect());
    usage.write(&mut answer);
    Ok(json(&answer))
}

/// Writes a streamed response.
#[derive(Debug)]
struct Chunks {
    stream: Stream,
    /// Number of tool calls of each choice.
    calls: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Json, logprobs: Json, finish: Option<&str>, to: &mut String) {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.stream.chunk(choice, to);
    }
}

impl Chunks {
    /// The delta of a call.
    fn call(&mut self, choice: usize, progress: &CallProgress) -> Option<Json> {
        match progress {
            CallProgress::Begun(name) => {
                let function = json!({ "name": name, "arguments": "" });
                let index = self.calls[choice];
                self.calls[choice] += 1;
                Some(json!({ "index": index, "id": call_id(), "type": "function", "function": function }))
            }
            CallProgress::Arguments(text) => {
                Some(json!({ "index": self.calls[choice] - 1, "function": { "arguments": text } }))
            }
            CallProgress::Done | CallProgress::Cut => None,
        }
    }
}

impl Writer for Chunks {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const PING: Option<&'static str> = Some(stream::PING_COMMENT);

    fn begin(&mut self, to: &mut String) {
        for index in 0..self.calls.len() {
            self.chunk(index, json!({ "role": "assistant", "content": "" }), Json::Null, None, to);
        }
    }

    fn output(&mut self, Output { choice, event }: Output, to: &mut String) {
        match event {
            OutputEvent::Piece(piece) => {
                let mut delta = Map::new();
                if !piece.reasoning.is_empty() {
                    delta.insert("reasoning_content".into(), piece.reasoning.as_str().into());
                }
                if !piece.answer.is_empty() {
                    delta.insert("content".into(), piece.answer.as_str().into());
                }
                let mut logprobs = logprobs_of(&self.stream.head, &piece);
                if !delta.is_empty() || piece.progress.is_empty() {
                    self.chunk(choice, Json::Object(delta), logprobs.take(), None, to);
                }
                for progress in &piece.progress {
                    if let Some(call) = self.call(choice, progress) {
                        self.chunk(choice, json!({ "tool_calls": [call] }), logprobs.take(), None, to);
                    }
                }
                if !logprobs.is_null() {
                    self.chunk(choice, json!({}), logprobs, None, to);
                }
            }
            OutputEvent::Finished(finished) => {
                self.stream.usage.add(choice == 0, &finished);
                let finish = finish_reason(&finished.finish, self.calls[choice]);
                self.chunk(choice, json!({}), Json::Null, Some(finish), to);
            }
        }
    }

    fn end(&mut self, to: &mut String) {
        self.stream.end(to);
    }

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        stream::event(&super::error(refusal), to);
    }
}
