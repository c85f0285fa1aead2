//! OLMoE: a router and experts in every layer; Q and K are normalized over all heads together.

use crate::card::{Card, HfKind};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, LLAMA_FACTS};
use crate::tensors::{
    ATTN_OUTPUT, EMBEDDING, EXPERTS, FFN_NORM, FUSED_QKV, OUTPUT, QK_ROW_NORMS, QKV, ROUTER,
};
use crate::tower::QkNorm;
use crate::{Biases, ExpertShape, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["olmoe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS],
    hf: &[OLMOE],
    tensors: &[EMBEDDING, QKV, QK_ROW_NORMS, ATTN_OUTPUT, FFN_NORM, ROUTER, EXPERTS, OUTPUT],
    fused: &[FUSED_QKV],
    qk_norm: Some(QkNorm::Row),
    shapes: &[OLMOE_7B],
    ..Card::PLAIN
};

const OLMOE: HfKind = HfKind {
    model_type: "olmoe",
    defaults: &[
        (Fact::ContextLength, 4096.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 16.0),
        (Fact::FfnSize, 2048.0),
        (Fact::HeadCount, 16.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::ExpertCount, 64.0),
        (Fact::ExpertsUsed, 8.0),
    ],
    ..HfKind::PLAIN
};

const OLMOE_7B: Shape = Shape {
    name: "olmoe-7b",
    title: "OLMoE 1B-7B",
    toy: false,
    vocab: 50_304,
    context: 4096,
    hidden: 2048,
    layers: 16,
    ffn: 1024,
    heads: 16,
    kv_heads: 16,
    head_dim: 128,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-5,
    tied: false,
    biases: Biases::None,
    pooling: None,
    experts: Some(ExpertShape { count: 64, used: 8, ffn: 1024, shared_ffn: None, dense_layers: 0 }),
    latent: None,
    mamba: None,
    encoder: None,
};
