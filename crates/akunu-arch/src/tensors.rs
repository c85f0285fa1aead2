//! Tensor rules: the names of each tensor in GGUF and Hugging Face files, its shape, and how a conversion treats it.

use crate::{LatentFacts, MambaFacts, ModelConfig, Shape};

/// A dimension of a tensor, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    Vocab,
    Hidden,
    Ffn,
    /// Query heads times head size.
    Query,
    /// KV heads times head size.
    KeyValue,
    /// Head size.
    Head,
    /// Number of query heads.
    Heads,
    KvHeads,
    /// Number of learned positions.
    Positions,
    /// Number of token types.
    TokenTypes,
    /// Number of classifier scores.
    Labels,
    /// Number of buckets of relative position biases.
    DistanceBuckets,
    /// Half the number of rotated dimensions.
    RopePairs,
    Experts,
    /// Feed-forward size of an expert.
    ExpertFfn,
    /// Of the expert that all tokens share.
    SharedFfn,
    /// Values of the vector that queries are made from.
    QueryRank,
    /// Elements of all heads' queries, in latent attention.
    LatentQuery,
    /// Values of the vector that keys and values are made from.
    Latent,
    /// Elements of a head's keys before those that RoPE rotates, of its values, and of all heads' values.
    PlainKey,
    Value,
    Values,
    /// Elements of all heads' keys, without those that RoPE rotates, and values.
    PlainKeysValues,
    /// Of layers with a state: heads, elements of all heads, channels of the convolution and positions that it reads, and what
    /// the first matrix gives.
    StateHeads,
    StateInner,
    StateChannels,
    StateTaps,
    StateMixed,
    /// Of the encoder of audio.
    EncoderFfn,
    EncoderPositions,
    /// What a convolution over three frames of mel bands multiplies, or of hidden states.
    ThreeFrames,
    ThreeStates,
}

/// The sizes of the dimensions in one model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_dims: usize,
    pub positions: usize,
    pub experts: ExpertSizes,
    pub latent: LatentSizes,
    pub mamba: Option<MambaFacts>,
    pub encoder: EncoderSizes,
}

/// The sizes of a mixture of experts; 0 without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertSizes {
    pub count: usize,
    pub ffn: usize,
    pub shared_ffn: usize,
}

/// The sizes of latent attention; 0 without it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatentSizes {
    pub size: usize,
    pub plain: usize,
    pub values: usize,
    pub query_rank: usize,
}

impl From<Option<LatentFacts>> for LatentSizes {
    fn from(latent: Option<LatentFacts>) -> LatentSizes {
        latent.map_or_else(LatentSizes::default, |latent| LatentSizes {
            size: latent.size,
            plain: latent.plain,
            values: latent.values,
            query_rank: latent.query_rank.unwrap_or(0),
        })
    }
}

/// The sizes of an encoder of audio; 0 without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderSizes {
    pub ffn: usize,
    pub positions: usize,
    pub bands: usize,
}

impl Dim {
    pub fn of(self, sizes: &Sizes) -> usize {
        match self {
            Dim::Vocab => sizes.vocab,
            Dim::Hidden => sizes.hidden,
            Dim::Ffn => sizes.ffn,
            Dim::Query => sizes.heads * sizes.head_dim,
            Dim::KeyValue => sizes.kv_heads * sizes.head_dim,
            Dim::Head => sizes.head_dim,
            Dim::Heads => sizes.heads,
            Dim::KvHeads => sizes.kv_heads,
            Dim::Positions => sizes.positions,
            Dim::TokenTypes => 2,
            Dim::Labels => 1,
            Dim::DistanceBuckets => 32,
            Dim::RopePairs => sizes.rope_dims / 2,
            Dim::Experts => sizes.experts.count,
            Dim::ExpertFfn => sizes.experts.ffn,
            Dim::SharedFfn => sizes.experts.shared_ffn,
            Dim::QueryRank => sizes.latent.query_rank,
            Dim::LatentQuery => sizes.heads * (sizes.latent.plain + sizes.rope_dims),
            Dim::Latent => sizes.latent.size,
            Dim::PlainKey => sizes.latent.plain,
            Dim::Value => sizes.latent.values,
            Dim::Values => sizes.heads * sizes.latent.values,
            Dim::PlainKeysValues => sizes.heads * (sizes.latent.plain + sizes.latent.values),
            Dim::StateHeads => sizes.mamba.map_or(0, |mamba| mamba.heads),
            Dim::StateInner => sizes.mamba.map_or(0, MambaFacts::inner),
            Dim::StateChannels => sizes.mamba.map_or(0, MambaFacts::channels),
            Dim::StateTaps => sizes.mamba.map_or(0, |mamba| mamba.taps),
            Dim::StateMixed => sizes.mamba.map_or(0, MambaFacts::mixed),
            Dim::EncoderFfn => sizes.encoder.ffn,
            Dim::EncoderPositions => sizes.encoder.positions,
            Dim::ThreeFrames => 3 * sizes.encoder.bands,
            Dim::ThreeStates => 3 * sizes.hidden,
        }
    }
}

