//! GPT-NeoX and Pythia: LayerNorm, biases everywhere, partial RoPE, a feed-forward part without a gate; parallel or
//! sequential residual.

use crate::Activation;
use crate::card::{Card, HfKind};
use crate::facts::{Fact, FactRule, LAYER_NORM, LLAMA_FACTS, PARALLEL, fact};
use crate::tensors::{
    Dim, FusedLayout, FusedRule, Kind, Naming, PREFIXES, TensorRule, gguf_layer, layer, model,
};
use crate::tower::{FeedForwardKind, Layer, NormKind, State, parallel, pre_norm};

pub static CARD: Card = Card {
    names: &["gptneox", "gpt_neox"],
    facts: &[LLAMA_FACTS, LAYER_NORM, PARALLEL, ROTATION],
    gguf_defaults: &[(Fact::Parallel, 1.0)],
    hf: &[GPT_NEOX],
    tensors: &[TENSORS],
    fused: &[FusedRule {
        name: "attn_qkv",
        hf: "attention.query_key_value",
        parts: &["attn_q", "attn_k", "attn_v"],
        layout: FusedLayout::KvHeads,
    }],
    fused_in_gguf: true,
    naming: Naming {
        root: "gpt_neox.",
        layers: "gpt_neox.layers.",
        encoder_layers: None,
        prefixes: PREFIXES,
    },
    layer: either,
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluErf,
    ..Card::PLAIN
};

fn either(layer: &mut Layer<'_>, x: State) -> State {
    if layer.config.parallel { parallel(layer, x) } else { pre_norm(layer, x) }
}

const ROTATION: &[FactRule] = &[
    fact(Fact::PartialRotaryFactor, &[], &["rotary_pct"]),
    fact(Fact::RopeBase, &["rope.freq_base"], &["rotary_emb_base", "rope_theta"]),
];

const TENSORS: &[TensorRule] = &[
    model("token_embd", "gpt_neox.embed_in", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    layer("attn_norm", "input_layernorm", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("attn_q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    gguf_layer("attn_k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    gguf_layer("attn_v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attention.dense", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_up", "mlp.dense_h_to_4h", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.dense_4h_to_h", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "gpt_neox.final_layer_norm", Kind::Norm, &[Dim::Hidden]),
    model("output", "embed_out", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const GPT_NEOX: HfKind = HfKind {
    model_type: "gpt_neox",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 6144.0),
        (Fact::LayerCount, 44.0),
        (Fact::FfnSize, 24_576.0),
        (Fact::HeadCount, 64.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::PartialRotaryFactor, 0.25),
        (Fact::Parallel, 1.0),
    ],
    ..HfKind::PLAIN
};
