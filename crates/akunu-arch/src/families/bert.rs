//! BERT and models with the same blocks: RoBERTa, XLM-RoBERTa, CamemBERT. Bidirectional attention, learned positions
//! and token types, post-norms after each residual addition. Cross-encoders have a classifier on the first token's
//! hidden state.

use crate::card::{Card, HfKind};
use crate::facts::{Fact, LAYER_NORM, LLAMA_FACTS};
use crate::tensors::{Dim, FUSED_QKV, Kind, Naming, TensorRule, layer, model};
use crate::tower::{FeedForwardKind, NormKind, add_then_norm};
use crate::{Activation, Biases, Pooling, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["bert", "roberta", "xlm-roberta", "camembert"],
    facts: &[LLAMA_FACTS, LAYER_NORM],
    hf: &[
        BERT,
        ROBERTA,
        HfKind { model_type: "xlm-roberta", ..ROBERTA },
        HfKind { model_type: "camembert", ..ROBERTA },
    ],
    tensors: &[EMBEDDINGS, LAYER, HEAD],
    fused: &[FUSED_QKV],
    naming: Naming {
        root: "",
        layers: "encoder.layer.",
        encoder_layers: None,
        prefixes: &["bert.", "roberta.", "xlm_roberta.", "camembert.", ""],
    },
    ignored: &["embeddings.position_ids", "cls.", "lm_head."],
    layer: add_then_norm,
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluErf,
    bidirectional: true,
    rotary: false,
    final_norm: false,
    shapes: &[MINILM_L6, BGE_SMALL, BGE_BASE, BGE_LARGE],
    ..Card::PLAIN
};

pub(super) const EMBEDDINGS: &[TensorRule] = &[
    model("token_embd", "embeddings.word_embeddings", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    model("position_embd", "embeddings.position_embeddings", Kind::Matrix, &[Dim::Positions, Dim::Hidden]),
    model("token_types", "embeddings.token_type_embeddings", Kind::Matrix, &[Dim::TokenTypes, Dim::Hidden]),
    model("token_embd_norm", "embeddings.LayerNorm", Kind::Norm, &[Dim::Hidden]),
];

const LAYER: &[TensorRule] = &[
    layer("attn_q", "attention.self.query", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "attention.self.key", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "attention.self.value", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attention.output.dense", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("attn_output_norm", "attention.output.LayerNorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_up", "intermediate.dense", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "output.dense", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    layer("layer_output_norm", "output.LayerNorm", Kind::Norm, &[Dim::Hidden]),
];

/// BERT's pooler is the first matrix of its classifier; RoBERTa's classifier contains both matrices.
const HEAD: &[TensorRule] = &[
    model("cls", "pooler.dense", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    model("cls", "classifier.dense", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    model("cls.output", "classifier", Kind::Matrix, &[Dim::Labels, Dim::Hidden]),
    model("cls.output", "classifier.out_proj", Kind::Matrix, &[Dim::Labels, Dim::Hidden]),
];

const BERT: HfKind = HfKind {
    model_type: "bert",
    defaults: &[
        (Fact::ContextLength, 512.0),
        (Fact::HiddenSize, 768.0),
        (Fact::LayerCount, 12.0),
        (Fact::FfnSize, 3072.0),
        (Fact::HeadCount, 12.0),
        (Fact::NormEpsilon, 1e-12),
        (Fact::RopeBase, 10_000.0),
    ],
    refused: &[("is_decoder", true)],
    expected: &[("position_embedding_type", "absolute")],
    ..HfKind::PLAIN
};

const ROBERTA: HfKind = HfKind { model_type: "roberta", padded_positions: true, ..BERT };

const BGE_LARGE: Shape = Shape {
    name: "bge-large",
    title: "BGE large",
    toy: false,
    vocab: 30_522,
    context: 512,
    hidden: 1024,
    layers: 24,
    ffn: 4096,
    heads: 16,
    kv_heads: 16,
    head_dim: 64,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-12,
    tied: true,
    biases: Biases::All,
    pooling: Some(Pooling::First),
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};

const BGE_BASE: Shape = Shape {
    name: "bge-base",
    title: "BGE base",
    hidden: 768,
    layers: 12,
    ffn: 3072,
    heads: 12,
    kv_heads: 12,
    ..BGE_LARGE
};

const BGE_SMALL: Shape = Shape {
    name: "bge-small",
    title: "BGE small",
    hidden: 384,
    layers: 12,
    ffn: 1536,
    heads: 12,
    kv_heads: 12,
    head_dim: 32,
    ..BGE_LARGE
};

const MINILM_L6: Shape =
    Shape { name: "minilm-l6", title: "MiniLM L6", layers: 6, pooling: Some(Pooling::Mean), ..BGE_SMALL };
