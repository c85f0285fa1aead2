//! Whisper and its distilled forms: an encoder of log-mel frames, and a decoder of tokens that attends to its states.

use crate::card::{Card, HfKind};
use crate::facts::{Fact, FactRule, LAYER_NORM, LLAMA_FACTS, fact};
use crate::tensors::{Dim, Kind, Naming, Part, TensorRule, encoder_layer, layer, model};
use crate::tower::{FeedForwardKind, NormKind, pre_norm_across};
use crate::{Activation, Biases, EncoderShape, RopeScaling, Shape};

pub static CARD: Card = Card {
    names: &["whisper"],
    facts: &[LLAMA_FACTS, FACTS, LAYER_NORM],
    hf: &[WHISPER],
    tensors: &[ENCODER, ENCODER_LAYER, DECODER, DECODER_LAYER],
    fused: &[],
    naming: Naming {
        root: "decoder.",
        layers: "decoder.layers.",
        encoder_layers: Some("encoder.layers."),
        prefixes: &["model.", ""],
    },
    ggml_names: GGML_NAMES,
    layer: pre_norm_across,
    norm: NormKind::Layer,
    feed: FeedForwardKind::Plain,
    activation: Activation::GeluErf,
    rotary: false,
    hears: true,
    shapes: &[TINY, BASE, SMALL, MEDIUM, LARGE_V3, TURBO],
    ..Card::PLAIN
};

const FACTS: &[FactRule] = &[
    fact(Fact::ContextLength, &["context_length"], &["max_target_positions"]),
    fact(Fact::HiddenSize, &["embedding_length"], &["d_model"]),
    fact(Fact::LayerCount, &["block_count"], &["decoder_layers"]),
    fact(Fact::FfnSize, &["feed_forward_length"], &["decoder_ffn_dim"]),
    fact(Fact::HeadCount, &["attention.head_count"], &["decoder_attention_heads"]),
    fact(Fact::EncoderPositions, &["encoder.context_length"], &["max_source_positions"]),
    fact(Fact::EncoderLayerCount, &["encoder.block_count"], &["encoder_layers"]),
    fact(Fact::EncoderFfnSize, &["encoder.feed_forward_length"], &["encoder_ffn_dim"]),
    fact(Fact::EncoderHeadCount, &["encoder.attention.head_count"], &["encoder_attention_heads"]),
    fact(Fact::MelBands, &["encoder.mel_bands"], &["num_mel_bins"]),
];

const ENCODER: &[TensorRule] = &[
    model("enc.conv1", "encoder.conv1", Kind::Convolution, &[Dim::Hidden, Dim::ThreeFrames]),
    model("enc.conv2", "encoder.conv2", Kind::Convolution, &[Dim::Hidden, Dim::ThreeStates]),
    model(
        "enc.position_embd",
        "encoder.embed_positions",
        Kind::Sinusoids,
        &[Dim::EncoderPositions, Dim::Hidden],
    ),
    model("enc.output_norm", "encoder.layer_norm", Kind::Norm, &[Dim::Hidden]),
];

const ENCODER_LAYER: &[TensorRule] = &[
    encoder_layer("attn_norm", "self_attn_layer_norm", Kind::Norm, &[Dim::Hidden]),
    encoder_layer("attn_q", "self_attn.q_proj", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    encoder_layer("attn_k", "self_attn.k_proj", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    encoder_layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::Hidden, Dim::Hidden]),
    encoder_layer("attn_output", "self_attn.out_proj", Kind::Residual, &[Dim::Hidden, Dim::Hidden]),
    encoder_layer("ffn_norm", "final_layer_norm", Kind::Norm, &[Dim::Hidden]),
    encoder_layer("ffn_up", "fc1", Kind::Matrix, &[Dim::EncoderFfn, Dim::Hidden]),
    encoder_layer("ffn_down", "fc2", Kind::Residual, &[Dim::Hidden, Dim::EncoderFfn]),
];

