//! Phi 3.5 MoE: LayerNorms with biases, and experts whose shares are those of a sparse mixer.

use super::llama::MIXTRAL_EXPERTS;
use crate::card::{Card, HfKind, Sliding};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, FFN_NORM, FUSED_QKV, OUTPUT, QKV};
use crate::tower::NormKind;
use crate::{Router, Scores};

pub static CARD: Card = Card {
    names: &["phimoe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, FACTS],
    gguf_defaults: &[(Fact::RouterJitter, 0.01)],
    hf: &[PHIMOE],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, MIXTRAL_EXPERTS, OUTPUT],
    fused: &[FUSED_QKV],
    norm: NormKind::Layer,
    router: Router { scores: Scores::SparseMixer, ..Router::SOFTMAX },
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[fact(Fact::RouterJitter, &["router_jitter_noise"], &["router_jitter_noise"])];

const PHIMOE: HfKind = HfKind {
    model_type: "phimoe",
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 6400.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 1_000_000.0),
        (Fact::ExpertCount, 16.0),
        (Fact::ExpertsUsed, 2.0),
        (Fact::RouterJitter, 0.01),
    ],
    sliding: Sliding::All,
    ..HfKind::PLAIN
};
