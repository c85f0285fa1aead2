//! MPNet: BERT with relative position biases in the attention scores.

use crate::card::{Card, HfKind};
use crate::facts::{Fact, LAYER_NORM, LLAMA_FACTS};
use crate::tensors::{Dim, Kind, Naming, TensorRule, layer, model};
use crate::tower::{FeedForwardKind, NormKind, add_then_norm};
use crate::{Activation, Biases, Pooling, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["mpnet"],
    facts: &[LLAMA_FACTS, LAYER_NORM],
    hf: &[MPNET],
    tensors: &[super::bert::EMBEDDINGS, TENSORS],
    fused: &[],
    naming: Naming { root: "", layers: "encoder.layer.", encoder_layers: None, prefixes: &["mpnet.", ""] },
    ignored: &["embeddings.position_ids", "lm_head.", "pooler."],
    layer: add_then_norm,
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluErf,
    bidirectional: true,
    rotary: false,
    final_norm: false,
    shapes: &[ALL_MPNET_BASE],
    ..Card::PLAIN
};

const TENSORS: &[TensorRule] = &[
    model("attn_rel_b", "encoder.relative_attention_bias", Kind::Matrix, &[Dim::DistanceBuckets, Dim::Heads]),
    layer("attn_q", "attention.attn.q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "attention.attn.k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "attention.attn.v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attention.attn.o", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("attn_output_norm", "attention.LayerNorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_up", "intermediate.dense", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "output.dense", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    layer("layer_output_norm", "output.LayerNorm", Kind::Norm, &[Dim::Hidden]),
];

const MPNET: HfKind = HfKind {
    model_type: "mpnet",
    defaults: &[
        (Fact::ContextLength, 512.0),
        (Fact::HiddenSize, 768.0),
        (Fact::LayerCount, 12.0),
        (Fact::FfnSize, 3072.0),
        (Fact::HeadCount, 12.0),
        (Fact::NormEpsilon, 1e-12),
        (Fact::RopeBase, 10_000.0),
    ],
    padded_positions: true,
    ..HfKind::PLAIN
};

const ALL_MPNET_BASE: Shape = Shape {
    name: "all-mpnet-base",
    title: "all-mpnet base",
    toy: false,
    vocab: 30_527,
    context: 512,
    hidden: 768,
    layers: 12,
    ffn: 3072,
    heads: 12,
    kv_heads: 12,
    head_dim: 64,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-5,
    tied: true,
    biases: Biases::All,
    pooling: Some(Pooling::Mean),
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};
