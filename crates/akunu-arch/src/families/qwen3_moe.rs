//! Qwen 3 with experts, in all layers or in some.

use super::qwen3;
use crate::card::{Card, HfKind};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, LLAMA_FACTS};
use crate::tensors::{
    ATTN_OUTPUT, EMBEDDING, EXPERTS, FFN_NORM, GATED_FFN, OUTPUT, QK_NORMS, QKV, ROUTER, SCORE,
};
use crate::{ExpertShape, Shape};

pub static CARD: Card = Card {
    names: &["qwen3moe", "qwen3_moe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0)],
    hf: &[QWEN3_MOE],
    tensors: &[EMBEDDING, QKV, QK_NORMS, ATTN_OUTPUT, FFN_NORM, GATED_FFN, ROUTER, EXPERTS, OUTPUT, SCORE],
    shapes: &[QWEN3_30B_A3B, QWEN3_235B_A22B],
    ..qwen3::CARD
};

const QWEN3_MOE: HfKind = HfKind {
    model_type: "qwen3_moe",
    defaults: &[
        (Fact::ContextLength, 32_768.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 24.0),
        (Fact::FfnSize, 6144.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 4.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
        (Fact::ExpertCount, 128.0),
        (Fact::ExpertsUsed, 8.0),
        (Fact::ExpertFfnSize, 768.0),
    ],
    ..qwen3::QWEN3
};

const QWEN3_30B_A3B: Shape = Shape {
    name: "qwen3-30b-a3b",
    title: "Qwen3 30B-A3B",
    hidden: 2048,
    layers: 48,
    ffn: 6144,
    kv_heads: 4,
    experts: Some(ExpertShape { count: 128, used: 8, ffn: 768, shared_ffn: None, dense_layers: 0 }),
    ..qwen3::QWEN3_8B
};

const QWEN3_235B_A22B: Shape = Shape {
    name: "qwen3-235b-a22b",
    title: "Qwen3 235B-A22B",
    hidden: 4096,
    layers: 94,
    ffn: 12_288,
    heads: 64,
    experts: Some(ExpertShape { count: 128, used: 8, ffn: 1536, shared_ffn: None, dense_layers: 0 }),
    ..QWEN3_30B_A3B
};