impl From<&ModelConfig> for Sizes {
    fn from(config: &ModelConfig) -> Sizes {
        Sizes {
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            ffn: config.ffn_size,
            heads: config.head_count,
            kv_heads: config.kv_head_count,
            head_dim: config.head_dim,
            rope_dims: config.rope.dims,
            positions: config.context_length,
            experts: config.experts.map_or_else(ExpertSizes::default, |experts| ExpertSizes {
                count: experts.count,
                ffn: experts.ffn_size,
                shared_ffn: experts.shared_ffn_size.unwrap_or(0),
            }),
            latent: config.latent.into(),
            mamba: config.mamba,
            encoder: config.encoder.as_ref().map_or_else(EncoderSizes::default, |encoder| EncoderSizes {
                ffn: encoder.ffn_size,
                positions: encoder.positions,
                bands: encoder.bands,
            }),
        }
    }
}

impl From<&Shape> for Sizes {
    fn from(shape: &Shape) -> Sizes {
        Sizes {
            vocab: shape.vocab,
            hidden: shape.hidden,
            ffn: shape.ffn,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            rope_dims: shape.latent.map_or(shape.head_dim, |latent| shape.head_dim - latent.size),
            positions: shape.context,
            experts: shape.experts.map_or_else(ExpertSizes::default, |experts| ExpertSizes {
                count: experts.count,
                ffn: experts.ffn,
                shared_ffn: experts.shared_ffn.unwrap_or(0),
            }),
            latent: shape.latent.into(),
            mamba: shape.mamba.map(|mamba| mamba.facts),
            encoder: shape.encoder.map_or_else(EncoderSizes::default, |encoder| EncoderSizes {
                ffn: shape.ffn,
                positions: encoder.positions,
                bands: encoder.bands,
            }),
        }
    }
}

/// Whether a tensor occurs once in a model, or once in each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `hf` is the full Hugging Face name.
    Model,
    /// `hf` is the part of the Hugging Face name after the layer number.
    Layer,
    /// The same in the layers of an encoder.
    EncoderLayer,
}

/// How a conversion treats a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Matrix,
    /// The matrix of each expert, one after the other. Hugging Face files have them apart, with the number of the expert
    /// in the name, as in `mlp.experts.3.gate_proj`.
    Experts,
    /// The same, of matrices that write into the residual stream.
    ResidualExperts,
    /// A matrix that writes into the residual stream: random weights have a smaller spread, so that depth does not
    /// matter.
    Residual,
    /// Its rows are heads with RoPE: permuted if the RoPE layouts of the two kinds of files differ.
    Rotated,
    /// For each head the rows of its keys, then those of its values. Opening a file takes it apart.
    KeysValues,
    /// The card's `norm_weight_offset` is added.
    Norm,
    /// A parameter that is in no module of its own: its Hugging Face name does not end with `.weight`.
    Parameter,
    /// A parameter that is in no module of its own, and has the name of a bias: added to the scores of experts for choosing, or
    /// to the steps of a state.
    Bias,
    /// Divisors of the RoPE frequencies. Only in GGUF files, and optional.
    RopeFactors,
    /// The output matrix; if absent, the embedding is used.
    Output,
    /// A convolution over frames or positions: files have `[outputs][inputs][taps]`, here it is a matrix with `inputs · taps`
    /// columns.
    Convolution,
    /// A table of positions that are computed where the file has none: sines and cosines.
    Sinusoids,
}

