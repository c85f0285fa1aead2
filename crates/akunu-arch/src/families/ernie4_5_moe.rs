//! ERNIE 4.5 with experts: the first layers are dense, the others have experts that all tokens share and others that
//! are chosen by a softmax with a bias.

use crate::Router;
use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, EXPERTS, FFN_NORM, GATED_FFN, Kind, OUTPUT, QKV, ROUTER, SHARED_EXPERTS,
    TensorRule, layer,
};

pub static CARD: Card = Card {
    names: &["ernie4_5-moe", "ernie4_5_moe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES, FACTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0)],
    hf: &[ERNIE4_5_MOE],
    tensors: &[
        EMBEDDING,
        QKV,
        ATTN_OUTPUT,
        FFN_NORM,
        GATED_FFN,
        ROUTER,
        EXPERTS,
        BIAS,
        SHARED_EXPERTS,
        OUTPUT,
    ],
    // The modules that predict further tokens.
    ignored: &["model.mtp_"],
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    router: Router { epsilon: 1e-12, ..Router::SOFTMAX },
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ExpertCount, &["expert_count"], &["moe_num_experts"]),
    fact(Fact::ExpertsUsed, &["expert_used_count"], &["moe_k"]),
    fact(Fact::SharedExperts, &["expert_shared_count"], &["moe_num_shared_experts"]),
    fact(Fact::DenseLayers, &["leading_dense_block_count"], &[]),
    fact(Fact::ExpertsEvery, &["interleave_moe_layer_step"], &[]),
];

const BIAS: &[TensorRule] =
    &[layer("exp_probs_b", "mlp.moe_statics.e_score_correction", Kind::Bias, &[Dim::Experts])];

const ERNIE4_5_MOE: HfKind = HfKind {
    model_type: "ernie4_5_moe",
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 2560.0),
        (Fact::LayerCount, 28.0),
        (Fact::FfnSize, 12_288.0),
        (Fact::HeadCount, 20.0),
        (Fact::KvHeadCount, 4.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 500_000.0),
        (Fact::ExpertCount, 64.0),
        (Fact::ExpertsUsed, 6.0),
        (Fact::ExpertFfnSize, 1536.0),
        (Fact::SharedExperts, 2.0),
        (Fact::NormalisedShares, 1.0),
    ],
    ..HfKind::PLAIN
};
