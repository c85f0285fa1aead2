//! Turns a job into requests to the engine.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use akunu::chat::{AnswerOptions, AnswerReader, ChatTemplate, Tags, reads_effort};
use akunu::schedule::{Event, OnEvent, Refused, Request};
use akunu::{Constraints, Error, GenerateOptions, GrammarError, ResponseFormat, Sampling};
use akunu_tokenizer::InfillTokens;
use serde_json::{Map, Value as Json};
use tokio::time::{Instant, sleep_until};

use crate::app::{App, Caller};
use crate::blocking::{CancelOnDrop, blocking};
use crate::job::{
    AnswerPiece, Conversation, Ending, Finished, Job, Output, OutputEvent, OutputResult, Prompt, Running,
    SamplingOverrides,
};
use crate::memory::{Charge, RequestMemory, score_bytes};
use crate::metrics::Metrics;
use crate::models::{Kind, Lease, Loaded, Turn};
use crate::outputs::{OutputSender, channel};
use crate::prefill;
use crate::record::{self, Record};
use crate::refusal::{Reason, Refusal};
use crate::response_format::RequestedFormat;

/// Maximum choices of one job, over all its prompts.
pub const MAX_CHOICES: usize = 128;

/// What a prompt would run with.
#[derive(Clone, Debug)]
pub(crate) struct Rendered {
    pub(crate) model: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) options: GenerateOptions,
    /// `None`: random.
    pub(crate) seed: Option<u64>,
    /// Answers to the prompt.
    pub(crate) choices: usize,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
}

impl App {
    /// What each prompt of a job would run with.
    pub(crate) async fn render(&self, job: Job, caller: Caller) -> Result<Vec<Rendered>, Refusal> {
        let (job, priority) = self.check(job, caller)?;
        let lease = self.models().get(job.model.as_deref()).await?;
        let (prepared, _) = self.prepare(&job, &lease, caller).await?;
        let rendered = |Prepared { request, .. }: Prepared| Rendered {
            model: lease.name().to_string(),
            ids: request.prompt,
            options: request.options,
            seed: job.sampling.seed,
            choices: job.choices,
            cache_salt: job.cache_salt.clone(),
            priority,
        };
        Ok(prepared.into_iter().step_by(job.choices).map(rendered).collect())
    }

    /// Checks a job, with the settings of its model's variant, and returns its priority.
    fn check(&self, mut job: Job, caller: Caller) -> Result<(Arc<Job>, i32), Refusal> {
        if let Some(variant) = self.models().variant(job.model.as_deref()) {
            variant.apply(&mut job);
        }
        let priority = priority(&job, caller)?;
        self.check_lists(&job)?;
        let choices = job.prompts.len() * job.choices;
        if !(1..=MAX_CHOICES).contains(&choices) {
            let message =
                format!("a request may ask for 1 to {MAX_CHOICES} answers, and this one asks for {choices}");
            return Err(Refusal::invalid(message).param("n"));
        }
        Ok((Arc::new(job), priority))
    }

    /// Renders and tokenizes the prompts of a job, on a thread for blocking work. The flag cancels its requests.
    async fn prepare(
        &self,
        job: &Arc<Job>,
        lease: &Lease,
        caller: Caller,
    ) -> Result<(Vec<Prepared>, CancelOnDrop), Refusal> {
        lease.check_kind(Kind::Generates)?;
        lease.check_usable()?;
        let (of_job, of_lease, memory) = (job.clone(), lease.clone(), self.memory().clone());
        // If the client hangs up, this future is dropped, and the grammar need not be compiled.
        let cancel = CancelOnDrop::default();
        let (flag, owner) = (cancel.flag(), caller.owner);
        let turn = self.models().writing(job.conversations()).await?;
        let prepared = move || Prepared::all(&of_job, &of_lease, &memory, owner, &flag, turn);
        Ok((blocking(prepared).await??, cancel))
    }

