//! Command R: parallel residual with one norm without bias; logits are scaled. The largest models have Q/K norms with
//! separate weights for each head.

use crate::card::{Card, DefaultWindow, HfKind, RopeStyle, Sliding};
use crate::facts::{Fact, FactRule, LAYER_NORM, LLAMA_FACTS, fact};
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, GATED_FFN, OUTPUT, QK_PER_HEAD_NORMS, QKV};
use crate::tower::{NormKind, QkNorm, parallel};

pub static CARD: Card = Card {
    names: &["command-r", "cohere"],
    facts: &[LLAMA_FACTS, LAYER_NORM, LOGIT_SCALE, CONTEXT],
    hf: &[COHERE],
    tensors: &[EMBEDDING, QKV, QK_PER_HEAD_NORMS, ATTN_OUTPUT, GATED_FFN, OUTPUT],
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    layer: parallel,
    norm: NormKind::Layer,
    qk_norm: Some(QkNorm::PerHeadWeights),
    optional_qk_norm: true,
    ..Card::PLAIN
};

/// Command R7B and A: of every four layers, three have a sliding window with RoPE and one has full attention without
/// RoPE.
pub static COHERE2: Card = Card {
    names: &["cohere2"],
    facts: &[LLAMA_FACTS, LAYER_NORM, LOGIT_SCALE, CONTEXT, ROTATION],
    hf: &[COHERE2_KIND],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, GATED_FFN, OUTPUT],
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    layer: parallel,
    norm: NormKind::Layer,
    default_window: DefaultWindow::FullEvery(4),
    rotates_in_windows: true,
    ..Card::PLAIN
};

const ROTATION: &[FactRule] =
    &[fact(Fact::PartialRotaryFactor, &[], &["rotary_pct", "partial_rotary_factor"])];

const COHERE2_KIND: HfKind = HfKind {
    model_type: "cohere2",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 8192.0),
        (Fact::LayerCount, 40.0),
        (Fact::FfnSize, 22_528.0),
        (Fact::HeadCount, 64.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::LogitScale, 0.0625),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::Pattern(4),
    refused: &[("use_qk_norm", true)],
    ..HfKind::PLAIN
};

/// If both are present, the second one is the context length before it was extended.
const CONTEXT: &[FactRule] =
    &[fact(Fact::ContextLength, &["context_length"], &["model_max_length", "max_position_embeddings"])];

const LOGIT_SCALE: &[FactRule] = &[fact(Fact::LogitScale, &["logit_scale"], &["logit_scale"])];

const COHERE: HfKind = HfKind {
    model_type: "cohere",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 8192.0),
        (Fact::LayerCount, 40.0),
        (Fact::FfnSize, 22_528.0),
        (Fact::HeadCount, 64.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 500_000.0),
        (Fact::LogitScale, 0.0625),
    ],
    ..HfKind::PLAIN
};
