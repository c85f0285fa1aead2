//! OLMo 2: norms only after each part; Q and K are normalized over all heads together.

use crate::card::{Card, HfKind};
use crate::facts::Fact;
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, GATED_FFN, Kind, OUTPUT, QK_ROW_NORMS, QKV_MATRICES, TensorRule, layer,
};
use crate::tower::{QkNorm, post_norm};

pub static CARD: Card = Card {
    names: &["olmo2"],
    hf: &[OLMO2],
    tensors: &[EMBEDDING, QKV_MATRICES, QK_ROW_NORMS, ATTN_OUTPUT, POST_NORMS, GATED_FFN, OUTPUT],
    layer: post_norm,
    qk_norm: Some(QkNorm::Row),
    ..Card::PLAIN
};

const POST_NORMS: &[TensorRule] = &[
    layer("post_attention_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("post_ffw_norm", "post_feedforward_layernorm", Kind::Norm, &[Dim::Hidden]),
];

const OLMO2: HfKind = HfKind {
    model_type: "olmo2",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 11_008.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    ..HfKind::PLAIN
};
