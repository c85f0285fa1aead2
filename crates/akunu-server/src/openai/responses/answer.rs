//! The answer of `/v1/responses`: items, and the events that lead to them.

use std::sync::Arc;

use akunu::FinishReason;
use akunu::chat::CallProgress;
use akunu::chat::conversation::call_id;
use akunu_tokenizer::Tokenizer;
use serde_json::{Value as Json, json};

use super::store::{Owner, StoredResponse};
use super::tools;
use crate::app::App;
use crate::job::{AnswerPiece, Finished, Output, OutputEvent};
use crate::memory::Charge;
use crate::openai::{Usage, hex_id, logprobs, now};
use crate::refusal::Refusal;
use crate::stream::{self, Writer};

/// What is stored with a response.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) app: App,
    pub(super) owner: Owner,
    /// The items of earlier turns.
    pub(super) turns: Vec<Arc<str>>,
    pub(super) input: Vec<Json>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Reasoning,
    Answer,
}

impl TextKind {
    /// The prefix of events.
    fn event(self) -> &'static str {
        match self {
            TextKind::Reasoning => "response.reasoning_text",
            TextKind::Answer => "response.output_text",
        }
    }
}

/// The item that is being written.
#[derive(Debug)]
struct Open {
    kind: TextKind,
    id: String,
    text: String,
    logprobs: Vec<Json>,
}

impl Open {
    fn part(&self) -> Json {
        match self.kind {
            TextKind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            TextKind::Answer => json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            }),
        }
    }

    fn item(&self, status: &str, content: Vec<Json>) -> Json {
        match self.kind {
            TextKind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content,
            }),
            TextKind::Answer => json!({
                "id": self.id, "type": "message", "role": "assistant", "status": status, "content": content,
            }),
        }
    }
}

/// The call that is being written.
#[derive(Debug)]
struct OpenCall {
    id: String,
    call_id: String,
    namespace: Option<String>,
    name: String,
    arguments: String,
}

impl OpenCall {
    fn item(&self, status: &str, arguments: &str) -> Json {
        let mut item = json!({
            "id": self.id, "type": "function_call", "status": status, "call_id": self.call_id,
            "name": self.name, "arguments": arguments,
        });
        if let Some(namespace) = &self.namespace {
            item["namespace"] = namespace.as_str().into();
        }
        item
    }
}

/// An answer in progress.
#[derive(Debug)]
pub(super) struct Answer {
    /// The response without its output.
    response: Json,
    items: Vec<Json>,
    open: Option<Open>,
    open_call: Option<OpenCall>,
    usage: Usage,
    /// Set if log probabilities were requested.
    tokenizer: Option<Arc<dyn Tokenizer>>,
    keep: Option<Keep>,
    is_streamed: bool,
    events: u64,
    /// Log probabilities of tokens whose text has not come yet.
    waiting: Vec<Json>,
    /// For the response and what is stored with it.
    held: Charge,
}

impl Answer {
    pub(super) fn new(
        response: Json,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        keep: Option<Keep>,
        is_streamed: bool,
        held: Charge,
    ) -> Answer {
        Answer {
            response,
            items: Vec::new(),
            open: None,
            open_call: None,
            usage: Usage::default(),
            tokenizer,
            keep,
            is_streamed,
            events: 0,
            waiting: Vec::new(),
            held,
        }
    }

    /// The response as it is now.
    pub(super) fn into_response(self) -> Json {
        self.response
    }

    fn event(&mut self, kind: &str, mut data: Json, to: &mut String) {
        if self.is_streamed {
            data["type"] = kind.into();
            data["sequence_number"] = self.events.into();
            self.events += 1;
            stream::named_event(kind, &data, to);
        }
    }