/// A tensor, or one in each layer. `name` and `hf` do not contain `.weight`; tensors of layers may also have a `.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRule {
    /// Canonical name: GGUF's, without `blk.N.`.
    pub name: &'static str,
    /// Hugging Face name; `None` if those files have no such tensor.
    pub hf: Option<&'static str>,
    pub part: Part,
    pub kind: Kind,
    /// Outermost first.
    pub shape: &'static [Dim],
}

impl TensorRule {
    /// Whether it belongs to a classifier, which only some models of a family have.
    pub fn is_classifier(&self) -> bool {
        self.name == "cls" || self.name.starts_with("cls.")
    }

    /// Whether it belongs to a router or its experts.
    pub fn is_of_experts(&self) -> bool {
        self.name == "ffn_gate_inp" || self.name.ends_with("_exps") || self.name == "exp_probs_b"
    }

    /// Whether it belongs to a layer with a state.
    pub fn is_of_state(&self) -> bool {
        self.name.starts_with("ssm_")
    }

    /// Whether it belongs to attention, and not to a norm before or after it.
    pub fn is_of_attention(&self) -> bool {
        self.part == Part::Layer && self.name.starts_with("attn_") && self.name != "attn_norm"
    }

    /// Whether it is a norm of queries or keys.
    pub fn is_of_qk_norm(&self) -> bool {
        matches!(self.name, "attn_q_norm" | "attn_k_norm")
    }

    /// Whether it is one of the two matrices that make queries from a vector of fewer values, or the norm between them.
    pub fn is_of_query_rank(&self) -> bool {
        matches!(self.name, "attn_q_a" | "attn_q_a_norm" | "attn_q_b")
    }

    /// Whether it belongs to the expert that all tokens share.
    pub fn is_of_shared_expert(&self) -> bool {
        self.name.ends_with("_shexp")
    }

    /// Whether it is a matrix of a dense feed-forward part.
    pub fn is_of_dense_feed(&self) -> bool {
        self.part == Part::Layer && matches!(self.name, "ffn_gate" | "ffn_up" | "ffn_down")
    }
}

/// Tensors that a file may store fused into one, concatenated by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedRule {
    /// Canonical name. If it is also the name of the first part, the tensor is fused if there is no second part beside
    /// it.
    pub name: &'static str,
    pub hf: &'static str,
    /// Canonical names of the parts, in order.
    pub parts: &'static [&'static str],
    /// Layout in Hugging Face files; in GGUF files the parts are concatenated.
    pub layout: FusedLayout,
}

/// The row order of a fused tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedLayout {
    /// All rows of a part, then all rows of the next one.
    Parts,
    /// Grouped by KV head: its query heads, its key, its value; then the next KV head.
    KvHeads,
    /// Grouped by expert: all parts of the first, then of the next.
    Experts,
}

/// Prefixes of Hugging Face tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// Prefix of names outside layers; some files omit it.
    pub root: &'static str,
    /// Prefix of names in layers, including the root; followed by the layer number and a dot.
    pub layers: &'static str,
    /// The same for the layers of an encoder of audio.
    pub encoder_layers: Option<&'static str>,
    /// Prefixes that larger models put before all names; the first match is removed.
    pub prefixes: &'static [&'static str],
}

pub const fn layer(name: &'static str, hf: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: Some(hf), part: Part::Layer, kind, shape }
}

pub const fn model(name: &'static str, hf: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: Some(hf), part: Part::Model, kind, shape }
}

pub const fn encoder_layer(
    name: &'static str,
    hf: &'static str,
    kind: Kind,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { name, hf: Some(hf), part: Part::EncoderLayer, kind, shape }
}

/// A tensor that is separate in GGUF files, and fused in Hugging Face files.
pub const fn gguf_layer(name: &'static str, kind: Kind, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, hf: None, part: Part::Layer, kind, shape }
}

impl Naming {
    /// The kinds of layers: what their canonical names begin with, and their Hugging Face names.
    pub fn of_layers(&self) -> impl Iterator<Item = (Part, &'static str, &'static str)> + use<> {
        let encoder = self.encoder_layers.map(|layers| (Part::EncoderLayer, "enc.blk.", layers));
        [(Part::Layer, "blk.", self.layers)].into_iter().chain(encoder)
    }
}

