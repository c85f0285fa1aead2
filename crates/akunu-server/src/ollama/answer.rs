//! What becomes of a request, as Ollama tells it: a line of JSON a piece, or one object.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use akunu_tokenizer::Tokenizer;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::models::time;
use crate::app::json;
use crate::job::{Finished, Output, Piece, Running, ToolCall, What};
use crate::openai::{finish_reason, logprobs};
use crate::refusal::Refusal;
use crate::stream::Writer;

/// What was asked for: the text stands in another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Chat,
    Generate,
}

/// What stands in every object of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) asked: Asked,
    pub(super) model: String,
    pub(super) started: Instant,
    /// What loading the model took.
    pub(super) load: Duration,
    /// Where log probabilities were asked for.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Head {
    fn object(&self, piece: &Piece) -> Json {
        let mut object = json!({ "model": self.model, "created_at": time(SystemTime::now()) });
        let thinking = Some(piece.reasoning.as_str()).filter(|text| !text.is_empty());
        let at = match self.asked {
            Asked::Chat => {
                object["message"] = json!({ "role": "assistant", "content": piece.answer });
                if !piece.calls.is_empty() {
                    object["message"]["tool_calls"] = piece.calls.iter().map(call).collect();
                }
                &mut object["message"]
            }
            Asked::Generate => {
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

    /// The answer to a request without a prompt.
    pub(super) fn loaded(&self) -> Json {
        let mut object = self.object(&Piece::default());
        object["done_reason"] = "load".into();
        object["done"] = true.into();
        object
    }

    fn last(&self, piece: &Piece, Finished { finish, timings, .. }: &Finished) -> Json {
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

pub(super) async fn whole(mut running: Running, head: Head) -> Result<Response, Refusal> {
    let mut piece = Piece::default();
    while let Some(output) = running.next().await {
        match output?.what {
            What::Piece(more) => piece.append(more),
            What::Finished(finished) => return Ok(json(&head.last(&piece, &finished))),
        }
    }
    Err(Refusal::internal("the answer has no end"))
}

fn call(ToolCall { id, call }: &ToolCall) -> Json {
    json!({ "id": id, "function": { "name": call.name, "arguments": call.arguments } })
}

#[derive(Debug)]
pub(super) struct Lines {
    pub(super) head: Head,
}

fn line(object: &Json, to: &mut String) {
    to.push_str(&object.to_string());
    to.push('\n');
}

impl Writer for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn output(&mut self, Output { what, .. }: Output, to: &mut String) {
        match what {
            What::Piece(piece) => line(&self.head.object(&piece), to),
            What::Finished(finished) => line(&self.head.last(&Piece::default(), &finished), to),
        }
    }

    fn end(&mut self, _to: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        line(&super::error(refusal), to);
    }
}
