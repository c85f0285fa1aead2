//! GLM 4.5 and 4.6: the first layers are dense, the others have an expert that all tokens share and others that are
//! chosen by sigmoids with a bias. RoPE rotates half of each head; some models normalize heads before it. GGUF files
//! call the norm before the feed-forward part by the name that it has in Hugging Face files.

use crate::card::{Card, HfKind};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, EMBEDDING, EXPERT_BIAS, EXPERTS, GATED_FFN, OUTPUT, QK_NORMS, QKV, ROUTER, SECOND_NORM,
    SHARED_EXPERTS,
};
use crate::tower::{QkNorm, pre_norm_second};
use crate::{Biases, ExpertShape, GroupRank, RopeScaling, Router, Scores, Shape};

pub static CARD: Card = Card {
    names: &["glm4moe", "glm4_moe"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES, FACTS],
    hf: &[GLM4_MOE],
    tensors: &[
        EMBEDDING,
        QKV,
        QK_NORMS,
        ATTN_OUTPUT,
        SECOND_NORM,
        GATED_FFN,
        ROUTER,
        EXPERTS,
        EXPERT_BIAS,
        SHARED_EXPERTS,
        OUTPUT,
    ],
    layer: pre_norm_second,
    qk_norm: Some(QkNorm::Head),
    optional_qk_norm: true,
    router: Router { scores: Scores::Sigmoid, rank: GroupRank::TwoBest, epsilon: 1e-20, ..Router::SOFTMAX },
    shapes: &[GLM_4_5_AIR],
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ExpertCount, &["expert_count"], &["n_routed_experts"]),
    fact(Fact::SharedExperts, &["expert_shared_count"], &["n_shared_experts"]),
    fact(Fact::DenseLayers, &["leading_dense_block_count"], &[]),
    fact(Fact::FurtherLayers, &["nextn_predict_layers"], &["num_nextn_predict_layers"]),
];

const GLM4_MOE: HfKind = HfKind {
    model_type: "glm4_moe",
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 46.0),
        (Fact::FfnSize, 10_944.0),
        (Fact::HeadCount, 96.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::PartialRotaryFactor, 0.5),
        (Fact::ExpertCount, 128.0),
        (Fact::ExpertsUsed, 8.0),
        (Fact::ExpertFfnSize, 1408.0),
        (Fact::SharedExperts, 1.0),
        (Fact::NormalisedShares, 1.0),
        (Fact::FurtherLayers, 1.0),
    ],
    ..HfKind::PLAIN
};

const GLM_4_5_AIR: Shape = Shape {
    name: "glm-4.5-air",
    title: "GLM 4.5 Air",
    toy: false,
    vocab: 151_552,
    context: 131_072,
    hidden: 4096,
    layers: 46,
    ffn: 10_944,
    heads: 96,
    kv_heads: 8,
    head_dim: 128,
    rope_base: 1_000_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-5,
    tied: false,
    biases: Biases::Qkv,
    pooling: None,
    experts: Some(ExpertShape { count: 128, used: 8, ffn: 1408, shared_ffn: Some(1408), dense_layers: 1 }),
    latent: None,
    mamba: None,
    encoder: None,
};
