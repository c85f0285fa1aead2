//! `/v1/completions`: texts to go on with.

use std::sync::Arc;

use akunu_tokenizer::Tokenizer;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::options::{self, Manner, refuse_unsupported};
use super::{FINGERPRINT, Usage, finish_reason, logprobs, new_id, now};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::job::{Job, Output, Piece, Prompt, Running, What};
use crate::refusal::Refusal;
use crate::stream::{self, Writer};

/// As OpenAI has it where nobody says.
const MAX_TOKENS: usize = 16;

const UNSUPPORTED: &[(&str, &str)] = &[("suffix", "texts are only gone on with at their end")];

pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let manner = Manner::read(&fields)?;
    let job = read(&fields)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && job.logprobs.is_some() {
        return Err(Refusal::invalid(
            "'echo' with 'logprobs' is not supported: a prompt's tokens are not scored",
        )
        .param("echo")
        .code("unsupported_parameter"));
    }
    let of_each = job.choices;
    let prompts = job.prompts.clone();
    let wants_logprobs = job.logprobs.is_some();
    let running = app.start(job, caller.owner).await?;
    let model = fields.text("model")?.unwrap_or(running.model().name()).to_string();
    let tokenizer = match wants_logprobs {
        true => Some(running.model().model().tokenizer()?.clone()),
        false => None,
    };
    let echoed = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => running.model().model().decode(ids),
        Prompt::Chat(_) => Ok(String::new()),
    };
    let texts: Vec<String> = match echo {
        true => prompts.iter().map(echoed).collect::<Result<_, _>>()?,
        false => vec![String::new(); prompts.len()],
    };
    let head = Head { id: new_id("cmpl"), created: now(), model, tokenizer, of_each };
    // Each choice begins with its prompt where that is wanted.
    let begun: Vec<Begun> = (0..prompts.len() * of_each)
        .map(|choice| Begun { text: texts[choice / of_each].clone(), offset: 0 })
        .collect();
    match manner.stream {
        true => Ok(stream::respond(running, Chunks { head, manner, begun, usage: Usage::default() })),
        false => whole(running, head, begun).await,
    }
}

fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    refuse_unsupported(fields, UNSUPPORTED)?;
    let mut job = options::job(fields, prompts(fields)?)?;
    job.max_tokens = Some(fields.count("max_tokens", 0..=usize::MAX)?.unwrap_or(MAX_TOKENS));
    job.logprobs = fields.count("logprobs", 0..=5)?;
    if fields.count("best_of", 0..=usize::MAX)?.is_some_and(|best| best != job.choices) {
        return Err(Refusal::invalid("'best_of' is not supported: every answer is given")
            .param("best_of")
            .code("unsupported_parameter"));
    }
    Ok(job)
}

/// A text, ids, or a list of either.
fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, Refusal> {
    let refuse =
        || fields.refuse("prompt", "a text, a list of token ids, or a list of texts or of such lists");
    let ids = |list: &[Json]| {
        let id = |value: &Json| u32::try_from(value.as_u64()?).ok();
        list.iter().map(id).collect::<Option<Vec<u32>>>().map(Prompt::Ids)
    };
    let one = |value: &Json| match value {
        Json::String(text) => Some(Prompt::Text(text.clone())),
        Json::Array(list) => ids(list),
        _ => None,
    };
    match fields.get("prompt") {
        Some(Json::Array(list)) if list.is_empty() => Err(refuse()),
        Some(Json::Array(list)) if list.iter().all(Json::is_number) => {
            Ok(vec![ids(list).ok_or_else(refuse)?])
        }
        Some(Json::Array(list)) => list.iter().map(|value| one(value).ok_or_else(refuse)).collect(),
        Some(value) => Ok(vec![one(value).ok_or_else(refuse)?]),
        None => Err(Refusal::invalid("'prompt' is missing: give a text to go on with")
            .param("prompt")
            .code("missing_required_parameter")),
    }
}

#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
    /// Where log probabilities were asked for.
    tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Choices of each prompt.
    of_each: usize,
}

impl Head {
    fn object(&self, choices: Vec<Json>) -> Json {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": choices, "system_fingerprint": FINGERPRINT,
        })
    }

    fn logprobs(&self, piece: &Piece, offset: &mut usize) -> Json {
        match &self.tokenizer {
            Some(tokenizer) => logprobs::of_completion(&piece.tokens, &**tokenizer, offset),
            None => Json::Null,
        }
    }
}

/// A choice on its way.
#[derive(Clone, Debug, Default)]
struct Begun {
    text: String,
    /// Characters of the tokens whose log probabilities were written.
    offset: usize,
}

async fn whole(mut running: Running, head: Head, begun: Vec<Begun>) -> Result<Response, Refusal> {
    let mut choices: Vec<(Begun, Piece, &str)> =
        begun.into_iter().map(|begun| (begun, Piece::default(), "stop")).collect();
    let mut usage = Usage::default();
    while let Some(output) = running.next().await {
        let Output { choice, what } = output?;
        let (begun, piece, finish) = &mut choices[choice];
        match what {
            What::Piece(more) => {
                begun.text.push_str(&more.answer);
                piece.tokens.extend(more.tokens);
            }
            What::Finished(finished) => {
                usage.add(choice % head.of_each == 0, &finished);
                *finish = finish_reason(&finished.finish);
            }
        }
    }
    let written = choices.iter_mut().enumerate().map(|(index, (begun, piece, finish))| {
        let logprobs = head.logprobs(piece, &mut begun.offset);
        json!({ "text": begun.text, "index": index, "logprobs": logprobs, "finish_reason": finish })
    });
    let mut answer = head.object(written.collect());
    answer["usage"] = usage.json();
    Ok(json(&answer))
}

#[derive(Debug)]
struct Chunks {
    head: Head,
    manner: Manner,
    begun: Vec<Begun>,
    usage: Usage,
}

impl Chunks {
    fn chunk(&self, index: usize, text: &str, logprobs: Json, finish: Option<&str>, to: &mut String) {
        let choice = json!({ "text": text, "index": index, "logprobs": logprobs, "finish_reason": finish });
        self.write(vec![choice], None, to);
    }

    fn write(&self, choices: Vec<Json>, usage: Option<Json>, to: &mut String) {
        let mut chunk = self.head.object(choices);
        if self.manner.usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        stream::event(&chunk, to);
    }
}

impl Writer for Chunks {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, to: &mut String) {
        for (index, begun) in self.begun.iter().enumerate().filter(|(_, begun)| !begun.text.is_empty()) {
            self.chunk(index, &begun.text, Json::Null, None, to);
        }
    }

    fn output(&mut self, Output { choice, what }: Output, to: &mut String) {
        match what {
            What::Piece(piece) => {
                let logprobs = self.head.logprobs(&piece, &mut self.begun[choice].offset);
                self.chunk(choice, &piece.answer, logprobs, None, to);
            }
            What::Finished(finished) => {
                self.usage.add(choice % self.head.of_each == 0, &finished);
                self.chunk(choice, "", Json::Null, Some(finish_reason(&finished.finish)), to);
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
