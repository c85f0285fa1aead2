//! Phi 1, 1.5 and 2: parallel residual with one norm; biases everywhere, including the output matrix; partial RoPE.

use crate::Activation;
use crate::card::{Card, HfKind};
use crate::facts::{Fact, LAYER_NORM, LLAMA_FACTS};
use crate::tensors::{Dim, EMBEDDING, FUSED_QKV, Kind, QKV, TensorRule, layer, model};
use crate::tower::{FeedForwardKind, NormKind, parallel};

pub static CARD: Card = Card {
    names: &["phi2", "phi"],
    facts: &[LLAMA_FACTS, LAYER_NORM],
    hf: &[PHI],
    tensors: &[EMBEDDING, QKV, REST],
    layer: parallel,
    fused: &[FUSED_QKV],
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluTanh,
    ..Card::PLAIN
};

const REST: &[TensorRule] = &[
    layer("attn_output", "self_attn.dense", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_up", "mlp.fc1", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.fc2", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "model.final_layernorm", Kind::Norm, &[Dim::Hidden]),
    model("output", "lm_head", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const PHI: HfKind = HfKind {
    model_type: "phi",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 24.0),
        (Fact::FfnSize, 8192.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::PartialRotaryFactor, 0.5),
    ],
    refused: &[("qk_layernorm", true)],
    ..HfKind::PLAIN
};
