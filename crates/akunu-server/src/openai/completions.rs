//! `/v1/completions`: texts to go on with.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::options::{self, Manner, refuse_unsupported};
use super::{Head, Stream, Usage, finish_reason, logprobs};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::job::{Job, Output, Piece, Prompt, Running, What};
use crate::refusal::Refusal;
use crate::stream::{self, Writer};

/// As OpenAI has it where nobody says.
const MAX_TOKENS: usize = 16;

/// Whole or in chunks.
const KIND: &str = "text_completion";

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
    let running = app.start(job, caller).await?;
    let head = Head::new("cmpl", &fields, &running, wants_logprobs)?;
    let echoed = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => running.model().model().decode(ids),
        Prompt::Chat(_) => Ok(String::new()),
    };
    let texts: Vec<String> = match echo {
        true => prompts.iter().map(echoed).collect::<Result<_, _>>()?,
        false => vec![String::new(); prompts.len()],
    };
    // Each choice begins with its prompt where that is wanted.
    let begun: Vec<Begun> = (0..prompts.len() * of_each)
        .map(|choice| Begun { text: texts[choice / of_each].clone(), offset: 0 })
        .collect();
    match manner.stream {
        true => {
            let stream = Stream::new(KIND, head, manner);
            Ok(stream::respond(running, Chunks { stream, of_each, begun }))
        }
        false => whole(running, head, of_each, begun).await,
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

fn logprobs_of(head: &Head, piece: &Piece, offset: &mut usize) -> Json {
    match &head.tokenizer {
        Some(tokenizer) => logprobs::of_completion(&piece.tokens, &**tokenizer, offset),
        None => Json::Null,
    }
}

/// A choice on its way.
#[derive(Clone, Debug, Default)]
struct Begun {
    text: String,
    /// Characters of the tokens whose log probabilities were written.
    offset: usize,
}

async fn whole(
    mut running: Running,
    head: Head,
    of_each: usize,
    begun: Vec<Begun>,
) -> Result<Response, Refusal> {
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
                usage.add(choice % of_each == 0, &finished);
                *finish = finish_reason(&finished.finish);
            }
        }
    }
    let written = choices.iter_mut().enumerate().map(|(index, (begun, piece, finish))| {
        let logprobs = logprobs_of(&head, piece, &mut begun.offset);
        json!({ "text": begun.text, "index": index, "logprobs": logprobs, "finish_reason": finish })
    });
    let mut answer = head.object(KIND, written.collect());
    answer["usage"] = usage.json();
    Ok(json(&answer))
}

#[derive(Debug)]
struct Chunks {
    stream: Stream,
    /// Choices of each prompt.
    of_each: usize,
    begun: Vec<Begun>,
}

impl Chunks {
    fn chunk(&self, index: usize, text: &str, logprobs: Json, finish: Option<&str>, to: &mut String) {
        let choice = json!({ "text": text, "index": index, "logprobs": logprobs, "finish_reason": finish });
        self.stream.chunk(choice, to);
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
                let logprobs = logprobs_of(&self.stream.head, &piece, &mut self.begun[choice].offset);
                self.chunk(choice, &piece.answer, logprobs, None, to);
            }
            What::Finished(finished) => {
                self.stream.usage.add(choice % self.of_each == 0, &finished);
                self.chunk(choice, "", Json::Null, Some(finish_reason(&finished.finish)), to);
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
