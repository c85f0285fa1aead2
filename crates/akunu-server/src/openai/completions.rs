//! `/v1/completions`: continuations of prompts.

use akunu::schedule::TokenLogprob;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::options::{self, StreamOptions};
use super::{Head, Stream, Usage, finish_reason, logprobs};
use crate::app::{App, Caller, json};
use crate::body::JsonBody;
use crate::field_table;
use crate::fields::Fields;
use crate::job::{AnswerPiece, Job, Output, OutputEvent, Prompt, Running};
use crate::refusal::Refusal;
use crate::start::MAX_CHOICES;
use crate::stream::{self, Writer};

/// OpenAI's default.
const MAX_TOKENS: usize = 16;

/// OpenAI's limit.
const MAX_BEST_OF: usize = 20;

/// The `object` of responses and of streamed chunks.
const KIND: &str = "text_completion";

pub(super) async fn completions(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let fields = Fields::new(&body)?;
    let warnings = field_table::COMPLETIONS.check(&fields)?;
    let streaming = StreamOptions::read(&fields)?;
    let (job, asked) = read(&fields, streaming.stream)?;
    let candidates = job.choices;
    let prompts = job.prompts.clone();
    let running = app.start(job, caller).await.map_err(|refusal| refusal.too_long_in("prompt"))?;
    let head = Head::new("cmpl", &fields, &running, asked.logprobs)?;
    let echoed = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => running.model().model().decode(ids),
        Prompt::Infill { before, .. } => Ok(before.clone()),
        Prompt::Chat(_) => Ok(String::new()),
    };
    let texts: Vec<String> = match asked.echo {
        true => prompts.iter().map(echoed).collect::<Result<_, _>>()?,
        false => vec![String::new(); prompts.len()],
    };
    let echoed_bytes: usize = texts.iter().map(String::len).sum();
    running.held.take(echoed_bytes.saturating_mul(4 * candidates))?;
    // With `echo`, each choice begins with its prompt.
    let texts: Vec<ChoiceText> = (0..prompts.len() * candidates)
        .map(|choice| ChoiceText { text: texts[choice / candidates].clone(), offset: 0 })
        .collect();
    let response = match streaming.stream {
        true => {
            let stream = Stream::new(KIND, head, streaming);
            stream::respond(running, Chunks { stream, choices_per_prompt: candidates, texts })
        }
        false => collect(running, head, (candidates, asked), texts).await?,
    };
    Ok(warnings.on(response))
}

/// What a request asks for beside its job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    echo: bool,
    logprobs: bool,
    /// The alternatives to each token in them.
    alternatives: usize,
    /// The alternatives to each token of the prompt in `prompt_logprobs`, if asked for.
    prompt_logprobs: Option<usize>,
    /// How many of each prompt's answers are returned.
    best: usize,
}

pub(super) fn read(fields: &Fields<'_>, is_streamed: bool) -> Result<(Job, Asked), Refusal> {
    let mut job = options::job(fields, prompts(fields)?)?;
    job.max_tokens = Some(fields.count("max_tokens", 0..=usize::MAX)?.unwrap_or(MAX_TOKENS));
    job.logprobs = fields.count("logprobs", 0..=5)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let prompt_logprobs = fields.count("prompt_logprobs", 0..=20)?;
    let (logprobs, alternatives) = (job.logprobs.is_some(), job.logprobs.unwrap_or(0));
    let asked = Asked { echo, logprobs, alternatives, prompt_logprobs, best: job.choices };
    let contradiction = |name: &str, other: &str| {
        let message = format!("'{name}' together with {other} is not supported");
        Refusal::invalid(message).param(name).code("unsupported_parameter")
    };
    if let Some(after) = fields.text("suffix")?.filter(|after| !after.is_empty()) {
        if prompt_logprobs.is_some() || echo && asked.logprobs {
            return Err(contradiction("suffix", "log probabilities of the prompt"));
        }
        let infill = |prompt: Prompt| match prompt {
            Prompt::Text(before) => {
                Ok(Prompt::Infill { files: Vec::new(), before, after: after.to_string() })
            }
            _ => Err(contradiction("suffix", "a 'prompt' of token ids")),
        };
        job.prompts = job.prompts.into_iter().map(infill).collect::<Result<_, _>>()?;
    }
    if echo && asked.logprobs {
        if is_streamed {
            return Err(contradiction("echo", "'logprobs' and 'stream'"));
        }
        job.prompt_logprobs = job.logprobs;
    }
    if prompt_logprobs.is_some() {
        if is_streamed {
            return Err(contradiction("prompt_logprobs", "'stream'"));
        }
        job.prompt_logprobs = job.prompt_logprobs.max(prompt_logprobs);
    }
    match fields.count("best_of", 1..=MAX_BEST_OF)? {
        Some(candidates) if candidates < job.choices => {
            let message = format!("'best_of' is {candidates}, and must be at least 'n', {}", job.choices);
            return Err(Refusal::invalid(message).param("best_of").code("invalid_value"));
        }
        Some(candidates) if candidates > job.choices => {
            if is_streamed {
                return Err(contradiction("best_of", "'stream'"));
            }
            job.choices = candidates;
            // Answers are compared by them.
            job.logprobs = job.logprobs.or(Some(0));
        }
        _ => {}
    }
    Ok((job, asked))
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

/// An answer to a prompt, with the text before it.
#[derive(Debug, Default)]
struct Candidate {
    written: ChoiceText,
    tokens: Vec<TokenLogprob>,
    ending: Option<TokenLogprob>,
    finish: &'static str,
}

impl Candidate {
    /// The mean log probability of its tokens; an empty answer is worse than any other.
    fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.tokens.iter().map(|token| f64::from(token.logprob)).sum();
        if self.tokens.is_empty() { f64::NEG_INFINITY } else { sum / self.tokens.len() as f64 }
    }
}

