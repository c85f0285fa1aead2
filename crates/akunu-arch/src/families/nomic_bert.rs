//! Nomic BERT: BERT with RoPE, gated feed-forward parts and matrices without biases.

use crate::card::{ACTIVATIONS, Card, HfKind};
use crate::facts::{Fact, FactRule, LAYER_NORM, LLAMA_FACTS, fact};
use crate::tensors::{Dim, FusedLayout, FusedRule, Kind, Naming, TensorRule, gguf_layer, layer, model};
use crate::tower::{NormKind, add_then_norm};
use crate::{Activation, Biases, Pooling, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["nomic-bert", "nomic_bert"],
    facts: &[LLAMA_FACTS, LAYER_NORM, FACTS],
    hf: &[NOMIC_BERT],
    tensors: &[TENSORS],
    fused: &[FusedRule {
        name: "attn_qkv",
        hf: "attn.Wqkv",
        parts: &["attn_q", "attn_k", "attn_v"],
        layout: FusedLayout::Parts,
    }],
    fused_in_gguf: true,
    naming: Naming {
        root: "",
        layers: "encoder.layers.",
        encoder_layers: None,
        prefixes: &["bert.", "nomic_bert.", ""],
    },
    ignored: &["cls.", "pooler."],
    layer: add_then_norm,
    norm: NormKind::Layer,
    activation: Activation::Silu,
    bidirectional: true,
    final_norm: false,
    shapes: &[NOMIC_EMBED],
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    // Beyond the first one, RoPE frequencies depend on the length of the text.
    fact(
        Fact::ContextLength,
        &["context_length"],
        &["max_trained_positions", "n_positions", "max_position_embeddings"],
    ),
    fact(Fact::HiddenSize, &["embedding_length"], &["n_embd", "hidden_size"]),
    fact(Fact::LayerCount, &["block_count"], &["n_layer", "num_hidden_layers"]),
    fact(Fact::FfnSize, &["feed_forward_length"], &["n_inner", "intermediate_size"]),
    fact(Fact::HeadCount, &["attention.head_count"], &["n_head", "num_attention_heads"]),
    fact(Fact::RopeBase, &["rope.freq_base"], &["rotary_emb_base", "rope_theta"]),
    fact(Fact::PartialRotaryFactor, &[], &["rotary_emb_fraction", "partial_rotary_factor"]),
    fact(Fact::NormEpsilon, &["attention.layer_norm_epsilon"], &["layer_norm_epsilon", "layer_norm_eps"]),
];

const TENSORS: &[TensorRule] = &[
    model("token_embd", "embeddings.word_embeddings", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    model("token_types", "embeddings.token_type_embeddings", Kind::Matrix, &[Dim::TokenTypes, Dim::Hidden]),
    model("token_embd_norm", "emb_ln", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("attn_q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    gguf_layer("attn_k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    gguf_layer("attn_v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attn.out_proj", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("attn_output_norm", "norm1", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_up", "mlp.fc11", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_gate", "mlp.fc12", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.fc2", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    layer("layer_output_norm", "norm2", Kind::Norm, &[Dim::Hidden]),
];

const NOMIC_BERT: HfKind = HfKind {
    model_type: "nomic_bert",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 768.0),
        (Fact::LayerCount, 12.0),
        (Fact::FfnSize, 3072.0),
        (Fact::HeadCount, 12.0),
        (Fact::NormEpsilon, 1e-12),
        (Fact::RopeBase, 1000.0),
        (Fact::PartialRotaryFactor, 1.0),
    ],
    activation_fields: &["activation_function", "hidden_act"],
    activation_names: &[&[("swiglu", Activation::Silu)], ACTIVATIONS],
    refused: &[("prenorm", true), ("causal", true), ("rotary_emb_interleaved", true), ("use_rms_norm", true)],
    ..HfKind::PLAIN
};

const NOMIC_EMBED: Shape = Shape {
    name: "nomic-embed",
    title: "Nomic Embed 1.5",
    toy: false,
    vocab: 30_528,
    context: 2048,
    hidden: 768,
    layers: 12,
    ffn: 3072,
    heads: 12,
    kv_heads: 12,
    head_dim: 64,
    rope_base: 1000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-12,
    tied: true,
    biases: Biases::None,
    pooling: Some(Pooling::Mean),
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};
