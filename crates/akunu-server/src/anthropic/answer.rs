//! Responses in Anthropic's format: blocks of thinking, text and tool calls, in one object or as events.

use akunu::FinishReason;
use akunu::chat::CallProgress;
use akunu::chat::conversation::call_id;
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::app::json_text;
use crate::as_written::text_with;
use crate::job::{Finished, Output, OutputEvent, Running, ToolCall};
use crate::refusal::Refusal;
use crate::stream::{self, Writer};

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
enum TextKind {
    Thinking,
    Text,
}

impl TextKind {
    /// A content block.
    fn block(self, text: &str) -> Json {
        match self {
            // Signatures are verified by Anthropic's servers only.
            TextKind::Thinking => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            TextKind::Text => json!({ "type": "text", "text": text, "citations": null }),
        }
    }

    fn delta(self, text: &str) -> Json {
        match self {
            TextKind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            TextKind::Text => json!({ "type": "text_delta", "text": text }),
        }
    }
}

/// The field of a call's arguments.
const INPUT: &str = "input";

/// A content block of a tool call, with the text of the arguments, which `text_with` writes as it is.
fn tool_use(id: &str, name: &str, input: Json) -> Json {
    json!({ "type": "tool_use", "id": id, "name": name, "input": input })
}

/// The stop reason, and the stop sequence if it was one.
fn stop(finish: &FinishReason, has_called: bool) -> (&'static str, Option<&str>) {
    match finish {
        FinishReason::StopString(text) => ("stop_sequence", Some(text)),
        FinishReason::MaxTokens => ("max_tokens", None),
        FinishReason::ContextFull => ("model_context_window_exceeded", None),
        _ if has_called => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

/// Tokens found in the cache are counted separately.
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
    Text(TextKind, String),
    Call(ToolCall),
}

impl Block {
    fn json(&self) -> Json {
        match self {
            Block::Text(kind, text) => kind.block(text),
            Block::Call(ToolCall { id, call }) => tool_use(id, &call.name, call.arguments.as_str().into()),
        }
    }
}

pub(super) async fn collect(mut running: Running, head: Head) -> Result<Response, Refusal> {
    let mut blocks: Vec<Block> = Vec::new();
    while let Some(output) = running.next().await {
        let piece = match output?.event {
            OutputEvent::Piece(piece) => piece,
            OutputEvent::Finished(finished) => {
                let has_called = blocks.iter().any(|block| matches!(block, Block::Call(_)));
                let content = blocks.iter().map(Block::json).collect();
                let mut message = head.message(content, usage(&finished));
                let (reason, sequence) = stop(&finished.finish, has_called);
                message["stop_reason"] = reason.into();
                message["stop_sequence"] = sequence.into();
                return Ok(json_text(text_with(INPUT, &message)));
            }
        };
        let answer = piece.answer + &piece.cut;
        for (kind, text) in [(TextKind::Thinking, piece.reasoning), (TextKind::Text, answer)] {
            match blocks.last_mut() {
                _ if text.is_empty() => {}
                Some(Block::Text(last, before)) if *last == kind => before.push_str(&text),
                _ => blocks.push(Block::Text(kind, text)),
            }
        }
        blocks.extend(piece.calls.into_iter().map(Block::Call));
    }
    Err(Refusal::internal("the answer ended without a result"))
}

#[derive(Debug)]
pub(super) struct Events {
    head: Head,
    input_tokens: usize,
    /// Number of content blocks started.
    block_count: usize,
    open: Option<TextKind>,
    has_called: bool,
}

const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

fn write_event(name: &str, mut data: Json, to: &mut String) {
    data["type"] = name.into();
    stream::named_event(name, &data, to);
}

impl Events {
    pub(super) fn new(head: Head, input_tokens: usize) -> Events {
        Events { head, input_tokens, block_count: 0, open: None, has_called: false }
    }

    fn text(&mut self, kind: TextKind, text: &str, to: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(kind) {
            self.close(to);
            self.start_block(&kind.block(""), to);
            self.open = Some(kind);
        }
        write_event(
            "content_block_delta",
            json!({ "index": self.block_count - 1, "delta": kind.delta(text) }),
            to,
        );
    }

    /// Writes a tool call as a block.
    fn call(&mut self, progress: &CallProgress, to: &mut String) {
        match progress {
            CallProgress::Begun(name) => {
                self.close(to);
                self.start_block(&tool_use(&call_id(), name, json!({})), to);
                self.has_called = true;
            }
            CallProgress::Arguments(text) => {
                let delta = json!({ "type": "input_json_delta", "partial_json": text });
                write_event(
                    "content_block_delta",
                    json!({ "index": self.block_count - 1, "delta": delta }),
                    to,
                );
            }
            CallProgress::Done | CallProgress::Cut => self.end_block(to),
        }
    }

    fn start_block(&mut self, block: &Json, to: &mut String) {
        write_event("content_block_start", json!({ "index": self.block_count, "content_block": block }), to);
        self.block_count += 1;
    }

    fn end_block(&self, to: &mut String) {
        write_event("content_block_stop", json!({ "index": self.block_count - 1 }), to);
    }

    fn close(&mut self, to: &mut String) {
        if self.open.take().is_some() {
            self.end_block(to);
        }
    }
}

impl Writer for Events {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const PING: Option<&'static str> = Some(PING);

    fn begin(&mut self, to: &mut String) {
        // How much of the prompt is in the cache is not known yet; `message_delta` has it.
        let usage = json!({
            "input_tokens": self.input_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0,
        });
        write_event("message_start", json!({ "message": self.head.message(Vec::new(), usage) }), to);
        to.push_str(PING);
    }

    fn output(&mut self, Output { event, .. }: Output, to: &mut String) {
        match event {
            OutputEvent::Piece(piece) => {
                self.text(TextKind::Thinking, &piece.reasoning, to);
                self.text(TextKind::Text, &piece.answer, to);
                piece.progress.iter().for_each(|progress| self.call(progress, to));
            }
            OutputEvent::Finished(finished) => {
                self.close(to);
                let (reason, sequence) = stop(&finished.finish, self.has_called);
                let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
                write_event("message_delta", json!({ "delta": delta, "usage": usage(&finished) }), to);
            }
        }
    }

    fn end(&mut self, to: &mut String) {
        write_event("message_stop", json!({}), to);
    }

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        write_event("error", super::error(refusal), to);
    }
}
