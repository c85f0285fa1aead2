//! Ministral: Mistral with sliding windows in some layers. Ministral 3: queries are scaled up with their position, in
//! steps of the original context length.

use crate::card::{Card, HfKind, RopeStyle, Sliding};
use crate::facts::{Fact, FactRule, LLAMA_FACTS, fact};

pub static CARD: Card = Card {
    names: &["mistral3", "ministral3", "ministral"],
    facts: &[LLAMA_FACTS, FACTS],
    hf: &[MINISTRAL3, MINISTRAL],
    gguf_rope: RopeStyle::Interleaved,
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::QueryScaling, &["attention.temperature_scale"], &["llama_4_scaling_beta"]),
    fact(Fact::YarnLogMultiplier, &["rope.scaling.yarn_log_multiplier"], &[]),
];

const MINISTRAL3: HfKind = HfKind {
    model_type: "ministral3",
    nested_in: Some("mistral3"),
    defaults: &[
        (Fact::ContextLength, 262_144.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 34.0),
        (Fact::FfnSize, 14_336.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 1_000_000.0),
    ],
    sliding: Sliding::Listed,
    ..HfKind::PLAIN
};

const MINISTRAL: HfKind = HfKind {
    model_type: "ministral",
    nested_in: None,
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 14_336.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
    ],
    ..MINISTRAL3
};