    /// Starts a job.
    pub async fn start(&self, job: Job, caller: Caller) -> Result<Running, Refusal> {
        let (job, priority) = self.check(job, caller)?;
        let salt = self.salt(caller, job.cache_salt.as_deref());
        let deadline = self.limits().request.map(|limit| Instant::now() + limit);
        // The second attempt is for a model whose engine had failed.
        for _ in 0..2 {
            let lease = self.models().get(job.model.as_deref()).await?;
            let (mut prepared, cancel) = self.prepare(&job, &lease, caller).await?;
            for Prepared { request, .. } in &mut prepared {
                (request.owner, request.priority, request.salt) = (caller.owner, priority, salt);
            }
            let held = self.charge_scores(&job, &prepared)?;
            match self.submit(prepared, &job, lease.clone(), (deadline, held), cancel) {
                Err(Refused::Closed) => self.models().forget(&lease),
                Err(Refused::TooMany { requests, limit }) => {
                    let message = format!(
                        "the request asks for {requests} answers, and the server has places for {limit} (--parallel and \
                         --queue)"
                    );
                    return Err(Refusal::invalid(message).param("n").code("invalid_value"));
                }
                Err(refused) => return Err(queue_full(&refused)),
                Ok(running) => return Ok(running),
            }
        }
        Err(Refusal::internal("the engine failed right after it was started"))
    }

    /// Checks the number of stop strings and biases, which cost time with each token.
    pub(crate) fn check_lists(&self, job: &Job) -> Result<(), Refusal> {
        let limits = self.limits();
        let bytes = job.stop.iter().map(String::len).sum();
        for (param, what, count, limit, option) in [
            ("stop", "stop strings", job.stop.len(), limits.stops, "; the server's option is --max-stops"),
            ("stop", "bytes of stop strings", bytes, limits.stop_bytes, ""),
            ("logit_bias", "biases", job.sampling.logit_bias.len(), limits.biases, ""),
        ] {
            if count > limit {
                let message = format!("the request has {count} {what}, and the limit is {limit}{option}");
                return Err(Refusal::invalid(message).param(param).code("invalid_value"));
            }
        }
        Ok(())
    }

    /// Takes the memory for log probabilities of prompts, until the response is written.
    fn charge_scores(&self, job: &Job, prepared: &[Prepared]) -> Result<Charge, Refusal> {
        let held = Charge::new(self.memory());
        if let Some(best) = job.prompt_logprobs {
            let of_prompt =
                prepared.iter().step_by(job.choices).map(|prepared| prepared.request.prompt.len());
            let of_choice = of_prompt.sum::<usize>().saturating_mul(score_bytes(best));
            // The other choices repeat what the first one found.
            held.take(of_choice.saturating_mul(job.choices))?;
        }
        Ok(held)
    }

    fn submit(
        &self,
        prepared: Vec<Prepared>,
        job: &Job,
        lease: Lease,
        (deadline, held): (Option<Instant>, Charge),
        cancel: CancelOnDrop,
    ) -> Result<Running, Refused> {
        let (sender, outputs) = channel(WAITING);
        let flag = cancel.flag();
        let started = Instant::now();
        let prompt_tokens = prepared.iter().map(|prepared| prepared.request.prompt.len()).collect();
        let first = |prepared: &Prepared| prepared.request.prompt.first().copied().unwrap_or_default();
        let first_tokens = prepared.iter().map(first).collect();
        record::note(|record| note(record, &prepared, job.choices));
        let (left, deadline) = (prepared.len(), deadline.map(|deadline| Box::pin(sleep_until(deadline))));
        let tools_are_text = prepared.iter().any(|prepared| prepared.tools_are_text);
        let ignores_reasoning = prepared.iter().any(|prepared| prepared.ignores_reasoning);
        let running = Running {
            outputs,
            left,
            cancel,
            prompt_tokens,
            first_tokens,
            tools_are_text,
            ignores_reasoning,
            held,
            lease,
            deadline,
        };
        let handle = running.lease.handle().ok_or(Refused::Closed)?;
        let requests = prepared.into_iter().enumerate().map(|(choice, Prepared { request, reader, .. })| {
            let (metrics, priority) = (self.metrics().clone(), request.priority);
            let timer = TokenTimer { metrics, priority, started, last: None };
            let record = record::current().map(|record| (record, choice % job.choices == 0));
            let outlet = Outlet::new(choice, sender.clone(), flag.clone());
            (request, event_handler(outlet, reader, timer, record))
        });
        handle.submit_all(requests.collect())?;
        Ok(running)
    }
}

