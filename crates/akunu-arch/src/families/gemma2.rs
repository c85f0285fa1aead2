//! Gemma 2: norms before and after each part, a sliding window in every other layer, soft capping.

use crate::Activation;
use crate::card::{Card, DefaultWindow, HfKind, Sliding};
use crate::facts::{Fact, LLAMA_FACTS, SCALED_BY_SCALAR};
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, GATED_FFN, OUTPUT, QKV, SANDWICH_NORMS};
use crate::tower::sandwich;

pub static CARD: Card = Card {
    names: &["gemma2"],
    facts: &[LLAMA_FACTS, SCALED_BY_SCALAR],
    // Early conversions omit it.
    gguf_defaults: &[(Fact::WindowSize, 4096.0)],
    hf: &[GEMMA2],
    // 27B.
    hidden_scale_depths: &[46],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, SANDWICH_NORMS, GATED_FFN, OUTPUT],
    norm_weight_offset: 1.0,
    activation: Activation::GeluTanh,
    layer: sandwich,
    scaled_embeddings: true,
    default_window: DefaultWindow::FullEvery(2),
    ..Card::PLAIN
};

const GEMMA2: HfKind = HfKind {
    model_type: "gemma2",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 2304.0),
        (Fact::LayerCount, 26.0),
        (Fact::FfnSize, 9216.0),
        (Fact::HeadCount, 8.0),
        (Fact::KvHeadCount, 4.0),
        (Fact::HeadDim, 256.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::AttentionScale, 256.0),
        (Fact::AttentionSoftCap, 50.0),
        (Fact::LogitSoftCap, 30.0),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::Pattern(2),
    activation_fields: &["hidden_activation"],
    ..HfKind::PLAIN
};
