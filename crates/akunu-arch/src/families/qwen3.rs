//! Qwen 3: norms over each head of Q and K.

use crate::card::{Card, HfKind, RerankPrompt, Sliding};
use crate::facts::Fact;
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, FFN_NORM, GATED_FFN, OUTPUT, QK_NORMS, QKV, SCORE};
use crate::tower::QkNorm;
use crate::{Biases, Pooling, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["qwen3"],
    hf: &[QWEN3],
    tensors: &[EMBEDDING, QKV, QK_NORMS, ATTN_OUTPUT, FFN_NORM, GATED_FFN, OUTPUT, SCORE],
    qk_norm: Some(QkNorm::Head),
    rerank: Some(RERANK),
    shapes: &[QWEN3_0_6B, QWEN3_4B, QWEN3_8B, QWEN3_14B, QWEN3_32B, QWEN3_EMBEDDING_0_6B],
    ..Card::PLAIN
};

/// The prompt of Qwen3-Reranker.
const RERANK: RerankPrompt = RerankPrompt {
    head: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
             Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>",
    before_instruction: "user\n<Instruct>: ",
    instruction: "Given a web search query, retrieve relevant passages that answer the query",
    before_query: "\n<Query>: ",
    before_document: "\n<Document>: ",
    tail: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    yes: "yes",
    no: "no",
};

pub(super) const QWEN3: HfKind = HfKind {
    model_type: "qwen3",
    defaults: &[
        (Fact::ContextLength, 32_768.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 22_016.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 32.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::OnRequest,
    refused: &[("is_causal", false)],
    ..HfKind::PLAIN
};

pub(super) const QWEN3_8B: Shape = Shape {
    name: "qwen3-8b",
    title: "Qwen3 8B",
    toy: false,
    vocab: 151_936,
    context: 40_960,
    hidden: 4096,
    layers: 36,
    ffn: 12_288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    rope_base: 1_000_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-6,
    tied: false,
    biases: Biases::None,
    pooling: None,
    experts: None,
    latent: None,
    mamba: None,
    encoder: None,
};

const QWEN3_EMBEDDING_0_6B: Shape = Shape {
    name: "qwen3-embedding-0.6b",
    title: "Qwen3 Embedding 0.6B",
    vocab: 151_669,
    context: 32_768,
    pooling: Some(Pooling::Last),
    ..QWEN3_0_6B
};

const QWEN3_4B: Shape =
    Shape { name: "qwen3-4b", title: "Qwen3 4B", hidden: 2560, ffn: 9728, tied: true, ..QWEN3_8B };

const QWEN3_14B: Shape = Shape {
    name: "qwen3-14b",
    title: "Qwen3 14B",
    hidden: 5120,
    layers: 40,
    ffn: 17_408,
    heads: 40,
    ..QWEN3_8B
};

const QWEN3_32B: Shape =
    Shape { name: "qwen3-32b", title: "Qwen3 32B", layers: 64, ffn: 25_600, heads: 64, ..QWEN3_14B };

const QWEN3_0_6B: Shape = Shape {
    name: "qwen3-0.6b",
    title: "Qwen3 0.6B",
    hidden: 1024,
    layers: 28,
    ffn: 3072,
    heads: 16,
    tied: true,
    ..QWEN3_8B
};
