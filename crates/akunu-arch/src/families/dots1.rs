//! dots.llm1: the attention of Qwen 3 and the experts of DeepSeek V3. The first layers are dense, the others have experts
//! that all tokens share and others that are chosen by sigmoids with a bias.

use crate::card::{Card, HfKind, Sliding};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, EMBEDDING, EXPERT_BIAS, EXPERTS, FFN_NORM, GATED_FFN, OUTPUT, QK_NORMS, QKV, ROUTER,
    SHARED_EXPERTS,
};
use crate::tower::QkNorm;
use crate::{GroupRank, Router, Scores};

pub static CARD: Card = Card {
    names: &["dots1"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES, FACTS],
    hf: &[DOTS1],
    tensors: &[
        EMBEDDING,
        QKV,
        QK_NORMS,
        ATTN_OUTPUT,
        FFN_NORM,
        GATED_FFN,
        ROUTER,
        EXPERTS,
        EXPERT_BIAS,
        SHARED_EXPERTS,
        OUTPUT,
    ],
    qk_norm: Some(QkNorm::Head),
    router: Router { scores: Scores::Sigmoid, rank: GroupRank::TwoBest, epsilon: 1e-20, ..Router::SOFTMAX },
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ExpertCount, &["expert_count"], &["n_routed_experts"]),
    fact(Fact::SharedExperts, &["expert_shared_count"], &["n_shared_experts"]),
    fact(Fact::DenseLayers, &["leading_dense_block_count"], &[]),
];

const DOTS1: HfKind = HfKind {
    model_type: "dots1",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4608.0),
        (Fact::LayerCount, 62.0),
        (Fact::FfnSize, 10_944.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
        (Fact::ExpertCount, 0.0),
        (Fact::ExpertFfnSize, 1408.0),
    ],
    sliding: Sliding::From(62),
    ..HfKind::PLAIN
};
