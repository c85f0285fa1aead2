//! Phi 3 and 4: fused Q, K and V, and fused gate and up, in both kinds of files.

use crate::card::{Card, HfKind, Sliding};
use crate::facts::Fact;

pub static CARD: Card = Card { names: &["phi3"], hf: &[PHI3], fused_in_gguf: true, ..Card::PLAIN };

const PHI3: HfKind = HfKind {
    model_type: "phi3",
    defaults: &[
        (Fact::ContextLength, 4096.0),
        (Fact::HiddenSize, 3072.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 8192.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    sliding: Sliding::All,
    ..HfKind::PLAIN
};