    /// Adds text; that of an answer has the log probabilities that wait.
    fn text(&mut self, kind: TextKind, text: &str, to: &mut String) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close("completed", to);
            self.begin_text(kind, to);
        }
        let (at, mut data) = (self.items.len(), json!({ "content_index": 0, "delta": text }));
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            data["item_id"] = open.id.as_str().into();
            data["output_index"] = at.into();
            let logprobs = std::mem::take(&mut self.waiting);
            if kind == TextKind::Answer {
                data["logprobs"] = logprobs.clone().into();
                open.logprobs.extend(logprobs);
            }
        }
        self.event(&format!("{}.delta", kind.event()), data, to);
    }

    fn begin_text(&mut self, kind: TextKind, to: &mut String) {
        let prefix = if kind == TextKind::Reasoning { "rs" } else { "msg" };
        let id = format!("{prefix}_{}", hex_id());
        let open = Open { kind, id, text: String::new(), logprobs: Vec::new() };
        let at = self.items.len();
        let item = json!({ "output_index": at, "item": open.item("in_progress", Vec::new()) });
        self.event("response.output_item.added", item, to);
        let part = json!({ "item_id": open.id, "output_index": at, "content_index": 0, "part": open.part() });
        self.event("response.content_part.added", part, to);
        self.open = Some(open);
    }

    fn close(&mut self, status: &str, to: &mut String) {
        let Some(open) = self.open.take() else { return };
        let place = json!({ "item_id": open.id, "output_index": self.items.len(), "content_index": 0 });
        let mut done = place.clone();
        done["text"] = open.text.as_str().into();
        if open.kind == TextKind::Answer {
            done["logprobs"] = open.logprobs.clone().into();
        }
        self.event(&format!("{}.done", open.kind.event()), done, to);
        let mut part = place;
        part["part"] = open.part();
        self.event("response.content_part.done", part, to);
        self.done(open.item(status, vec![open.part()]), to);
    }

    fn done(&mut self, item: Json, to: &mut String) {
        let data = json!({ "output_index": self.items.len(), "item": item });
        self.event("response.output_item.done", data, to);
        self.items.push(item);
    }

    fn call(&mut self, progress: &CallProgress, to: &mut String) {
        match progress {
            CallProgress::Begun(name) => {
                self.close("completed", to);
                let (namespace, name) = tools::divided(&self.response["tools"], name);
                let call = OpenCall {
                    id: format!("fc_{}", hex_id()),
                    call_id: call_id(),
                    namespace: namespace.map(str::to_string),
                    name: name.to_string(),
                    arguments: String::new(),
                };
                let added = json!({ "output_index": self.items.len(), "item": call.item("in_progress", "") });
                self.event("response.output_item.added", added, to);
                self.open_call = Some(call);
            }
            CallProgress::Arguments(text) => {
                let Some(call) = &mut self.open_call else { return };
                call.arguments.push_str(text);
                let delta = json!({ "item_id": call.id, "output_index": self.items.len(), "delta": text });
                self.event("response.function_call_arguments.delta", delta, to);
            }
            CallProgress::Done => self.end_call("completed", to),
            CallProgress::Cut => self.end_call("incomplete", to),
        }
    }

    fn end_call(&mut self, status: &str, to: &mut String) {
        let Some(call) = self.open_call.take() else { return };
        let OpenCall { id, name, arguments, .. } = &call;
        let at = self.items.len();
        let done = json!({ "item_id": id, "output_index": at, "name": name, "arguments": arguments });
        self.event("response.function_call_arguments.done", done, to);
        self.done(call.item(status, &call.arguments), to);
    }

    fn piece(&mut self, piece: &AnswerPiece, to: &mut String) {
        self.text(TextKind::Reasoning, &piece.reasoning, to);
        if let Some(tokenizer) = &self.tokenizer {
            self.waiting.extend(logprobs::of_chat(&piece.tokens, &**tokenizer));
        }
        self.text(TextKind::Answer, &piece.answer, to);
        piece.progress.iter().for_each(|progress| self.call(progress, to));
    }

    fn finish(&mut self, finished: &Finished, to: &mut String) {
        let is_cut_off = matches!(finished.finish, FinishReason::MaxTokens | FinishReason::ContextFull);
        let status = if is_cut_off { "incomplete" } else { "completed" };
        self.close(status, to);
        if self.items.is_empty() {
            self.begin_text(TextKind::Answer, to);
            self.close(status, to);
        }
        self.usage.add(true, finished);
        self.response["status"] = status.into();
        self.response["output"] = self.items.clone().into();
        self.response["usage"] = usage(&self.usage);
        match is_cut_off {
            true => self.response["incomplete_details"] = json!({ "reason": "max_output_tokens" }),
            false => self.response["completed_at"] = now().into(),
        }
        self.store();
        self.event(&format!("response.{status}"), json!({ "response": self.response }), to);
    }

    fn store(&mut self) {
        let Some(Keep { app, owner, mut turns, input }) = self.keep.take() else { return };
        let of_input = Json::from(input);
        let input = of_input.to_string().into();
        let mut items = of_input;
        if let Some(items) = items.as_array_mut() {
            items.extend(self.items.iter().cloned());
        }
        turns.push(items.to_string().into());
        let stored = StoredResponse { response: self.response.to_string().into(), input, turns };
        let id = self.response["id"].as_str().unwrap_or_default().to_string();
        if let Some(folder) = app.response_folder().cloned() {
            let (app, id, stored, held) = (app.clone(), id.clone(), stored.clone(), self.held.clone());
            tokio::spawn(async move {
                let _turn = folder.turn().await;
                let write = move || {
                    if let (Err(error), Some(log)) = (folder.put(&id, owner, &stored), app.log()) {
                        log.note(format!("a response is not kept in the folder of --store: {error}"));
                    }
                    drop(held);
                };
                let _ = tokio::task::spawn_blocking(write).await;
            });
        }
        app.responses().put(&id, owner, stored);
    }
}

fn usage(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
        "output_tokens": usage.completion,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.completion,
    })
}

impl Writer for Answer {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    const PING: Option<&'static str> = Some(stream::PING_COMMENT);

    fn begin(&mut self, to: &mut String) {
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, json!({ "response": self.response }), to);
        }
    }

    fn output(&mut self, output: Output, to: &mut String) {
        match output.event {
            OutputEvent::Piece(piece) => self.piece(&piece, to),
            OutputEvent::Finished(finished) => self.finish(&finished, to),
        }
    }

    fn end(&mut self, _to: &mut String) {}

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        self.close("incomplete", to);
        self.end_call("incomplete", to);
        self.response["status"] = "failed".into();
        self.response["output"] = self.items.clone().into();
        self.response["error"] = json!({ "code": "server_error", "message": refusal.message });
        self.event("response.failed", json!({ "response": self.response }), to);
    }
}
