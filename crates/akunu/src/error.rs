//! Errors of the engine, with messages that say what to do.

use std::path::PathBuf;

use akunu_format::FormatError;
use akunu_plan::{DeviceError, MemoryPlan, PlanError};
use akunu_tokenizer::TokenizerError;
use akunu_tokenizer::chat::ChatError;

/// What is wrong with a file or folder of the cache.
#[derive(Debug, thiserror::Error)]
pub enum KvFileProblem {
    #[error("{0}")]
    Io(std::io::Error),
    #[error("it is not a file of a cache")]
    Foreign,
    #[error("it has version {0} of the format, and this program reads version 1")]
    Version(u32),
    #[error("it belongs to another model, type of cache or device")]
    OtherModel,
    #[error("it is damaged")]
    Damaged,
    #[error("it has {tokens} tokens, and the context length is {context}; use a larger one (-c)")]
    TooLong { tokens: usize, context: usize },
}

/// Display includes all causes, so it can be printed as it is.
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
    Hosts(#[from] akunu_fleet::hosts::HostsError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] ChatError),

    #[error("unknown device \"{name}\"; choose one of {known}")]
    UnknownDevice { name: String, known: String },

    #[error("unknown chip \"{name}\"; choose one of {known}")]
    UnknownChip { name: String, known: String },

    #[error(
        "indirect command buffers need Metal, and this runs on {device}: remove --metal-icb, or use --device metal on a Mac"
    )]
    NotMetal { device: &'static str },

    #[error(
        "this model with a context of {context} needs {} of memory, and {} are available; {advice}\n{}",
        crate::memory::human(plan.peak()), crate::memory::human(*available), crate::memory::listing(plan)
    )]
    DoesNotFit { plan: Box<MemoryPlan>, context: usize, available: u64, advice: String },

    /// Of several devices with some of the layers each.
    #[error("the layers of device {device} of {count}: {error}")]
    OnDevice { device: usize, count: usize, error: Box<Error> },

    #[error(
        "layers or experts were left to the CPU, and the CPU is the only device here: choose a GPU (--device), or leave \
         out --gpu-layers, --cpu-moe and --n-cpu-moe"
    )]
    NoGpuBesideCpu,

    #[error(
        "experts that are read from the file when they are needed (--expert-memory) are those that the CPU computes from \
         a mapped file, and this model has none"
    )]
    NoPagedExperts,

    #[error(
        "{} for experts are too few: those of one token, and as many that are read meanwhile, need {} \
         (--expert-memory)", crate::memory::human(*bytes), crate::memory::human(*least)
    )]
    ExpertMemory { bytes: u64, least: u64 },

    #[error(
        "{what} needs the KV cache of all layers on one device; here others have that of some (--gpu-layers, \
         --pipeline-parallel)"
    )]
    LayersOnHost { what: &'static str },

    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,

    #[error(
        "token id {id} (number {} of the {place}) is outside the vocabulary of {vocab} ids: use 0 to {}",
        index + 1, vocab - 1
    )]
    /// `index` counts from 0, and the message from 1.
    TokenOutsideVocabulary { id: u32, index: usize, vocab: usize, place: &'static str },

    #[error(
        "the prompt has {prompt} tokens, and the context length is {context}; shorten the prompt, or use a context \
         of at least {} (-c)", prompt + 1
    )]
    PromptTooLong { prompt: usize, context: usize },

    #[error("the context of {context} tokens is full; use a larger one (-c), or allow stopping or shifting")]
    ContextFull { context: usize },

    #[error(
        "this model's cache cannot be moved to other positions, so its context cannot be shifted: use a larger one (-c)"
    )]
    CannotShift,

    #[error("this model has no usable tokenizer ({reason}), so it accepts and returns token ids only")]
    NoTokenizer { reason: String },

    #[error(
        "the logits after position {position} are not finite: the weights are damaged, or a kernel is wrong (check \
         with akunu verify MODEL)"
    )]
    NotFinite { position: usize },

    #[error(
        "the input of {tensor} is not finite somewhere in this text: the weights are damaged, or a kernel is wrong \
         (check with akunu verify MODEL)"
    )]
    InputNotFinite { tensor: String },

    #[error("all {slots} slots are in use: free a session, or create the engine with more slots")]
    NoFreeSlot { slots: usize },

    #[error(
        "all {positions} positions of the KV cache are in use: end other sequences, or give it more memory (--kv-memory)"
    )]
    CacheFull { positions: usize },

    #[error("{}: {problem}", path.display())]
    KvFile { path: PathBuf, problem: KvFileProblem },

    #[error(
        "{what} needs blocks that can be moved, and what this model's layers with sliding windows or states keep stays \
         on the device"
    )]
    WindowsStay { what: &'static str },

    #[error(
        "the cache in the host's memory would take {}, and {} are available: use less (--kv-host)",
        crate::memory::human(*bytes), crate::memory::human(*available)
    )]
    HostCacheTooLarge { bytes: u64, available: u64 },

    #[error(
        "the CPU's part of the model would take {} of memory beside its weights, and {} are available: use a smaller \
         context (-c), or leave more to the GPU (--gpu-layers, --n-cpu-moe)",
        crate::memory::human(*bytes), crate::memory::human(*available)
    )]
    CpuPartTooLarge { bytes: u64, available: u64 },

    #[error("slot {slot} has no text of this caller: its last request was another's, or there was none")]
    EmptySlot { slot: usize },

    #[error("this session belongs to another engine")]
    ForeignSession,

    #[error("{what} of {count} tokens from number {first} exceeds the session's {len}")]
    OutsideSession { what: &'static str, first: usize, count: usize, len: usize },

    #[error(
        "{what} needs the window before token {at}, and sliding-window layers keep only {window} positions: leave \
         more tokens after it, or process the text again"
    )]
    OutsideWindow { what: &'static str, at: usize, window: usize },

    #[error(
        "the session's state after {len} tokens is not known, because a pass over it failed or ended early: truncate the          session first"
    )]
    StateLost { len: usize },

    #[error("text number {index} is empty: give at least one token", index = index + 1)]
    EmptyText { index: usize },

    #[error(
        "text number {number} has {tokens} tokens, and the maximum is {longest}: shorten it, or truncate it \
         (--truncate)", number = index + 1
    )]
    TextTooLong { index: usize, tokens: usize, longest: usize },

    #[error(
        "this model generates text, and its files do not specify a pooling: choose one (--pooling mean, cls, last or \
         none)"
    )]
    NoPooling,

    #[error("the model's files have no prompt \"{name}\"; they have {known}")]
    UnknownPrompt { name: String, known: String },

    #[error("this model has no classifier, so it cannot rank documents: use a reranker, or embed the texts")]
    NoClassifier,

    #[error("this model's classifier has {labels} labels, and ranking needs exactly one")]
    ManyLabels { labels: usize },

    #[error(
        "this model embeds or ranks texts (akunu embed, akunu rerank; /v1/embeddings, /v1/rerank), and does not \
         generate text"
    )]
    NotGenerative,

    #[error(
        "this model transcribes audio (akunu transcribe, /v1/audio/transcriptions), and does not generate text by itself"
    )]
    OnlyTranscribes,

    #[error("this model does not transcribe audio: use a Whisper model")]
    DoesNotTranscribe,

    #[error("this model knows English only, and was asked {asked}")]
    EnglishOnly { asked: String },

    #[error("the model does not know the language \"{language}\"; it knows {known}")]
    UnknownLanguage { language: String, known: String },

    #[error("times of words were asked for, and the transcriber was loaded without them")]
    NoWordTimes,

    #[error(transparent)]
    Audio(#[from] akunu_audio::AudioError),

    #[error("no pass has computed logits yet")]
    NoLogits,

    #[error("the conversation is invalid: {reason}")]
    Conversation { reason: String },

    #[error("there is no message to answer")]
    NothingToAnswer,

    /// An invalid setting.
    #[error("{name} is {value}; it must be {expected}")]
    Setting { name: &'static str, value: String, expected: &'static str },

    #[error("the logit biases exclude every token")]
    NothingToPick,

    #[error(transparent)]
    Grammar(#[from] akunu_grammar::GrammarError),

    #[error("the handler of this request panicked: {message}")]
    Panicked { message: String },

    /// An error of a pass that several requests shared, reported to each of them.
    #[error(transparent)]
    Shared(std::sync::Arc<Error>),
}

impl Error {
    /// Whether less of what takes memory would help: another model, or a shorter context.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Error::DoesNotFit { .. }
                | Error::HostCacheTooLarge { .. }
                | Error::CpuPartTooLarge { .. }
                | Error::Device(DeviceError::OutOfMemory { .. })
        ) || matches!(self, Error::OnDevice { error, .. } if error.is_out_of_memory())
    }
}
