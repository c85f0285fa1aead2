//! `/v1/completions`: continuations of prompts.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::options::{self, StreamOptions, refuse_unsupported};
use super::{Head, Stream, Usage, finish_reason, logprobs};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::fields::Fields;
use crate::job::{AnswerPiece, Job, Output, OutputEvent, Prompt, Running};
use crate::memory::Charge;
use crate::refusal::Refusal;
use crate::start::MAX_CHOICES;
use crate::stream::{self, Writer};

/// OpenAI's default.
const MAX_TOKENS: usize = 16;

/// The `object` of responses and of streamed chunks.
const KIND: &str = "text_completion";

const UNSUPPORTED: &[(&str, &str)] = &[("suffix", "infilling is not available")];

pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let streaming = StreamOptions::read(&fields)?;
    let job = read(&fields)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && job.logprobs.is_some() {
        return Err(Refusal::invalid(
            "'echo' together with 'logprobs' is not supported: log probabilities of prompts are not computed",
        )
        .param("echo")
        .code("unsupported_parameter"));
    }
    let choices_per_prompt = job.choices;
    let prompts = job.prompts.clone();
    let has_logprobs = job.logprobs.is_some();
    let running = app.start(job, caller).await?;
    let head = Head::new("cmpl", &fields, &running, has_logprobs)?;
    let echoed = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => running.model().model().decode(ids),
        Prompt::Chat(_) => Ok(String::new()),
    };
    let texts: Vec<String> = match echo {
        true => prompts.iter().map(echoed).collect::<Result<_, _>>()?,
        false => vec![String::new(); prompts.len()],
    };
    let echoed_bytes: usize = texts.iter().map(String::len).sum();
    let charge = Charge::new(app.memory());
    charge.take(echoed_bytes.saturating_mul(4 * choices_per_prompt))?;
    // With `echo`, each choice begins with its prompt.
    let texts: Vec<ChoiceText> = (0..prompts.len() * choices_per_prompt)
        .map(|choice| ChoiceText { text: texts[choice / choices_per_prompt].clone(), offset: 0 })
        .collect();
    match streaming.stream {
        true => {
            let stream = Stream::new(KIND, head, streaming);
            Ok(stream::respond(running, Chunks { stream, choices_per_prompt, texts }))
        }
        false => collect(running, head, choices_per_prompt, texts).await,
    }
}

fn read(fields: &Fields<'_>) -> Result<Job, Refusal> {
    refuse_unsupported(fields, UNSUPPORTED)?;
    let mut job = options::job(fields, prompts(fields)?)?;
    job.max_tokens = Some(fields.count("max_tokens", 0..=usize::MAX)?.unwrap_or(MAX_TOKENS));
    job.logprobs = fields.count("logprobs", 0..=5)?;
    if fields.count("best_of", 0..=usize::MAX)?.is_some_and(|best| best != job.choices) {
        return Err(Refusal::invalid("'best_of' is not supported: use 'n', which returns all answers")
            .param("best_of")
            .code("unsupported_parameter"));
    }
    Ok(job)
}

/// Reads a string, token ids, or a list of either.
fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, Refusal> {
    let refuse = || fields.refuse("prompt", "a string, a list of token ids, or a list of either");
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
        Some(Json::Array(list)) if list.len() > MAX_CHOICES => {
            let message = format!(
                "'prompt' has {} prompts, and a request may ask for {MAX_CHOICES} answers",
                list.len()
            );
            Err(Refusal::invalid(message).param("prompt").code("invalid_value"))
        }
        Some(Json::Array(list)) => list.iter().map(|value| one(value).ok_or_else(refuse)).collect(),
        Some(value) => Ok(vec![one(value).ok_or_else(refuse)?]),
        None => Err(Refusal::invalid("'prompt' is missing: give a string")
            .param("prompt")
            .code("missing_required_parameter")),
    }
}

fn logprobs_of(head: &Head, piece: &AnswerPiece, offset: &mut usize) -> Json {
    match &head.tokenizer {
        Some(tokenizer) => logprobs::of_completion(&piece.tokens, &**tokenizer, offset),
        None => Json::Null,
    }
}

/// The state of a choice.
#[derive(Clone, Debug, Default)]
struct ChoiceText {
    text: String,
    /// Number of characters whose log probabilities have been written.
    offset: usize,
}

async fn collect(
    mut running: Running,
    head: Head,
    choices_per_prompt: usize,
    texts: Vec<ChoiceText>,
) -> Result<Response, Refusal> {
    let mut choices: Vec<(ChoiceText, AnswerPiece, &str)> =
        texts.into_iter().map(|text| (text, AnswerPiece::default(), "stop")).collect();
    let mut usage = Usage::default();
    while let Some(output) = running.next().await {
        let Output { choice, event } = output?;
        let (written, piece, finish) = &mut choices[choice];
        match event {
            OutputEvent::Piece(more) => {
                written.text.push_str(&more.answer);
                piece.tokens.extend(more.tokens);
            }
            OutputEvent::Finished(finished) => {
                usage.add(choice % choices_per_prompt == 0, &finished);
                *finish = finish_reason(&finished.finish);
            }
        }
    }
    let written = choices.iter_mut().enumerate().map(|(index, (written, piece, finish))| {
        let logprobs = logprobs_of(&head, piece, &mut written.offset);
        json!({ "text": written.text, "index": index, "logprobs": logprobs, "finish_reason": finish })
    });
    let mut answer = head.object(KIND, written.collect());
    usage.write(&mut answer);
    Ok(json(&answer))
}

#[derive(Debug)]
struct Chunks {
    stream: Stream,
    /// Choices of each prompt.
    choices_per_prompt: usize,
    texts: Vec<ChoiceText>,
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
        for (index, echo) in self.texts.iter().enumerate().filter(|(_, echo)| !echo.text.is_empty()) {
            self.chunk(index, &echo.text, Json::Null, None, to);
        }
    }

    fn output(&mut self, Output { choice, event }: Output, to: &mut String) {
        match event {
            OutputEvent::Piece(piece) => {
                let logprobs = logprobs_of(&self.stream.head, &piece, &mut self.texts[choice].offset);
                self.chunk(choice, &piece.answer, logprobs, None, to);
            }
            OutputEvent::Finished(finished) => {
                self.stream.usage.add(choice % self.choices_per_prompt == 0, &finished);
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
