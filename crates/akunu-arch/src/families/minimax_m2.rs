//! MiniMax M2: a router and experts in every layer, chosen by sigmoids with a bias; Q and K are normalized over all
//! heads together, and RoPE rotates a part of each head.

use super::llama::MIXTRAL_EXPERTS;
use crate::card::{Card, HfKind};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, FUSED_QKV, Kind, OUTPUT, QK_ROW_NORMS, QKV, TensorRule, layer,
};
use crate::tower::QkNorm;
use crate::{Router, Scores};

pub static CARD: Card = Card {
    names: &["minimax-m2", "minimax_m2"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, FACTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0)],
    hf: &[MINIMAX_M2],
    tensors: &[EMBEDDING, QKV, QK_ROW_NORMS, ATTN_OUTPUT, FFN_NORM, MIXTRAL_EXPERTS, BIAS, OUTPUT],
    fused: &[FUSED_QKV],
    qk_norm: Some(QkNorm::Row),
    router: Router { scores: Scores::Sigmoid, ..Router::SOFTMAX },
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ExpertFfnSize, &["expert_feed_forward_length"], &[]),
    fact(Fact::RopeDims, &["rope.dimension_count"], &["rotary_dim"]),
];

const BIAS: &[TensorRule] =
    &[layer("exp_probs_b", "block_sparse_moe.e_score_correction", Kind::Bias, &[Dim::Experts])];

const MINIMAX_M2: HfKind = HfKind {
    model_type: "minimax_m2",
    defaults: &[
        (Fact::ContextLength, 196_608.0),
        (Fact::HiddenSize, 3072.0),
        (Fact::LayerCount, 62.0),
        (Fact::FfnSize, 1536.0),
        (Fact::HeadCount, 48.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 5_000_000.0),
        (Fact::ExpertCount, 256.0),
        (Fact::ExpertsUsed, 8.0),
        (Fact::NormalisedShares, 1.0),
    ],
    expected: &[("scoring_func", "sigmoid")],
    ..HfKind::PLAIN
};
