//! gpt-oss: experts with biases and a clamped SwiGLU in every layer, and attention whose softmax has a sink for each
//! head; every other layer attends to a window.

use crate::card::{Card, DefaultWindow, HfKind, Sliding, StackedExperts};
use crate::facts::{EXPERTS as EXPERT_FACTS, Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, EXPERTS, Kind, OUTPUT, QKV, SECOND_NORM, TensorRule, layer,
};
use crate::tower::{FeedForwardKind, pre_norm_second};
use crate::{Biases, ExpertShape, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["gpt-oss", "gpt_oss"],
    facts: &[LLAMA_FACTS, EXPERT_FACTS, FACTS],
    gguf_defaults: &[(Fact::NormalisedShares, 1.0), (Fact::YarnExactRamp, 1.0)],
    hf: &[GPT_OSS],
    tensors: &[EMBEDDING, QKV, SINKS, ATTN_OUTPUT, SECOND_NORM, ROUTER, EXPERTS, OUTPUT],
    fused: &[],
    stacked_experts: &[GATE_UP, DOWN],
    layer: pre_norm_second,
    sinks: true,
    feed: FeedForwardKind::Clamped,
    default_window: DefaultWindow::FullEvery(2),
    shapes: &[GPT_OSS_20B, GPT_OSS_120B],
    ..Card::PLAIN
};

const GATE_UP: StackedExperts = StackedExperts {
    name: "mlp.experts.gate_up_proj",
    parts: &["mlp.experts.gate_proj", "mlp.experts.up_proj"],
    alternate: true,
};

const DOWN: StackedExperts =
    StackedExperts { name: "mlp.experts.down_proj", parts: &["mlp.experts.down_proj"], alternate: true };

/// All layers are mixtures: `config.json` has no size of experts beside that of the feed-forward part.
const FACTS: &[FactRule] = &[fact(Fact::ExpertFfnSize, &["expert_feed_forward_length"], &[])];

const SINKS: &[TensorRule] = &[layer("attn_sinks", "self_attn.sinks", Kind::Parameter, &[Dim::Heads])];

const ROUTER: &[TensorRule] =
    &[layer("ffn_gate_inp", "mlp.router", Kind::Matrix, &[Dim::Experts, Dim::Hidden])];

const YARN: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    original_context: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    attention_factor: None,
    exact_ramp: true,
};

const GPT_OSS: HfKind = HfKind {
    model_type: "gpt_oss",
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 2880.0),
        (Fact::LayerCount, 36.0),
        (Fact::FfnSize, 2880.0),
        (Fact::HeadCount, 64.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::HeadDim, 64.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 150_000.0),
        (Fact::WindowSize, 128.0),
        (Fact::ExpertCount, 128.0),
        (Fact::ExpertsUsed, 4.0),
        (Fact::NormalisedShares, 1.0),
    ],
    sliding: Sliding::Pattern(2),
    expected: &[("hidden_act", "silu")],
    expected_numbers: &[("swiglu_limit", 7.0)],
    rope_scaling: YARN,
    ..HfKind::PLAIN
};

const GPT_OSS_20B: Shape = Shape {
    name: "gpt-oss-20b",
    title: "gpt-oss 20B",
    toy: false,
    vocab: 201_088,
    context: 131_072,
    hidden: 2880,
    layers: 24,
    ffn: 2880,
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    rope_base: 150_000.0,
    rope_scaling: YARN,
    window: Some(128),
    epsilon: 1e-5,
    tied: false,
    biases: Biases::Matrices,
    pooling: None,
    experts: Some(ExpertShape { count: 32, used: 4, ffn: 2880, shared_ffn: None, dense_layers: 0 }),
    latent: None,
    mamba: None,
    encoder: None,
};

const GPT_OSS_120B: Shape = Shape {
    name: "gpt-oss-120b",
    title: "gpt-oss 120B",
    layers: 36,
    experts: Some(ExpertShape { count: 128, used: 4, ffn: 2880, shared_ffn: None, dense_layers: 0 }),
    ..GPT_OSS_20B
};
