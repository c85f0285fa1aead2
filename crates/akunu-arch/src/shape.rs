//! Shapes of published models, from their configurations.

use crate::{LatentFacts, MambaFacts, Pooling, RopeScaling};

/// The shape of a file with random weights, for `akunu synth`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The name that a user gives.
    pub name: &'static str,
    pub title: &'static str,
    /// Not a published model: small, for tests and to try commands quickly.
    pub toy: bool,
    pub vocab: usize,
    pub context: usize,
    pub hidden: usize,
    pub layers: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_base: f32,
    pub rope_scaling: RopeScaling,
    pub window: Option<usize>,
    pub epsilon: f32,
    /// The embedding is also the output matrix.
    pub tied: bool,
    pub biases: Biases,
    /// For embedding models.
    pub pooling: Option<Pooling>,
    /// For mixtures of experts.
    pub experts: Option<ExpertShape>,
    /// For latent attention; `head_dim` and `kv_heads` are those of the cache.
    pub latent: Option<LatentFacts>,
    /// For layers with a state.
    pub mamba: Option<MambaShape>,
    /// For models that transcribe.
    pub encoder: Option<EncoderShape>,
}

/// A mixture of experts in all layers but the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    pub count: usize,
    /// Experts that each token is routed to.
    pub used: usize,
    pub ffn: usize,
    /// Of the expert that all tokens share.
    pub shared_ffn: Option<usize>,
    /// Layers before the first with experts.
    pub dense_layers: usize,
}

/// Layers with a state, in all layers but some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MambaShape {
    pub facts: MambaFacts,
    /// The layers that have attention instead.
    pub attention: &'static [usize],
}

/// Which matrices of layers have biases. With [`Biases::All`] and [`Biases::AllButKeys`], norms and convolutions have
/// one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    None,
    /// Matrices, norms and convolutions.
    All,
    /// The same, except the matrices that produce keys.
    AllButKeys,
    /// All of them, and nothing else.
    Matrices,
    /// Those that produce queries, keys and values, and nothing else.
    Qkv,
}

/// The shape of an encoder of audio, as far as it is not the decoder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderShape {
    pub layers: usize,
    /// States of a window.
    pub positions: usize,
    /// Mel bands of a frame.
    pub bands: usize,
}
