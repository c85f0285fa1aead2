//! What to generate, whatever protocol asks for it, and what comes of it.
//!
//! A protocol module makes a [`Job`] from a request, gives it to [`App::start`](crate::App::start), and writes what
//! [`Running::next`] gives in its own form. Dropping a [`Running`] ends its generation within a step.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use akunu::chat::{AnswerDelta, Call};
use akunu::schedule::TokenLogprob;
use akunu::{FinishReason, Timings};
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Sleep;

use crate::models::Lease;
use crate::refusal::{Reason, Refusal};
use crate::response_format::RequestedFormat;

/// What somebody wants generated.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// A model's name or alias; `None`: the first.
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt. Choice `i` answers prompt `i / choices`.
    pub choices: usize,
    /// `None`: until the model ends the text, or the context is full.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub sampling: SamplingOverrides,
    /// For each token its log probability, and those of so many best ones at its place.
    pub logprobs: Option<usize>,
    /// Go on past the model's end-of-text ids.
    pub ignore_eos: bool,
    /// The format that answers have to have.
    pub format: Option<RequestedFormat>,
    /// An answer ends with its first call of a tool.
    pub one_call: bool,
    /// Lower ones are begun first; `None`: as the caller's key has it.
    pub priority: Option<i32>,
}

impl Job {
    pub fn new(model: Option<String>, prompt: Prompt) -> Job {
        Job { model, prompts: vec![prompt], choices: 1, ..Job::default() }
    }
}

#[derive(Clone, Debug)]
pub enum Prompt {
    Chat(Conversation),
    /// A text to go on with. Special tokens written out in it are read as such.
    Text(String),
    Ids(Vec<u32>),
}

/// Messages and tools are what the OpenAI API takes: content is a text, and arguments of tool calls are objects.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Json>,
    /// With tools, calls are read out of the answer, where it is known how the model writes them.
    pub tools: Option<Vec<Json>>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Json>,
}

/// How tokens are picked, as far as anybody said. The rest is as the model's makers suggest, or else neutral.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    /// Tokens that penalties look back at; `None`: all.
    pub repeat_last_n: Option<usize>,
    pub logit_bias: Vec<(u32, f32)>,
    /// `None`: another one each time. Choice `i` of a prompt has `seed + i`.
    pub seed: Option<u64>,
}

/// Something that came of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub choice: usize,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Piece(Piece),
    /// The last of a choice.
    Finished(Finished),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// What came before `answer`, in whole characters.
    pub reasoning: String,
    pub answer: String,
    /// What came behind `answer`.
    pub calls: Vec<ToolCall>,
    /// The tokens since the last piece, where log probabilities were asked for.
    pub tokens: Vec<TokenLogprob>,
}

impl From<AnswerDelta> for Piece {
    /// Gives each call an id.
    fn from(delta: AnswerDelta) -> Piece {
        let AnswerDelta { reasoning, answer, calls } = delta;
        let calls = calls.into_iter().map(|call| ToolCall { id: new_id(), call }).collect();
        Piece { reasoning, answer, calls, tokens: Vec::new() }
    }
}

/// A random id of nine letters and digits.
fn new_id() -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut random = RandomState::new().hash_one(0);
    let digit = |_| {
        let digit = DIGITS[(random % DIGITS.len() as u64) as usize];
        random /= DIGITS.len() as u64;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

impl Piece {
    /// Adds what follows.
    pub fn append(&mut self, more: Piece) {
        self.reasoning.push_str(&more.reasoning);
        self.answer.push_str(&more.answer);
        self.calls.extend(more.calls);
        self.tokens.extend(more.tokens);
    }
}

/// What the model wants done.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Nine letters and digits: what Mistral's templates want, and others take.
    pub id: String,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub finish: FinishReason,
    pub timings: Timings,
    /// Of the generated tokens, those that reasoned.
    pub reasoning_tokens: usize,
}

pub(crate) type Sent = Result<Output, Refusal>;

/// A job on its way.
#[derive(Debug)]
pub struct Running {
    pub(crate) outputs: UnboundedReceiver<Sent>,
    /// Choices that are not finished.
    pub(crate) left: usize,
    pub(crate) cancel: Arc<AtomicBool>,
    /// The prompts' lengths in tokens.
    pub(crate) prompt_tokens: Vec<usize>,
    pub(crate) lease: Lease,
    /// When somebody else is to have a turn.
    pub(crate) deadline: Option<Pin<Box<Sleep>>>,
}

impl Running {
    /// `None` once every choice is finished, and after an error.
    pub async fn next(&mut self) -> Option<Result<Output, Refusal>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, Refusal>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let late = |deadline: &mut Pin<Box<Sleep>>| deadline.as_mut().poll(context).is_ready();
        if self.deadline.as_mut().is_some_and(late) {
            self.left = 0;
            self.cancel.store(true, Ordering::Relaxed);
            let message = "the answer took longer than this server allows; ask for fewer tokens";
            return Poll::Ready(Some(Err(Refusal::new(Reason::Overdue, message).code("timeout"))));
        }
        self.outputs.poll_recv(context).map(|sent| {
            let sent = sent.unwrap_or_else(|| {
                Err(Refusal::internal("the engine broke down; the next request starts it anew"))
            });
            match &sent {
                Ok(Output { what: What::Finished(_), .. }) => self.left -= 1,
                Ok(_) => {}
                Err(_) => self.left = 0,
            }
            Some(sent)
        })
    }

    /// The model that answers.
    pub fn model(&self) -> &crate::models::Loaded {
        &self.lease
    }

    /// The prompts' lengths in tokens.
    pub fn prompt_tokens(&self) -> &[usize] {
        &self.prompt_tokens
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}