const DECODER: &[TensorRule] = &[
    model("token_embd", "decoder.embed_tokens", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
    model("position_embd", "decoder.embed_positions", Kind::Matrix, &[Dim::Positions, Dim::Hidden]),
    model("output_norm", "decoder.layer_norm", Kind::Norm, &[Dim::Hidden]),
    model("output", "proj_out", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

const DECODER_LAYER: &[TensorRule] = &[
    layer("attn_norm", "self_attn_layer_norm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_q", "self_attn.q_proj", Kind::Matrix, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "self_attn.k_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_output", "self_attn.out_proj", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("cross_attn_norm", "encoder_attn_layer_norm", Kind::Norm, &[Dim::Hidden]),
    layer("cross_attn_q", "encoder_attn.q_proj", Kind::Matrix, &[Dim::Query, Dim::Hidden]),
    layer("cross_attn_k", "encoder_attn.k_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("cross_attn_v", "encoder_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
    layer("cross_attn_output", "encoder_attn.out_proj", Kind::Residual, &[Dim::Hidden, Dim::Query]),
    layer("ffn_norm", "final_layer_norm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_up", "fc1", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "fc2", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
];

/// Those of OpenAI's implementation.
const GGML_NAMES: &[(Part, &str, &str)] = &[
    (Part::Model, "encoder.conv1", "enc.conv1"),
    (Part::Model, "encoder.conv2", "enc.conv2"),
    (Part::Model, "encoder.positional_embedding", "enc.position_embd"),
    (Part::Model, "encoder.ln_post", "enc.output_norm"),
    (Part::Model, "decoder.token_embedding", "token_embd"),
    (Part::Model, "decoder.positional_embedding", "position_embd"),
    (Part::Model, "decoder.ln", "output_norm"),
    (Part::EncoderLayer, "attn_ln", "attn_norm"),
    (Part::EncoderLayer, "attn.query", "attn_q"),
    (Part::EncoderLayer, "attn.key", "attn_k"),
    (Part::EncoderLayer, "attn.value", "attn_v"),
    (Part::EncoderLayer, "attn.out", "attn_output"),
    (Part::EncoderLayer, "mlp_ln", "ffn_norm"),
    (Part::EncoderLayer, "mlp.0", "ffn_up"),
    (Part::EncoderLayer, "mlp.2", "ffn_down"),
    (Part::Layer, "attn_ln", "attn_norm"),
    (Part::Layer, "attn.query", "attn_q"),
    (Part::Layer, "attn.key", "attn_k"),
    (Part::Layer, "attn.value", "attn_v"),
    (Part::Layer, "attn.out", "attn_output"),
    (Part::Layer, "cross_attn_ln", "cross_attn_norm"),
    (Part::Layer, "cross_attn.query", "cross_attn_q"),
    (Part::Layer, "cross_attn.key", "cross_attn_k"),
    (Part::Layer, "cross_attn.value", "cross_attn_v"),
    (Part::Layer, "cross_attn.out", "cross_attn_output"),
    (Part::Layer, "mlp_ln", "ffn_norm"),
    (Part::Layer, "mlp.0", "ffn_up"),
    (Part::Layer, "mlp.2", "ffn_down"),
];

const WHISPER: HfKind = HfKind {
    model_type: "whisper",
    defaults: &[
        (Fact::ContextLength, 448.0),
        (Fact::HiddenSize, 384.0),
        (Fact::LayerCount, 4.0),
        (Fact::FfnSize, 1536.0),
        (Fact::HeadCount, 6.0),
        (Fact::EncoderPositions, 1500.0),
        (Fact::EncoderLayerCount, 4.0),
        (Fact::EncoderFfnSize, 1536.0),
        (Fact::EncoderHeadCount, 6.0),
        (Fact::MelBands, 80.0),
        (Fact::NormEpsilon, 1e-5),
        (Fact::RopeBase, 10_000.0),
    ],
    activation_fields: &["activation_function"],
    refused: &[("scale_embedding", true)],
    ..HfKind::PLAIN
};

const TINY: Shape = Shape {
    name: "whisper-tiny",
    title: "Whisper tiny",
    toy: false,
    vocab: 51_865,
    context: 448,
    hidden: 384,
    layers: 4,
    ffn: 1536,
    heads: 6,
    kv_heads: 6,
    head_dim: 64,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    window: None,
    epsilon: 1e-5,
    tied: true,
    biases: Biases::AllButKeys,
    pooling: None,
    experts: None,
    latent: None,
    mamba: None,
    encoder: Some(EncoderShape { layers: 4, positions: 1500, bands: 80 }),
};

const BASE: Shape = Shape {
    name: "whisper-base",
    title: "Whisper base",
    hidden: 512,
    layers: 6,
    ffn: 2048,
    heads: 8,
    kv_heads: 8,
    encoder: Some(EncoderShape { layers: 6, positions: 1500, bands: 80 }),
    ..TINY
};

const SMALL: Shape = Shape {
    name: "whisper-small",
    title: "Whisper small",
    hidden: 768,
    layers: 12,
    ffn: 3072,
    heads: 12,
    kv_heads: 12,
    encoder: Some(EncoderShape { layers: 12, positions: 1500, bands: 80 }),
    ..TINY
};

const MEDIUM: Shape = Shape {
    name: "whisper-medium",
    title: "Whisper medium",
    hidden: 1024,
    layers: 24,
    ffn: 4096,
    heads: 16,
    kv_heads: 16,
    encoder: Some(EncoderShape { layers: 24, positions: 1500, bands: 80 }),
    ..TINY
};

const LARGE_V3: Shape = Shape {
    name: "whisper-large-v3",
    title: "Whisper large-v3",
    vocab: 51_866,
    hidden: 1280,
    layers: 32,
    ffn: 5120,
    heads: 20,
    kv_heads: 20,
    encoder: Some(EncoderShape { layers: 32, positions: 1500, bands: 128 }),
    ..TINY
};

const TURBO: Shape = Shape { name: "whisper-turbo", title: "Whisper large-v3-turbo", layers: 4, ..LARGE_V3 };
