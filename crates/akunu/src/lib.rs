//! The Akunu inference engine: open a [`Model`], load it on a device with an [`Engine`], and generate.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), akunu::Error> {
//! let model = Arc::new(akunu::Model::embedded()?);
//! let mut engine = akunu::Engine::new(model.clone(), &akunu::EngineOptions::default())?;
//! let mut session = engine.session()?;
//! let prompt = model.encode("Once upon a time")?;
//! let mut story = String::new();
//! let options = akunu::GenerateOptions { max_tokens: Some(100), ..Default::default() };
//! engine.generate(&mut session, &prompt, &options, &mut |piece| {
//!     story.push_str(piece.text);
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(())
//! # }
//! ```

mod backends;
mod blocks;
mod cache_size;
mod chain;
pub mod chat;
mod chips;
mod constraint;
pub mod devices;
pub mod embed;
mod engine;
mod error;
mod experts;
mod first_layers;
mod generate;
mod generation;
mod held;
mod importance;
mod memory;
mod model;
mod output;
mod paging;
mod pass;
mod pick;
mod profile;
mod prompt;
pub mod sampling;
pub mod schedule;
mod score;
mod session;
mod split;
mod stop;
mod texts;
mod tiers;
mod towers;
pub mod transcribe;
mod verify;

pub use akunu_arch::{ModelConfig, Pooling, WeightProvider};
pub use akunu_audio as audio;
pub use akunu_format::{DType, TensorInfo};
pub use akunu_grammar::{
    CallForm, Calls, GrammarError, NAME_AND_ARGUMENTS, Reasoning, ResponseFormat, Tool, WithoutCalls,
};
pub use akunu_plan::random;
pub use akunu_plan::verify::{Difference, Report};
pub use akunu_plan::{
    Capabilities, Cost, Device, DeviceError, DispatchTable, DriverMemory, EncodeOutput, EncodePlan,
    ExpertReads, Health, KvType, MemoryPlan, ModelPlan, OnLoad,
};
pub use backends::BackendOptions;
pub use blocks::CacheEvent;
pub use cache_size::DEFAULT_CONTEXT;
pub use chips::ChipChoice;
pub use constraint::{Constraint, Constraints, Preamble};
pub use devices::{DeviceChoice, capabilities_of_all, check_device, open_device};
pub use embed::{EmbedOptions, EmbedTask, Embedder, TextIds, plan_texts};
pub use engine::{DEFAULT_CHAIN_TIME, Engine, EngineOptions, Note, Prefilled, check_host, plan};
pub use error::{Error, KvFileProblem};
pub use experts::expert_read_rate;
pub use generate::{FinishReason, GenerateOptions, Generated, Overflow, Piece, Timings};
pub use importance::importance;
pub use memory::{available_memory, human};
pub use model::Model;
pub use pass::Feed;
pub use pick::Choice;
pub use profile::{LabelTiming, PassRows, ProfileOptions};
pub use prompt::check_prompt;
pub use sampling::{Breakers, Sampler, Sampling};
pub use score::{Perplexity, ScoredToken, Windows};
pub use session::Session;
pub use split::{check_split, describe_split, device_for_plan};
pub use tiers::{KvDisk, SavedSession, TierStats};
pub use towers::{TowerOptions, Towers};
pub use transcribe::{
    Event, Job, Segment, SpeechTask, Timestamps, TranscribeOptions, Transcriber, TranscriberOptions,
    Transcript, TranscriptFormat, Word,
};
pub use verify::{verify, verify_texts};
