//! Generation jobs and their outputs, independent of the protocol.
//!
//! A protocol module makes a [`Job`] from a request, passes it to [`App::start`](crate::App::start), and converts the outputs of
//! [`Running::next`] to its own format. Dropping a [`Running`] cancels the generation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use akunu::chat::conversation::call_id;
use akunu::chat::{AnswerDelta, Call, CallProgress, ChatFormat, ToolChoice};
use akunu::schedule::TokenLogprob;
use akunu::{FinishReason, Timings};
use akunu_tokenizer::InfillFile;
use serde_json::{Map, Value as Json};
use tokio::time::Sleep;

use crate::blocking::CancelOnDrop;
use crate::memory::{Charge, score_bytes};
use crate::models::{Lease, Loaded};
use crate::outputs::OutputReceiver;
use crate::refusal::{Reason, Refusal};
use crate::response_format::RequestedFormat;
use crate::samplers::Samplers;

/// A request to generate text.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// A model's name or alias; `None`: the server's first model.
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    /// Number of answers to each prompt. Choice `i` answers prompt `i / choices`.
    pub choices: usize,
    /// `None`: no limit but the end of the text and the context length.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    /// Tokens that end an answer, besides those of the model.
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingOverrides,
    /// Return the log probability of each token, and of this many most probable alternatives.
    pub logprobs: Option<usize>,
    /// The same for the prompts' tokens.
    pub prompt_logprobs: Option<usize>,
    /// Continue after the model's end-of-text tokens.
    pub ignore_eos: bool,
    /// The format that answers without tool calls must have.
    pub format: Option<RequestedFormat>,
    /// An answer ends after its first tool call.
    pub one_call: bool,
    /// Lower priorities are scheduled first; `None`: the priority of the caller's API key.
    pub priority: Option<i32>,
    /// Cached prefixes are reused only by requests with the same text here.
    pub cache_salt: Option<String>,
}

impl Job {
    pub fn new(model: Option<String>, prompt: Prompt) -> Job {
        Job { model, prompts: vec![prompt], choices: 1, ..Job::default() }
    }

    pub(crate) fn conversations(&self) -> impl Iterator<Item = &Conversation> {
        self.prompts.iter().filter_map(|prompt| match prompt {
            Prompt::Chat(conversation) => Some(conversation),
            _ => None,
        })
    }
}

#[derive(Clone, Debug)]
pub enum Prompt {
    Chat(Conversation),
    /// A text to continue. Special tokens that are spelled out in it are encoded as such.
    Text(String),
    Ids(Vec<u32>),
    /// What is between two texts is asked for, by the vocabulary's tokens for that.
    Infill {
        /// Others, which stand before them.
        files: Vec<InfillFile>,
        before: String,
        after: String,
    },
}

/// Messages and tools in the form of the OpenAI API, except that content is a text and arguments of tool calls are objects.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Json>,
    /// With tools, the answer may have calls of them.
    pub tools: Option<Vec<Json>>,
    /// Whether one must be called.
    pub tool_choice: ToolChoice,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Json>,
    /// A chat template in place of the model's, in the form of a Modelfile.
    pub template: Option<Arc<str>>,
    pub ending: Ending,
}

/// What a conversation is followed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// A new answer.
    #[default]
    Answer,
    /// The rest of the last message, which is the assistant's.
    Open,
    /// Whatever the model writes without the prompt for an answer.
    Closed,
}

impl Conversation {
    /// How it is written for a model.
    pub(crate) fn chat_format(&self, loaded: &Loaded) -> Result<Arc<ChatFormat>, Refusal> {
        loaded.chat_format(self.template.as_ref())
    }

    /// The text that is continued.
    pub fn open_text(&self) -> Option<&str> {
        self.messages.last()?["content"].as_str().filter(|_| self.ending == Ending::Open)
    }
}

/// Sampling settings of a request. Others are taken from the model's files, or else are neutral.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    /// The window of the penalties, in tokens; `None`: the whole context.
    pub repeat_last_n: Option<usize>,
    pub logit_bias: Vec<(u32, f32)>,
    pub samplers: Samplers,
    /// `None`: random. Choice `i` of a prompt uses `seed + i`.
    pub seed: Option<u64>,
}

