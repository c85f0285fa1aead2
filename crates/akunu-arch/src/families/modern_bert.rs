//! ModernBERT: bidirectional attention, with a window and a separate RoPE base in two layers of three; gated
//! feed-forward parts; pre-norms without biases, except in the first layer's attention.

use crate::card::{ACTIVATIONS, Card, DefaultWindow, HfKind, Sliding};
use crate::facts::{Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{Dim, FusedLayout, FusedRule, Kind, Naming, TensorRule, gguf_layer, layer, model};
use crate::tower::{Layer, NormKind, State};
use crate::{Activation, Biases, Pooling, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["modern-bert", "modernbert"],
    facts: &[LLAMA_FACTS, FACTS],
    // As in llama.cpp: mean pooling, where the default of transformers is the first hidden state.
    gguf_defaults: &[(Fact::LocalRopeBase, 10_000.0), (Fact::ClassifierPooling, 1.0)],
    hf: &[MODERNBERT],
    tensors: &[TENSORS, HEAD],
    fused: &[
        FusedRule {
            name: "attn_qkv",
            hf: "attn.Wqkv",
            parts: &["attn_q", "attn_k", "attn_v"],
            layout: FusedLayout::Parts,
        },
        FusedRule {
            name: "ffn_up",
            hf: "mlp.Wi",
            parts: &["ffn_gate", "ffn_up"],
            layout: FusedLayout::Parts,
        },
    ],
    fused_in_gguf: true,
    naming: Naming { root: "", layers: "layers.", encoder_layers: None, prefixes: &["model.", ""] },
    ignored: &["decoder."],
    classifier: Activation::GeluErf,
    layer: pre_norm_but_first,
    norm: NormKind::Layer,
    activation: Activation::GeluErf,
    states_activation: true,
    default_window: DefaultWindow::FullEvery(3),
    full_first: true,
    bidirectional: true,
    shapes: &[MODERNBERT_BASE],
    ..Card::PLAIN
};

/// The embedding has been normalized already.
fn pre_norm_but_first(layer: &mut Layer<'_>, x: State) -> State {
    let normed = if layer.has("attn_norm.weight") { layer.norm("attn_norm", x) } else { x };
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let normed = layer.norm("ffn_norm", x);
    let fed = layer.feed(normed);
    layer.add(x, fed)
}

const FACTS: &[FactRule] = &[
    fact(
        Fact::NormEpsilon,
        &["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"],
        &["norm_eps"],
    ),
    fact(Fact::RopeBase, &["rope.freq_base"], &["global_rope_theta"]),
    fact(Fact::LocalRopeBase, &["rope.freq_base_swa"], &["local_rope_theta"]),
    fact(Fact::WindowSize, &["attention.sliding_window"], &["local_attention"]),
    fact(Fact::ClassifierPooling, &["classifier.pooling_type"], &["classifier_pooling"]),
];

const TENSORS: &[TensorRule] = &[
    model("token_embd", "embeddings.tok_embeddings", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    model("token_embd_norm", "embeddings.norm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_norm", "attn_norm", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("attn_q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    gguf_layer("attn_k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    gguf_layer("attn_v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attn.Wo", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_norm", "mlp_norm", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("ffn_gate", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    gguf_layer("ffn_up", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.Wo", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "final_norm", Kind::Norm, &[Dim::Hidden]),
];

/// A classifier. The first two also occur in files of masked language models, where they are not needed.
const HEAD: &[TensorRule] = &[
    model("cls", "head.dense", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    model("cls.norm", "head.norm", Kind::Norm, &[Dim::Hidden]),
    model("cls.output", "classifier", Kind::Matrix, &[Dim::Labels, Dim::Hidden]),
];

const MODERNBERT: HfKind = HfKind {
    model_type: "modernbert",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 768.0),
        (Fact::LayerCount, 22.0),
        (Fact::FfnSize, 1152.0),
        (Fact::HeadCount, 12.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 160_000.0),
        (Fact::LocalRopeBase, 10_000.0),
        (Fact::WindowSize, 128.0),
        (Fact::ClassifierPooling, 2.0),
    ],
    sliding: Sliding::Pattern(3),
    activation_fields: &["hidden_activation"],
    activation_names: &[ACTIVATIONS],
    expected: &[("classifier_activation", "gelu")],
    ..HfKind::PLAIN
};

const MODERNBERT_BASE: Shape = Shape {
    name: "modernbert-base",
    title: "ModernBERT base",
    toy: false,
    vocab: 50_368,
    context: 8192,
    hidden: 768,
    layers: 22,
    ffn: 1152,
    heads: 12,
    kv_heads: 12,
    head_dim: 64,
    rope_base: 160_000.0,
    rope_scaling: RopeScaling::None,
    window: Some(128),
    epsilon: 1e-5,
    tied: true,
    biases: Biases::None,
    pooling: Some(Pooling::First),
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};
