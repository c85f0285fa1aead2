//! StableLM 2: LayerNorm and partial RoPE. The largest model has a parallel residual, and Q/K norms with separate
//! weights for each head.

use crate::card::{Card, HfKind};
use crate::facts::{Fact, LAYER_NORM, LLAMA_FACTS, PARALLEL};
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, FFN_NORM, GATED_FFN, OUTPUT, QK_PER_HEAD_NORMS, QKV};
use crate::tower::{Layer, NormKind, QkNorm, State, parallel, pre_norm};

pub static CARD: Card = Card {
    names: &["stablelm"],
    facts: &[LLAMA_FACTS, LAYER_NORM, PARALLEL],
    hf: &[STABLELM],
    tensors: &[EMBEDDING, QKV, QK_PER_HEAD_NORMS, ATTN_OUTPUT, FFN_NORM, GATED_FFN, OUTPUT],
    head_lists: &[
        ("self_attn.q_layernorm.norms", "self_attn.q_norm"),
        ("self_attn.k_layernorm.norms", "self_attn.k_norm"),
    ],
    layer: either,
    norm: NormKind::Layer,
    qk_norm: Some(QkNorm::PerHeadWeights),
    optional_qk_norm: true,
    ..Card::PLAIN
};

/// Files state this in several ways or not at all, but a layer with parallel residual always has only one norm.
fn either(layer: &mut Layer<'_>, x: State) -> State {
    if layer.has("ffn_norm.weight") { pre_norm(layer, x) } else { parallel(layer, x) }
}

const STABLELM: HfKind = HfKind {
    model_type: "stablelm",
    defaults: &[
        (Fact::ContextLength, 4096.0),
        (Fact::HiddenSize, 2560.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 6912.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
        (Fact::PartialRotaryFactor, 0.25),
    ],
    ..HfKind::PLAIN
};
