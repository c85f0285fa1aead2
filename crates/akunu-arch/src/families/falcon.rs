//! Falcon: parallel residual with one norm or two; a feed-forward part without a gate.

use crate::Activation;
use crate::card::{Card, HfKind};
use crate::facts::{Fact, FactRule, LAYER_NORM, LLAMA_FACTS, fact};
use crate::tensors::{
    Dim, FusedLayout, FusedRule, Kind, Naming, PREFIXES, TensorRule, gguf_layer, layer, model,
};
use crate::tower::{FeedForwardKind, Layer, NormKind, State};

pub static CARD: Card = Card {
    names: &["falcon"],
    facts: &[LLAMA_FACTS, LAYER_NORM, FACTS],
    hf: &[FALCON],
    tensors: &[TENSORS],
    fused: &[FusedRule {
        name: "attn_qkv",
        hf: "self_attention.query_key_value",
        parts: &["attn_q", "attn_k", "attn_v"],
        layout: FusedLayout::KvHeads,
    }],
    fused_in_gguf: true,
    naming: Naming {
        root: "transformer.",
        layers: "transformer.h.",
        encoder_layers: None,
        prefixes: PREFIXES,
    },
    layer: side_by_side,
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluErf,
    ..Card::PLAIN
};

/// If there are two norms, the second one is that of attention.
fn side_by_side(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let for_attention = if layer.has("attn_norm_2.weight") { layer.norm("attn_norm_2", x) } else { normed };
    let attended = layer.attend(for_attention);
    let x = layer.add(x, attended);
    let fed = layer.feed(normed);
    layer.add(x, fed)
}

const FACTS: &[FactRule] = &[
    fact(Fact::LayerCount, &["block_count"], &["num_hidden_layers", "n_layer"]),
    fact(Fact::HeadCount, &["attention.head_count"], &["num_attention_heads", "n_head"]),
    fact(Fact::KvHeadCount, &["attention.head_count_kv"], &["num_kv_heads", "n_head_kv"]),
    fact(Fact::FfnSize, &["feed_forward_length"], &["ffn_hidden_size"]),
];

const TENSORS: &[TensorRule] = &[
    model("token_embd", "transformer.word_embeddings", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    layer("attn_norm", "input_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_norm", "ln_mlp", Kind::Norm, &[Dim::Hidden]),
    layer("attn_norm_2", "ln_attn", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("attn_q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    gguf_layer("attn_k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    gguf_layer("attn_v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "self_attention.dense", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_up", "mlp.dense_h_to_4h", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.dense_4h_to_h", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "transformer.ln_f", Kind::Norm, &[Dim::Hidden]),
    model("output", "lm_head", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const FALCON: HfKind = HfKind {
    model_type: "falcon",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4544.0),
        (Fact::LayerCount, 32.0),
        (Fact::HeadCount, 71.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    activation_fields: &["activation"],
    ffn_ratio: Some(4),
    one_kv_head: Some(["multi_query", "new_decoder_architecture"]),
    refused: &[("alibi", true), ("parallel_attn", false)],
    ..HfKind::PLAIN
};