async fn collect(
    mut running: Running,
    head: Head,
    (candidates, asked): (usize, Asked),
    texts: Vec<ChoiceText>,
) -> Result<Response, Refusal> {
    let mut all: Vec<Candidate> = texts
        .into_iter()
        .map(|written| Candidate { written, finish: "stop", ..Candidate::default() })
        .collect();
    let mut prompts: Vec<Vec<TokenLogprob>> = vec![Vec::new(); all.len() / candidates];
    let mut usage = Usage::default();
    while let Some(output) = running.next().await {
        let Output { choice, event } = output?;
        let candidate = &mut all[choice];
        match event {
            OutputEvent::Piece(more) => {
                candidate.written.text.push_str(&more.answer);
                candidate.tokens.extend(more.tokens);
            }
            OutputEvent::Finished(finished) => {
                usage.add(choice % candidates == 0, &finished);
                candidate.finish = finish_reason(&finished.finish);
                candidate.ending = finished.ending;
                if choice % candidates == 0 {
                    prompts[choice / candidates] = finished.prompt_logprobs;
                }
            }
        }
    }
    let scorer = match asked.prompt_logprobs {
        Some(_) => Some(running.model().model().tokenizer()?.clone()),
        None => None,
    };
    let mut choices = Vec::with_capacity(prompts.len() * asked.best);
    for (of_prompt, (prompt, first)) in
        all.chunks_mut(candidates).zip(prompts.iter().zip(running.first_tokens().iter().step_by(candidates)))
    {
        if asked.best < candidates {
            // Ties keep their order.
            of_prompt.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        }
        // `prompt_logprobs` may ask for more alternatives.
        let cut = |token: &TokenLogprob| TokenLogprob {
            top: token.top.iter().copied().take(asked.alternatives).collect(),
            ..token.clone()
        };
        let echoed: Vec<TokenLogprob> = prompt.iter().map(cut).collect();
        for Candidate { written, tokens, ending, finish } in &mut of_prompt[..asked.best] {
            if asked.echo {
                // Programs that evaluate leave out as many tokens at the end as they asked for.
                tokens.extend(ending.take());
            }
            let logprobs = match &head.tokenizer {
                Some(tokenizer) if asked.echo => logprobs::of_echo(*first, (&echoed, tokens), &**tokenizer),
                Some(tokenizer) => logprobs::of_completion(tokens, &**tokenizer, &mut written.offset),
                None => Json::Null,
            };
            let index = choices.len();
            let mut choice = json!({
                "text": written.text, "index": index, "logprobs": logprobs, "finish_reason": finish,
            });
            if let (Some(best), Some(tokenizer)) = (asked.prompt_logprobs, &scorer) {
                choice["prompt_logprobs"] = logprobs::of_prompt(prompt, best, &**tokenizer);
            }
            choices.push(choice);
        }
    }
    let mut answer = head.object(KIND, choices);
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
    const PING: Option<&'static str> = Some(stream::PING_COMMENT);

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