pub const LLAMA_NAMING: Naming =
    Naming { root: "model.", layers: "model.layers.", encoder_layers: None, prefixes: PREFIXES };

/// Prefixes of language model tensors in multimodal checkpoints.
pub const PREFIXES: &[&str] = &["model.language_model.", "language_model.", ""];

/// The token embedding, and Llama 3's RoPE frequency divisors.
pub const EMBEDDING: &[TensorRule] = &[
    TensorRule {
        name: "rope_freqs",
        hf: None,
        part: Part::Model,
        kind: Kind::RopeFactors,
        shape: &[Dim::RopePairs],
    },
    model("token_embd", "model.embed_tokens", Kind::Matrix, &[Dim::Vocab, Dim::Hidden]),
];

/// The classifier on a decoder's last hidden state, in rerankers.
pub const SCORE: &[TensorRule] = &[model("cls.output", "score", Kind::Matrix, &[Dim::Labels, Dim::Hidden])];

/// Q, K and V.
pub const QKV_MATRICES: &[TensorRule] = &[
    layer("attn_q", "self_attn.q_proj", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "self_attn.k_proj", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
];

/// The norm before attention, Q, K and V.
pub const QKV: &[TensorRule] = &[
    layer("attn_norm", "input_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_q", "self_attn.q_proj", Kind::Rotated, &[Dim::Query, Dim::Hidden]),
    layer("attn_k", "self_attn.k_proj", Kind::Rotated, &[Dim::KeyValue, Dim::Hidden]),
    layer("attn_v", "self_attn.v_proj", Kind::Matrix, &[Dim::KeyValue, Dim::Hidden]),
];

/// One norm over all heads of Q together, and one over those of K.
pub const QK_ROW_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Query]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::KeyValue]),
];

/// Norms over each head of Q and K, with separate weights for each head.
pub const QK_PER_HEAD_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Heads, Dim::Head]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::KvHeads, Dim::Head]),
];

/// Norms over each head of Q and K, with weights shared by all heads.
pub const QK_NORMS: &[TensorRule] = &[
    layer("attn_q_norm", "self_attn.q_norm", Kind::Norm, &[Dim::Head]),
    layer("attn_k_norm", "self_attn.k_norm", Kind::Norm, &[Dim::Head]),
];

pub const ATTN_OUTPUT: &[TensorRule] =
    &[layer("attn_output", "self_attn.o_proj", Kind::Residual, &[Dim::Hidden, Dim::Query])];

