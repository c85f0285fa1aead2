//! Llama 4: one expert for each token, whose input is multiplied by its share, beside one that all tokens share; in some
//! models every other layer is dense. Layers with RoPE attend to chunks and normalize heads without weights; the others
//! attend to the whole text with queries that are scaled up with their position.

use crate::card::{Card, DefaultWindow, HfKind, RopeStyle, Sliding, StackedExperts};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, Kind, OUTPUT, QKV, TensorRule, layer};
use crate::tower::{QkNorm, ScaledBy};
use crate::{Biases, ExpertShape, RopeScaling, Router, Scores, Shape};

pub static CARD: Card = Card {
    names: &["llama4", "llama4_text"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, FACTS],
    gguf_defaults: &[
        (Fact::WindowSize, 8192.0),
        (Fact::UnrotatedEvery, 4.0),
        (Fact::QueryScaling, 0.1),
        (Fact::QueryScalingStep, 8192.0),
    ],
    hf: &[LLAMA4],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, FEED_FORWARD, OUTPUT],
    fused: &[],
    stacked_experts: &[GATE_UP, DOWN],
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    qk_norm: Some(QkNorm::Plain),
    router: Router { scores: Scores::Sigmoid, weighs_inputs: true, ..Router::SOFTMAX },
    default_window: DefaultWindow::FullEvery(4),
    chunked: true,
    scaled_by: ScaledBy::Length,
    scales_unrotated: true,
    unnormed_expert_counts: &[128],
    shapes: &[SCOUT],
    ..Card::PLAIN
};

/// Dense layers have another size, and the name that experts have in other families is theirs.
const FACTS: &[FactRule] = &[
    fact(Fact::FfnSize, &["feed_forward_length"], &["intermediate_size_mlp"]),
    fact(Fact::ExpertFfnSize, &["expert_feed_forward_length"], &["intermediate_size"]),
    fact(Fact::SharedFfnSize, &["expert_feed_forward_length"], &["intermediate_size"]),
    fact(Fact::ExpertsEvery, &["interleave_moe_layer_step"], &["interleave_moe_layer_step"]),
    fact(Fact::WindowSize, &["attention.sliding_window"], &["attention_chunk_size"]),
    fact(Fact::UnrotatedEvery, &["no_rope_layer_interval"], &["no_rope_layer_interval"]),
    fact(Fact::QueryScaling, &["attention.temperature_scale"], &["attn_scale"]),
    fact(Fact::QueryScalingStep, &["attention.temperature_length"], &["floor_scale"]),
    fact(Fact::NormedHeads, &["attention.use_qk_norm"], &["use_qk_norm"]),
];

const FEED_FORWARD: &[TensorRule] = &[
    layer("ffn_gate", "feed_forward.gate_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_up", "feed_forward.up_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "feed_forward.down_proj", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    layer("ffn_gate_inp", "feed_forward.router", Kind::Matrix, &[Dim::Experts, Dim::Hidden]),
    layer(
        "ffn_gate_exps",
        "feed_forward.experts.gate_proj",
        Kind::Experts,
        &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden],
    ),
    layer(
        "ffn_up_exps",
        "feed_forward.experts.up_proj",
        Kind::Experts,
        &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden],
    ),
    layer(
        "ffn_down_exps",
        "feed_forward.experts.down_proj",
        Kind::ResidualExperts,
        &[Dim::Experts, Dim::Hidden, Dim::ExpertFfn],
    ),
    layer(
        "ffn_gate_shexp",
        "feed_forward.shared_expert.gate_proj",
        Kind::Matrix,
        &[Dim::SharedFfn, Dim::Hidden],
    ),
    layer("ffn_up_shexp", "feed_forward.shared_expert.up_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer(
        "ffn_down_shexp",
        "feed_forward.shared_expert.down_proj",
        Kind::Residual,
        &[Dim::Hidden, Dim::SharedFfn],
    ),
];

const GATE_UP: StackedExperts = StackedExperts {
    name: "feed_forward.experts.gate_up_proj",
    parts: &["feed_forward.experts.gate_proj", "feed_forward.experts.up_proj"],
    alternate: false,
};

const DOWN: StackedExperts = StackedExperts {
    name: "feed_forward.experts.down_proj",
    parts: &["feed_forward.experts.down_proj"],
    alternate: false,
};

const LLAMA4: HfKind = HfKind {
    model_type: "llama4_text",
    nested_in: Some("llama4"),
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 5120.0),
        (Fact::LayerCount, 48.0),
        (Fact::FfnSize, 16_384.0),
        (Fact::HeadCount, 40.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 500_000.0),
        (Fact::WindowSize, 8192.0),
        (Fact::UnrotatedEvery, 4.0),
        (Fact::QueryScaling, 0.1),
        (Fact::QueryScalingStep, 8192.0),
        (Fact::NormedHeads, 1.0),
        (Fact::ExpertCount, 16.0),
        (Fact::ExpertsUsed, 1.0),
        (Fact::ExpertFfnSize, 8192.0),
        (Fact::SharedFfnSize, 8192.0),
        (Fact::ExpertsEvery, 1.0),
    ],
    sliding: Sliding::Rotated,
    ..HfKind::PLAIN
};

const SCOUT: Shape = Shape {
    name: "llama-4-scout",
    title: "Llama 4 Scout",
    toy: false,
    vocab: 202_048,
    context: 10_485_760,
    hidden: 5120,
    layers: 48,
    ffn: 16_384,
    heads: 40,
    kv_heads: 8,
    head_dim: 128,
    rope_base: 500_000.0,
    rope_scaling: RopeScaling::Llama3 {
        factor: 16.0,
        low_freq_factor: 1.0,
        high_freq_factor: 1.0,
        original_context: 8192,
    },
    window: Some(8192),
    epsilon: 1e-5,
    tied: false,
    biases: Biases::None,
    pooling: None,
    experts: Some(ExpertShape { count: 16, used: 1, ffn: 8192, shared_ffn: Some(8192), dense_layers: 0 }),
    latent: None,
    mamba: None,
    encoder: None,
};
