//! What can go wrong between a file and a token, in words that say what to do next.

use akunu_format::FormatError;
use akunu_plan::{DeviceError, MemoryPlan, PlanError};
use akunu_tokenizer::TokenizerError;
use akunu_tokenizer::chat::ChatError;

/// Display is the whole story, causes included: print it as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] ChatError),

    #[error("there is no device \"{name}\"; choose one of {known}")]
    UnknownDevice { name: String, known: String },

    #[error("there is no chip \"{name}\" to plan for; choose one of {known}")]
    UnknownChip { name: String, known: String },

    #[error(
        "indirect command buffers are Metal's, and this would run on {device}: leave --metal-icb out, or choose --device metal on a Mac"
    )]
    NotMetal { device: &'static str },

    #[error(
        "this model with a context of {context} needs {} of memory, and {} are available; {advice}\n{}",
        crate::memory::human(plan.allocated()), crate::memory::human(*available), crate::memory::listing(plan)
    )]
    DoesNotFit { plan: Box<MemoryPlan>, context: usize, available: u64, advice: String },

    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,

    #[error(
        "token id {id} (number {} of the {place}) is outside the vocabulary of {vocab} ids: use 0 to {}",
        index + 1, vocab - 1
    )]
    /// `index` counts from 0, and the message from 1.
    TokenOutsideVocabulary { id: u32, index: usize, vocab: usize, place: &'static str },

    #[error(
        "the prompt has {prompt} tokens and the context {context} positions; shorten the prompt or ask for a \
         context of at least {} (-c)", prompt + 1
    )]
    PromptTooLong { prompt: usize, context: usize },

    #[error(
        "all {context} tokens of the context are used; ask for a larger one (-c), or allow stopping or shifting"
    )]
    ContextFull { context: usize },

    #[error("this model has no vocabulary that can be used ({reason}), so it takes and gives token ids only")]
    NoTokenizer { reason: String },

    #[error(
        "the logits after position {position} are not finite numbers: the weights are damaged, or a kernel is \
         wrong (akunu verify MODEL tells)"
    )]
    NotFinite { position: usize },

    #[error("all {slots} slots are taken: drop a session, or make the engine with more slots")]
    NoFreeSlot { slots: usize },

    #[error("this session belongs to another engine")]
    ForeignSession,

    #[error("{what} of {count} tokens from number {first} on do not lie within the session's {len}")]
    OutsideSession { what: &'static str, first: usize, count: usize, len: usize },

    #[error("text number {index} is empty: give at least one token", index = index + 1)]
    EmptyText { index: usize },

    #[error(
        "text number {number} has {tokens} tokens, but the maximum is {longest}: shorten it, or have \
         it cut (--truncate)", number = index + 1
    )]
    TextTooLong { index: usize, tokens: usize, longest: usize },

    #[error(
        "this model generates text, and its files do not say how to make a vector of its states: choose a pooling \
         (--pooling mean, cls, last or none)"
    )]
    NoPooling,

    #[error("the model's files have no prompt \"{name}\"; they have {known}")]
    UnknownPrompt { name: String, known: String },

    #[error(
        "this model has no classifier, so it cannot score documents: take a reranker, or embed the texts"
    )]
    NoClassifier,

    #[error("this model's classifier gives {labels} scores, and a ranking needs one")]
    ManyLabels { labels: usize },

    #[error(
        "this model makes vectors or scores of texts (akunu embed, akunu rerank; /v1/embeddings, /v1/rerank) and \
         generates none"
    )]
    NotGenerative,

    #[error("no pass has asked for logits since the engine was made")]
    NoLogits,

    #[error("this is not a saved conversation: {reason}")]
    Conversation { reason: String },

    #[error("there is nothing to answer yet")]
    NothingToAnswer,

    /// A setting that makes no sense.
    #[error("{name} is {value}; it has to be {expected}")]
    Setting { name: &'static str, value: String, expected: &'static str },

    #[error("the logit biases rule every token out, so none can be picked")]
    NothingToPick,

    #[error(transparent)]
    Schema(#[from] crate::constrain::SchemaError),

    #[error("this vocabulary has no token that could follow where the answer's form has come to")]
    NothingFits,

    #[error("the answer's form can be read in too many ways at once: let its alternatives differ sooner")]
    ManyReadings,

    #[error("what handles this request panicked: {message}")]
    Panicked { message: String },

    /// In a pass that several requests shared: each of them has it.
    #[error(transparent)]
    Shared(std::sync::Arc<Error>),
}
