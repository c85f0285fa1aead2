//! SmolLM 3: LLaMA without RoPE in every fourth layer.

use crate::card::{Card, HfKind, RopeStyle, Sliding};
use crate::facts::{Fact, FactRule, LLAMA_FACTS, fact};

pub static CARD: Card = Card {
    names: &["smollm3"],
    facts: &[LLAMA_FACTS, UNROTATED],
    gguf_defaults: &[(Fact::UnrotatedEvery, 4.0)],
    hf: &[SMOLLM3],
    gguf_rope: RopeStyle::Interleaved,
    ..Card::PLAIN
};

/// GGUF files do not state it.
const UNROTATED: &[FactRule] =
    &[fact(Fact::UnrotatedEvery, &["no_rope_layer_interval"], &["no_rope_layer_interval"])];

const SMOLLM3: HfKind = HfKind {
    model_type: "smollm3",
    defaults: &[
        (Fact::ContextLength, 32_768.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 36.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 16.0),
        (Fact::KvHeadCount, 4.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 2_000_000.0),
        (Fact::UnrotatedEvery, 4.0),
    ],
    sliding: Sliding::OnRequest,
    ..HfKind::PLAIN
};
