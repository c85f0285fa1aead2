//! EXAONE 3 and 3.5: LLaMA with other tensor names.

use crate::card::{Card, HfKind};
use crate::facts::{Fact, FactRule, LLAMA_FACTS, fact};
use crate::tensors::{Dim, Kind, Naming, PREFIXES, TensorRule, layer, model};

pub static CARD: Card = Card {
    names: &["exaone"],
    facts: &[LLAMA_FACTS, FACTS],
    hf: &[EXAONE],
    tensors: &[TENSORS],
    fused: &[],
    naming: Naming {
        root: "transformer.",
        layers: "transformer.h.",
        encoder_layers: None,
        prefixes: PREFIXES,
    },
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::LayerCount, &["block_count"], &["num_layers", "num_hidden_layers"]),
    // llama.cpp's converter writes the second key by mistake.
    fact(
        Fact::NormEpsilon,
        &["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"],
        &["layer_norm_epsilon"],
    ),
];

const TENSORS: &[TensorRule] = &[
    TensorRule {
        name: "rope_freqs",
        hf: None,
        part: crate::tensors::Part::Model,
        kind: Kind::RopeFactors,
        shape: &[Dim::RopePairs],
    },
    model("token_embd", "transformer.wte", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    layer("attn_norm", "ln_1", Kind::Norm, &[Dim::Hidden]),
    layer("attn_q", "attn.attention.q_proj", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "attn.attention.k_proj", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "attn.attention.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "attn.attention.out_proj", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_norm", "ln_2", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_gate", "mlp.c_fc_0", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_up", "mlp.c_fc_1", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.c_proj", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
    model("output_norm", "transformer.ln_f", Kind::Norm, &[Dim::Hidden]),
    model("output", "lm_head", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const EXAONE: HfKind = HfKind {
    model_type: "exaone",
    defaults: &[
        (Fact::ContextLength, 2048.0),
        (Fact::HiddenSize, 2048.0),
        (Fact::LayerCount, 32.0),
        (Fact::FfnSize, 8192.0),
        (Fact::HeadCount, 32.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    activation_fields: &["activation_function"],
    ..HfKind::PLAIN
};
