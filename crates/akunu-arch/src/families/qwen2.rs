//! Qwen 2 and 2.5: biases on Q, K and V, detected by their presence in the file.

use crate::card::{Card, HfKind, Sliding};
use crate::facts::Fact;

pub static CARD: Card = Card { names: &["qwen2"], hf: &[QWEN2], ..Card::PLAIN };

const QWEN2: HfKind = HfKind {
    model_type: "qwen2",
    defaults: &[
        (Fact::ContextLength, 32_768.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 22_016.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 32.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
        (Fact::WindowSize, 4096.0),
    ],
    sliding: Sliding::OnRequest,
    refused: &[("is_causal", false)],
    ..HfKind::PLAIN
};
