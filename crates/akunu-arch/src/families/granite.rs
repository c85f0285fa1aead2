//! Granite 3: LLaMA with multipliers of embeddings, attention scores, residuals and logits. Granite 4 without Mamba layers
//! and experts is the same, and its feed-forward part has the name of an expert that all tokens share.

use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::{Fact, FactRule, Form, LLAMA_FACTS, fact};
use crate::tensors::{FUSED_GATE_UP, FUSED_QKV, FusedRule};

pub static CARD: Card = Card {
    names: &["granite"],
    facts: &[LLAMA_FACTS, MULTIPLIERS, ROTATES, FACTS],
    gguf_defaults: &[(Fact::Rotates, 1.0)],
    hf: &[GRANITE, GRANITE4],
    fused: &[FUSED_QKV, FUSED_GATE_UP, SHARED_GATE_UP],
    aliases: &[("shared_mlp.output_linear", "mlp.down_proj")],
    gguf_rope: RopeStyle::Interleaved,
    ..Card::PLAIN
};

pub(super) const MULTIPLIERS: &[FactRule] = &[
    fact(Fact::EmbeddingScale, &["embedding_scale"], &["embedding_multiplier"]),
    fact(Fact::ResidualScale, &["residual_scale"], &["residual_multiplier"]),
    fact(Fact::AttentionScale, &["attention.scale"], &["attention_multiplier"]),
    // Both GGUF and Hugging Face files state a divisor.
    FactRule {
        fact: Fact::LogitScale,
        gguf: &["logit_scale"],
        hf: &["logits_scaling"],
        gguf_form: Form::Inverse,
        hf_form: Form::Inverse,
    },
];

const FACTS: &[FactRule] =
    &[fact(Fact::FfnSize, &["feed_forward_length"], &["shared_intermediate_size", "intermediate_size"])];

/// Whether RoPE is applied. GGUF files state it in a key of another meaning, as llama.cpp's converter does.
pub(super) const ROTATES: &[FactRule] = &[fact(Fact::Rotates, &["rope.scaling.finetuned"], &[])];

const SHARED_GATE_UP: FusedRule = FusedRule { hf: "shared_mlp.input_linear", ..FUSED_GATE_UP };

const GRANITE: HfKind = HfKind {
    model_type: "granite",
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
    ],
    ..HfKind::PLAIN
};

/// The types of layers without Mamba, in older and newer files.
pub(super) const ATTENTION: &[&str] = &["attention", "full_attention"];

const GRANITE4: HfKind = HfKind {
    model_type: "granitemoehybrid",
    with_experts: Some(false),
    layer_types: ATTENTION,
    rotates_if: Some(("position_embedding_type", "rope")),
    ..GRANITE
};
