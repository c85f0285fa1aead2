//! Responses in Ollama's format: one JSON object, or a stream of one per line.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use akunu_tokenizer::Tokenizer;
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::app::json_text;
use crate::as_written::text_with;
use crate::job::{AnswerPiece, Finished, Output, OutputEvent, Running, ToolCall};
use crate::openai::{finish_reason, logprobs};
use crate::refusal::Refusal;
use crate::stream::Writer;
use crate::timestamp::timestamp;

/// The field of a call's arguments.
const ARGUMENTS: &str = "arguments";

/// The endpoint, which determines the field of the answer's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Generate,
}

/// The fields that all objects of a response have in common.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    pub(super) started: Instant,
    /// The time to load the model.
    pub(super) load: Duration,
    /// Set if log probabilities were requested.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Head {
    fn object(&self, piece: &AnswerPiece) -> Json {
        let mut object = json!({ "model": self.model, "created_at": timestamp(SystemTime::now()) });
        let thinking = Some(piece.reasoning.as_str()).filter(|text| !text.is_empty());
        let at = match self.endpoint {
            Endpoint::Chat => {
                object["message"] =
                    json!({ "role": "assistant", "content": format!("{}{}", piece.answer, piece.cut) });
                if !piece.calls.is_empty() {
                    object["message"]["tool_calls"] = piece.calls.iter().map(call).collect();
                }
                &mut object["message"]
            }
            Endpoint::Generate => {
                object["response"] = piece.answer.as_str().into();
                &mut object
            }
        };
        if let Some(thinking) = thinking {
            at["thinking"] = thinking.into();
        }
        if let (Some(tokenizer), false) = (&self.tokenizer, piece.tokens.is_empty()) {
            object["logprobs"] = logprobs::of_chat(&piece.tokens, &**tokenizer).into();
        }
        object["done"] = false.into();
        object
    }

    /// The response to a request without a prompt.
    pub(super) fn loaded(&self) -> Json {
        self.without_answer("load")
    }

    /// The response to a request that only unloads the model.
    pub(super) fn unloaded(&self) -> Json {
        self.without_answer("unload")
    }

    fn without_answer(&self, reason: &str) -> Json {
        let mut object = self.object(&AnswerPiece::default());
        object["done_reason"] = reason.into();
        object["done"] = true.into();
        object
    }

    fn last(&self, piece: &AnswerPiece, Finished { finish, timings, .. }: &Finished) -> Json {
        let mut object = self.object(piece);
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        object["done"] = true.into();
        object["done_reason"] = finish_reason(finish).into();
        object["total_duration"] = (self.started.elapsed().as_nanos() as u64).into();
        object["load_duration"] = (self.load.as_nanos() as u64).into();
        object["prompt_eval_count"] = timings.prompt_tokens.into();
        object["prompt_eval_duration"] = nanoseconds(timings.prompt_s).into();
        object["eval_count"] = timings.generated_tokens.into();
        object["eval_duration"] = nanoseconds(timings.generate_s).into();
        object
    }
}

pub(super) async fn collect(mut running: Running, head: Head) -> Result<Response, Refusal> {
    let mut piece = AnswerPiece::default();
    while let Some(output) = running.next().await {
        match output?.event {
            OutputEvent::Piece(more) => piece.append(more),
            OutputEvent::Finished(finished) => {
                return Ok(json_text(text_with(ARGUMENTS, &head.last(&piece, &finished))));
            }
        }
    }
    Err(Refusal::internal("the answer ended without a result"))
}

/// With the text of the arguments, which `text_with` writes as it is.
fn call(ToolCall { id, call }: &ToolCall) -> Json {
    json!({ "id": id, "function": { "name": call.name, "arguments": call.arguments } })
}

#[derive(Debug)]
pub(super) struct Lines {
    pub(super) head: Head,
}

fn line(object: &Json, to: &mut String) {
    to.push_str(&text_with(ARGUMENTS, object));
    to.push('\n');
}

impl Writer for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    const PING: Option<&'static str> = None;

    fn output(&mut self, Output { event, .. }: Output, to: &mut String) {
        match event {
            // Calls come whole in this protocol.
            OutputEvent::Piece(piece) if piece.is_only_progress() => {}
            OutputEvent::Piece(piece) => line(&self.head.object(&piece), to),
            OutputEvent::Finished(finished) => line(&self.head.last(&AnswerPiece::default(), &finished), to),
        }
    }

    fn end(&mut self, _to: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        line(&super::error(refusal), to);
    }
}