/// Whether a request asks for reasoning of which its model's template knows nothing.
fn ignores_reasoning(template: &ChatTemplate, variables: &Map<String, Json>) -> bool {
    let asks = variables.get("enable_thinking") == Some(&Json::Bool(true));
    let source = template.source();
    let reasons = || template.mentions("enable_thinking") || source.contains(Tags::of_template(source).close);
    let effort = variables.get("reasoning_effort").is_some_and(|effort| effort != "none");
    asks && !reasons() || effort && !reads_effort(template)
}

fn note(record: &Record, prepared: &[Prepared], choices: usize) {
    let of_prompts = prepared.iter().step_by(choices.max(1));
    record.prompt_tokens(of_prompts.map(|prepared| prepared.request.prompt.len()).sum());
    if let Some(first) = prepared.first() {
        record.generates(&first.request.options, prepared.len());
    }
}

/// The most seconds that a client is told to wait: a forecast of more says little.
const LONGEST_RETRY: u64 = 600;

pub(crate) fn queue_full(refused: &Refused) -> Refusal {
    let (code, seconds) = match refused {
        // Until then, requests before it will have ended.
        Refused::TooLate { expected, deadline } => {
            ("too_late", expected.saturating_sub(*deadline).as_secs_f64().ceil() as u64)
        }
        _ => ("queue_full", 1),
    };
    Refusal::new(Reason::TooMany, format!("{refused}; try again later"))
        .code(code)
        .retry_after(seconds.clamp(1, LONGEST_RETRY))
}

/// The request's priority, or else that of its API key, which it may not precede. Without keys all clients are equal, and none
/// may precede the others.
fn priority(job: &Job, caller: Caller) -> Result<i32, Refusal> {
    let least = caller.priority.unwrap_or(0);
    let priority = job.priority.unwrap_or(least);
    if priority >= least {
        return Ok(priority);
    }
    let whose = if caller.priority.is_some() { "with this API key" } else { "without an API key" };
    let message = format!(
        "'priority' is {priority} and must be at least {least} {whose} (lower values are scheduled first)"
    );
    Err(Refusal::invalid(message).param("priority").code("invalid_value"))
}

/// Bytes that tokenizing takes for each byte of a text, at most: 66 were measured of eighteen pairs of vocabulary and text.
const TOKENIZE_BYTES: usize = 80;

/// Texts of at most this many bytes are tokenized even if they cannot fit, so that the error says how many tokens they have.
const SHORT: usize = 64 << 10;

/// Takes the memory for tokenizing a text, until the result is dropped.
pub(crate) fn charge_text(text: &str, memory: &Arc<RequestMemory>) -> Result<Charge, Refusal> {
    let charge = Charge::new(memory);
    charge.take(text.len().saturating_mul(TOKENIZE_BYTES))?;
    Ok(charge)
}

/// As [`charge_text`], for a text that must fit the context.
pub(crate) fn check_text(
    text: &str,
    loaded: &Loaded,
    memory: &Arc<RequestMemory>,
) -> Result<Charge, Refusal> {
    check_bytes(text.len(), loaded)?;
    charge_text(text, memory)
}

fn check_bytes(bytes: usize, loaded: &Loaded) -> Result<(), Refusal> {
    let most = loaded.most_text_bytes();
    if bytes <= most.max(SHORT) {
        return Ok(());
    }
    let message = format!(
        "the text has {bytes} bytes, and {} tokens, the context length of this model, have at most {most}; shorten it",
        loaded.context()
    );
    Err(Refusal::invalid(message).code("context_length_exceeded"))
}

/// A request for the engine, and the reader of its answer.
#[derive(Clone, Debug)]
struct Prepared {
    request: Request,
    reader: AnswerReader,
    /// The model's template writes no tools, so they are described to it.
    tools_are_text: bool,
    /// The model's template knows nothing of the reasoning that is asked for.
    ignores_reasoning: bool,
}

