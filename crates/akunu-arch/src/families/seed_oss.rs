//! Seed-OSS: LLaMA with biases on Q, K and V. GGUF files call the norm before the feed-forward part by the name that it
//! has in Hugging Face files.

use crate::card::{Card, HfKind};
use crate::facts::Fact;
use crate::tensors::{ATTN_OUTPUT, EMBEDDING, GATED_FFN, OUTPUT, QKV, SECOND_NORM};
use crate::tower::pre_norm_second;

pub static CARD: Card = Card {
    names: &["seed_oss"],
    hf: &[SEED_OSS],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, SECOND_NORM, GATED_FFN, OUTPUT],
    layer: pre_norm_second,
    ..Card::PLAIN
};

const SEED_OSS: HfKind = HfKind {
    model_type: "seed_oss",
    defaults: &[
        (Fact::ContextLength, 524_288.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 64.0),
        (Fact::FfnSize, 27_648.0),
        (Fact::HeadCount, 80.0),
        (Fact::KvHeadCount, 8.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1e-6),
        (Fact::RopeBase, 10_000.0),
    ],
    ..HfKind::PLAIN
};
