//! LLaMA, and Mistral, which differs only in its configuration: GGUF files of both have the architecture `llama`. So do
//! those of Mixtral, whose feed-forward parts are mixtures of experts.

use crate::card::{Card, HfKind, RopeStyle, Sliding};
use crate::facts::{EXPERTS, Fact, LLAMA_FACTS};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, GATED_FFN, Kind, OUTPUT, QKV, TensorRule, layer,
};
use crate::{Biases, ExpertShape, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["llama", "mistral", "mixtral"],
    facts: &[LLAMA_FACTS, EXPERTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0)],
    hf: &[LLAMA, MISTRAL, MIXTRAL],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, GATED_FFN, MIXTRAL_EXPERTS, OUTPUT],
    gguf_rope: RopeStyle::Interleaved,
    shapes: &[SMOLLM2_135M, TINYLLAMA, LLAMA_1B, LLAMA_8B, LLAMA_70B, MIXTRAL_8X7B, TINY, TINY_EXPERTS],
    ..Card::PLAIN
};

const LLAMA: HfKind = HfKind {
    model_type: "llama",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
    ],
    refused: &[("is_causal", false)],
    ..HfKind::PLAIN
};

const MISTRAL: HfKind = HfKind {
    model_type: "mistral",
    nested_in: Some("mistral3"),
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 14_336.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::All,
    ..LLAMA
};

const MIXTRAL: HfKind = HfKind {
    model_type: "mixtral",
    nested_in: None,
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 14_336.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 1_000_000.0),
        (Fact::ExpertCount, 8.0),
        (Fact::ExpertsUsed, 2.0),
        (Fact::NormalisedShares, 1.0),
    ],
    ..MISTRAL
};

pub(super) const MIXTRAL_EXPERTS: &[TensorRule] = &[
    layer("ffn_gate_inp", "block_sparse_moe.gate", Kind::Matrix, &[Dim::Experts, Dim::Hidden]),
    layer(
        "ffn_gate_exps",
        "block_sparse_moe.experts.w1",
        Kind::Experts,
        &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden],
    ),
    layer(
        "ffn_up_exps",
        "block_sparse_moe.experts.w3",
        Kind::Experts,
        &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden],
    ),
    layer(
        "ffn_down_exps",
        "block_sparse_moe.experts.w2",
        Kind::ResidualExperts,
        &[Dim::Experts, Dim::Hidden, Dim::ExpertFfn],
    ),
];

const LLAMA_8B: Shape = Shape {
    name: "llama-8b",
    title: "Llama 3.1 8B",
    toy: false,
    vocab: 128_256,
    context: 131_072,
    hidden: 4096,
    layers: 32,
    ffn: 14_336,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    rope_base: 500_000.0,
    rope_scaling: llama3(8.0),
    window: None,
    epsilon: 1e-5,
    tied: false,
    biases: Biases::None,
    pooling: None,
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};

const LLAMA_1B: Shape = Shape {
    name: "llama-1b",
    title: "Llama 3.2 1B",
    hidden: 2048,
    layers: 16,
    ffn: 8192,
    head_dim: 64,
    rope_scaling: llama3(32.0),
    tied: true,
    ..LLAMA_8B
};

const LLAMA_70B: Shape = Shape {
    name: "llama-70b",
    title: "Llama 3.1 70B",
    hidden: 8192,
    layers: 80,
    ffn: 28_672,
    heads: 64,
    ..LLAMA_8B
};

const TINYLLAMA: Shape = Shape {
    name: "tinyllama-1.1b",
    title: "TinyLlama 1.1B",
    vocab: 32_000,
    context: 2048,
    hidden: 2048,
    layers: 22,
    ffn: 5632,
    heads: 32,
    kv_heads: 4,
    head_dim: 64,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    ..LLAMA_8B
};

const SMOLLM2_135M: Shape = Shape {
    name: "smollm2-135m",
    title: "SmolLM2 135M",
    vocab: 49_152,
    context: 8192,
    hidden: 576,
    layers: 30,
    ffn: 1536,
    heads: 9,
    kv_heads: 3,
    rope_base: 100_000.0,
    tied: true,
    ..TINYLLAMA
};

const TINY: Shape = Shape {
    name: "tiny",
    title: "Tiny",
    toy: true,
    vocab: 1000,
    context: 1024,
    hidden: 256,
    layers: 4,
    ffn: 768,
    heads: 4,
    kv_heads: 2,
    tied: true,
    ..TINYLLAMA
};

const MIXTRAL_8X7B: Shape = Shape {
    name: "mixtral-8x7b",
    title: "Mixtral 8x7B",
    vocab: 32_000,
    context: 32_768,
    rope_base: 1_000_000.0,
    rope_scaling: RopeScaling::None,
    experts: Some(ExpertShape { count: 8, used: 2, ffn: 14_336, shared_ffn: None, dense_layers: 0 }),
    ..LLAMA_8B
};

const TINY_EXPERTS: Shape = Shape {
    name: "tiny-experts",
    title: "Tiny with experts",
    ffn: 256,
    experts: Some(ExpertShape { count: 8, used: 2, ffn: 256, shared_ffn: None, dense_layers: 0 }),
    ..TINY
};

/// RoPE scaling as in Llama 3.1 and later.
const fn llama3(factor: f64) -> RopeScaling {
    RopeScaling::Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 }
}
