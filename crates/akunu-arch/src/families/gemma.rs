//! The first Gemma: GELU, embeddings scaled by √hidden_size, and norm weights stored minus one.

use crate::Activation;
use crate::card::{ACTIVATIONS, Card, HfKind};
use crate::facts::Fact;

pub static CARD: Card = Card {
    names: &["gemma"],
    hf: &[GEMMA],
    norm_weight_offset: 1.0,
    activation: Activation::GeluTanh,
    scaled_embeddings: true,
    ..Card::PLAIN
};

const GEMMA: HfKind = HfKind {
    model_type: "gemma",
    defaults: &[
        (Fact::ContextLength, 8192.0),
        (Fact::HiddenSize, 3072.0),
        (Fact::LayerCount, 28.0),
        (Fact::FfnSize, 24_576.0),
        (Fact::HeadCount, 16.0),
        (Fact::KvHeadCount, 16.0),
        (Fact::HeadDim, 256.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
    ],
    activation_fields: &["hidden_activation", "hidden_act"],
    // Files state `gelu` but mean the tanh approximation.
    activation_names: &[&[("gelu", Activation::GeluTanh)], ACTIVATIONS],
    ..HfKind::PLAIN
};
