//! DeepSeek V2, V3, R1 and V3.1, Kimi K2, and GLM 4.7 Flash: latent attention; the first layers are dense, the others have experts that
//! all tokens share and others that are chosen: in V2 by a softmax, in V3 by sigmoids with a bias.

use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::{EXPERT_SIZES, EXPERTS as EXPERT_FACTS, Fact, FactRule, Form, LLAMA_FACTS, fact};
use crate::tensors::{
    EMBEDDING, EXPERT_BIAS, EXPERTS, FFN_NORM, FUSED_GATE_UP, GATED_FFN, LATENT_ATTENTION, OUTPUT, ROUTER,
    SHARED_EXPERTS,
};
use crate::{Biases, ExpertShape, GroupRank, LatentFacts, RopeScaling, Router, Scores, Shape};

pub static CARD: Card = Card {
    names: &["deepseek2", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, EXPERT_SIZES, FACTS],
    hf: &[DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, GLM4_MOE_LITE],
    tensors: &[
        EMBEDDING,
        LATENT_ATTENTION,
        FFN_NORM,
        GATED_FFN,
        ROUTER,
        EXPERTS,
        EXPERT_BIAS,
        SHARED_EXPERTS,
        OUTPUT,
    ],
    fused: &[FUSED_GATE_UP],
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    router: Router { epsilon: 1e-20, ..Router::SOFTMAX },
    shapes: &[DEEPSEEK_V2_LITE],
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::LatentSize, &["attention.kv_lora_rank"], &["kv_lora_rank"]),
    fact(Fact::QueryRank, &["attention.q_lora_rank"], &["q_lora_rank"]),
    fact(Fact::KeySize, &["attention.key_length_mla"], &[]),
    fact(Fact::PlainKeySize, &[], &["qk_nope_head_dim"]),
    fact(Fact::ValueSize, &["attention.value_length_mla"], &["v_head_dim"]),
    fact(Fact::RopeDims, &["rope.dimension_count"], &["qk_rope_head_dim"]),
    // In some files the number of rotated dimensions.
    fact(Fact::HeadDim, &["attention.key_length"], &[]),
    FactRule {
        fact: Fact::YarnLogMultiplier,
        gguf: &["rope.scaling.yarn_log_multiplier"],
        hf: &[],
        gguf_form: Form::Tenth,
        hf_form: Form::Plain,
    },
    fact(Fact::ExpertCount, &["expert_count"], &["n_routed_experts"]),
    fact(Fact::SharedExperts, &["expert_shared_count"], &["n_shared_experts"]),
    fact(Fact::DenseLayers, &["leading_dense_block_count"], &[]),
    fact(Fact::FurtherLayers, &["nextn_predict_layers"], &["num_nextn_predict_layers"]),
];

const DEEPSEEK_V2: HfKind = HfKind {
    model_type: "deepseek_v2",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::LatentSize, 512.0),
        (Fact::QueryRank, 1536.0),
        (Fact::PlainKeySize, 128.0),
        (Fact::RopeDims, 64.0),
        (Fact::ValueSize, 128.0),
        (Fact::ExpertCount, 64.0),
        (Fact::ExpertsUsed, 6.0),
        (Fact::ExpertFfnSize, 1407.0),
        (Fact::SharedExperts, 2.0),
        (Fact::ShareScale, 1.0),
    ],
    ungrouped: Some(("topk_method", &["greedy"])),
    expected: &[("scoring_func", "softmax")],
    // transformers does not divide shares by their sum here, whatever the file says.
    refused: &[("norm_topk_prob", true)],
    expected_numbers: &[("moe_layer_freq", 1.0)],
    ..HfKind::PLAIN
};

const DEEPSEEK_V3: HfKind = HfKind {
    model_type: "deepseek_v3",
    defaults: &[
        (Fact::ContextLength, 4096.0),
        (Fact::HiddenSize, 7168.0),
        (Fact::LayerCount, 61.0),
        (Fact::FfnSize, 18_432.0),
        (Fact::HeadCount, 128.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::LatentSize, 512.0),
        (Fact::QueryRank, 1536.0),
        (Fact::PlainKeySize, 128.0),
        (Fact::RopeDims, 64.0),
        (Fact::ValueSize, 128.0),
        (Fact::ExpertCount, 256.0),
        (Fact::ExpertsUsed, 8.0),
        (Fact::ExpertFfnSize, 2048.0),
        (Fact::SharedExperts, 1.0),
        (Fact::ShareScale, 2.5),
        (Fact::ExpertGroups, 8.0),
        (Fact::ExpertGroupsUsed, 4.0),
        (Fact::NormalisedShares, 1.0),
        (Fact::FurtherLayers, 1.0),
    ],
    router: Some(Router {
        scores: Scores::Sigmoid,
        rank: GroupRank::TwoBest,
        epsilon: 1e-20,
        ..Router::SOFTMAX
    }),
    expected: &[("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")],
    refused: &[("rope_interleave", false)],
    expected_numbers: &[("moe_layer_freq", 1.0)],
    ..HfKind::PLAIN
};

const KIMI_K2: HfKind = HfKind { model_type: "kimi_k2", ..DEEPSEEK_V3 };

const GLM4_MOE_LITE: HfKind = HfKind {
    model_type: "glm4_moe_lite",
    defaults: &[
        (Fact::ContextLength, 202_752.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 47.0),
        (Fact::FfnSize, 10_240.0),
        (Fact::HeadCount, 20.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::LatentSize, 512.0),
        (Fact::QueryRank, 768.0),
        (Fact::PlainKeySize, 192.0),
        (Fact::RopeDims, 64.0),
        (Fact::ValueSize, 256.0),
        (Fact::ExpertCount, 64.0),
        (Fact::ExpertsUsed, 4.0),
        (Fact::ExpertFfnSize, 1536.0),
        (Fact::SharedExperts, 1.0),
        (Fact::ShareScale, 1.8),
        (Fact::ExpertGroups, 1.0),
        (Fact::ExpertGroupsUsed, 1.0),
        (Fact::NormalisedShares, 1.0),
    ],
    ..DEEPSEEK_V3
};

const DEEPSEEK_V2_LITE: Shape = Shape {
    name: "deepseek-v2-lite",
    title: "DeepSeek V2 Lite",
    toy: false,
    vocab: 102_400,
    context: 163_840,
    hidden: 2048,
    layers: 27,
    ffn: 10_944,
    heads: 16,
    kv_heads: 1,
    head_dim: 576,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::Yarn {
        factor: 40.0,
        original_context: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.0),
        exact_ramp: false,
    },
    window: None,
    epsilon: 1e-6,
    tied: false,
    biases: Biases::None,
    pooling: None,
    experts: Some(ExpertShape { count: 64, used: 6, ffn: 1408, shared_ffn: Some(2816), dense_layers: 1 }),
    latent: Some(LatentFacts { size: 512, plain: 128, values: 128, query_rank: None, growth: 0.707 }),
    mamba: None,
    encoder: None,
};
