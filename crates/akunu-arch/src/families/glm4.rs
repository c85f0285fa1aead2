//! GLM 4 (0414) and the older GLM 4 9B. The newer one has norms before and after each part; in both, RoPE rotates half
//! of each head in the interleaved layout.

use crate::card::{Card, HfKind, RopeStyle};
use crate::facts::Fact;
use crate::tensors::{
    ATTN_OUTPUT, Dim, EMBEDDING, GATED_FFN, Kind, LLAMA_TENSORS, OUTPUT, QKV, TensorRule, layer,
};
use crate::tower::{pre_norm, sandwich};

pub static CARD: Card = Card {
    names: &["glm4"],
    hf: &[GLM4_KIND],
    tensors: &[EMBEDDING, QKV, ATTN_OUTPUT, NORMS, GATED_FFN, OUTPUT],
    fused_in_gguf: true,
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    layer: sandwich,
    ..Card::PLAIN
};

/// GLM 4 9B.
pub static GLM: Card = Card {
    names: &["chatglm", "glm"],
    hf: &[HfKind { model_type: "glm", ..GLM4_KIND }],
    tensors: LLAMA_TENSORS,
    layer: pre_norm,
    fused_in_gguf: true,
    gguf_rope: RopeStyle::Interleaved,
    hf_rope: RopeStyle::Interleaved,
    ..Card::PLAIN
};

const NORMS: &[TensorRule] = &[
    layer("post_attention_norm", "post_self_attn_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("post_ffw_norm", "post_mlp_layernorm", Kind::Norm, &[Dim::Hidden]),
];

const GLM4_KIND: HfKind = HfKind {
    model_type: "glm4",
    defaults: &[
        (Fact::ContextLength, 131_072.0),
        (Fact::HiddenSize, 4096.0),
        (Fact::LayerCount, 40.0),
        (Fact::FfnSize, 13_696.0),
        (Fact::HeadCount, 32.0),
        (Fact::KvHeadCount, 2.0),
        (Fact::HeadDim, 128.0),
        (Fact::NormEpsilon, 1.5625e-7),
        (Fact::RopeBase, 10_000.0),
        (Fact::PartialRotaryFactor, 0.5),
    ],
    ..HfKind::PLAIN
};
