//! InternLM 2: LLaMA with other tensor names, and fused Q, K and V in Hugging Face files.

use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::Fact;
use crate::tensors::{Dim, FusedLayout, FusedRule, Kind, LLAMA_NAMING, TensorRule, gguf_layer, layer, model};

pub static CARD: Card = Card {
    names: &["internlm2"],
    hf: &[INTERNLM2],
    tensors: &[TENSORS],
    fused: &[FusedRule {
        name: "attn_qkv",
        hf: "attention.wqkv",
        parts: &["attn_q", "attn_k", "attn_v"],
        layout: FusedLayout::KvHeads,
    }],
    naming: LLAMA_NAMING,
    gguf_rope: RopeStyle::Interleaved,
    ..Card::PLAIN
};

const TENSORS: &[TensorRule] = &[
    model("token_embd", "model.tok_embeddings", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    layer("attn_norm", "attention_norm", Kind::Norm, &[Dim::Hidden]),
    gguf_layer("attn_q", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    gguf_layer("attn_k", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    gguf_layer("attn_v", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attention.wo", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_norm", "ffn_norm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_gate", "feed_forward.w1", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_up", "feed_forward.w3", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "feed_forward.w2", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "model.norm", Kind::Norm, &[Dim::Hidden]),
    model("output", "output", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const INTERNLM2: HfKind = HfKind {
    model_type: "internlm2",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
    ],
    ..HfKind::PLAIN
};
