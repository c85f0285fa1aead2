//! Architectures: one card per family. A card states the family's names, the metadata key or configuration field of
//! each fact, the names and layouts of its tensors, and the blocks of its forward pass. This crate reads models with
//! their facts from files ([`open_model`]) and writes them ([`convert`]).

mod card;
mod config;
pub mod convert;
pub mod facts;
mod families;
mod ggml;
mod gguf;
mod hf;
mod latent;
mod mamba;
mod names;
mod open;
mod provider;
mod shape;
pub mod tensors;
pub mod tower;

pub use card::{ACTIVATIONS, Card, DefaultWindow, HfKind, RerankPrompt, RopeStyle, Sliding, StackedExperts};
pub use config::{
    Activation, EmbeddingFacts, EncoderFacts, ExpertFacts, GroupRank, LatentFacts, MAX_EXPERTS, MAX_MODULES,
    MambaFacts, ModelConfig, Pooling, QueryScaling, Rope, RopeFactors, RopeScaling, Router, Scores, Source,
    SuggestedSampling, Window, WindowPattern, llama3_kept,
};
pub use families::CARDS;
pub use ggml::GgmlModel;
pub use gguf::GgufModel;
pub use hf::SafeTensorsModel;
pub use mamba::in_gguf;
pub use open::{load_model, open_model};
pub use provider::WeightProvider;
pub use shape::{Biases, EncoderShape, ExpertShape, MambaShape, Shape};
pub use tower::{NormKind, ScaledBy};
