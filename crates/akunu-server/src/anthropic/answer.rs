//! What becomes of a request: blocks of thinking and text, whole or as events.

use akunu::FinishReason;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use crate::app::json;
use crate::job::{Finished, Output, Running, ToolCall, What};
use crate::refusal::Refusal;
use crate::stream::Writer;

#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) model: String,
}

impl Head {
    fn message(&self, content: Vec<Json>, usage: Json) -> Json {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
}

impl Kind {
    /// A block of this kind.
    fn block(self, text: &str) -> Json {
        match self {
            // A signature tells Anthropic's own servers that the thinking is theirs; there is none here.
            Kind::Thinking => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            Kind::Text => json!({ "type": "text", "text": text, "citations": null }),
        }
    }

    fn delta(self, text: &str) -> Json {
        match self {
            Kind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            Kind::Text => json!({ "type": "text_delta", "text": text }),
        }
    }
}

/// A block of a call, with these arguments.
fn tool_use(ToolCall { id, call }: &ToolCall, input: &Map<String, Json>) -> Json {
    json!({ "type": "tool_use", "id": id, "name": call.name, "input": input })
}

/// Why it ended, and the stop sequence if it was one.
fn stop(finish: &FinishReason, has_called: bool) -> (&'static str, Option<&str>) {
    match finish {
        FinishReason::StopString(text) => ("stop_sequence", Some(text)),
        FinishReason::MaxTokens => ("max_tokens", None),
        FinishReason::ContextFull => ("model_context_window_exceeded", None),
        _ if has_called => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

/// Tokens that stood in the cache are counted apart.
fn usage(Finished { timings, .. }: &Finished) -> Json {
    json!({
        "input_tokens": timings.prompt_tokens - timings.reused_tokens.min(timings.prompt_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": timings.reused_tokens,
        "output_tokens": timings.generated_tokens,
    })
}

#[derive(Debug)]
enum Block {
    Text(Kind, String),
    Call(ToolCall),
}

impl Block {
    fn json(&self) -> Json {
        match self {
            Block::Text(kind, text) => kind.block(text),
            Block::Call(call) => tool_use(call, &call.call.arguments),
        }
    }
}

pub(super) async fn whole(mut running: Running, head: Head) -> Result<Response, Refusal> {
    let mut blocks: Vec<Block> = Vec::new();
    while let Some(output) = running.next().await {
        let piece = match output?.what {
            What::Piece(piece) => piece,
            What::Finished(finished) => {
                let has_called = blocks.iter().any(|block| matches!(block, Block::Call(_)));
                let content = blocks.iter().map(Block::json).collect();
                let mut message = head.message(content, usage(&finished));
                let (reason, sequence) = stop(&finished.finish, has_called);
                message["stop_reason"] = reason.into();
                message["stop_sequence"] = sequence.into();
                return Ok(json(&message));
            }
        };
        for (kind, text) in [(Kind::Thinking, piece.reasoning), (Kind::Text, piece.answer)] {
            match blocks.last_mut() {
                _ if text.is_empty() => {}
                Some(Block::Text(last, before)) if *last == kind => before.push_str(&text),
                _ => blocks.push(Block::Text(kind, text)),
            }
        }
        blocks.extend(piece.calls.into_iter().map(Block::Call));
    }
    Err(Refusal::internal("the answer has no end"))
}

#[derive(Debug)]
pub(super) struct Events {
    head: Head,
    input_tokens: usize,
    /// Blocks that were begun.
    begun: usize,
    open: Option<Kind>,
    has_called: bool,
}

fn event(name: &str, mut data: Json, to: &mut String) {
    data["type"] = name.into();
    to.push_str(&format!("event: {name}\ndata: {data}\n\n"));
}

impl Events {
    /// `input_tokens`: the prompt's.
    pub(super) fn new(head: Head, input_tokens: usize) -> Events {
        Events { head, input_tokens, begun: 0, open: None, has_called: false }
    }

    fn text(&mut self, kind: Kind, text: &str, to: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(kind) {
            self.close(to);
            self.begin_block(&kind.block(""), to);
            self.open = Some(kind);
        }
        event("content_block_delta", json!({ "index": self.begun - 1, "delta": kind.delta(text) }), to);
    }

    /// A block of its own.
    fn call(&mut self, call: &ToolCall, to: &mut String) {
        self.close(to);
        self.begin_block(&tool_use(call, &Map::new()), to);
        let arguments = Json::Object(call.call.arguments.clone()).to_string();
        let delta = json!({ "type": "input_json_delta", "partial_json": arguments });
        event("content_block_delta", json!({ "index": self.begun - 1, "delta": delta }), to);
        self.end_block(to);
        self.has_called = true;
    }

    fn begin_block(&mut self, block: &Json, to: &mut String) {
        event("content_block_start", json!({ "index": self.begun, "content_block": block }), to);
        self.begun += 1;
    }

    fn end_block(&self, to: &mut String) {
        event("content_block_stop", json!({ "index": self.begun - 1 }), to);
    }

    fn close(&mut self, to: &mut String) {
        if self.open.take().is_some() {
            self.end_block(to);
        }
    }
}

impl Writer for Events {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, to: &mut String) {
        let usage = json!({ "input_tokens": self.input_tokens, "output_tokens": 0 });
        event("message_start", json!({ "message": self.head.message(Vec::new(), usage) }), to);
        event("ping", json!({}), to);
    }

    fn output(&mut self, Output { what, .. }: Output, to: &mut String) {
        match what {
            What::Piece(piece) => {
                self.text(Kind::Thinking, &piece.reasoning, to);
                self.text(Kind::Text, &piece.answer, to);
                piece.calls.iter().for_each(|call| self.call(call, to));
            }
            What::Finished(finished) => {
                self.close(to);
                let (reason, sequence) = stop(&finished.finish, self.has_called);
                let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
                event("message_delta", json!({ "delta": delta, "usage": usage(&finished) }), to);
            }
        }
    }

    fn end(&mut self, to: &mut String) {
        event("message_stop", json!({}), to);
    }

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        event("error", super::error(refusal), to);
    }
}
