//! Granite 4 H: Granite's multipliers, layers with a state (Mamba 2), and some with attention, which is not rotated. Larger
//! models have experts in every layer; in the others, what would be the expert that all tokens share is the feed-forward part.

use super::{granite, granite_moe};
use crate::card::{Card, HfKind};
use crate::facts::{EXPERTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::shape::{Biases, ExpertShape, MambaShape, Shape};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, FFN_NORM, FUSED_GATE_UP, GATED_FFN, Kind, OUTPUT, QKV, TensorRule, layer,
};
use crate::{MambaFacts, RopeScaling};

pub static CARD: Card = Card {
    names: &["granitehybrid"],
    facts: &[LLAMA_FACTS, granite::MULTIPLIERS, granite::ROTATES, EXPERTS, granite_moe::FACTS, FACTS],
    hf: &[WITH_EXPERTS, WITHOUT_EXPERTS],
    tensors: &[EMBEDDING, QKV, MAMBA, ATTN_OUTPUT, FFN_NORM, GATED_FFN, granite_moe::EXPERTS, OUTPUT],
    fused: &[granite_moe::GATE_UP, granite_moe::SHARED_GATE_UP, FUSED_GATE_UP],
    shared_alone: true,
    shapes: &[GRANITE_4_H_TINY],
    ..granite_moe::CARD
};

const FACTS: &[FactRule] = &[
    fact(Fact::StateTaps, &["ssm.conv_kernel"], &["mamba_d_conv"]),
    fact(Fact::StateSize, &["ssm.state_size"], &["mamba_d_state"]),
    fact(Fact::StateGroups, &["ssm.group_count"], &["mamba_n_groups"]),
    fact(Fact::StateHeads, &["ssm.time_step_rank"], &["mamba_n_heads"]),
    fact(Fact::StateInner, &["ssm.inner_size"], &[]),
    fact(Fact::StateHeadDim, &[], &["mamba_d_head"]),
    fact(Fact::StateExpansion, &[], &["mamba_expand"]),
];

/// A matrix of gates, channels and steps, the convolution of the channels, what the state needs, and the way back.
const MAMBA: &[TensorRule] = &[
    layer("ssm_in", "mamba.in_proj", Kind::Matrix, &[Dim::StateMixed, Dim::Hidden]),
    layer("ssm_conv1d", "mamba.conv1d", Kind::Convolution, &[Dim::StateChannels, Dim::StateTaps]),
    layer("ssm_dt", "mamba.dt", Kind::Bias, &[Dim::StateHeads]),
    layer("ssm_a", "mamba.A_log", Kind::Parameter, &[Dim::StateHeads]),
    layer("ssm_d", "mamba.D", Kind::Parameter, &[Dim::StateHeads]),
    layer("ssm_norm", "mamba.norm", Kind::Norm, &[Dim::StateInner]),
    layer("ssm_out", "mamba.out_proj", Kind::Residual, &[Dim::Hidden, Dim::StateInner]),
];

const WITH_EXPERTS: HfKind = HfKind {
    layer_types: &["mamba", "linear_attention", "attention", "full_attention"],
    recurrent_types: &["mamba", "linear_attention"],
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::EmbeddingScale, 1.0),
        (Fact::ResidualScale, 1.0),
        (Fact::AttentionScale, 1.0),
        (Fact::LogitScale, 1.0),
        (Fact::ExpertCount, 8.0),
        (Fact::ExpertsUsed, 2.0),
        (Fact::NormalisedShares, 1.0),
        (Fact::SharedFfnSize, 1024.0),
        (Fact::StateTaps, 4.0),
        (Fact::StateSize, 256.0),
        (Fact::StateGroups, 1.0),
        (Fact::StateHeads, 128.0),
        (Fact::StateExpansion, 2.0),
    ],
    refused: &[("mamba_proj_bias", true)],
    ..granite_moe::GRANITE4
};

const WITHOUT_EXPERTS: HfKind = HfKind { with_experts: Some(false), ..WITH_EXPERTS };

const GRANITE_4_H_TINY: Shape = Shape {
    name: "granite-4.0-h-tiny",
    title: "Granite 4.0 H Tiny",
    toy: false,
    vocab: 100_352,
    context: 131_072,
    hidden: 1536,
    layers: 40,
    ffn: 512,
    heads: 12,
    kv_heads: 4,
    head_dim: 128,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-5,
    tied: true,
    biases: Biases::None,
    pooling: None,
    experts: Some(ExpertShape { count: 64, used: 6, ffn: 512, shared_ffn: Some(1024), dense_layers: 0 }),
    latent: None,
    mamba: Some(MambaShape {
        facts: MambaFacts { taps: 4, state_size: 128, groups: 1, heads: 48, head_dim: 64 },
        attention: &[5, 15, 25, 35],
    }),
    encoder: None,
};
