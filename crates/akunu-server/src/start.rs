//! From a job to requests of an engine.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use akunu::chat::{AnswerOptions, AnswerReader};
use akunu::constrain::ResponseFormat;
use akunu::schedule::{Event, OnEvent, Refused, Request};
use akunu::{Error, GenerateOptions, Sampling};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::app::{App, Caller};
use crate::job::{
    Conversation, Finished, Job, Output, Piece, Prompt, Running, SamplingOverrides, Sent, What,
};
use crate::metrics::Metrics;
use crate::models::{Kind, Lease, Loaded, blocking};
use crate::refusal::{Reason, Refusal};
use crate::response_format::RequestedFormat;

/// Choices of one job, over all its prompts.
pub const MOST_CHOICES: usize = 128;

impl App {
    /// Has a job begun.
    pub async fn start(&self, job: Job, caller: Caller) -> Result<Running, Refusal> {
        let priority = priority(&job, caller)?;
        let choices = job.prompts.len() * job.choices;
        if !(1..=MOST_CHOICES).contains(&choices) {
            let message = format!("one request may ask for 1 to {MOST_CHOICES} answers, not {choices}");
            return Err(Refusal::invalid(message).param("n"));
        }
        let job = Arc::new(job);
        let deadline = self.limits().request.map(|limit| Instant::now() + limit);
        // The second time where an engine had broken down.
        for _ in 0..2 {
            let lease = self.models().get(job.model.as_deref()).await?;
            lease.check_kind(Kind::Generates)?;
            let (of_job, of_lease) = (job.clone(), lease.clone());
            let mut prepared = blocking(move || Prepared::all(&of_job, &of_lease)).await??;
            for Prepared { request, .. } in &mut prepared {
                (request.owner, request.priority) = (caller.owner, priority);
            }
            match self.submit(prepared, lease.clone(), deadline) {
                Err(Refused::Closed) => self.models().forget(&lease),
                Err(refused @ Refused::QueueFull { .. }) => return Err(queue_full(&refused)),
                Ok(running) => return Ok(running),
            }
        }
        Err(Refusal::internal("the engine breaks down as soon as it has begun"))
    }

    fn submit(
        &self,
        prepared: Vec<Prepared>,
        lease: Lease,
        deadline: Option<Instant>,
    ) -> Result<Running, Refused> {
        let (sender, outputs) = unbounded_channel();
        let (cancel, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let prompt_tokens = prepared.iter().map(|prepared| prepared.request.prompt.len()).collect();
        let (left, deadline) = (prepared.len(), deadline.map(|deadline| Box::pin(sleep_until(deadline))));
        let running = Running { outputs, left, cancel: cancel.clone(), prompt_tokens, lease, deadline };
        for (choice, Prepared { mut request, reader }) in prepared.into_iter().enumerate() {
            request.options.cancel = Some(cancel.clone());
            let handle = running.lease.handle().ok_or(Refused::Closed)?;
            let clock = Clock { metrics: self.metrics().clone(), begun, last: None };
            handle.submit(request, hear(choice, reader, clock, sender.clone()))?;
        }
        Ok(running)
    }
}

pub(crate) fn queue_full(refused: &Refused) -> Refusal {
    Refusal::new(Reason::TooMany, format!("{refused}; try again later")).code("queue_full").retry_after(1)
}

/// What a request asks for, or else its key's; nobody comes sooner than that.
fn priority(job: &Job, caller: Caller) -> Result<i32, Refusal> {
    let wanted = job.priority.or(caller.priority).unwrap_or(0);
    match caller.priority.filter(|least| wanted < *least) {
        None => Ok(wanted),
        Some(least) => {
            let message =
                format!("'priority' has to be at least {least} with this API key; lower ones come first");
            Err(Refusal::invalid(message).param("priority").code("invalid_value"))
        }
    }
}

/// A request for the engine, and what reads the answer to it.
#[derive(Clone, Debug)]
struct Prepared {
    request: Request,
    reader: AnswerReader,
}

impl Prepared {
    /// One for each choice. Tokenizes: not for a thread that others wait for.
    fn all(job: &Job, loaded: &Loaded) -> Result<Vec<Prepared>, Refusal> {
        let seed = job.sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 11);
        let sampling = sampling(&job.sampling, loaded);
        sampling.check(loaded.model().config().vocab_size)?;
        let mut all = Vec::with_capacity(job.prompts.len() * job.choices);
        for prompt in &job.prompts {
            for choice in 0..job.choices {
                let mut prepared = match choice {
                    0 => Prepared::new(job, prompt, loaded, &sampling)?,
                    _ => all.last().cloned().ok_or_else(|| Refusal::internal("no choice"))?,
                };
                prepared.request.options.sampling.seed = seed.wrapping_add(choice as u64);
                all.push(prepared);
            }
        }
        Ok(all)
    }

