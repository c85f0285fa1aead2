//! `/v1/chat/completions`.

use std::sync::Arc;

use akunu_tokenizer::Tokenizer;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::options::{self, Manner, refuse_unsupported};
use super::{FINGERPRINT, Usage, finish_reason, logprobs, messages, new_id, now};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::job::{Job, Output, Piece, Prompt, Running, What};
use crate::refusal::Refusal;
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
    let running = app.start(job, caller.owner).await?;
    let model = fields.text("model")?.unwrap_or(running.model().name()).to_string();
    let tokenizer = match wants_logprobs {
        true => Some(running.model().model().tokenizer()?.clone()),
        false => None,
    };
    let head = Head { id: new_id("chatcmpl"), created: now(), model, tokenizer };
    match manner.stream {
        true => Ok(stream::respond(running, Chunks { head, manner, choices, usage: Usage::default() })),
        false => whole(running, head, choices).await,
    }
}

fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    refuse_unsupported(fields, UNSUPPORTED)?;
    check_format(fields)?;
    let mut job = options::job(fields, vec![Prompt::Chat(messages::conversation_of(fields)?)])?;
    job.max_tokens = max_tokens(fields)?;
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Refusal::invalid("'top_logprobs' goes with 'logprobs': true only")
            .param("top_logprobs")
            .code("invalid_value"));
    }
    job.logprobs = wanted.then(|| top.unwrap_or(0));
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

/// Anything but text would need a grammar that holds the model to it.
fn check_format(fields: &Fields<'_>) -> Result<(), Refusal> {
    let unsupported = |param: &str, message: String| {
        Err(Refusal::invalid(message).param(param).code("unsupported_parameter"))
    };
    let format = fields.object("response_format")?.and_then(|format| format.get("type"));
    match format.map(|kind| kind.as_str()) {
        None | Some(Some("text")) => {}
        Some(Some(kind @ ("json_object" | "json_schema"))) => {
            return unsupported(
                "response_format",
                format!(
                    "'response_format' of type \"{kind}\" is not supported yet: nothing would hold the answer to it"
                ),
            );
        }
        Some(_) => return Err(fields.refuse("response_format.type", "text")),
    }
    match fields.get("tool_choice") {
        None => Ok(()),
        Some(choice) if choice == "auto" || choice == "none" => Ok(()),
        Some(choice) if choice == "required" || choice.is_object() => unsupported(
            "tool_choice",
            "'tool_choice' can be \"auto\" or \"none\": nothing would hold the answer to a tool yet".into(),
        ),
        Some(_) => Err(fields.refuse("tool_choice", "\"auto\" or \"none\"")),
    }
}

/// What stands in every object of an answer.
#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
    /// Where log probabilities were asked for.
    tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Head {
    fn object(&self, kind: &str, choices: Vec<Json>) -> Json {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices, "system_fingerprint": FINGERPRINT,
        })
    }

    fn logprobs(&self, piece: &Piece) -> Json {
        match &self.tokenizer {
            Some(tokenizer) => {
                json!({ "content": logprobs::of_chat(&piece.tokens, &**tokenizer), "refusal": null })
            }
            None => Json::Null,
        }
    }
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
            What::Piece(more) => {
                let piece = &mut choices[choice].piece;
                piece.reasoning.push_str(&more.reasoning);
                piece.answer.push_str(&more.answer);
                piece.tokens.extend(more.tokens);
            }
            What::Finished(finished) => {
                usage.add(choice == 0, &finished);
                choices[choice].finish = finish_reason(&finished.finish);
            }
        }
    }
    let written = choices.iter().enumerate().map(|(index, Choice { piece, finish })| {
        let mut message = json!({ "role": "assistant", "content": piece.answer, "refusal": null });
        if !piece.reasoning.is_empty() {
            message["reasoning_content"] = piece.reasoning.trim_end().into();
        }
        json!({ "index": index, "message": message, "logprobs": head.logprobs(piece), "finish_reason": finish })
    });
    let mut answer = head.object("chat.completion", written.collect());
    answer["usage"] = usage.json();
    Ok(json(&answer))
}

/// The same, a chunk at a time.
#[derive(Debug)]
struct Chunks {
    head: Head,
    manner: Manner,
    choices: usize,
    usage: Usage,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Json, logprobs: Json, finish: Option<&str>, to: &mut String) {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.write(vec![choice], None, to);
    }

    fn write(&self, choices: Vec<Json>, usage: Option<Json>, to: &mut String) {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.manner.usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        stream::event(&chunk, to);
    }
}

impl Writer for Chunks {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, to: &mut String) {
        for index in 0..self.choices {
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
                self.chunk(choice, Json::Object(delta), self.head.logprobs(&piece), None, to);
            }
            What::Finished(finished) => {
                self.usage.add(choice == 0, &finished);
                self.chunk(choice, json!({}), Json::Null, Some(finish_reason(&finished.finish)), to);
            }
        }
    }

    fn end(&mut self, to: &mut String) {
        if self.manner.usage {
            self.write(Vec::new(), Some(self.usage.json()), to);
        }
        to.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, refusal: &Refusal, to: &mut String) {
        stream::event(&super::error(refusal), to);
    }
}
