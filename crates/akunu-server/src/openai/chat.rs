//! `/v1/chat/completions`.

use akunu::FinishReason;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::options::{self, Manner, refuse_unsupported};
use super::{Head, Stream, Usage, logprobs, messages};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::job::{Conversation, Job, Output, Piece, Prompt, Running, ToolCall, What};
use crate::refusal::Refusal;
use crate::response_format::{self, RequestedFormat};
use crate::stream::{self, Writer};

const UNSUPPORTED: &[(&str, &str)] = &[
    ("functions", "give them as 'tools'"),
    ("function_call", "use 'tool_choice'"),
    ("audio", "answers are text"),
    ("web_search_options", "nothing here searches the web"),
];

pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let manner = Manner::read(&fields)?;
    let job = read(&fields)?;
    let wants_logprobs = job.logprobs.is_some();
    let choices = job.choices;
    let running = app.start(job, caller).await?;
    let head = Head::new("chatcmpl", &fields, &running, wants_logprobs)?;
    match manner.stream {
        true => {
            let stream = Stream::new("chat.completion.chunk", head, manner);
            Ok(stream::respond(running, Chunks { stream, calls: vec![0; choices] }))
        }
        false => whole(running, head, choices).await,
    }
}

fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    refuse_unsupported(fields, UNSUPPORTED)?;
    let conversation = messages::conversation_of(fields)?;
    let forced = forced(fields, &conversation)?;
    let mut job = options::job(fields, Vec::new())?;
    job.format = forced.or(job.format);
    response_format::check_one(job.format.as_ref(), &conversation)?;
    job.prompts = vec![Prompt::Chat(conversation)];
    job.max_tokens = max_tokens(fields)?;
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Refusal::invalid("'top_logprobs' goes with 'logprobs': true only")
            .param("top_logprobs")
            .code("invalid_value"));
    }
    job.logprobs = wanted.then(|| top.unwrap_or(0));
    job.one_call = fields.flag("parallel_tool_calls")? == Some(false);
    Ok(job)
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

/// A call that has to be made.
fn forced(fields: &Fields<'_>, conversation: &Conversation) -> Result<Option<RequestedFormat>, Refusal> {
    const EXPECTED: &str = "\"auto\", \"none\", \"required\" or an object that names a function";
    match fields.get("tool_choice") {
        None => Ok(None),
        Some(choice) if choice == "auto" || choice == "none" => Ok(None),
        Some(choice) if choice == "required" => {
            response_format::call(conversation, None, "tool_choice").map(Some)
        }
        Some(choice) => match (choice["type"].as_str(), choice["function"]["name"].as_str()) {
            (Some("function"), Some(name)) => {
                response_format::call(conversation, Some(name), "tool_choice").map(Some)
            }
            _ => Err(fields.refuse("tool_choice", EXPECTED)),
        },
    }
}

fn logprobs_of(head: &Head, piece: &Piece) -> Json {
    match &head.tokenizer {
        Some(tokenizer) => {
            json!({ "content": logprobs::of_chat(&piece.tokens, &**tokenizer), "refusal": null })
        }
        None => Json::Null,
    }
}

/// Why a choice ended that called so many tools.
fn finish_reason(finish: &FinishReason, calls: usize) -> &'static str {
    match super::finish_reason(finish) {
        "stop" if calls > 0 => "tool_calls",
        reason => reason,
    }
}

fn call(ToolCall { id, call }: &ToolCall) -> Json {
    let arguments = Json::Object(call.arguments.clone()).to_string();
    json!({ "id": id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}

/// One choice of an answer that is given as a whole.
#[derive(Debug, Default)]
struct Choice {
    piece: Piece,
    finish: &'static str,
}

async fn whole(mut running: Running, head: Head, of_each: usize) -> Result<Response, Refusal> {
    let mut choices: Vec<Choice> = Vec::new();
    choices.resize_with(of_each, Choice::default);
    let mut usage = Usage::default();
    while let Some(output) = running.next().await {
        let Output { choice, what } = output?;
        match what {
            What::Piece(more) => choices[choice].piece.append(more),
            What::Finished(finished) => {
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
    answer["usage"] = usage.json();
    Ok(json(&answer))
}

/// The same, a chunk at a time.
#[derive(Debug)]
struct Chunks {
    stream: Stream,
    /// How many tools each choice has called.
    calls: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Json, logprobs: Json, finish: Option<&str>, to: &mut String) {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.stream.chunk(choice, to);
    }
}

impl Writer for Chunks {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, to: &mut String) {
        for index in 0..self.calls.len() {
            self.chunk(index, json!({ "role": "assistant", "content": "" }), Json::Null, None, to);
        }
    }

    fn output(&mut self, Output { choice, what }: Output, to: &mut String) {
        match what {
            What::Piece(piece) => {
                let mut delta = Map::new();
                if !piece.reasoning.is_empty() {
                    delta.insert("reasoning_content".into(), piece.reasoning.as_str().into());
                }
                if !piece.answer.is_empty() {
                    delta.insert("content".into(), piece.answer.as_str().into());
                }
                if !piece.calls.is_empty() {
                    let numbered = (self.calls[choice]..).zip(&piece.calls).map(|(index, of)| {
                        let mut call = call(of);
                        call["index"] = index.into();
                        call
                    });
                    delta.insert("tool_calls".into(), numbered.collect());
                    self.calls[choice] += piece.calls.len();
                }
                self.chunk(choice, Json::Object(delta), logprobs_of(&self.stream.head, &piece), None, to);
            }
            What::Finished(finished) => {
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