/// An output of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub choice: usize,
    pub event: OutputEvent,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OutputEvent {
    Piece(AnswerPiece),
    /// The last output of a choice.
    Finished(Finished),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerPiece {
    /// Reasoning, which precedes `answer`.
    pub reasoning: String,
    pub answer: String,
    /// Tool calls, which follow `answer`.
    pub calls: Vec<ToolCall>,
    /// The same as they are generated, for streams.
    pub progress: Vec<CallProgress>,
    /// The text of a call that had begun and did not become one.
    pub cut: String,
    /// The tokens since the previous piece, if log probabilities were requested.
    pub tokens: Vec<TokenLogprob>,
}

impl From<AnswerDelta> for AnswerPiece {
    /// Assigns an id to each call.
    fn from(delta: AnswerDelta) -> AnswerPiece {
        let AnswerDelta { reasoning, answer, calls, progress, cut } = delta;
        let calls = calls.into_iter().map(|call| ToolCall { id: call_id(), call }).collect();
        AnswerPiece { reasoning, answer, calls, progress, cut, tokens: Vec::new() }
    }
}

impl AnswerPiece {
    /// Whether it has nothing but parts of a call that is not complete.
    pub fn is_only_progress(&self) -> bool {
        let AnswerPiece { reasoning, answer, calls, progress: _, cut, tokens } = self;
        reasoning.is_empty() && answer.is_empty() && calls.is_empty() && cut.is_empty() && tokens.is_empty()
    }

    /// Appends the next piece, for an answer that is not streamed: a call that did not become one is text.
    pub fn append(&mut self, more: AnswerPiece) {
        self.reasoning.push_str(&more.reasoning);
        self.answer.push_str(&more.answer);
        self.answer.push_str(&more.cut);
        self.calls.extend(more.calls);
        self.tokens.extend(more.tokens);
    }
}

/// A tool call with its id.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Nine letters and digits, as Mistral's templates require.
    pub id: String,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub finish: FinishReason,
    pub timings: Timings,
    /// The generated tokens that belong to reasoning.
    pub reasoning_tokens: usize,
    /// Those of the prompt's tokens after the first, if requested, with the first choice of each prompt.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// That of the token that ended the answer, if log probabilities are requested.
    pub ending: Option<TokenLogprob>,
}

pub(crate) type OutputResult = Result<Output, Refusal>;

/// A running job.
#[derive(Debug)]
pub struct Running {
    pub(crate) outputs: OutputReceiver,
    /// Number of unfinished choices.
    pub(crate) left: usize,
    pub(crate) cancel: CancelOnDrop,
    /// The prompts' lengths in tokens.
    pub(crate) prompt_tokens: Vec<usize>,
    /// The prompts' first tokens.
    pub(crate) first_tokens: Vec<u32>,
    /// There are tools, and the format of the model's calls is unknown.
    pub(crate) tools_are_text: bool,
    /// The template has no variable for the reasoning that the request asks for.
    pub(crate) ignores_reasoning: bool,
    /// Memory for log probabilities, until they are written.
    pub(crate) held: Charge,
    pub(crate) lease: Lease,
    /// When the request times out.
    pub(crate) deadline: Option<Pin<Box<Sleep>>>,
}

impl Running {
    /// The next output, for a response that is written when all have come; `None` after every choice has finished, and after
    /// an error. Takes memory for the log probabilities in it.
    pub async fn next(&mut self) -> Option<Result<Output, Refusal>> {
        let output = std::future::poll_fn(|context| self.poll_next(context)).await?;
        let charged = output.and_then(|output| {
            if let OutputEvent::Piece(piece) = &output.event {
                self.held.take(piece.tokens.iter().map(|token| score_bytes(token.top.len())).sum())?;
            }
            Ok(output)
        });
        if charged.is_err() {
            self.left = 0;
            self.cancel.cancel();
        }
        Some(charged)
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, Refusal>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let has_passed = |deadline: &mut Pin<Box<Sleep>>| deadline.as_mut().poll(context).is_ready();
        if self.deadline.as_mut().is_some_and(has_passed) {
            self.left = 0;
            self.cancel.cancel();
            let message = "the answer exceeded the server's time limit; request fewer tokens";
            return Poll::Ready(Some(Err(Refusal::new(Reason::Overdue, message).code("timeout"))));
        }
        self.outputs.poll_recv(context).map(|sent| {
            let sent = sent.unwrap_or_else(|| {
                Err(match self.cancel.is_cancelled() {
                    true => Refusal::new(Reason::TooSlow, "the answer was not read in time").code("timeout"),
                    false => Refusal::internal("the engine failed; it is restarted by the next request"),
                })
            });
            let has_failed = sent.is_err() && self.lease.failure().is_some();
            let sent = sent.map_err(|refusal| match has_failed {
                true => Refusal { reason: Reason::Unavailable, code: Some("device_failed"), ..refusal },
                false => refusal,
            });
            match &sent {
                Ok(Output { event: OutputEvent::Finished(_), .. }) => self.left -= 1,
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

    /// The first token of each choice's prompt.
    pub(crate) fn first_tokens(&self) -> &[u32] {
        &self.first_tokens
    }

    /// The prompts' lengths in tokens.
    pub fn prompt_tokens(&self) -> &[usize] {
        &self.prompt_tokens
    }
}