impl Prepared {
    /// One for each choice. Renders and tokenizes, so it must not run on an async thread.
    fn all(
        job: &Job,
        loaded: &Loaded,
        memory: &Arc<RequestMemory>,
        owner: u64,
        cancel: &Arc<AtomicBool>,
        mut turn: Option<Turn>,
    ) -> Result<Vec<Prepared>, Refusal> {
        let constraints = loaded.constraints().of(owner);
        let seed = job.sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 11);
        let sampling = sampling(&job.sampling, loaded);
        let vocab = loaded.model().config().vocab_size;
        sampling.check(vocab)?;
        if let Some(id) = job.stop_ids.iter().find(|id| **id as usize >= vocab) {
            let message =
                format!("'stop_token_ids' has {id}, which is outside of the vocabulary of {vocab} ids");
            return Err(Refusal::invalid(message).param("stop_token_ids").code("invalid_value"));
        }
        let options = GenerateOptions {
            max_tokens: job.max_tokens,
            sampling,
            stop_strings: job.stop.clone(),
            stop_ids: job.stop_ids.clone(),
            ignore_eos: job.ignore_eos,
            logprobs: job.logprobs,
            cancel: Some(cancel.clone()),
            ..GenerateOptions::default()
        };
        let mut all = Vec::with_capacity(job.prompts.len() * job.choices);
        for prompt in &job.prompts {
            for choice in 0..job.choices {
                let mut prepared = match choice {
                    0 => Prepared::new(job, prompt, (loaded, &constraints), &options, memory, &mut turn)?,
                    _ => all.last().cloned().ok_or_else(|| Refusal::internal("no choice"))?,
                };
                prepared.request.options.sampling.seed = seed.wrapping_add(choice as u64);
                prepared.request.prompt_logprobs = job.prompt_logprobs.filter(|_| choice == 0);
                all.push(prepared);
            }
        }
        Ok(all)
    }

    fn new(
        job: &Job,
        prompt: &Prompt,
        (loaded, constraints): (&Loaded, &Constraints),
        options: &GenerateOptions,
        memory: &Arc<RequestMemory>,
        turn: &mut Option<Turn>,
    ) -> Result<Prepared, Refusal> {
        let mut options = options.clone();
        let format = job.format.as_ref().map(|requested| requested.format.clone());
        // The format and the tools are the only parts of an answer's options that can be invalid.
        let refuse = |error: Error| match (&error, &job.format) {
            (Error::Grammar(GrammarError::Busy { .. }), _) => error.into(),
            (Error::Grammar(of_tools), _) if of_tools.is_of_tools() => {
                Refusal::from(error).param("tools").code("invalid_schema")
            }
            (_, Some(RequestedFormat { param, .. })) => {
                Refusal::from(error).param(*param).code("invalid_schema")
            }
            _ => error.into(),
        };
        let plain = |format: Option<ResponseFormat>, options: &mut GenerateOptions| {
            AnswerReader::of_text(format.as_ref(), constraints, options).map_err(refuse)
        };
        let (mut tools_are_text, mut is_ignored) = (false, false);
        let (ids, reader) = match prompt {
            Prompt::Chat(conversation) => {
                let chat_format = conversation.chat_format(loaded)?;
                let of_tools = chat_format.used(conversation.tools.as_deref());
                tools_are_text = conversation.tools.is_some() && !chat_format.writes_tools();
                is_ignored = ignores_reasoning(of_tools.template(), &conversation.variables);
                prefill::check_format(conversation, job.format.as_ref())?;
                let _copy = prefill::charge(conversation, memory)?;
                let (rendered, _charge) = render_that_fits(conversation, loaded, memory)?;
                // A job has one conversation, and what follows may wait for a grammar.
                drop(turn.take());
                let Conversation { tools, tool_choice, .. } = conversation.clone();
                let answer = AnswerOptions { tools, tool_choice, format, one_call: job.one_call };
                let reader =
                    chat_format.answer(&rendered.text, &answer, constraints, &mut options).map_err(refuse)?;
                let reader = match conversation.open_text() {
                    Some(text) => reader.after(text),
                    None => reader,
                };
                (rendered.encode(&**chat_format.tokenizer()).map_err(Error::from)?, reader)
            }
            Prompt::Text(text) => {
                let _charge = check_text(text, loaded, memory)?;
                (loaded.model().encode(text)?, plain(format, &mut options)?)
            }
            Prompt::Ids(ids) => (ids.clone(), plain(format, &mut options)?),
            Prompt::Infill { files, before, after } => {
                let texts = files.iter().map(|file| &file.text).chain([before, after]);
                let _charges: Vec<_> =
                    texts.map(|text| check_text(text, loaded, memory)).collect::<Result<_, _>>()?;
                let tokenizer = loaded.model().tokenizer()?;
                let tokens = InfillTokens::of(&**tokenizer).ok_or_else(|| {
                    let message =
                        "this model fills in no middle of a text: its vocabulary has no tokens for that";
                    Refusal::invalid(message).param("suffix").code("unsupported_parameter")
                })?;
                let ids = tokens.prompt(&**tokenizer, files, before, after).map_err(Error::from)?;
                (ids, plain(format, &mut options)?)
            }
        };
        akunu::check_prompt(&ids, loaded.model().config().vocab_size, loaded.context())?;
        let request = Request { prompt: ids, options, ..Request::default() };
        Ok(Prepared { request, reader, tools_are_text, ignores_reasoning: is_ignored })
    }
}

