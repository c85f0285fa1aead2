//! Granite 3, and Granite 4 without Mamba layers, with experts: Granite's multipliers, a router and experts in every layer,
//! and in some models an expert that all tokens share. Hugging Face files have the gate and up matrices of all experts in
//! one tensor.

use super::granite;
use crate::card::{Card, HfKind};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, FusedLayout, FusedRule, Kind, OUTPUT, QKV, TensorRule, gguf_layer,
    layer,
};

pub static CARD: Card = Card {
    names: &["granitemoe", "granitemoeshared", "granitemoehybrid"],
    facts: &[LLAMA_FACTS, granite::MULTIPLIERS, granite::ROTATES, EXPERT_FACTS, FACTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0), (Fact::Rotates, 1.0)],
    hf: &[GRANITE_MOE, HfKind { model_type: "granitemoeshared", ..GRANITE_MOE }, GRANITE4],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, EXPERTS, OUTPUT],
    fused: &[GATE_UP, SHARED_GATE_UP],
    aliases: &[],
    ..granite::CARD
};

pub(super) const FACTS: &[FactRule] =
    &[fact(Fact::SharedFfnSize, &["expert_shared_feed_forward_length"], &["shared_intermediate_size"])];

pub(super) const EXPERTS: &[TensorRule] = &[
    layer("ffn_gate_inp", "block_sparse_moe.router.layer", Kind::Matrix, &[Dim::Experts, Dim::Hidden]),
    gguf_layer("ffn_gate_exps", Kind::Experts, &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden]),
    gguf_layer("ffn_up_exps", Kind::Experts, &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden]),
    layer(
        "ffn_down_exps",
        "block_sparse_moe.output_linear",
        Kind::ResidualExperts,
        &[Dim::Experts, Dim::Hidden, Dim::ExpertFfn],
    ),
    gguf_layer("ffn_gate_shexp", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    gguf_layer("ffn_up_shexp", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_down_shexp", "shared_mlp.output_linear", Kind::Residual, &[Dim::Hidden, Dim::SharedFfn]),
];

pub(super) const GATE_UP: FusedRule = FusedRule {
    name: "ffn_gate_up_exps",
    hf: "block_sparse_moe.input_linear",
    parts: &["ffn_gate_exps", "ffn_up_exps"],
    layout: FusedLayout::Experts,
};

pub(super) const SHARED_GATE_UP: FusedRule = FusedRule {
    name: "ffn_up_shexp",
    hf: "shared_mlp.input_linear",
    parts: &["ffn_gate_shexp", "ffn_up_shexp"],
    layout: FusedLayout::Parts,
};

const GRANITE_MOE: HfKind = HfKind {
    model_type: "granitemoe",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::EmbeddingScale, 1.0),
        (Fact::ResidualScale, 1.0),
        (Fact::AttentionScale, 1.0),
        (Fact::LogitScale, 1.0),
        (Fact::ExpertCount, 8.0),
        (Fact::ExpertsUsed, 2.0),
        (Fact::NormalisedShares, 1.0),
    ],
    ..HfKind::PLAIN
};

pub(super) const GRANITE4: HfKind = HfKind {
    model_type: "granitemoehybrid",
    with_experts: Some(true),
    layer_types: granite::ATTENTION,
    rotates_if: Some(("position_embedding_type", "rope")),
    ..GRANITE_MOE
};
