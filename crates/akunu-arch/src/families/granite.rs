//! Granite 3: LLaMA with multipliers of embeddings, attention scores, residuals and logits.

use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::{Fact, FactRule, Form, LLAMA_FACTS, fact};

pub static CARD: Card = Card {
    names: &["granite"],
    facts: &[LLAMA_FACTS, MULTIPLIERS],
    hf: &[GRANITE],
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
