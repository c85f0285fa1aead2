//! Qwen 1.5 and 2 with experts: a gated expert that all tokens share beside those that tokens are routed to.

use crate::card::{Card, HfKind, Sliding};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, LLAMA_FACTS};
use crate::tensors::{
    ATTN_OUTPUT, EMBEDDING, EXPERTS, FFN_NORM, GATED_FFN, OUTPUT, QKV, ROUTER, SHARED_EXPERT,
};

pub static CARD: Card = Card {
    names: &["qwen2moe", "qwen2_moe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES],
    hf: &[QWEN2_MOE],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, GATED_FFN, ROUTER, EXPERTS, SHARED_EXPERT, OUTPUT],
    ..Card::PLAIN
};

const QWEN2_MOE: HfKind = HfKind {
    model_type: "qwen2_moe",
    defaults: &[
        (Fact::ContextLength, 32_768.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 24.0),
        (Fact::FfnSize, 5632.0),
        (Fact::HeadCount, 16.0),
        (Fact::KvHeadCount, 16.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
        (Fact::ExpertCount, 60.0),
        (Fact::ExpertsUsed, 4.0),
        (Fact::ExpertFfnSize, 1408.0),
        (Fact::SharedFfnSize, 5632.0),
    ],
    sliding: Sliding::OnRequest,
    ..HfKind::PLAIN
};
