//! Shapes of models that exist, as their own configurations state them.

use crate::{Pooling, RopeScaling};

/// What `akunu synth` makes a file with random weights from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// As it is asked for.
    pub name: &'static str,
    pub title: &'static str,
    /// Nobody's model: for tests, and to try a command in no time.
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
    /// The embedding is the output too.
    pub tied: bool,
    /// Matrices in layers, and all norms, have biases.
    pub biases: bool,
    /// For models that make vectors of texts.
    pub pooling: Option<Pooling>,
}