/// Renders a conversation with what its ending asks for.
pub(crate) fn render(conversation: &Conversation, loaded: &Loaded) -> Result<akunu::chat::Rendered, Refusal> {
    let chat_format = conversation.chat_format(loaded)?;
    let Conversation { messages, tools, variables, ending, .. } = conversation;
    let (messages, tools) = (messages.as_slice(), tools.as_deref());
    match ending {
        Ending::Answer => chat_format.prompt(messages, tools, variables),
        Ending::Open => chat_format.open_prompt(messages, tools, variables),
        Ending::Closed => chat_format.transcript(messages, tools, variables),
    }
    .map_err(|error| Refusal::from(error).param("messages"))
}

/// The same of a conversation that must fit the context, and the memory for tokenizing it, until that is dropped.
pub(crate) fn render_that_fits(
    conversation: &Conversation,
    loaded: &Loaded,
    memory: &Arc<RequestMemory>,
) -> Result<(akunu::chat::Rendered, Charge), Refusal> {
    // A template writes what a user said last, and rendering much of it may take longer than a template may.
    let last = conversation.messages.iter().rfind(|message| message["role"] == "user");
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or("");
    check_bytes(text.len(), loaded)?;
    let rendered = render(conversation, loaded)?;
    let charge = check_text(&rendered.text, loaded, memory)?;
    Ok((rendered, charge))
}

fn sampling(overrides: &SamplingOverrides, loaded: &Loaded) -> Sampling {
    let neutral = Sampling { temperature: 1.0, ..Sampling::default() };
    let suggested = Sampling::suggested(&loaded.model().config().sampling, &neutral);
    let has_penalties = overrides.frequency_penalty.or(overrides.presence_penalty).is_some();
    let window = if has_penalties { loaded.context() } else { suggested.repeat_last_n };
    let sampling = Sampling {
        temperature: overrides.temperature.unwrap_or(suggested.temperature),
        top_k: overrides.top_k.unwrap_or(suggested.top_k),
        top_p: overrides.top_p.unwrap_or(suggested.top_p),
        min_p: overrides.min_p.unwrap_or(suggested.min_p),
        repeat_penalty: overrides.repeat_penalty.unwrap_or(suggested.repeat_penalty),
        frequency_penalty: overrides.frequency_penalty.unwrap_or(0.0),
        presence_penalty: overrides.presence_penalty.unwrap_or(0.0),
        repeat_last_n: overrides.repeat_last_n.unwrap_or(window),
        logit_bias: overrides.logit_bias.clone(),
        ..suggested
    };
    overrides.samplers.over(sampling, loaded.model())
}

/// Outputs of a request that may wait for its client to read.
const WAITING: usize = 1 << 16;

/// Where the outputs of one choice go.
#[derive(Debug)]
struct Outlet {
    choice: usize,
    sender: OutputSender,
    /// Of the request.
    cancel: Arc<AtomicBool>,
    /// Pieces of this step.
    pieces: Vec<AnswerPiece>,
    /// The tokens of this step.
    tokens: usize,
}

impl Outlet {
    fn new(choice: usize, sender: OutputSender, cancel: Arc<AtomicBool>) -> Outlet {
        Outlet { choice, sender, cancel, pieces: Vec::new(), tokens: 0 }
    }

