//! Hunyuan with experts: a router, experts and one that all tokens share in every layer. Heads of Q and K are
//! normalized after RoPE, whose base is raised by a power of a number in the configuration.

use crate::card::{Card, HfKind};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, EXPERTS, FFN_NORM, FUSED_QKV, Kind, OUTPUT, QKV, TensorRule, layer,
};
use crate::tower::QkNorm;

pub static CARD: Card = Card {
    names: &["hunyuan-moe", "hunyuan_v1_moe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, FACTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0)],
    hf: &[HUNYUAN_V1_MOE],
    tensors: &[EMBEDDING, QKV, NORMS, ATTN_OUTPUT, FFN_NORM, ROUTER, EXPERTS, SHARED, OUTPUT],
    fused: &[FUSED_QKV],
    qk_norm: Some(QkNorm::HeadAfterRope),
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ExpertCount, &["expert_count"], &["num_experts"]),
    fact(Fact::ExpertsUsed, &["expert_used_count"], &["moe_topk"]),
    fact(Fact::ExpertFfnSize, &["expert_feed_forward_length"], &[]),
    fact(Fact::SharedFfnSize, &["expert_shared_feed_forward_length"], &["intermediate_size"]),
    fact(Fact::SharedExperts, &["expert_shared_count"], &[]),
];

const NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.query_layernorm", Kind::Norm, &[Dim::Head]),
    layer("attn_k_norm", "self_attn.key_layernorm", Kind::Norm, &[Dim::Head]),
];

const ROUTER: &[TensorRule] =
    &[layer("ffn_gate_inp", "mlp.gate.wg", Kind::Matrix, &[Dim::Experts, Dim::Hidden])];

const SHARED: &[TensorRule] = &[
    layer("ffn_gate_shexp", "mlp.shared_mlp.gate_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_up_shexp", "mlp.shared_mlp.up_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_down_shexp", "mlp.shared_mlp.down_proj", Kind::Residual, &[Dim::Hidden, Dim::SharedFfn]),
];

const HUNYUAN_V1_MOE: HfKind = HfKind {
    model_type: "hunyuan_v1_moe",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::ExpertCount, 1.0),
        (Fact::ExpertsUsed, 1.0),
        (Fact::NormalisedShares, 1.0),
    ],
    refused: &[("use_cla", true)],
    ..HfKind::PLAIN
};