    fn new(job: &Job, prompt: &Prompt, loaded: &Loaded, sampling: &Sampling) -> Result<Prepared, Refusal> {
        let mut options = GenerateOptions {
            max_tokens: job.max_tokens,
            sampling: sampling.clone(),
            stop_strings: job.stop.clone(),
            ignore_eos: job.ignore_eos,
            ..GenerateOptions::default()
        };
        let format = job.format.as_ref().map(|requested| requested.format.clone());
        // The only thing that can be refused about an answer is its format.
        let refuse = |error: Error| match &job.format {
            Some(RequestedFormat { param, .. }) => Refusal::from(error).param(*param).code("invalid_schema"),
            None => error.into(),
        };
        let plain = |format: Option<ResponseFormat>, options: &mut GenerateOptions| {
            AnswerReader::of_text(format.as_ref(), loaded.constraints(), options).map_err(refuse)
        };
        let (ids, reader) = match prompt {
            Prompt::Chat(conversation) => {
                let form = loaded.form()?;
                let rendered = render(conversation, loaded)?;
                let tools = conversation.tools.clone();
                let wanted = AnswerOptions { tools, format, one_call: job.one_call };
                let reader = form
                    .answer(&rendered.text, &wanted, loaded.constraints(), &mut options)
                    .map_err(refuse)?;
                (rendered.encode(&**form.tokenizer()).map_err(Error::from)?, reader)
            }
            Prompt::Text(text) => (loaded.model().encode(text)?, plain(format, &mut options)?),
            Prompt::Ids(ids) => (ids.clone(), plain(format, &mut options)?),
        };
        akunu::check_prompt(&ids, loaded.model().config().vocab_size, loaded.context())?;
        let request = Request { prompt: ids, options, logprobs: job.logprobs, ..Request::default() };
        Ok(Prepared { request, reader })
    }
}

/// The text of a conversation that is to be answered.
pub(crate) fn render(conversation: &Conversation, loaded: &Loaded) -> Result<akunu::chat::Rendered, Refusal> {
    let form = loaded.form()?;
    let Conversation { messages, tools, variables } = conversation;
    form.prompt(messages, tools.as_deref(), variables).map_err(|error| Refusal::from(error).param("messages"))
}

fn sampling(overrides: &SamplingOverrides, loaded: &Loaded) -> Sampling {
    let neutral = Sampling { temperature: 1.0, ..Sampling::default() };
    let suggested = Sampling::suggested(&loaded.model().config().sampling, &neutral);
    let has_penalties = overrides.frequency_penalty.or(overrides.presence_penalty).is_some();
    let window = if has_penalties { loaded.context() } else { suggested.repeat_last_n };
    Sampling {
        temperature: overrides.temperature.unwrap_or(suggested.temperature),
        top_k: overrides.top_k.unwrap_or(suggested.top_k),
        top_p: overrides.top_p.unwrap_or(suggested.top_p),
        min_p: overrides.min_p.unwrap_or(suggested.min_p),
        repeat_penalty: overrides.repeat_penalty.unwrap_or(suggested.repeat_penalty),
        frequency_penalty: overrides.frequency_penalty.unwrap_or(0.0),
        presence_penalty: overrides.presence_penalty.unwrap_or(0.0),
        repeat_last_n: overrides.repeat_last_n.unwrap_or(window),
        logit_bias: overrides.logit_bias.clone(),
        seed: 0,
    }
}

/// What hears of one choice on the engine's thread, and only hands on.
fn hear(choice: usize, mut reader: AnswerReader, mut clock: Clock, sender: UnboundedSender<Sent>) -> OnEvent {
    let send = move |what: Result<What, Refusal>| match sender.send(what.map(|what| Output { choice, what }))
    {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    Box::new(move |event| match event {
        Event::Started { .. } => ControlFlow::Continue(()),
        Event::Piece { text, ids, logprobs } => {
            clock.tokens(ids.len());
            let (delta, _) = reader.push(text, ids.len(), &mut |_| ControlFlow::Continue(()));
            let mut piece = Piece::from(delta);
            piece.tokens.extend_from_slice(logprobs);
            if piece != Piece::default() {
                send(Ok(What::Piece(piece)))?;
            }
            if reader.is_complete() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        Event::Finished(finished) => {
            let piece = Piece::from(reader.finish(&mut |_| ControlFlow::Continue(())));
            if piece != Piece::default() {
                send(Ok(What::Piece(piece)))?;
            }
            let reasoning_tokens = reader.reasoning_tokens();
            let (finish, timings) = (finished.finish, finished.timings);
            send(Ok(What::Finished(Finished { finish, timings, reasoning_tokens })))
        }
        Event::Failed(error) => send(Err(error.into())),
    })
}

/// Measures how fast tokens come.
#[derive(Debug)]
struct Clock {
    metrics: Arc<Metrics>,
    begun: Instant,
    /// When the last tokens came.
    last: Option<Instant>,
}

impl Clock {
    fn tokens(&mut self, count: usize) {
        let now = Instant::now();
        match self.last.replace(now) {
            Some(last) => self.metrics.next_tokens(now - last, count),
            None => {
                self.metrics.first_token(now - self.begun);
                self.metrics.next_tokens(Duration::ZERO, count.saturating_sub(1));
            }
        }
    }
}