    /// Sends the pieces of this step and what follows them, or cancels a request whose client does not read.
    fn send(&mut self, last: Option<Result<OutputEvent, Refusal>>) -> ControlFlow<()> {
        let choice = self.choice;
        let pieces = self.pieces.drain(..).map(|piece| Ok(OutputEvent::Piece(piece)));
        let events = pieces.chain(last);
        let outputs: Vec<OutputResult> =
            events.map(|event| event.map(|event| Output { choice, event })).collect();
        if !outputs.is_empty() && !self.sender.send(outputs) {
            self.cancel.store(true, Ordering::Relaxed);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Handles the events of one choice on the engine's thread, and sends the outputs to the request's task. `record`: that of
/// the request, and whether this is the first choice of its prompt.
fn event_handler(
    mut outlet: Outlet,
    mut reader: AnswerReader,
    mut timer: TokenTimer,
    record: Option<(Arc<Record>, bool)>,
) -> OnEvent {
    let mut has_calls = false;
    Box::new(move |event| {
        if !matches!(event, Event::Piece { .. }) {
            let tokens = std::mem::take(&mut outlet.tokens);
            timer.tokens(tokens);
            if let Some((record, _)) = record.as_ref().filter(|_| tokens > 0) {
                record.tokens(tokens);
            }
        }
        match event {
            Event::Started { .. } => ControlFlow::Continue(()),
            Event::Piece { text, ids, logprobs } => {
                outlet.tokens += ids.len();
                let (deltas, _) = reader.push(text, ids.len(), &mut |_| ControlFlow::Continue(()));
                has_calls |= deltas.iter().any(|delta| !delta.calls.is_empty());
                let first = outlet.pieces.len();
                outlet.pieces.extend(deltas.into_iter().map(AnswerPiece::from));
                if outlet.pieces.len() == first && !logprobs.is_empty() {
                    outlet.pieces.push(AnswerPiece::default());
                }
                if let Some(piece) = outlet.pieces.get_mut(first) {
                    piece.tokens.extend_from_slice(logprobs);
                }
                if reader.is_complete() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
            Event::StepEnd => outlet.send(None),
            Event::Finished(finished) => {
                let deltas = reader.finish(&mut |_| ControlFlow::Continue(()));
                has_calls |= deltas.iter().any(|delta| !delta.calls.is_empty());
                outlet.pieces.extend(deltas.into_iter().map(AnswerPiece::from));
                if let Some((record, is_first)) = &record {
                    let cached = is_first.then_some(finished.timings.reused_tokens);
                    record.finished(&finished.finish, has_calls, cached);
                }
                let reasoning_tokens = reader.reasoning_tokens();
                let akunu::schedule::Finished { finish, timings, prompt_logprobs, ending, .. } = finished;
                let finished = Finished { finish, timings, reasoning_tokens, prompt_logprobs, ending };
                outlet.send(Some(Ok(OutputEvent::Finished(finished))))
            }
            Event::Failed(error) => outlet.send(Some(Err(error.into()))),
        }
    })
}

/// Measures the time to the first token and between tokens.
#[derive(Debug)]
struct TokenTimer {
    metrics: Arc<Metrics>,
    priority: i32,
    started: Instant,
    /// When the latest tokens were generated.
    last: Option<Instant>,
}

impl TokenTimer {
    /// Tokens have been generated together.
    fn tokens(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let now = Instant::now();
        match self.last.replace(now) {
            Some(last) => self.metrics.next_tokens(self.priority, now - last, count),
            None => {
                self.metrics.first_token(self.priority, now - self.started);
                self.metrics.next_tokens(self.priority, Duration::ZERO, count.saturating_sub(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_client_does_not_read_is_cancelled() {
        let (sender, _outputs) = channel(2);
        let mut outlet = Outlet::new(0, sender, Arc::default());
        outlet.pieces = vec![AnswerPiece::default(); 2];
        assert!(outlet.send(None).is_continue() && outlet.send(None).is_continue());
        assert!(!outlet.cancel.load(Ordering::Relaxed));
        outlet.pieces.push(AnswerPiece::default());
        assert!(outlet.send(None).is_break() && outlet.cancel.load(Ordering::Relaxed));
    }
}