/// Latent attention: queries, directly or from a vector of fewer values; the vector that all heads' keys and values are
/// made from, beside a rotated key that they share; and for each head the matrix that brings its queries to that vector,
/// and the one that makes its values from it. Hugging Face files have the last two in one (`latent.rs`).
pub const LATENT_ATTENTION: &[TensorRule] = &[
    layer("attn_norm", "input_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("attn_q", "self_attn.q_proj", Kind::Matrix, &[Dim::LatentQuery, Dim::Hidden]),
    layer("attn_q_a", "self_attn.q_a_proj", Kind::Matrix, &[Dim::QueryRank, Dim::Hidden]),
    layer("attn_q_a_norm", "self_attn.q_a_layernorm", Kind::Norm, &[Dim::QueryRank]),
    layer("attn_q_b", "self_attn.q_b_proj", Kind::Matrix, &[Dim::LatentQuery, Dim::QueryRank]),
    layer("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", Kind::Matrix, &[Dim::Head, Dim::Hidden]),
    layer("attn_kv_a_norm", "self_attn.kv_a_layernorm", Kind::Norm, &[Dim::Latent]),
    layer("attn_kv_b", "self_attn.kv_b_proj", Kind::KeysValues, &[Dim::PlainKeysValues, Dim::Latent]),
    gguf_layer("attn_k_b", Kind::Matrix, &[Dim::Heads, Dim::Latent, Dim::PlainKey]),
    gguf_layer("attn_v_b", Kind::Matrix, &[Dim::Heads, Dim::Value, Dim::Latent]),
    layer("attn_output", "self_attn.o_proj", Kind::Residual, &[Dim::Hidden, Dim::Values]),
];

/// The norm before the feed-forward part, as LLaMA calls it.
pub const FFN_NORM: &[TensorRule] =
    &[layer("ffn_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden])];

/// The same norm in GGUF files of families whose names are those of Hugging Face.
pub const SECOND_NORM: &[TensorRule] =
    &[layer("post_attention_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden])];

/// Norms before and after attention and the feed-forward part. `post_attention_layernorm` follows attention here; in
/// LLaMA, the tensor of the same name precedes the feed-forward part.
pub const SANDWICH_NORMS: &[TensorRule] = &[
    layer("post_attention_norm", "post_attention_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("post_ffw_norm", "post_feedforward_layernorm", Kind::Norm, &[Dim::Hidden]),
    layer("ffn_norm", "pre_feedforward_layernorm", Kind::Norm, &[Dim::Hidden]),
];

/// A gated feed-forward part.
pub const GATED_FFN: &[TensorRule] = &[
    layer("ffn_gate", "mlp.gate_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_up", "mlp.up_proj", Kind::Matrix, &[Dim::Ffn, Dim::Hidden]),
    layer("ffn_down", "mlp.down_proj", Kind::Residual, &[Dim::Hidden, Dim::Ffn]),
];

pub const ROUTER: &[TensorRule] =
    &[layer("ffn_gate_inp", "mlp.gate", Kind::Matrix, &[Dim::Experts, Dim::Hidden])];

pub const EXPERTS: &[TensorRule] = &[
    layer(
        "ffn_gate_exps",
        "mlp.experts.gate_proj",
        Kind::Experts,
        &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden],
    ),
    layer("ffn_up_exps", "mlp.experts.up_proj", Kind::Experts, &[Dim::Experts, Dim::ExpertFfn, Dim::Hidden]),
    layer(
        "ffn_down_exps",
        "mlp.experts.down_proj",
        Kind::ResidualExperts,
        &[Dim::Experts, Dim::Hidden, Dim::ExpertFfn],
    ),
];

/// Added to the scores of experts for choosing.
pub const EXPERT_BIAS: &[TensorRule] =
    &[layer("exp_probs_b", "mlp.gate.e_score_correction", Kind::Bias, &[Dim::Experts])];

/// The experts that all tokens share, as one without a gate.
pub const SHARED_EXPERTS: &[TensorRule] = &[
    layer("ffn_gate_shexp", "mlp.shared_experts.gate_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_up_shexp", "mlp.shared_experts.up_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_down_shexp", "mlp.shared_experts.down_proj", Kind::Residual, &[Dim::Hidden, Dim::SharedFfn]),
];

/// The expert that all tokens share, and its gate.
pub const SHARED_EXPERT: &[TensorRule] = &[
    layer("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Kind::Matrix, &[Dim::Hidden]),
    layer("ffn_gate_shexp", "mlp.shared_expert.gate_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_up_shexp", "mlp.shared_expert.up_proj", Kind::Matrix, &[Dim::SharedFfn, Dim::Hidden]),
    layer("ffn_down_shexp", "mlp.shared_expert.down_proj", Kind::Residual, &[Dim::Hidden, Dim::SharedFfn]),
];

pub const OUTPUT: &[TensorRule] = &[
    model("output_norm", "model.norm", Kind::Norm, &[Dim::Hidden]),
    model("output", "lm_head", Kind::Output, &[Dim::Vocab, Dim::Hidden]),
];

pub const LLAMA_TENSORS: &[&[TensorRule]] = &[EMBEDDING, QKV, ATTN_OUTPUT, FFN_NORM, GATED_FFN, OUTPUT];

/// Fused Q, K and V.
pub const FUSED_QKV: FusedRule = FusedRule {
    name: "attn_qkv",
    hf: "self_attn.qkv_proj",
    parts: &["attn_q", "attn_k", "attn_v"],
    layout: FusedLayout::Parts,
};

/// Fused gate and up. GGUF has no name for it: an `ffn_up` without an `ffn_gate` contains both.
pub const FUSED_GATE_UP: FusedRule = FusedRule {
    name: "ffn_up",
    hf: "mlp.gate_up_proj",
    parts: &["ffn_gate", "ffn_up"],
    layout: FusedLayout::Parts,
};

/// Phi 3's fused tensors. Checkpoints of other families that were saved in this form open as well.
pub const LLAMA_FUSED: &[FusedRule] = &[FUSED_QKV, FUSED_GATE_UP];
