//! StarCoder 2: LayerNorm, biases everywhere, a feed-forward part without a gate.

use crate::Activation;
use crate::card::{Card, HfKind, Sliding};
use crate::facts::{Fact, LAYER_NORM, LLAMA_FACTS};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, FUSED_QKV, Kind, OUTPUT, QKV, TensorRule, layer,
};
use crate::tower::{FeedForwardKind, NormKind};

pub static CARD: Card = Card {
    names: &["starcoder2"],
    facts: &[LLAMA_FACTS, LAYER_NORM],
    hf: &[STARCODER2],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, PLAIN_FFN, OUTPUT],
    fused: &[FUSED_QKV],
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluTanh,
    ..Card::PLAIN
};

const PLAIN_FFN: &[TensorRule] = &[
    layer("ffn_up", "mlp.c_fc", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.c_proj", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
];

const STARCODER2: HfKind = HfKind {
    model_type: "starcoder2",
    defaults: &[
        (Fact::ContextLength, 4096.0),
        (Fact::HiddenSize, 3072.0),
        (Fact::LayerCount, 30.0),
        (Fact::FfnSize, 12_288.0),
        (Fact::HeadCount, 24.0),
        (Fact::KvHeadCount, 2.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    sliding: Sliding::All,
    ..HfKind::PLAIN
};
