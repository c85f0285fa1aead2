//! The language model of Gemma 3: as Gemma 2, with Q/K norms instead of soft capping, five sliding-window layers to one
//! with full attention, and a separate RoPE base in the former. EmbeddingGemma has bidirectional attention.

use crate::card::{Card, DefaultWindow, HfKind, Sliding};
use crate::facts::{Fact, LLAMA_FACTS, SCALED_BY_SCALAR};
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, GATED_FFN, OUTPUT, QK_NORMS, QKV, SANDWICH_NORMS};
use crate::tower::{QkNorm, sandwich};
use crate::{Activation, Biases, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["gemma3", "gemma3_text", "gemma-embedding"],
    facts: &[LLAMA_FACTS, SCALED_BY_SCALAR],
    // Converters omit it.
    gguf_defaults: &[(Fact::LocalRopeBase, 10_000.0)],
    hf: &[GEMMA3],
    // 27B.
    hidden_scale_depths: &[62],
    tensors: &[EMBEDDING, QKV, QK_NORMS, ATTN_OUTPUT, SANDWICH_NORMS, GATED_FFN, OUTPUT],
    norm_weight_offset: 1.0,
    activation: Activation::GeluTanh,
    qk_norm: Some(QkNorm::Head),
    layer: sandwich,
    scaled_embeddings: true,
    default_window: DefaultWindow::FullEvery(6),
    bidirectional_names: &["gemma-embedding"],
    shapes: &[GEMMA3_1B],
    ..Card::PLAIN
};

const GEMMA3: HfKind = HfKind {
    model_type: "gemma3_text",
    nested_in: Some("gemma3"),
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 2304.0),
        (Fact::LayerCount, 26.0),
        (Fact::FfnSize, 9216.0),
        (Fact::HeadCount, 8.0),
        (Fact::KvHeadCount, 4.0),
        (Fact::HeadDim, 256.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 1_000_000.0),
        (Fact::LocalRopeBase, 10_000.0),
        (Fact::AttentionScale, 256.0),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::Pattern(6),
    activation_fields: &["hidden_activation"],
    ..HfKind::PLAIN
};

const GEMMA3_1B: Shape = Shape {
    name: "gemma3-1b",
    title: "Gemma 3 1B",
    toy: false,
    vocab: 262_144,
    context: 32_768,
    hidden: 1152,
    layers: 26,
    ffn: 6912,
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    rope_base: 1_000_000.0,
    rope_scaling: RopeScaling::None,
    window: Some(512),
    epsilon: 1e-6,
    tied: true,
    biases: Biases::None,
    pooling: None,
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};
